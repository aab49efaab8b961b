"""Draws docs/pictures/quick.png: B_crit measured, and predicted by a quick sweep and by the sweep's own noise runs.

The records are results/quick.json and results/ladder. It prints what the noise runs predict, a column of docs/beyond.md.
"""

from __future__ import annotations

import json
from pathlib import Path

from intervals import intervals, save

from rlscale.analysis import compare
from rlscale.analysis.predictions import ADVISED
from rlscale.estimate import Estimate
from rlscale.records import read_sweep

RESULTS = Path(__file__).parents[2] / "results"


def main() -> None:
    cases = json.loads((RESULTS / "quick.json").read_text())["readings"]["cases"]
    rows = {}
    for rung, case in sorted(cases.items(), key=lambda item: item[1]["measured"][0]):
        swept = next(row for row in compare([read_sweep(RESULTS / "ladder" / rung)], []).rows if row.goal == case["goal"])
        print(f"{rung}: {swept.predicted(*ADVISED).say()}, measured / predicted {swept.ratio(*ADVISED).say()}")
        value, ends = case["predicted"]
        rows[f"{rung} to {case['goal']:g}"] = {
            "measured by the sweep": swept.measured,
            "predicted by --quick": Estimate(value, tuple(ends)),
            "predicted by the sweep's noise runs": swept.predicted(*ADVISED),
        }
    save(intervals(rows, "critical batch size, observations"), __file__)


if __name__ == "__main__":
    main()
