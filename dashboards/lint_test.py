#!/usr/bin/env python3
"""The linter finds what is planted: every rule is broken once, in a copy of a dashboard that breaks none."""

import copy
import unittest

import lint
from panels import dashboards, families, filled, rows_of


def first(board, kind="timeseries"):
    return next(panel for panel in board["panels"] if panel["type"] == kind)


def variable(board, name):
    return next(one for one in board["templating"]["list"] if one["name"] == name)


def ask(board, expression, legend=None):
    """Plants a query in the first panel."""
    target = first(board)["targets"][0]
    target["expr"] = expression
    target["legendFormat"] = legend or "one"


MATCHED = 'job=~"$job", instance=~"$instance"'
RUNNING = f"tributary_requests_running{{{MATCHED}}}"
TOTAL = f"tributary_requests_total{{{MATCHED}}}"
BUCKET = f"tributary_request_duration_seconds_bucket{{{MATCHED}}}"

# The rule that is broken, and how.
PLANTED = [
    ("datasource-variable", lambda board: board["templating"]["list"].pop(0)),
    ("job-variable", lambda board: variable(board, "job").update(multi=False)),
    ("job-variable", lambda board: variable(board, "job").update(allValue=".*")),
    ("instance-variable", lambda board: variable(board, "instance").update(definition="label_values(up, instance)")),
    ("instance-variable", lambda board: board["templating"]["list"].pop(2)),
    ("hard-coded-datasource", lambda board: variable(board, "job").update(datasource={"type": "prometheus", "uid": "P18"})),
    ("dashboard-names", lambda board: board.update(uid="")),
    ("dashboard-names", lambda board: board.update(id=7)),
    ("schema-version", lambda board: board.update(schemaVersion=16)),
    ("uneditable", lambda board: board.update(editable=True)),
    ("dashboard-tags", lambda board: board.update(tags=[])),
    ("unique-ids", lambda board: board["panels"][1].update(id=board["panels"][0]["id"])),
    ("unique-ids", lambda board: first(board)["targets"].append(dict(first(board)["targets"][0]))),
    ("grid", lambda board: board["panels"][0]["gridPos"].update(x=20)),
    ("grid", lambda board: board["panels"][0].pop("gridPos")),
    ("overlap", lambda board: board["panels"][1]["gridPos"].update(x=board["panels"][0]["gridPos"]["x"])),
    ("row", lambda board: rows_of(board)[0].update(collapsed=False)),
    ("row", lambda board: rows_of(board)[0].update(panels=[])),
    ("row", lambda board: rows_of(board)[0].update(title="More")),
    ("optional", lambda board: ask(board, f"tributary_training_loss{{{MATCHED}}}")),
    ("overlap", lambda board: rows_of(board)[0]["panels"][0]["gridPos"].update(y=0)),
    ("panel-title", lambda board: first(board).update(title="")),
    ("panel-description", lambda board: first(board).pop("description")),
    ("panel-description", lambda board: first(board).update(description="todo")),
    ("panel-unit", lambda board: first(board)["fieldConfig"]["defaults"].pop("unit")),
    ("panel-datasource", lambda board: first(board).pop("datasource")),
    ("panel-targets", lambda board: first(board).update(targets=[])),
    ("target-datasource", lambda board: first(board)["targets"][0].update(datasource="Prometheus")),
    ("legend", lambda board: first(board)["targets"][0].update(legendFormat="__auto")),
    ("legend", lambda board: first(board)["targets"][0].pop("legendFormat")),
    ("legend", lambda board: ask(board, f"sum by (method) (rate({TOTAL}[$__rate_interval]))", "{{outcome}}")),
    ("target-metrics", lambda board: ask(board, "up")),
    ("target-matchers", lambda board: ask(board, "tributary_requests_running")),
    ("target-matchers", lambda board: ask(board, 'tributary_requests_running{job=~"$job"}')),
    ("rate-interval", lambda board: ask(board, f"sum(rate({TOTAL}[5m]))")),
    ("rate-interval", lambda board: ask(board, f"sum(rate(({TOTAL})[$__rate_interval:]))")),
    ("counter-rate", lambda board: ask(board, f"sum({TOTAL})")),
    ("counter-rate", lambda board: ask(board, f"rate({RUNNING}[$__rate_interval])")),
    ("histogram", lambda board: ask(board, f"histogram_quantile(0.5, sum by (method) (rate({BUCKET}[$__rate_interval])))")),
    ("histogram", lambda board: ask(board, f"histogram_quantile(0.5, rate({BUCKET}[$__rate_interval]))")),
]


