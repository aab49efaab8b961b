"""The page of `rlscale branch`: what the branches say, their gains against the batch size, and the noise at the checkpoint.

What is measured is decided in `rlscale.benchmarks.branch`, the curve in `rlscale.frontier.branches`.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import altair as alt

from ..estimate import Estimate
from ..frontier import LocalFrontier
from .chart_style import PALETTE, Figure, clip, draw, finish, layer, log_axis, message, numbers, unchecked
from .page import add_chart, command, section, table, write_page

__all__ = ["BranchPage", "branch_chart", "branch_figure", "write_branch_page"]

_HIGHEST = 1.6  # of small batches' gain, that the chart shows at least
_BELOW = 1.2  # times the largest loss, that a chart with losses reaches down to
_POINTS = 61  # of the curve
_ROOM = (1.5, 2.0)  # left of the smallest size and right of the largest


@dataclass(frozen=True)
class BranchPage:
    """Everything that the page shows.

    Attributes:
        task: its name.
        answer: what the branches say, one sentence a line, the answer first.
        frontier: fitted to them.
        observations: that a branch learned from, on average, for each of the frontier's sizes.
        noise: the noise scale at the checkpoint that is drawn beside B_local; None where none was measured.
        tables: titles, columns and rows.
        again: the command that goes on with the same branches.
        sources: what made the page, by name.
    """

    task: str
    answer: Sequence[str]
    frontier: LocalFrontier
    observations: Sequence[float]
    noise: Estimate | None
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
    again: str
    sources: Mapping[str, str]


@unchecked
def write_branch_page(path: Path, shown: BranchPage) -> None:
    """Write the page.

    Raises:
        UsageError: it cannot be written.
    """
    charts: dict[str, Any] = {}
    title = f"{shown.task}: how large a batch the next observations are worth"
    first, *rest = shown.answer
    figure = branch_figure(shown.frontier, shown.observations, shown.noise)
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class='answer'>{html.escape(first)}</p>",
        section(figure.title, add_chart(charts, figure.chart), html.escape(figure.note)),
        "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in rest) + "</ul>",
        *(section(name, table(columns, rows)) for name, columns, rows in shown.tables),
        f"<p class='note'>The same branches again, or those that are missing:</p>{command(shown.again)}",
        section("Where this comes from", table(["", ""], list(shown.sources.items()))),
    ]
    write_page(path, title, body, charts)


def branch_figure(frontier: LocalFrontier, observations: Sequence[float], noise: Estimate | None) -> Figure:
    """Gains of the branches against their batch size, with the curve and the intervals of B_local and of the noise scale."""
    title = "What the next observations gain, against the batch size"
    chart = branch_chart(frontier, observations, noise)
    if chart is None:
        return Figure("branches", title, "", message("the branches gained nothing that could be drawn"))
    beside = " and of the noise scale of the joint loss on the policy's parameters in Adam's metric" if noise else ""
    curve = "" if frontier.b_local.value is None else "Curve: the fit; at B_local it is at one half. "
    pointed = any(_beyond(estimate, _sizes_shown(frontier)) for estimate in (frontier.b_local, noise))
    beyond = "; a triangle points to one that lies beyond it" if pointed else ""
    note = (
        "Points: medians over seeds and rates with two standard errors, each branch moved to the best rate by the fitted curve, "
        f"as a share of what small batches gain from as many observations. {curve}Bars at the top: 95% intervals of "
        f"B_local{beside}, as far as the chart reaches{beyond}."
    )
    return Figure("branches", title, note, finish(chart))


def branch_chart(frontier: LocalFrontier, observations: Sequence[float], noise: Estimate | None) -> Any | None:
    """The same without a width and fonts of its own; None where small batches gained nothing, so that no share can be drawn."""
    if not (math.isfinite(frontier.progress) and frontier.progress > 0):
        return None
    wholes = [frontier.progress * learned for learned in observations]  # what small batches gain from as many
    domain = _sizes_shown(frontier)
    shares = [gain / whole for (gain, _), whole in zip(frontier.gains, wholes, strict=True) if math.isfinite(gain)]
    ends = min([0.0, *(_BELOW * share for share in shares)]), max([_HIGHEST, *shares])
    points = [
        {
            "batch": size,
            "share": gain / whole,
            "low": clip((gain - 2 * error) / whole, ends),
            "high": clip((gain + 2 * error) / whole, ends),
            "gain": gain,
        }
        for size, (gain, error), whole in zip(frontier.sizes, frontier.gains, wholes, strict=True)
        if math.isfinite(gain)
    ]
    local = frontier.b_local
    curve = []
    if local.value is not None:
        grid = [domain[0] * (domain[1] / domain[0]) ** (i / (_POINTS - 1)) for i in range(_POINTS)]
        curve = [{"batch": b, "share": 1 / (1 + b / local.value)} for b in grid]
    x = log_axis(alt.X, "batch", "batch size, observations an iteration", domain)
    y = alt.Y(
        "share:Q",
        title="gain, share of small batches'",
        scale=alt.Scale(domain=list(ends), nice=False),
        axis=alt.Axis(format="%"),
    )
    about = numbers(batch="batch size", share="share", gain="return gained")
    layers = [
        *layer(curve, "line", {"x": x, "y": y}, color=PALETTE[0]),
        draw(points).mark_rule(color="#1a1a1a").encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        draw(points).mark_point(filled=True, size=70, opacity=1, color="#1a1a1a").encode(x=x, y=y, tooltip=about),
    ]
    for number, (name, estimate) in enumerate((("B_local", local), ("noise scale", noise))):
        layers += _interval(name, estimate, domain, height=12 + 34 * number, colour=PALETTE[number])
    return alt.layer(*layers)


def _sizes_shown(frontier: LocalFrontier) -> tuple[float, float]:
    """Ends of the axis of batch sizes."""
    return frontier.sizes[0] / _ROOM[0], frontier.sizes[-1] * _ROOM[1]


def _beyond(estimate: Estimate | None, domain: tuple[float, float]) -> Literal["left", "right"] | None:
    """The side of the chart on which the whole interval lies; None where some of it is within, or there is none."""
    if estimate is None or estimate.interval is None:
        return None
    low, high = estimate.interval
    return "left" if high <= domain[0] else "right" if low >= domain[1] else None


def _interval(name: str, estimate: Estimate | None, domain: tuple[float, float], *, height: int, colour: str) -> list[Any]:
    """A bar as wide as the interval, so many pixels below the top, with its name under it; nothing where there is none.

    Of an interval beyond the chart a triangle at its edge, which points there.
    """
    if estimate is None or estimate.interval is None:
        return []
    low, high = (clip(end, domain) for end in estimate.interval)
    bar = draw([{"low": low, "high": high, "name": name, "middle": math.sqrt(low * high)}])
    if side := _beyond(estimate, domain):
        triangle = bar.mark_point(shape=f"triangle-{side}", size=90, filled=True, opacity=1, color=colour)
        text = bar.mark_text(fontSize=13, color=colour, align=side)
        x = "middle:Q"
        return [triangle.encode(x=x, y=alt.value(height)), text.encode(x=x, y=alt.value(height + 14), text="name:N")]
    return [
        bar.mark_rule(strokeWidth=6, color=colour).encode(x="low:Q", x2="high:Q", y=alt.value(height)),
        bar.mark_text(fontSize=13, color=colour).encode(x="middle:Q", y=alt.value(height + 14), text="name:N"),
    ]
