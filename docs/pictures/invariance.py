"""Draws docs/pictures/invariance.png: returns of PPO and PPO-EWMA at three batch sizes, from results/invariance.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import altair as alt

from rlscale.report.chart_style import PALETTE

RECORD = Path(__file__).parents[2] / "results" / "invariance.json"
NAMES = {True: "averaged proximal policy (PPO-EWMA)", False: "proximal policy = policy that acted (PPO)"}


def panel(runs: list[dict[str, Any]], title: str, top: float) -> alt.LayerChart:
    """Runs of one task and kind: the mean over seeds of each batch size, and the lowest and highest seed."""
    points = []
    for divisor in sorted({run["divisor"] for run in runs}):
        curves = [run["curve"] for run in runs if run["divisor"] == divisor]
        for at in zip(*curves, strict=True):
            returns = [value for _, value in at]
            low, high = min(returns), max(returns)
            name = f"1/{divisor} of the batch" if divisor > 1 else "whole batch"
            points.append(
                {"observations": at[0][0], "return": statistics.fmean(returns), "low": low, "high": high, "batch": name}
            )
    names = list(dict.fromkeys(point["batch"] for point in points))
    colour = alt.Color("batch:N", title=None, sort=names, scale=alt.Scale(domain=names, range=PALETTE[: len(names)]))
    x = alt.X("observations:Q", title="observations", axis=alt.Axis(format="~s", tickCount=5))
    chart = alt.Chart(alt.Data(values=points))
    band = chart.mark_area(opacity=0.18).encode(
        x=x, y=alt.Y("low:Q", title="mean return", scale=alt.Scale(domain=[0, top])), y2="high:Q", color=colour
    )
    return alt.layer(band, chart.mark_line(strokeWidth=2.5).encode(x=x, y="return:Q", color=colour)).properties(
        width=440, height=190, title=title
    )


def main() -> None:
    runs = json.loads(RECORD.read_text())["readings"]["runs"]
    rows = []
    for task in dict.fromkeys(run["task"] for run in runs):
        mine = [run for run in runs if run["task"] == task]
        top = max(value for run in mine for _, value in run["curve"])
        panels = [panel([r for r in mine if r["averaged"] == kind], f"{task}: {name}", top) for kind, name in NAMES.items()]
        rows += panels
    chart = alt.vconcat(*rows).configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=13)
    chart = chart.configure_legend(labelFontSize=13, orient="bottom", symbolOpacity=1).configure_view(stroke=None)
    chart.save(str(Path(__file__).with_name("invariance.png")), scale_factor=2)


if __name__ == "__main__":
    main()
