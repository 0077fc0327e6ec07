"""Draws a dashboard's panels with real data as one SVG: lines, stacked areas, numbers, bars and heat. It is no Grafana: it
shows what each panel shows, in the same places, and needs nothing but Python."""

import math
from dataclasses import dataclass, field
from html import escape

from panels import panels_of, rows_of

COLUMN, ROW, GAP, WIDTH = 50, 30, 8, 24
TITLE, LEGEND = 24, 15
COLOURS = ("#3274d9", "#e0701a", "#37872d", "#a352cc", "#c4162a", "#0f7f8c", "#8f6d00", "#7d6b91", "#5b7f22", "#b5497c")
SHADES = ("#eef4fc", "#cfe1f7", "#9fc4ee", "#6aa2e2", "#3274d9", "#1f52a3")
SCALES = {"s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")), "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))}
SCALES["Bps"] = tuple((factor, f"{word}/s") for factor, word in SCALES["bytes"])


@dataclass
class Line:
    """What one query gave for one set of labels: a legend, and values by seconds since the range began."""

    legend: str
    points: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)

    def last(self):
        return self.points[-1][1]


def words(value, unit):
    """A value with its unit, at three digits."""
    if value == 0:
        return "0"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    for factor, word in SCALES.get(unit, ()):
        if abs(value) >= factor or factor == SCALES[unit][-1][0]:
            return f"{value / factor:.3g} {word}"
    number = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{number}/s" if unit == "reqps" else number


def text(x, y, content, size=11, anchor="start", fill="#24292e", weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
        f'font-weight="{weight}">{escape(str(content))}</text>'
    )


def rectangle(x, y, width, height, fill, more=""):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" fill="{fill}"{more}/>'


def nice(most, unit):
    """The least number that is no less, and round in the unit that it is written with."""
    if most <= 0:
        return 1.0
    if unit in ("bytes", "Bps"):
        factor = next(factor for factor, _ in SCALES[unit] if most >= factor or factor == 1)
        return factor * nice(most / factor, "none")
    power = 10.0 ** math.floor(math.log10(most))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= most * 0.999)


def axes(box, least, top, unit, seconds):
    """Lines for values across the box, with their numbers, and the time below."""
    x, y, width, height = box
    parts = []
    for part in range(5):
        level = y + height - height * part / 4
        parts.append(f'<path d="M{x:.1f} {level:.1f}h{width:.1f}" stroke="#e1e4e8"/>')
        parts.append(text(x - 4, level + 4, words(least + (top - least) * part / 4, unit), 9, "end", "#586069"))
    for part in range(5):
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        parts.append(text(x + width * part / 4, y + height + 12, f"{seconds * part / 4:g} s", 9, anchor, "#586069"))
    return parts


def pieces(points, step):
    """Runs of points without a gap."""
    runs = []
    for time, value in points:
        if runs and time - runs[-1][-1][0] <= 1.5 * step:
            runs[-1].append((time, value))
        else:
            runs.append([(time, value)])
    return runs


def stacked(lines):
    """The same lines on top of each other, each with what it stands on."""
    base, result = {}, []
    for line in lines:
        bottom = [(time, base.get(time, 0.0)) for time, _ in line.points]
        top = [(time, value + base.get(time, 0.0)) for time, value in line.points]
        base.update(top)
        result.append((Line(line.legend, top), bottom))
    return result


def chart(box, panel, lines, seconds, step):
    """Lines over time."""
    x, y, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    is_stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    layers = stacked(lines) if is_stacked else [(line, None) for line in lines]
    least = defaults.get("min", 0)
    top = max([nice(max(value for layer, _ in layers for _, value in layer.points), defaults["unit"]), least + 1e-9])
    if "max" in defaults:
        top = defaults["max"]
    parts = axes(box, least, top, defaults["unit"], seconds)

    def place(time, value):
        share = (min(max(value, least), top) - least) / (top - least)
        return f"{x + width * time / seconds:.1f} {y + height - height * share:.1f}"

    for index, (layer, bottom) in enumerate(layers):
        colour = COLOURS[index % len(COLOURS)]
        for run in pieces(layer.points, step):
            path = "L".join(place(*point) for point in run)
            if bottom is not None:
                times = {time for time, _ in run}
                back = "L".join(place(*point) for point in reversed(bottom) if point[0] in times)
                parts.append(f'<path d="M{path}L{back}Z" fill="{colour}" fill-opacity="0.25"/>')
            if len(run) == 1:
                path += f"L{path}"
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-linecap="round"/>')
    return parts


def legend(x, y, width, lines):
    """The lines' names, side by side, as many as have room in two rows."""
    parts, at, row = [], x, 0
    for index, line in enumerate(lines):
        needed = 16 + 6.2 * len(line.legend)
        if at + needed > x + width and at > x:
            at, row = x, row + 1
        if row == 2:
            parts.append(text(x + width, y + LEGEND + 9, f"and {len(lines) - index} more", 9, "end", "#586069"))
            break
        parts.append(rectangle(at, y + row * LEGEND + 3, 9, 4, COLOURS[index % len(COLOURS)]))
        parts.append(text(at + 12, y + row * LEGEND + 9, line.legend, 10))
        at += needed
    return parts


