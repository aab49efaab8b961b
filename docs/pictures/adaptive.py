"""Draws docs/pictures/adaptive.png: what fixed and adaptive batches cost and how large they are, from results/adaptive-2.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import altair as alt

from rlscale.report.chart_style import PALETTE, log_axis, log_domain

RECORD = Path(__file__).parents[2] / "results" / "adaptive-2.json"
NAMES = {
    None: "fixed",
    "policy_last_layer": "follows the policy's last layer",
    "joint": "follows the joint loss",
    "joint_adam": "follows the joint loss, Adam's metric",
}


def named(run: dict[str, Any]) -> str:
    return NAMES[run["followed"]]


def colour(field: str, legend: alt.Legend | None = None) -> alt.Color:
    names = list(NAMES.values())
    return alt.Color(field, title=None, sort=names, scale=alt.Scale(domain=names, range=PALETTE[: len(names)]), legend=legend)


def costs(rung: str, runs: list[dict[str, Any]]) -> alt.LayerChart:
    """Every run's cost, and the median of each kind."""
    points = [{"kind": named(run), "cost": run["cost"], "missed": not run["reached"]} for run in runs]
    medians = [
        {"kind": name, "cost": statistics.median(p["cost"] for p in points if p["kind"] == name)} for name in NAMES.values()
    ]
    x = log_axis(alt.X, "cost", "cost r S + E, observations", log_domain((run["cost"] for run in runs), padding=1.2))
    lines = "split(replace(datum.label, 'follows the ', 'follows the|'), '|')"
    y = alt.Y("kind:N", title=None, sort=list(NAMES.values()), axis=alt.Axis(labelLimit=300, labelExpr=lines))
    shape = alt.Shape("missed:N", legend=None, scale=alt.Scale(domain=[False, True], range=["circle", "triangle-right"]))
    dots = alt.Chart(alt.Data(values=points)).mark_point(opacity=0.6, size=35)
    ticks = alt.Chart(alt.Data(values=medians)).mark_tick(thickness=3, size=26, color="#1a1a1a")
    return alt.layer(dots.encode(x=x, y=y, color=colour("kind:N"), shape=shape), ticks.encode(x=x, y=y)).properties(
        width=340, height=180, title=f"{rung}: cost to the goal; line: median; triangle: missed it"
    )


def sizes(rung: str, runs: list[dict[str, Any]], b_crit: float) -> alt.LayerChart:
    """The batch size over a run, median of the runs of each kind."""
    points = []
    for name in NAMES.values():
        curves = [run["batches"] for run in runs if named(run) == name]
        for share in range(41):
            sizes_then = [curve[min(share * len(curve) // 40, len(curve) - 1)] for curve in curves]
            points.append({"share": share / 40, "batch": statistics.median(sizes_then), "kind": name})
    y = log_axis(alt.Y, "batch", "batch, observations", log_domain((point["batch"] for point in points), padding=1.2))
    line = alt.Chart(alt.Data(values=points)).mark_line(strokeWidth=2.5)
    rule = alt.Chart(alt.Data(values=[{"batch": b_crit}])).mark_rule(strokeDash=[5, 4])
    x = alt.X("share:Q", title="share of the optimizer steps", axis=alt.Axis(format="%", tickCount=4))
    return alt.layer(rule.encode(y="batch:Q"), line.encode(x=x, y=y, color=colour("kind:N"))).properties(
        width=340, height=200, title="batch size, median run; dashed: B_crit"
    )


def main() -> None:
    readings = json.loads(RECORD.read_text())["readings"]
    rows = [
        panel
        for rung, found in readings.items()
        for panel in (costs(rung, found["final"]), sizes(rung, found["final"], found["measured"]["b_crit"]))
    ]
    chart = alt.vconcat(*rows).configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=13)
    chart.configure_view(stroke=None).save(str(Path(__file__).with_name("adaptive.png")), scale_factor=2)


if __name__ == "__main__":
    main()
