"""What stands in the dashboards: their panels and queries, with the variables that Grafana would put in. `lint.py`
judges it, `look.py` asks a Prometheus for it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

# A metric of ours. What the rules record has a colon, and is no metric that is exported.
METRIC = re.compile(r"(?<![a-zA-Z0-9_:])tributary_[a-z0-9_]+(?![a-zA-Z0-9_:])")

# What Prometheus makes of a histogram.
SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    expression: str
    legend: str


def dashboards(folder=FOLDER / "grafana"):
    """The dashboards of a folder by the names of their files."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    if not found:
        raise SystemExit(f"{folder} holds no dashboard")
    return found


def panels_of(board):
    """The panels of a dashboard that show something, those in rows too."""
    return [one for panel in board["panels"] for one in (panel["panels"] if panel.get("type") == "row" else [panel])]


def rows_of(board):
    """The rows of a dashboard that panels are folded into."""
    return [panel for panel in board["panels"] if panel.get("type") == "row"]


def queries(panel):
    """The queries of a panel."""
    return [Query(target.get("expr", ""), target.get("legendFormat", "")) for target in panel.get("targets", [])]


def filled(expression, step_s, scrape_s, job=".+", instance=".+"):
    """An expression as Grafana sends it: `$__rate_interval` is the step and a scrape, but at least four scrapes."""
    values = {
        "__rate_interval": f"{max(step_s + scrape_s, 4 * scrape_s)}s",
        "__interval": f"{step_s}s",
        "job": job,
        "instance": instance,
    }

    def value(match):
        name = match.group(1) or match.group(2)
        if name not in values:
            raise SystemExit(f"no dashboard has a variable ${name}: {expression}")
        return values[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, expression)


def without_words(expression):
    """An expression without the texts in quotes, so that a label's value is not taken for a name."""
    return re.sub(r'"[^"]*"', '""', expression)


def metrics_of(text):
    """The metrics of ours that a text names."""
    return set(METRIC.findall(without_words(text)))


def rule_text(path=FOLDER / "prometheus" / "rules.yml"):
    """The rules without their comments and without sentences, which may speak of a metric too."""
    kept = []
    for line in Path(path).read_text().splitlines():
        if not re.match(r"\s*(#|summary:|description:)", line):
            kept.append(line)
    return "\n".join(kept)


def families(text):
    """The metrics of an exporter's text, with their types."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def family(name, known):
    """The metric that a name in a query belongs to: a histogram's parts belong to the histogram. None if there is none."""
    if name in known:
        return name
    for suffix in SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and known.get(base) == "histogram":
            return base
    return None
