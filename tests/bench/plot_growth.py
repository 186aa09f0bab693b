#!/usr/bin/env python3
"""Draws what opening, looking up and saving cost in stores of several sizes, as docs/growth.svg shows it.

usage: lookup_bench --benchmark_filter=grow --benchmark_format=json | plot_growth.py > docs/growth.svg
"""
import json
import math
import sys

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 96, 24, 44
COLOURS = {"open": "#1b6ca8", "find": "#b4540a", "save": "#3b7d3b"}


def measured(report):
    """For each action the (cuts, milliseconds) pairs, in increasing sizes."""
    lines = {}
    for run in report["benchmarks"]:
        action = run["name"].split("/")[1]
        points = [(int(key[3:]), value) for key, value in run.items() if key.startswith("ms_")]
        lines[action] = sorted(points)
    return lines


def text(x, y, words, anchor="middle", colour="#222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def draw(lines):
    sizes = sorted({size for points in lines.values() for size, _ in points})
    values = [value for points in lines.values() for _, value in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x_of(size):
        share = (math.log10(size) - math.log10(sizes[0])) / (math.log10(sizes[-1]) - math.log10(sizes[0]))
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(value):
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 8, y + 4, f"{10.0**power:g} ms", "end"))
    for size in sizes:
        out.append(text(x_of(size), HEIGHT - BOTTOM + 18, f"{size:,}"))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "cuts in the store"))
    for action, points in lines.items():
        colour = COLOURS.get(action, "#222")
        path = " ".join(f"{x_of(size):.1f},{y_of(value):.1f}" for size, value in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for size, value in points:
            out.append(f'<circle cx="{x_of(size):.1f}" cy="{y_of(value):.1f}" r="3" fill="{colour}"/>')
        size, value = points[-1]
        out.append(text(x_of(size) + 10, y_of(value) + 4, f"{action} {value:.2f} ms", "start", colour))
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    sys.stdout.write(draw(measured(json.load(sys.stdin))))
