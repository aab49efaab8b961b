"""Draws docs/pictures/time-to-score.png: learning curves of every seed against wall time, from results/time-to-score.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt

from rlscale.benchmarks.measurements.learning.time_to_score import CASES
from rlscale.report.chart_style import PALETTE

RECORD = Path(__file__).parents[2] / "results" / "time-to-score.json"
NAMES = {
    "cartpole": "CartPole",
    "pong": "Atari Pong",
    "asterix": "MinAtar Asterix",
    "breakout": "MinAtar Breakout",
    "freeway": "MinAtar Freeway",
    "seaquest": "MinAtar Seaquest",
    "space-invaders": "MinAtar Space Invaders",
}
SYSTEMS = ["rlscale", "Stable-Baselines3", "rlscale at half the rate"]
COLUMNS = 2


def panel(title: str, runs: list[dict[str, Any]]) -> alt.LayerChart:
    """One task: a line for each seed, and a rule at each goal."""
    points = [
        {"minutes": seconds / 60, "return": value, "run": number, "system": system_of(run)}
        for number, run in enumerate(runs)
        for seconds, _, value in run["curve"]
        if value is not None
    ]
    goals = sorted({float(goal) for run in runs for goal in run["goals"]})
    lines = (
        alt.Chart(alt.Data(values=points))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("minutes:Q", title="minutes of wall time", axis=alt.Axis(tickCount=5)),
            y=alt.Y("return:Q", title="mean return"),
            detail="run:N",
            color=alt.Color("system:N", title=None, sort=SYSTEMS, scale=alt.Scale(domain=SYSTEMS, range=[*PALETTE[:2], "#777"])),
        )
    )
    rules = alt.Chart(alt.Data(values=[{"goal": goal} for goal in goals])).mark_rule(strokeDash=[4, 4], color="#777")
    return alt.layer(rules.encode(y="goal:Q"), lines).properties(width=300, height=190, title=title)


def system_of(run: dict[str, Any]) -> str:
    """Which library trained, and whether it was with the settings that were given up."""
    return SYSTEMS[1 if run["case"].endswith("-sb3") else 2 if run["settings"] not in ("", CASES[run["case"]].settings) else 0]


def main() -> None:
    runs = json.loads(RECORD.read_text())["readings"]["runs"]
    panels = [
        panel(name, mine) for case, name in NAMES.items() if (mine := [r for r in runs if r["case"].removesuffix("-sb3") == case])
    ]
    rows = [alt.hconcat(*panels[i : i + COLUMNS]) for i in range(0, len(panels), COLUMNS)]
    chart = alt.vconcat(*rows).configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=14)
    chart = chart.configure_legend(labelFontSize=13, orient="bottom", symbolStrokeWidth=3).configure_view(stroke=None)
    chart.save(str(Path(__file__).with_name("time-to-score.png")), scale_factor=1.5)


if __name__ == "__main__":
    main()
