"""The charts of a run: returns, noise scales, speed, and what the time was spent on."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from ..analysis.summary import NoiseWindow, head_kinds, noise_windows, returns, time_shares
from ..records import RunRecord
from .chart_style import NUMBER, SI_LABEL, clip, colour, draw, finish, layer, log_axis, log_domain, message
from .words import head_name

__all__ = ["diagnostic_chart", "head_label", "noise_chart", "policy_chart", "return_chart", "speed_chart", "time_chart"]


def _observations_axis() -> Any:
    return alt.X(
        "observations:Q",
        title="observations (agent steps)",
        axis=alt.Axis(labelExpr=SI_LABEL, tickCount=5, labelOverlap="greedy", labelSeparation=8),
        scale=alt.Scale(nice=False, domainMin=0),
    )


def _axis(values: Iterable[float], **usual: Any) -> Any:
    """The axis of these values; of a single one Vega would label the nearest whole number."""
    distinct = set(values)
    return alt.Axis(values=list(distinct), format=NUMBER) if len(distinct) == 1 else alt.Axis(**usual)


def _line(points: Sequence[Mapping[str, Any]], by: str | None = None) -> dict[str, Any]:
    """How a line is drawn: with points where a series has one alone, which a line would not show."""
    counts = Counter(None if by is None else point[by] for point in points)
    return {"strokeWidth": 2, "point": alt.OverlayMarkDef(size=30) if 1 in counts.values() else False}


def return_chart(runs: Sequence[RunRecord], names: list[str]) -> Any:
    """Mean raw return of the last 100 episodes of each run, with the goals that were reached."""
    data = [{**point, "run": name} for run, name in zip(runs, names, strict=True) for point in returns(run)]
    best = {name: max((point["return"] for point in data if point["run"] == name), default=-math.inf) for name in names}
    reached = sorted(
        {goal for run, name in zip(runs, names, strict=True) for goal in run.manifest["task"]["goals"] if goal <= best[name]}
    )
    line = (
        draw(data)
        .mark_line(**_line(data, "run"))
        .encode(
            x=_observations_axis(),
            y=alt.Y("return:Q", title="return (raw score)", scale=alt.Scale(zero=False), axis=_axis(p["return"] for p in data)),
            color=colour("run", names, alone=False),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("observations:Q", format=","),
                alt.Tooltip("return:Q", format=".2f"),
                "episodes:Q",
            ],
        )
    )
    rules = (
        draw([{"goal": goal} for goal in reached])
        .mark_rule(strokeDash=[4, 4], color="#888")
        .encode(y="goal:Q", tooltip=[alt.Tooltip("goal:Q", title="goal")])
    )
    return finish(alt.layer(rules, line) if reached else line, 260) if data else message("no episode has finished yet")


def head_label(head: str, kind: str) -> str:
    """A head's name for people; the kind of its blocks is said unless they are sets of environments."""
    return head_name(head) + ("" if kind == "rollout" else f" ({kind})")


def _noise_scales(series: dict[str, list[NoiseWindow]]) -> Any:
    """Lines and bands where resolved, a triangle with a line upwards where only a lower bound is known; log axis.

    Where only an upper bound is known the triangle points down. Windows in which no noise was seen are left out.
    """
    resolved: list[dict[str, Any]] = []
    above: list[dict[str, Any]] = []
    below: list[dict[str, Any]] = []
    for name, windows in series.items():
        stretch = 0
        for w in windows:
            point = {
                "series": name,
                "observations": w.observations,
                "updates": w.updates,
                "blocks": w.noise.blocks,
                "stretch": stretch,
            }
            low, high = w.noise.interval
            if w.noise.b_simple is not None:
                resolved.append({**point, "value": w.noise.b_simple, "low": low, "high": high})
                continue
            stretch += 1  # a line is not drawn across a window that is not resolved
            if math.isinf(high):
                above.append({**point, "low": low, "bound": low or None})
            elif high > 0:
                below.append({**point, "low": low, "high": high})
    ends = [p["value"] for p in resolved] + [p["low"] for p in above] + [p["high"] for p in below]
    domain = log_domain(ends, padding=3)
    for p in (*resolved, *above, *below):
        p["from"], p["to"] = clip(p["low"], domain), clip(p.get("high", math.inf), domain)
    x, by = _observations_axis(), colour("series", list(series), alone=False)
    bottom, middle, top = (log_axis(alt.Y, field, "noise scale (observations)", domain) for field in ("from", "value", "to"))
    about = [alt.Tooltip("series:N", title="head"), alt.Tooltip("observations:Q", format=",.0f"), "updates:Q", "blocks:Q"]
    numbers = [alt.Tooltip(f"{name}:Q", format=",.3~r") for name in ("value", "low", "high")]
    bound = alt.Tooltip("bound:Q", title="not resolved, above", format=",.3~r")
    limit = alt.Tooltip("high:Q", title="not resolved, below", format=",.3~r")
    band = {"x": x, "y": bottom, "y2": "to:Q", "color": by}
    line = {"x": x, "y": middle, "color": by, "detail": "stretch:N", "tooltip": [*about, *numbers]}
    lowest = {"x": x, "y": bottom, "color": by, "tooltip": [*about, bound]}
    highest = {"x": x, "y": top, "color": by, "tooltip": [*about, limit]}
    hollow = {"size": 40, "filled": False}
    chart = alt.layer(
        *layer(resolved, "area", {**band, "detail": "stretch:N"}, opacity=0.18),
        # A window alone between others that are not resolved has no band; every window shows its own interval.
        *layer(resolved, "rule", band, opacity=0.5),
        *layer(resolved, "line", line, strokeWidth=2, point=alt.OverlayMarkDef(size=22)),
        *layer([*above, *below], "rule", band, opacity=0.15),
        *layer(above, "point", lowest, shape="triangle-up", **hollow),
        *layer(below, "point", highest, shape="triangle-down", **hollow),
    )
    return finish(chart, 320) if resolved or above or below else message("none seen" if any(series.values()) else "not measured")