class Planted(unittest.TestCase):
    def test_the_dashboards_break_no_rule(self):
        self.assertEqual(lint.judge_all(dashboards()), [])

    def test_what_is_planted_is_found(self):
        for rule, plant in PLANTED:
            board = copy.deepcopy(dashboards()["overview"])
            plant(board)
            self.assertIn(rule, {found for found, _, _ in lint.judge("planted", board)}, rule)

    def test_every_rule_is_planted(self):
        with open(lint.__file__, encoding="utf-8") as file:
            text = file.read()
        names = set(lint.re.findall(r'(?:yield|append\(\() ?"([a-z-]+)",', text))
        names |= {"job-variable", "instance-variable"}
        self.assertEqual(names, {rule for rule, _ in PLANTED})

    def test_two_dashboards_have_two_names(self):
        board = dashboards()["overview"]
        self.assertEqual({rule for rule, _, _ in lint.judge_all({"a": board, "b": board})}, {"unique-ids"})

    def test_quantiles_and_mere_words_are_no_mistakes(self):
        for expression in (
            f"histogram_quantile(0.5, sum by (le, method) (rate({BUCKET}[$__rate_interval])))",
            f'sum({RUNNING.replace("}", ", stage=" + chr(34) + "rate (late)" + chr(34) + "}")})',
        ):
            board = copy.deepcopy(dashboards()["overview"])
            ask(board, expression)
            self.assertEqual(lint.judge("planted", board), [])


class Exported(unittest.TestCase):
    TEXT = "\n".join(
        [
            "# TYPE tributary_requests_running gauge",
            "tributary_requests_running 1",
            "# TYPE tributary_request_duration_seconds histogram",
            "# TYPE tributary_requests_total counter",
        ]
    )
    BOARD = {"panels": [{"targets": [{"expr": f"rate({BUCKET}[$__rate_interval])"}, {"expr": RUNNING}]}]}
    RULES = "expr: rate(tributary_requests_total[5m]) > 0"

    def found(self, board=None, rules=RULES, text=TEXT):
        return lint.differences({"one": board or self.BOARD}, rules, families(text))

    def test_parts_of_a_histogram_belong_to_it(self):
        self.assertEqual(self.found(), [])

    def test_a_misspelt_name_is_found(self):
        board = {"panels": [*self.BOARD["panels"], {"targets": [{"expr": "tributary_request_runing"}]}]}
        self.assertEqual(self.found(board), ["tributary_request_runing stands in a panel or rule, and nothing exports it"])

    def test_a_gauge_has_no_buckets(self):
        self.assertEqual(len(self.found(rules=self.RULES + " + tributary_requests_running_bucket")), 1)

    def test_what_is_not_shown_is_found(self):
        self.assertEqual(
            self.found(rules=""), ["tributary_requests_total is exported, and stands in no panel and no rule"]
        )

    def test_names_in_texts_do_not_count(self):
        self.assertEqual(len(self.found(rules='record: x{name="tributary_requests_total"}')), 1)


class Filled(unittest.TestCase):
    def test_the_rate_interval_is_grafanas(self):
        self.assertEqual(filled("rate(x[$__rate_interval])", 1, 1), "rate(x[4s])")
        self.assertEqual(filled("rate(x[${__rate_interval}])", 60, 15), "rate(x[75s])")

    def test_an_unknown_variable_is_an_error(self):
        with self.assertRaises(SystemExit):
            filled('x{rank="$rank"}', 1, 1)


if __name__ == "__main__":
    unittest.main()
