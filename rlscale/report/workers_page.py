"""The page of `rlscale workers`: the recommendation, throughput against workers, and with a sweep wall time against cost.

What is measured and recommended is decided in `rlscale.benchmarks.workers`, the plan in `rlscale.sizing.cost`.
"""

import html
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from ..sizing import CostPlan, FleetTime
from ..text import format_duration, format_quantity
from .chart_style import GREY, SI_LABEL, Figure, colour, draw, finish, log_axis, log_domain, numbers, unchecked
from .page import add_chart, command, section, table, write_page

__all__ = ["WorkersPage", "knee", "plan_figure", "throughput_figure", "write_workers_page"]

_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_LEAST_GAIN = 0.5  # of a lone worker's rate: one more that gives less is beyond the knee


@dataclass(frozen=True)
class WorkersPage:
    """Everything that the page shows.

    Attributes:
        task: its name.
        answer: the recommendation, one sentence a line, the answer first.
        plan: what to hire for the deadline or budget, or that no plan keeps it; the answer of the page where there is one.
        run: commands, by what they are for: the recommendation and the plan.
        busy: that other programs were working while it was measured; None where they were not.
        measured: actors, CPUs and environments of each, and observations per second of every round, of each measured fleet.
        law: fitted to them, for fragments as long as theirs.
        cpus: that actors could use.
        chosen: actors, CPUs and environments of the recommended fleet.
        planned: the goal and its plan; None without a sweep.
        currency: whether costs are in a currency; else they are CPU hours.
        sources: what made the page, by name.
        warnings: what to take with care in the plan, one sentence each.
    """

    task: str
    answer: Sequence[str]
    plan: str | None
    run: Mapping[str, Sequence[str]]
    busy: str | None
    measured: Sequence[tuple[int, int, int, Sequence[float]]]
    law: FleetTime
    cpus: int
    chosen: tuple[int, int, int]
    planned: tuple[float, CostPlan] | None
    currency: bool
    sources: Mapping[str, Any]
    warnings: Sequence[str] = ()


@unchecked
def write_workers_page(path: Path, shown: WorkersPage) -> None:
    """Write the page.

    Raises:
        UsageError: it cannot be written.
    """
    charts: dict[str, Any] = {}
    title = f"{shown.task}: how many workers"
    first, *rest = shown.answer
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p class='answer'>{html.escape(said)}</p>" for said in (shown.plan, first) if said]
    busy = [] if shown.busy is None else [f"{shown.busy}."]
    body += [f"<p class='warning'>{html.escape(said)}</p>" for said in (*busy, *shown.warnings)]
    if shown.planned is not None:
        body += _plan_sections(*shown.planned, charts, currency=shown.currency)
    figure = throughput_figure(shown)
    body += [
        section(figure.title, add_chart(charts, figure.chart), figure.note),
        "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in rest) + "</ul>",
        *(f"<p class='note'>{html.escape(what)}:</p>{command(shlex.join(words))}" for what, words in shown.run.items()),
    ]
    columns = ["actors", "CPUs of each", "environments of each", "observations per second", "slowest and fastest round"]
    rows = [[a, t, e, f"{np.median(rates):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}"] for a, t, e, rates in shown.measured]
    body.append(section("Measured fleets", table(columns, rows)))
    body.append(
        section("Where this comes from", table(["", ""], [[name, _plain(value)] for name, value in shown.sources.items()]))
    )
    write_page(path, title, body, charts)


def _plan_sections(goal: float, made: CostPlan, charts: dict[str, Any], *, currency: bool) -> list[str]:
    figure = plan_figure(made, currency=currency)
    columns = [
        "batch size",
        "workers",
        "wall time",
        "95% interval of a run",
        "cost" if currency else "CPU hours",
        "iterations",
        "observations",
        "bound by",
    ]
    rows = [
        [
            f"{c.batch_size:,.0f}",
            c.workers,
            format_duration(c.seconds),
            "unknown" if c.interval is None else " to ".join(map(format_duration, c.interval)),
            format_quantity(c.cost),
            f"{c.optimizer_steps:,.0f}",
            f"{c.observations:,.0f}",
            c.iteration.bound,
        ]
        for c in made.pareto
    ]
    return [
        section(f"{figure.title}, to a mean return of {goal:g}", add_chart(charts, figure.chart), figure.note),
        section("Plans that no other beats in both", table(columns, rows)),
    ]


