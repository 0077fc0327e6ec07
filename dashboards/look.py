#!/usr/bin/env python3
"""Asks a Prometheus for every panel of every dashboard, as Grafana would, fails where the answer is empty, and draws what came.

    look.py URL [--end TIME] [--last SECONDS] [--step SECONDS] [--scrape SECONDS] [--pictures FOLDER]

A misspelt metric or label is no error for Prometheus: it answers with no series. So every query has to give at least one
finite number."""

import argparse
import json
import math
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import draw
from panels import dashboards, filled, panels_of, queries

# Panels that may be empty, by dashboard and title, and why. There is none: what counts faults begins at 0.
MAY_BE_EMPTY = {}


def ask(url, expression, start, end, step_s):
    """What Prometheus answers to a query over a range."""
    values = {"query": expression, "start": start, "end": end, "step": step_s}
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(values)}", timeout=30) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{expression}: {error.code} {error.read().decode(errors='replace')}") from error
    if body["status"] != "success":
        raise SystemExit(f"{expression}: {body}")
    return body["data"]["result"]


def named(legend, labels):
    """A legend with its labels filled in, as Grafana does it."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match.group(1), ""), legend).strip()


def lines_of(query, result, start):
    """The series of an answer that have finite numbers."""
    found = []
    for series in result:
        points = [(at - start, float(value)) for at, value in series["values"]]
        points = [(at, value) for at, value in points if math.isfinite(value)]
        if points:
            found.append(draw.Line(named(query.legend, series["metric"]), points, series["metric"]))
    return found


def look(url, board, start, end, step_s, scrape_s):
    """The lines of each panel by its number, and a message for every query that gave nothing."""
    results, empty = {}, []
    for panel in panels_of(board):
        results[panel["id"]] = []
        for query in queries(panel):
            expression = filled(query.expression, step_s, scrape_s)
            lines = lines_of(query, ask(url, expression, start, end, step_s), start)
            results[panel["id"]] += lines
            if not lines and (board["uid"], panel["title"]) not in MAY_BE_EMPTY:
                empty.append(f"{board['title']}, {panel['title']}: nothing for {expression}")
    return results, empty


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where Prometheus listens, such as http://127.0.0.1:9090")
    parser.add_argument("--end", type=float, help="the last second that is looked at, since 1970 [now]")
    parser.add_argument("--last", type=float, default=3600, help="seconds that are looked at [%(default)s]")
    parser.add_argument("--step", type=int, default=15, help="seconds between two points [%(default)s]")
    parser.add_argument("--scrape", type=int, default=15, help="seconds between two scrapes [%(default)s]")
    parser.add_argument("--pictures", type=Path, help="the folder for pictures, one a dashboard")
    return parser.parse_args()


def main():
    options = arguments()
    end = options.end or time.time()
    start = end - options.last
    missing, panels, series = [], 0, 0
    for name, board in dashboards().items():
        results, empty = look(options.url.rstrip("/"), board, start, end, options.step, options.scrape)
        missing += empty
        panels += len(results)
        series += sum(len(lines) for lines in results.values())
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            picture = draw.dashboard(board, results, options.last, options.step)
            (options.pictures / f"{name}.svg").write_text(picture)
    print(*missing, f"{panels} panels, {series} series, {len(missing)} empty queries", sep="\n")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
