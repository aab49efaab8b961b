"""Draws docs/pictures/hessian.png: noise scales in three metrics beside B_local at each checkpoint, from results/branches."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from intervals import intervals, save

from rlscale.agents.learning.optimizer import POLICY_PART
from rlscale.benchmarks.branch.findings import fit
from rlscale.estimate import Estimate

RESULTS = Path(__file__).parents[2] / "results" / "branches"
METRICS = {"plain": "noise scale, plain", "adam": "noise scale, Adam's metric", "hessian": "noise scale, Hessian"}


def estimates(record: dict[str, Any]) -> dict[str, Estimate]:
    """B_local of a checkpoint, and the noise scales of the joint loss on the policy's parameters."""
    found = {"B_local": fit(record).b_local}
    for scale in record["noise"]["scales"]:
        if scale["head"] == POLICY_PART:
            value, (low, high) = scale["value"], scale["interval"]
            reason = "not resolved" if value is None else None
            found[METRICS[scale["metric"]]] = Estimate(value, (low, math.inf if high is None else high), reason)
    return found


def main() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    rows = {f"{record['task']} at a return of {record['start']['return']:.3g}": estimates(record) for record in records}
    save(intervals(rows, "observations an optimizer step"), __file__)


if __name__ == "__main__":
    main()