def knee(law: FleetTime, environments: int, cpus: int) -> int:
    """The number of one-CPU workers beyond which one more gives less than half of what a lone one samples."""
    rates = [law.rate(count, environments).value or 0.0 for count in range(1, cpus + 1)]
    return next((count for count in range(1, cpus) if rates[count] - rates[count - 1] < _LEAST_GAIN * rates[0]), cpus)


def throughput_figure(shown: WorkersPage) -> Figure:
    """Observations per second of sampling alone against actors of one CPU: measured, and as the law predicts."""
    alone = [(actors, each, rates) for actors, threads, each, rates in shown.measured if threads == 1]
    sizes = sorted({each for _, each, _ in alone})
    names = [f"{size} environments an actor" for size in sizes]
    points = [
        {
            "actors": actors,
            "rate": float(np.median(rates)),
            "low": min(rates),
            "high": max(rates),
            "of": f"{each} environments an actor",
        }
        for actors, each, rates in alone
    ]
    counts = sorted({round(count) for count in np.geomspace(1, shown.cpus, 24)})
    lines = [
        {"actors": n, "rate": shown.law.rate(n, size).value, "of": name}
        for size, name in zip(sizes, names, strict=True)
        for n in counts
    ]
    ticks = list(range(0, shown.cpus + 1, max(1, shown.cpus // 8)))
    x = alt.X("actors:Q", title="actors, one CPU each", axis=alt.Axis(values=ticks, format="d"), scale=alt.Scale(domainMin=0))
    y = alt.Y("rate:Q", title="observations per second", axis=alt.Axis(labelExpr=SI_LABEL), scale=alt.Scale(domainMin=0))
    by = colour("of", names)
    about = [*numbers(actors="actors", rate="observations per second"), alt.Tooltip("of:N", title="environments of each actor")]
    layers = [
        draw(lines).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=by),
        draw(points).mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=by),
        draw(points).mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=by, tooltip=about),
    ]
    actors, threads, each = shown.chosen
    if threads == 1:
        best = [{"actors": actors, "rate": shown.law.rate(actors, each).value}]
        ring = draw(best).mark_point(filled=False, size=260, strokeWidth=2, color="#1a1a1a")
        layers.append(ring.encode(x=x, y=y))
    found = knee(shown.law, each, shown.cpus)
    if shown.cpus == 1:
        beyond = ""  # no second actor was measured
    elif found == shown.cpus:
        beyond = f" Up to all {shown.cpus} CPUs one more actor gives at least half of what a lone one samples."
    else:
        beyond = f" Beyond {found} actor{'s' * (found > 1)}, one more gives less than half of what a lone one samples."
    note = (
        f"Sampling alone, in fragments of {shown.law.rollout_length} steps; shorter ones are slower. Points: medians of measured "
        "fleets, from the slowest round to the fastest; lines: the fitted law"
        f"{'; ring: the recommended fleet' if threads == 1 else ''}.{beyond}"
    )
    return Figure("throughput", "Throughput against workers", note, finish(alt.layer(*layers), 300))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')}: {item}" for name, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return shlex.join(map(str, value))
    return "unknown" if value is None else str(value)


def plan_figure(made: CostPlan, *, currency: bool) -> Figure:
    """Wall time and cost of every choice; the line joins those that no other beats in both."""
    name, unit = next((found for found in _UNITS if min(c.seconds for c in made.choices) >= found[1]), _UNITS[-1])
    best = set(made.pareto)
    points: list[dict[str, Any]] = [
        {
            "batch": c.batch_size,
            "label": f"B = {c.batch_size:,.0f}",
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
    sizes = [f"B = {size:,.0f}" for size in sorted({c.batch_size for c in made.choices})]
    chart = alt.layer(
        draw(front).mark_line(color=GREY, strokeWidth=1.5).encode(x=x, y=y, order="time:Q"),
        draw(points).mark_point(filled=True, opacity=0.35, size=45).encode(x=x, y=y, color=colour("label", sizes), tooltip=about),
        draw(front).mark_point(filled=True, opacity=1, size=90).encode(x=x, y=y, color=colour("label", sizes), tooltip=about),
    )
    line = "The line joins those that no other beats in both. " if len(front) > 1 else ""
    note = (
        "Each point is a batch size (colour) on a number of workers; further left is faster, further down is cheaper. "
        f"{line}Times follow from the fitted frontier and measured rates. Their intervals, in the table, are those of one run "
        "that reaches the goal: they hold both uncertainties and how runs scatter."
    )
    return Figure("plan", "Wall time against cost", note, finish(chart))
