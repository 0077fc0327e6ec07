"""Draws the loss of a log of `train.py` and the share of right answers: python3 curve.py log.txt curve.svg"""
import re
import sys
from pathlib import Path

WIDE, HIGH, EDGE = 640, 300, 40
found = re.findall(r"step (\d+) .* loss ([\d.]+) .* answers ([\d.]+)", Path(sys.argv[1]).read_text())
steps, losses, answers = zip(*[(int(step), float(loss), float(right)) for step, loss, right in found])
across = lambda step: EDGE + (WIDE - 2 * EDGE) * step / steps[-1]
up = lambda value, most: HIGH - EDGE - (HIGH - 2 * EDGE) * value / most


def line(values, most, colour):
    points = " ".join(f"{across(step):.1f},{up(value, most):.1f}" for step, value in zip(steps, values))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def text(x, y, words, colour="#444", anchor="start"):
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


most = max(losses)
parts = [f'<rect width="{WIDE}" height="{HIGH}" fill="#fff"/>', line(losses, most, "#c0392b"), line(answers, 1, "#2471a3"),
         text(EDGE, 20, f"loss, 0 to {most:.2f} (mean of about 20 steps)", "#c0392b"),
         text(WIDE - EDGE, 20, "right answers of a batch, 0 to 1", "#2471a3", "end")]
parts += [text(across(step), HIGH - 15, step, anchor="middle") for step in range(0, steps[-1] + 1, 200)]
body = "\n".join(parts)
Path(sys.argv[2]).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="12">\n{body}\n</svg>\n')