def numbers(box, panel, lines):
    """The last value of each line, large; or its name, where that is what counts."""
    x, y, width, height = box
    defaults, by_name = panel["fieldConfig"]["defaults"], panel["options"].get("textMode") == "name"
    parts, share = [], width / len(lines)
    for index, line in enumerate(lines):
        middle = x + share * (index + 0.5)
        shown = line.legend if by_name else words(line.last(), defaults["unit"])
        parts.append(text(middle, y + height * 0.5, shown, min(24, 1.6 * share / max(len(shown), 1)), "middle", "#24292e", "bold"))
        if not by_name:
            parts.append(text(middle, y + height * 0.5 + 18, line.legend, 10, "middle", "#586069"))
    return parts


def bars(box, panel, lines):
    """A bar each for the last values."""
    x, y, width, height = box
    unit = panel["fieldConfig"]["defaults"]["unit"]
    top = panel["fieldConfig"]["defaults"].get("max") or max(line.last() for line in lines) or 1.0
    step = min(height / len(lines), 26)
    parts = []
    for index, line in enumerate(lines):
        at, length = y + index * step, (width * 0.5) * min(line.last() / top, 1)
        size = min(10, step * 0.9)
        parts.append(text(x + width * 0.36, at + step * 0.7, line.legend, size, "end"))
        parts.append(rectangle(x + width * 0.38, at + step * 0.15, length, step * 0.7, COLOURS[0]))
        parts.append(text(x + width * 0.39 + length, at + step * 0.7, words(line.last(), unit), size))
    return parts


def heat(box, panel, lines, seconds, step):
    """Buckets upwards, time to the right, darker where more fell. Buckets of Prometheus hold those below, too."""
    x, y, width, height = box
    unit = panel["fieldConfig"]["defaults"]["unit"]
    rows = sorted(lines, key=lambda line: float(line.labels["le"]))
    below, cells = {}, []
    for row, line in enumerate(rows):
        for time, value in line.points:
            cells.append((row, time, max(value - below.get(time, 0.0), 0.0)))
            below[time] = value
    used = [row for row, _, value in cells if value > 0] or [0]
    first, last = max(min(used) - 1, 0), min(max(used) + 1, len(rows) - 1)
    most = max((value for _, _, value in cells), default=0) or 1.0
    size = height / (last - first + 1)
    parts = []
    for row, time, value in cells:
        if value > 0:
            shade = SHADES[min(int(value / most * len(SHADES)), len(SHADES) - 1)]
            left, top = x + width * time / seconds, y + height - (row - first + 1) * size
            parts.append(rectangle(left, top, min(width * step / seconds, x + width - left), size - 1, shade))
    for row in range(first, last + 1, max((last - first) // 8, 1)):
        bound = float(rows[row].labels["le"])
        shown = "more" if math.isinf(bound) else f"≤ {words(bound, unit)}"
        parts.append(text(x - 4, y + height - (row - first + 0.3) * size, shown, 9, "end", "#586069"))
    for part in range(5):
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        parts.append(text(x + width * part / 4, y + height + 12, f"{seconds * part / 4:g} s", 9, anchor, "#586069"))
    return parts


def drawn_panel(panel, lines, seconds, step):
    """A panel in its place."""
    place = panel["gridPos"]
    x, y = place["x"] * COLUMN + GAP / 2, place["y"] * ROW + GAP / 2
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    parts = [
        f"<g><title>{escape(panel['description'])}</title>",
        rectangle(x, y, width, height, "#ffffff", ' stroke="#d1d5da" rx="3"'),
        text(x + 10, y + 17, panel["title"], 12, weight="bold"),
    ]
    if not lines:
        parts.append(text(x + width / 2, y + height / 2, "no data", 14, "middle", "#c4162a"))
    elif panel["type"] == "stat":
        parts += numbers((x + 6, y + TITLE, width - 12, height - TITLE), panel, lines)
    elif panel["type"] == "bargauge":
        parts += bars((x + 6, y + TITLE + 6, width - 12, height - TITLE - 12), panel, lines)
    else:
        box = (x + 58, y + TITLE + 10, width - 74, height - TITLE - 30 - 2 * LEGEND)
        if panel["type"] == "heatmap":
            parts += heat((*box[:3], box[3] + 2 * LEGEND), panel, lines, seconds, step)
        else:
            parts += chart(box, panel, lines, seconds, step)
            parts += legend(x + 12, y + height - 2 * LEGEND, width - 24, lines)
    return [*parts, "</g>"]


def dashboard(board, results, seconds, step):
    """The whole dashboard; `results` has the lines of each panel by its number, `seconds` is the range."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels_of(board))
    width, height = WIDTH * COLUMN, rows * ROW + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
        rectangle(0, 0, width, height, "#f4f5f7"),
        text(12, 27, board["title"], 18, weight="bold"),
        '<g transform="translate(0 40)">',
    ]
    for row in rows_of(board):
        parts.append(text(12, (row["gridPos"]["y"] + 0.7) * ROW, f"▾ {row['title']}", 13, weight="bold"))
    for panel in panels_of(board):
        parts += drawn_panel(panel, results[panel["id"]], seconds, step)
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"
