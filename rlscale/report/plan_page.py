"""The page of `rlscale workers --sweep`: wall time against cost of every batch size on every number of workers.

The plan is made in `cost`; how charts look is in `chart_style`, how pages are written in `page`.
"""

import html
from pathlib import Path
from typing import Any

import altair as alt

from ..sizing import CostPlan
from ..text import format_duration
from .chart_style import GREY, Figure, colour, draw, finish, log_axis, log_domain, numbers
from .page import add_chart, section, table, write_page

__all__ = ["plan_figure", "write_plan_page"]

_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def write_plan_page(page: Path, task: str, goal: float, made: CostPlan, *, currency: bool) -> None:
    """Write the page.

    Args:
        page: the file.
        task: its name.
        goal: mean return that the plans reach.
        made: at least one choice.
        currency: whether costs are in a currency; else they are CPU hours.

    Raises:
        UsageError: the page cannot be written.
    """
    charts: dict[str, Any] = {}
    figure = plan_figure(made, currency=currency)
    columns = [
        "batch size",
        "workers",
        "wall time",
        "cost" if currency else "CPU hours",
        "optimizer steps",
        "observations",
        "bound by",
    ]
    rows = [
        [
            f"{c.batch_size:,.0f}",
            c.workers,
            format_duration(c.seconds),
            f"{c.cost:.3g}",
            f"{c.optimizer_steps:,.0f}",
            f"{c.observations:,.0f}",
            c.iteration.bound,
        ]
        for c in made.pareto
    ]
    title = f"{task}: how many workers, to a mean return of {goal:g}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        section(figure.title, add_chart(charts, figure.chart), figure.note),
        section("Plans that no other beats in both", table(columns, rows)),
    ]
    write_page(page, title, body, charts)


def plan_figure(made: CostPlan, *, currency: bool) -> Figure:
    """Wall time and cost of every choice; the line joins those that no other beats in both."""
    name, unit = next((found for found in _UNITS if min(c.seconds for c in made.choices) >= found[1]), _UNITS[-1])
    best = set(made.pareto)
    points: list[dict[str, Any]] = [
        {
            "batch": c.batch_size,
            "label": f"{c.batch_size:,.0f}",
            "workers": c.workers,
            "time": c.seconds / unit,
            "cost": c.cost,
            "bound": c.iteration.bound,
            "best": c in best,
        }
        for c in made.choices
    ]
    x = log_axis(alt.X, "time", f"wall time to the goal, {name}", log_domain(p["time"] for p in points))
    y = log_axis(
        alt.Y, "cost", "cost to the goal" if currency else "CPU hours to the goal", log_domain(p["cost"] for p in points)
    )
    about = [*numbers(batch="batch size", workers="workers", time=f"wall time, {name}", cost="cost"), alt.Tooltip("bound:N")]
    front = [p for p in points if p["best"]]
    sizes = [f"{size:,.0f}" for size in sorted({c.batch_size for c in made.choices})]
    chart = alt.layer(
        draw(front).mark_line(color=GREY, strokeWidth=1.5).encode(x=x, y=y, order="time:Q"),
        draw(points).mark_point(filled=True, opacity=0.35, size=45).encode(x=x, y=y, color=colour("label", sizes), tooltip=about),
        draw(front).mark_point(filled=True, opacity=1, size=90).encode(x=x, y=y, color=colour("label", sizes), tooltip=about),
    )
    note = (
        "Each point is a batch size (colour) on a number of workers; further left is faster, further down is cheaper. The line "
        "joins those that no other beats in both. Times follow from the fitted frontier and measured rates; how far the frontier "
        "itself is uncertain is in the comparison of its sweep."
    )
    return Figure("plan", "Wall time against cost", note, finish(chart))
