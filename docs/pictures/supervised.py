"""Draws docs/pictures/supervised.png: B_crit measured and predicted on the supervised tasks, from results/supervised."""

from __future__ import annotations

from pathlib import Path

from intervals import intervals, save

from rlscale.analysis import compare
from rlscale.analysis.predictions import ONLY_LOSS
from rlscale.records import read_sweep
from rlscale.report.words import say_aim

RESULTS = Path(__file__).parents[2] / "results" / "supervised"
TASKS = ("digits", "mnist", "digits-autoencoder", "digits-variational", "text")  # as the page's table has them


def main() -> None:
    sweeps = [read_sweep(RESULTS / task) for task in TASKS]
    rows = {
        f"{row.task} to {say_aim(row)}": {
            "critical batch size": row.measured,
            "noise scale, averaged to the goal": row.predicted(*ONLY_LOSS),
        }
        for row in compare(sweeps, []).rows
    }
    save(intervals(rows, "pictures (of the text, bytes) an optimizer step"), __file__)


if __name__ == "__main__":
    main()
