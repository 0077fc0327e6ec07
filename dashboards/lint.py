#!/usr/bin/env python3
"""Judges the dashboards by rules like those of Grafana's own dashboard-linter, and what they ask for by what is exported.

    lint.py                 all rules; says what breaks them, and fails if anything does
    lint.py --expressions   prints every query as a rule file, so that `promtool check rules` reads its PromQL
    lint.py --against FILE... the metrics in panels and rules are those of these exporters' texts, no more and no fewer
"""

import re
import sys

from panels import dashboards, families, family, filled, metrics_of, panels_of, queries, rows_of, rule_text, without_words

# Metrics of what is not in use unless an option asks for it: their panels stand in rows of their own, which are folded.
OPTIONAL = re.compile(r"tributary_(chunk_store|eviction|training|job|predicted|pictures?)_")
WIDTH = 24  # of Grafana's grid
SCHEMA_VERSIONS = range(39, 43)  # Grafana 11 and 12
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MATCHERS = ('job=~"$job"', 'instance=~"$instance"')
OVER_TIME = r"\b(rate|increase|irate|delta|idelta|deriv|changes|resets|\w+_over_time)\s*\("


def variables(board):
    """The data source is a variable, and so are job and instance, of which several can be chosen."""
    known = {variable["name"]: variable for variable in board.get("templating", {}).get("list", [])}
    source = known.get("datasource", {})
    if (source.get("type"), source.get("query")) != ("datasource", "prometheus"):
        yield "datasource-variable", "there is no variable `datasource` for data sources of type prometheus"
    for name in ("job", "instance"):
        variable = known.get(name)
        if variable is None:
            yield f"{name}-variable", f"there is no variable `{name}`"
            continue
        if not (variable.get("multi") and variable.get("includeAll") and variable.get("allValue") == ".+"):
            yield f"{name}-variable", "several values, all among them, can be chosen, and all of them is `.+`"
        if not re.fullmatch(rf"label_values\(tributary_.*, {name}\)", variable.get("definition", "")):
            yield f"{name}-variable", "its values are those of a label of our metrics"


