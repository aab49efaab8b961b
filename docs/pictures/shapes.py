"""Draws docs/pictures/shapes.png: return and noise scale of four shapes of rollout at one batch, from results/shapes.json."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import altair as alt
from intervals import save
from scipy.special import stdtrit

from rlscale.report.chart_style import GREY, PALETTE, layer, log_axis

RECORD = Path(__file__).parents[2] / "results" / "shapes.json"
NOISE = (250.0, 12_000.0)  # what the axis shows


def panel(runs: list[dict[str, Any]], batch: int, y: alt.Y, value: str, title: str | None) -> alt.LayerChart:
    """Every seed of a task, and the mean of each shape with its 95% interval (Student's t).

    Args:
        runs: with the field `value`; runs without one are left out.
        batch: observations of an iteration.
        y: the channel of that field. On a logarithmic axis the mean is the geometric one.
        title: of the panel.
    """
    logarithmic = y.to_dict()["scale"].get("type") == "log"
    forward, back = (math.log, math.exp) if logarithmic else (float, float)
    names = {run["environments"]: f"{run['environments']:,} × {batch // run['environments']}" for run in runs}
    seeds, means = [], []
    for number, name in sorted(names.items()):
        values = [run[value] for run in runs if run["environments"] == number and run[value] is not None]
        seeds += [{"shape": name, value: each} for each in values]
        if len(values) > 1:
            moved = [forward(each) for each in values]
            middle = statistics.fmean(moved)
            half = float(stdtrit(len(moved) - 1, 0.975)) * statistics.stdev(moved) / math.sqrt(len(moved))
            means.append({"shape": name, value: back(middle), "low": back(middle - half), "high": back(middle + half)})
    x = alt.X(
        "shape:N",
        sort=[names[number] for number in sorted(names)],
        scale=alt.Scale(domain=[names[number] for number in sorted(names)]),
        title="environments × steps",
        axis=alt.Axis(labelAngle=-45),
    )
    layers = [
        *layer(
            means, "rule", {"x": x, "y": alt.Y("low:Q"), "y2": "high:Q"}, strokeWidth=3, opacity=0.5, color=PALETTE[0], clip=True
        ),
        *layer(seeds, "point", {"x": x, "y": y}, size=40, filled=False, color=GREY, strokeWidth=1.5, xOffset=9),
        *layer(means, "point", {"x": x, "y": y}, size=80, filled=True, opacity=1, color=PALETTE[0]),
    ]
    chart = alt.layer(*layers).properties(width=195, height=200)
    return chart.properties(title=title) if title else chart


def main() -> None:
    readings = json.loads(RECORD.read_text())["readings"]
    runs = [{**run, "joint": run["noise"]["joint"]} for run in readings["runs"]]
    batch = readings["options"]["batch"]
    rows = []
    for value in ("whole", "joint"):
        panels = []
        for number, task in enumerate(readings["options"]["tasks"]):
            mine = [run for run in runs if run["task"] == task]
            if value == "whole":
                y = alt.Y("whole:Q", title=None if number else "mean return of the run", scale=alt.Scale(domain=[0, 5.5]))
            else:
                y = log_axis(alt.Y, "joint", "" if number else "noise scale, observations", NOISE)
            panels.append(panel(mine, batch, y, value, task if value == "whole" else None))
        rows.append(alt.hconcat(*panels))
    save(alt.vconcat(*rows), __file__)


if __name__ == "__main__":
    main()