def noise_chart(run: RunRecord) -> Any:
    """Noise scale of every head but entropy, which carries no reward signal and is in the table."""
    return _noise_scales(
        {head_label(head, kind): noise_windows(run, head, kind) for head, kind in head_kinds(run) if head != "entropy"}
    )


def policy_chart(runs: Sequence[RunRecord], names: list[str]) -> Any:
    """The policy's rollout noise scale of several runs."""
    return _noise_scales({name: noise_windows(run, "policy", "rollout") for run, name in zip(runs, names, strict=True)})


def diagnostic_chart(name: str, points: list[dict[str, float]]) -> Any:
    """One loss or diagnostic against observations."""
    line = (
        draw(points)
        .mark_line(**_line(points))
        .encode(
            x=_observations_axis(),
            y=alt.Y("value:Q", title=name, scale=alt.Scale(zero=False), axis=_axis((p["value"] for p in points), tickCount=4)),
            tooltip=[alt.Tooltip("observations:Q", format=","), alt.Tooltip("value:Q", title=name, format=NUMBER)],
        )
    )
    return finish(line, 110)


def speed_chart(run: RunRecord) -> Any:
    """Observations per second: sampling, learning, end to end."""
    rows = run.rows
    size = max(1, -(-len(rows) // 150))
    data, before = [], 0.0
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        count = sum(row["batch_observations"] for row in part)
        seconds = {name: sum(row[f"{name}_seconds"] or 0.0 for row in part) for name in ("sampling", "transfer", "learning")}
        # Where sampling and learning overlap, transfer is null and the parts add up to more than the whole.
        overlaps = any(row["transfer_seconds"] is None for row in part)
        elapsed = part[-1]["seconds"] - before if overlaps else sum(seconds.values())
        before = part[-1]["seconds"]
        for name, value in (("sampling", seconds["sampling"]), ("learning", seconds["learning"]), ("end to end", elapsed)):
            if value > 0:
                data.append({"observations": part[-1]["observations"], "rate": count / value, "part": name})
    chart = (
        draw(data)
        .mark_line(**_line(data, "part"))
        .encode(
            x=_observations_axis(),
            y=alt.Y("rate:Q", title="observations per second", axis=alt.Axis(labelExpr=SI_LABEL), scale=alt.Scale(domainMin=0)),
            color=colour("part", ["sampling", "learning", "end to end"]),
            tooltip=["part:N", alt.Tooltip("observations:Q", format=","), alt.Tooltip("rate:Q", format=",.0f")],
        )
    )
    return finish(chart, 200)


def time_chart(run: RunRecord) -> Any:
    """Seconds of the whole run by what they were spent on."""
    shares = time_shares(run)
    data = [{"part": part, "seconds": seconds, "order": i} for i, (part, seconds) in enumerate(shares.items())]
    chart = (
        draw(data)
        .mark_bar()
        .encode(
            x=alt.X(
                "seconds:Q", title="seconds", stack=True, axis=alt.Axis(tickCount=8, labelOverlap="greedy", labelSeparation=8)
            ),
            color=colour("part", list(shares)),
            order="order:Q",
            tooltip=["part:N", alt.Tooltip("seconds:Q", format=",.1f")],
        )
    )
    return finish(chart, 50)
