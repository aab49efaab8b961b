"""What quick sweeps of the ladder's tasks predict, beside what the whole sweeps measured, and what they cost.

    python -m rlscale.benchmarks.measurements.learning.quick RUNG... [--seed S] [--out FILE]

A rung's own command is run with `--quick` and other seeds; its runs are none of the rung's. Costs are observations, those of
evaluations included, as a share of all that the rung's runs took but its noise runs. A rung that was measured before is replaced
in the record; the others stay, each with the commit, date and machine that it was made with.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlscale.analysis.comparison import compare
from rlscale.analysis.predictions import ADVISED, ratio
from rlscale.analysis.rows import Row
from rlscale.records import SweepRecord, TrialResult, folder_name, read_sweep

from ..ladder.rungs import Rung, read_rungs
from ..measuring import made_here, print_table, require_known, say_recorded, write_result

RUNGS = Path("results/ladder")  # of the checkout in which the measurement is started


def main(
    rungs: Annotated[tuple[str, ...], tyro.conf.Positional], /, seed: int = 5000, out: Path = Path("results/quick.json")
) -> None:
    """Run quick sweeps of rungs that have ended.

    Args:
        rungs: Their names.
        seed: Of the first run.
        out: Where the record goes.
    """
    known = {rung.name: rung for rung in read_rungs()[1]}
    require_known("RUNGS", rungs, known)
    cases: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["readings"]["cases"] if out.exists() else {}
    for name in rungs:
        cases[name] = measure(known[name], seed)
        write_result(out, {"cases": cases})
        print_table("Quick sweeps", ["rung", "goal", "predicted", "measured", "measured / predicted", "cost"], rows_of(cases))


def measure(rung: Rung, seed: int) -> dict[str, Any]:
    """One quick sweep, and the rung's own."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*rung.command(folder), "--quick", "--seed", str(seed)]
        subprocess.run([sys.executable, "-m", "rlscale", *words], check=True)
        quick = read_sweep(Path(folder) / folder_name(rung.task))
    runs = list(quick.results.values())
    row = last_row(quick)
    whole = read_sweep(RUNGS / rung.name)
    measured = next(one for one in compare([whole], []).rows if one.goal == row.goal)
    predicted = row.predicted(*ADVISED)
    return {
        "command": ["rlscale", *rung.command("SWEEPS"), "--quick", "--seed", str(seed)],
        **made_here(),
        "goal": row.goal,
        "predicted": [predicted.value, predicted.interval],
        "measured": [measured.measured.value, measured.measured.interval],
        "ratio": ratio(measured.measured, predicted).value,
        "cost": spent(runs),
        "whole_cost": spent(run for run in whole.results.values() if run.stage != "noise"),
        "seconds": 3600 * sum(run.hours(quick.plan["jobs"]) for run in runs),
        "whole_seconds": 3600 * sum(run.hours(whole.plan["jobs"]) for run in whole.results.values() if run.stage != "noise"),
        "runs": [
            {
                "stage": run.stage,
                "batch_size": run.batch_size,
                "learning_rate": run.learning_rate,
                "seed": run.seed,
                "steps": run.steps_to(row.goal or 0.0),
                "observations": run.observations,
                "evaluation_steps": run.evaluation_steps,
                "seconds": run.seconds,
            }
            for run in runs
        ],
    }


def last_row(record: SweepRecord) -> Row:
    """Of the last goal that a run reached."""
    return [row for row in compare([record], []).rows if row.frontier is not None][-1]


def spent(runs: Iterable[TrialResult]) -> int:
    """Observations of runs, with those of their evaluations."""
    return sum(run.observations + run.evaluation_steps for run in runs)


def rows_of(cases: dict[str, Any]) -> list[list[str]]:
    """A table row for each rung."""
    return [
        [
            name,
            f"{case['goal']:g}",
            say_recorded(*case["predicted"]),
            say_recorded(*case["measured"]),
            "–" if case["ratio"] is None else f"{case['ratio']:.2f}",
            f"{case['cost'] / case['whole_cost']:.1%}",
        ]
        for name, case in cases.items()
    ]


if __name__ == "__main__":
    tyro.cli(main)