def sources(node, path=""):
    """No data source is named but by the variable."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "datasource" and value != SOURCE:
                yield "hard-coded-datasource", f"{path or 'the dashboard'}: {value}"
            else:
                yield from sources(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from sources(value, f"{path}.{index}")


def whole(board):
    """What holds for a dashboard as a whole."""
    if not board.get("title") or not board.get("uid") or not board.get("description"):
        yield "dashboard-names", "a dashboard has a title, a uid and a description"
    if board.get("id") is not None:
        yield "dashboard-names", "its id is Grafana's to give"
    if board.get("schemaVersion") not in SCHEMA_VERSIONS:
        yield "schema-version", f"{board.get('schemaVersion')} is not of Grafana 11 or 12"
    if board.get("editable", True):
        yield "uneditable", "what is provisioned is not edited in place"
    if "tributary" not in board.get("tags", []):
        yield "dashboard-tags", "the tag `tributary` links the dashboards"


def grid(panels):
    """Panels have numbers of their own and lie side by side."""
    taken = {}
    numbers = set()
    for panel in panels:
        name, place = panel.get("title"), panel.get("gridPos", {})
        if panel.get("id") is None or panel["id"] in numbers:
            yield "unique-ids", f"{name}: id {panel.get('id')}"
        numbers.add(panel.get("id"))
        x, y, width, height = (place.get(key, -1) for key in "xywh")
        if min(x, y) < 0 or min(width, height) < 1 or x + width > WIDTH:
            yield "grid", f"{name} lies outside of {WIDTH} columns: {place}"
            continue
        for cell in ((column, row) for column in range(x, x + width) for row in range(y, y + height)):
            if cell in taken and taken[cell] != panel.get("id"):
                yield "overlap", f"{name} lies on panel {taken[cell]}"
                break
            taken[cell] = panel.get("id")


def rows(board):
    """A row is folded, says what it is for, and holds panels; what an option must ask for stands in one, and nothing else does."""
    for row in rows_of(board):
        if not row.get("collapsed") or not row.get("panels") or "--" not in row.get("title", ""):
            yield "row", f"{row.get('title')}: a row is folded, has panels and names the option that they are for"
    folded = [panel for row in rows_of(board) for panel in row.get("panels", [])]
    for panel in panels_of(board):
        is_optional = any(OPTIONAL.match(name) for query in queries(panel) for name in metrics_of(query.expression))
        if is_optional and panel not in folded:
            yield "optional", f"{panel.get('title')} is of a feature that may not be in use, and belongs into a row of its own"


def panel_words(panel):
    """A panel says what it shows, in words and in a unit."""
    if not panel.get("title"):
        yield "panel-title", f"panel {panel.get('id')} has no title"
    if not re.fullmatch(r"[A-Za-z0-9].{19,}\.", panel.get("description", "").strip(), re.DOTALL):
        yield "panel-description", f"`{panel.get('description', '')}` is no sentence"
    if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
        yield "panel-unit", "no unit"
    if panel.get("datasource") != SOURCE:
        yield "panel-datasource", f"{panel.get('datasource')} is not the variable"
    if not panel.get("targets"):
        yield "panel-targets", "it asks for nothing"


def target_words(target):
    """A query has a name of its own, a legend that its labels can fill, and the data source."""
    legend, expression = target.get("legendFormat", ""), target.get("expr", "")
    if not legend or legend == "__auto":
        yield "legend", "no legend"
    kept = {label.strip() for labels in re.findall(r"\bby\s*\(([^)]*)\)", expression) for label in labels.split(",")}
    for label in re.findall(r"{{\s*(\w+)\s*}}", legend):
        if kept and label not in kept:
            yield "legend", f"{{{{{label}}}}} is no label of the answer: {expression}"
    if target.get("datasource") != SOURCE:
        yield "target-datasource", f"{target.get('datasource')} is not the variable"


def selectors(expression):
    """Metrics with their matchers: `name`, `{..}` (or nothing), `[..]` (or nothing)."""
    return re.findall(r"(?<![\w:])(tributary[_:][a-z0-9_:]+)(\{[^}]*\})?(\[[^\]]*\])?", expression)


def target_query(target):
    """A query asks what is chosen above, over windows that Grafana chooses, and takes rates of counters."""
    expression = target.get("expr", "")
    found = selectors(expression)
    if not found:
        yield "target-metrics", f"no metric of ours: {expression}"
    for name, matchers, window in found:
        for matcher in MATCHERS:
            if matcher not in matchers:
                yield "target-matchers", f"{name} without {matcher}"
        if window and window != "[$__rate_interval]":
            yield "rate-interval", f"{name}{window} instead of [$__rate_interval]"
        is_counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
        if is_counter and not window:
            yield "counter-rate", f"{name} counts: its rate or increase is wanted"
        if not is_counter and window:
            yield "counter-rate", f"{name} does not count: it has no rate"
    if len(re.findall(OVER_TIME, without_words(expression))) != sum(bool(window) for *_, window in found):
        yield "rate-interval", f"a function over time without a window: {expression}"
    for inner in re.findall(r"histogram_quantile\s*\([^,]+,\s*([^{]*)\{", expression):
        if not re.match(r"sum by \(([^)]*\b)?le\b[^)]*\) \(rate\(tributary_\w+_bucket$", inner):
            yield "histogram", f"a quantile is of `sum by (le, ..) (rate(.._bucket..))`: {expression}"


def judge(name, board):
    """What is wrong with a dashboard: the rule, where, and what."""
    panels = panels_of(board)
    found = [(rule, name, what) for check in (variables, sources, whole, rows) for rule, what in check(board)]
    found += [(rule, name, what) for rule, what in grid(panels + rows_of(board))]
    for panel in panels:
        where = f"{name}, {panel.get('title') or panel.get('id')}"
        found += [(rule, where, what) for rule, what in panel_words(panel)]
        letters = [target.get("refId") for target in panel.get("targets", [])]
        if len(set(letters)) != len(letters):
            found.append(("unique-ids", where, f"two queries have one letter: {letters}"))
        for target in panel.get("targets", []):
            found += [(rule, where, what) for check in (target_words, target_query) for rule, what in check(target)]
    return found


def judge_all(boards):
    """The same for all dashboards, whose names must differ."""
    found = [one for name, board in boards.items() for one in judge(name, board)]
    for key in ("uid", "title"):
        values = [board.get(key) for board in boards.values()]
        if len(set(values)) != len(values):
            found.append(("unique-ids", key, f"two dashboards have one {key}: {values}"))
    return found


def expressions(boards):
    """Every query as a recording rule: promtool reads its PromQL."""
    lines = ["groups:", "  - name: panels", "    rules:"]
    for name, board in boards.items():
        for panel in panels_of(board):
            for index, query in enumerate(queries(panel)):
                record = f"panel:{name.replace('-', '_')}_{panel['id']}:{index}"
                quoted = filled(query.expression, 15, 15).replace("'", "''")
                lines += [f"      - record: {record}", f"        expr: '{quoted}'"]
    return "\n".join(lines)


def differences(boards, rules, exported):
    """Metrics that are asked for and not exported, and the reverse."""
    asked = metrics_of(rules)
    for board in boards.values():
        for panel in panels_of(board):
            asked |= {name for query in queries(panel) for name in metrics_of(query.expression)}
    found = {name: family(name, exported) for name in asked}
    missing = [f"{name} stands in a panel or rule, and nothing exports it" for name, base in found.items() if base is None]
    unused = set(exported) - set(found.values())
    return sorted(missing) + sorted(f"{name} is exported, and stands in no panel and no rule" for name in unused)


def main(arguments):
    boards = dashboards()
    if arguments[:1] == ["--expressions"]:
        print(expressions(boards))
        return 0
    if arguments[:1] == ["--against"]:
        texts = [open(path, encoding="utf-8").read() for path in arguments[1:]]
        exported = {name: kind for text in texts for name, kind in families(text).items() if name.startswith("tributary_")}
        found = differences(boards, rule_text(), exported)
        print(*found, f"{len(exported)} metrics are exported, {len(found)} differences", sep="\n")
        return bool(found)
    found = [f"{rule}: {where}: {what}" for rule, where, what in judge_all(boards)]
    panels = sum(len(panels_of(board)) for board in boards.values())
    print(*found, f"{len(boards)} dashboards, {panels} panels, {len(found)} complaints", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
