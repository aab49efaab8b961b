"""Draws docs/pictures/pendulum.png: the frontier of Pendulum, which has continuous actions, from results/ladder/pendulum."""

from __future__ import annotations

from pathlib import Path

from intervals import save

from rlscale.analysis import compare
from rlscale.records import read_sweep
from rlscale.report.sweep_charts import frontier_figure

RESULTS = Path(__file__).parents[2] / "results" / "ladder" / "pendulum"


def main() -> None:
    (sweep,) = compare([read_sweep(RESULTS)], []).sweeps
    save(frontier_figure(sweep).chart.properties(width=430, height=380), __file__)


if __name__ == "__main__":
    main()
