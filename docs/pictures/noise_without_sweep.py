"""Draws docs/pictures/noise-without-sweep.png: noise scale against return in one run of each task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt

from rlscale.report.chart_style import PALETTE
from rlscale.report.words import head_name

RECORD = Path(__file__).parents[2] / "results" / "noise-without-sweep.json"
HEADS = ("policy", "value", "joint")
COLUMNS = 2


def panel(task: dict[str, Any]) -> alt.LayerChart:
    """One task: a point for each window of measurements that is resolved, joined in the order of time, with its interval."""
    points = [
        {
            "return": window["return"],
            "noise": window["value"],
            "low": window["interval"][0],
            "high": window["interval"][1],
            "at": window["observations"],
            "loss": head_name(one["head"]),
        }
        for one in task["noise"]
        if one["head"] in HEADS and one["metric"] == "plain"
        for window in one["windows"]
        if window["value"] is not None and window["return"] is not None
    ]
    names = [head_name(head) for head in HEADS]
    x = alt.X("return:Q", title="mean return of 100 episodes", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    y = alt.Y("noise:Q", title="noise scale (observations)", scale=alt.Scale(type="log"))
    color = alt.Color("loss:N", title=None, sort=names, scale=alt.Scale(domain=names, range=PALETTE[: len(names)]))
    drawn = alt.Chart(alt.Data(values=points))
    lines = drawn.mark_line(strokeWidth=1, opacity=0.5).encode(x=x, y=y, color=color, order="at:Q")
    ends = drawn.mark_rule(opacity=0.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=color)
    dots = drawn.mark_point(filled=True, size=40, opacity=1).encode(x=x, y=y, color=color)
    return alt.layer(lines, ends, dots).properties(width=300, height=190, title=task["task"])


def main() -> None:
    panels = [panel(task) for task in json.loads(RECORD.read_text())["readings"]["tasks"]]
    rows = [alt.hconcat(*panels[i : i + COLUMNS]) for i in range(0, len(panels), COLUMNS)]
    chart = alt.vconcat(*rows).configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=14)
    chart = chart.configure_legend(labelFontSize=13, orient="bottom", symbolStrokeWidth=3).configure_view(stroke=None)
    chart.save(str(Path(__file__).with_name("noise-without-sweep.png")), scale_factor=1.5)


if __name__ == "__main__":
    main()
