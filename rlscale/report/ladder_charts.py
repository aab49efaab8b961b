"""The charts over several tasks: predicted against measured critical batch size, and wall time against cost.

What is drawn comes from `rlscale.analysis.comparison`; charts of one sweep are in `rlscale.report.sweep_charts`.
"""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from ..analysis import Row
from .chart_style import (
    GREY,
    LIMITS,
    PALETTE,
    Figure,
    clip,
    colour,
    draw,
    finish,
    layer,
    log_axis,
    log_domain,
    numbers,
    shown,
    slug,
)
from .words import head_name

__all__ = ["PAPER", "ladder_figure"]

# What the paper found, to stand beside our own figures (arXiv:1812.06162, its table of tasks): the simple noise scale averaged
# over training, then the critical batch size at the end of it. Lowest and highest, where it gives a range.
PAPER: tuple[tuple[str, tuple[float, float], tuple[float, float]], ...] = (
    ("MNIST", (900, 900), (200, 200)),
    ("SVHN", (4_000, 4_000), (500, 500)),
    ("CIFAR-10", (2_000, 2_000), (900, 900)),
    ("ImageNet", (30_000, 30_000), (15_000, 15_000)),
    ("SVHN autoencoder", (2, 2), (40, 40)),
    ("SVHN variational autoencoder", (10, 10), (200, 200)),
    ("Billion Word (tokens)", (150_000, 150_000), (100_000, 100_000)),
    ("Atari, 7 games", (1_000, 20_000), (400, 8_000)),
    ("Dota 1v1", (300_000, 300_000), (3_000_000, 3_000_000)),
    ("Dota 5v5 (B_crit: more than this, its estimate)", (24_000_000, 24_000_000), (8_000_000, 8_000_000)),
)


def ladder_figure(rows: Sequence[Row], head: str) -> Figure | None:
    """Cumulative noise scale of that head against measured critical batch size; None where no row has both."""
    points = [point for row in rows if (point := _ladder_point(row, head)) is not None]
    if not points:
        return None
    paper = [
        {"task": task, "x": math.sqrt(x[0] * x[1]), "y": math.sqrt(y[0] * y[1]), "x1": x[0], "x2": x[1], "y1": y[0], "y2": y[1]}
        for task, x, y in PAPER
    ]
    domain = log_domain([v for p in (*points, *paper) for v in (p["x"], p["y"])], padding=3)
    for p in points:
        for axis in ("x", "y"):
            low, high = p[f"{axis}_ends"]
            p[f"{axis}1"], p[f"{axis}2"] = clip(low or 0.0, domain), clip(math.inf if high is None else high, domain)

    def x(field: str) -> Any:
        return log_axis(alt.X, field, f"predicted: noise scale, {head_name(head)} (observations)", domain)

    def y(field: str) -> Any:
        return log_axis(alt.Y, field, "measured: B_crit (observations)", domain)

    everyone = list(dict.fromkeys(row.name for row in rows if row.goal is not None))
    names = [name for name in everyone if any(p["task"] == name for p in points)]
    by = colour("task", names, colours=[_colour_of(everyone.index(name)) for name in names])
    about = [alt.Tooltip(f"{field}:N") for field in ("task", "goal", "predicted", "measured", "flags")]
    of_paper = numbers(y="B_crit, end of training", x="B_simple, average over training")
    grey = draw(paper)
    resolved = [p for p in points if p["mark"] == "resolved"]
    limits = [p for p in points if p["mark"] != "resolved"]
    layers = [
        draw([{"x": end, "y": end} for end in domain])
        .mark_line(color="#000", strokeWidth=1, strokeDash=[5, 4])
        .encode(x=x("x"), y=y("y")),
        grey.mark_rule(color=GREY, opacity=0.5, strokeWidth=3).encode(x=x("x1"), x2="x2:Q", y=y("y")),
        grey.mark_rule(color=GREY, opacity=0.5, strokeWidth=3).encode(x=x("x"), y=y("y1"), y2="y2:Q"),
        grey.mark_point(shape="cross", color=GREY, size=60, filled=True, opacity=0.8).encode(
            x=x("x"), y=y("y"), tooltip=[alt.Tooltip("task:N", title="the paper"), *of_paper]
        ),
        draw(points).mark_rule(opacity=0.5).encode(x=x("x1"), x2="x2:Q", y=y("y"), color=by),
    ]
    at = {"x": x("x"), "y": y("y"), "color": by, "tooltip": about}
    layers += layer(resolved, "rule", {"x": x("x"), "y": y("y1"), "y2": "y2:Q", "color": by}, opacity=0.5)
    layers += layer(resolved, "circle", at, size=75, opacity=0.9)
    layers += layer(limits, "point", {**at, "shape": LIMITS}, size=75, filled=False)
    title = f"Predicted against measured critical batch size: {head_name(head)} loss"
    note = (
        "One point per goal of each task, with 95% intervals both ways; the noise scale is cumulative to the goal. "
        "Dashed: y = x. Triangle: B_crit is not identifiable, only this limit is known. Grey crosses, for reference: the paper's "
        "own tasks, its critical batch size at the end of training against its simple noise scale averaged over training. Its "
        "batches are images, tokens or observations, and it does not say which loss its noise scale used."
    )
    return Figure(slug("ladder", head), title, note, finish(alt.layer(*layers), 420))


def _ladder_point(row: Row, head: str) -> dict[str, Any] | None:
    measured, predicted = shown(row.measured), shown(row.predicted(head, "cumulative"))
    if measured["mark"] == "nothing" or predicted["mark"] != "resolved":
        return None
    flags = (("provisional", row.provisional), ("rates chosen on the same runs", row.same_runs))
    return {
        "task": row.name,
        "goal": row.goal_label,
        "mark": measured["mark"],
        "x": predicted["value"],
        "y": measured["value"],
        "x_ends": (predicted["low"], predicted["high"]),
        "y_ends": (measured["low"], measured["high"]),
        "predicted": predicted["text"],
        "measured": measured["text"],
        "flags": ", ".join(text for text, holds in flags if holds) or "none",
    }


def _colour_of(number: int) -> str:
    return PALETTE[number % len(PALETTE)]
