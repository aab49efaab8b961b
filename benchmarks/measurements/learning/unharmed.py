"""Whether overlap, bfloat16 and several learners harm learning: runs with all three beside plain ones, over seeds.

    python -m rlscale.benchmarks.measurements.learning.unharmed [--task TASK] [--seeds N] [--observations N] [--out FILE]

Plain is `--lag 0 --precision float32 --learners 1`, the other `--lag 1 --precision bfloat16 --learners 2`; everything else is
equal. Each run gives two statistics: the mean return of the episodes that finished in the last fifth of the observations, and
that of the whole run (the height of the learning curve). Welch's interval of the difference of means says what seeds
alone explain.
"""

import shlex
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy.stats import ttest_ind

from ..measuring import NO_HEADS, mean_return, print_table, returns_of, train, write_result

KINDS = {
    "plain": ["--lag", "0", "--precision", "float32", "--learners", "1"],
    "lag 1, bfloat16, two learners": ["--lag", "1", "--precision", "bfloat16", "--learners", "2"],
}
POINTS = 50  # of a learning curve in the record


def main(
    task: str = "minatar/breakout",
    seeds: int = 5,
    observations: int = 600_000,
    settings: str = (
        "--environments 64 --rollout-length 32 --epochs 2 --mini-batch 1024 --learning-rate 5e-3 --entropy-coef 0.03 --threads 1"
    ),
    out: Path = Path("results/unharmed.json"),
) -> None:
    """Compare learning with overlap, bfloat16 and several learners to learning without them.

    Args:
        task: The task.
        seeds: Runs of each kind.
        observations: Observations of each run.
        settings: What both kinds have in common, as typed after `rlscale train TASK`.
        out: Where the record goes.
    """
    options = {"task": task, "seeds": seeds, "observations": observations, "settings": settings}
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        for kind in KINDS:
            words = [task, *shlex.split(settings), *KINDS[kind], "--seed", str(seed), "--observations", str(observations)]
            runs.append(run({"kind": kind, "seed": seed}, [*words, *NO_HEADS]))
            print(f"seed {seed}, {kind}: {runs[-1]['end']:.2f} in the last fifth, {runs[-1]['whole']:.2f} in all", flush=True)
            write_result(out, {"options": options, "runs": runs})
    rows = []
    for statistic, name in (("end", "last fifth"), ("whole", "whole run")):
        values = [[each[statistic] for each in runs if each["kind"] == kind] for kind in KINDS]
        rows.append([name, *map(spread, values), difference(*values)])
    print_table(f"Mean return of finished episodes, {task}", ["of", *KINDS, "difference [95%]"], rows)


def run(labels: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """One run of the real command: its labels, statistics and learning curve."""
    rows = train(*words).rows
    finished = [row for row in rows if row["episodes"]]
    curve = [part for part in np.array_split(np.array(finished, dtype=object), POINTS) if len(part)]
    return {
        **labels,
        "command": ["rlscale", "train", *words, "--run", "RUN"],
        **returns_of(rows),
        "curve": [[part[-1]["observations"], mean_return(part)] for part in curve],
        "lags": sorted({lag for row in rows for lag, _ in row["fragment_lags"]}),
    }


def spread(values: list[float]) -> str:
    """Mean, and standard deviation between seeds."""
    deviation = f" (sd {statistics.stdev(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def difference(plain: list[float], other: list[float]) -> str:
    """Difference of the means with Welch's interval."""
    gap = statistics.fmean(other) - statistics.fmean(plain)
    if len(plain) < 2:
        return f"{gap:+.2f}"
    low, high = ttest_ind(other, plain, equal_var=False).confidence_interval(0.95)
    return f"{gap:+.2f} ({low:+.2f}, {high:+.2f})"


if __name__ == "__main__":
    tyro.cli(main)
