"""Whether overlap, bfloat16 and several learners harm learning: runs with all three beside plain ones, over seeds.

    python -m rlscale.benchmarks.measurements.unharmed [--task TASK] [--seeds N] [--observations N] [--out FILE]

Plain is `--lag 0 --precision float32 --learners 1`, the other `--lag 1 --precision bfloat16 --learners 2`; everything else is
equal. Two statistics of each run: the mean return of the episodes that finished in the last fifth of the observations, and in
the whole run (the height of the learning curve). Runs are told apart from seeds by Welch's interval of the difference of means.
"""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy.stats import ttest_ind

from .measuring import NO_HEADS, mean_return, print_table, returns_of, settings_of, train, write_result

KINDS = {
    "plain": ["--lag", "0", "--precision", "float32", "--learners", "1"],
    "lag 1, bfloat16, two learners": ["--lag", "1", "--precision", "bfloat16", "--learners", "2"],
}
POINTS = 50  # of a learning curve in the record


@dataclass(frozen=True)
class Options:
    """Learning with and without overlap, bfloat16 and several learners."""

    task: str = "minatar/breakout"
    """The task."""
    seeds: int = 5
    """Runs of each kind."""
    observations: int = 600_000
    """Of each run."""
    settings: str = (
        "--environments 64 --rollout-length 32 --epochs 2 --mini-batch 1024 --learning-rate 5e-3 --entropy-coef 0.03 --threads 1"
    )
    """What both kinds have in common, as typed after `rlscale train TASK`."""
    out: Path = Path("results/unharmed.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    runs: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for kind in KINDS:
            done = run(options, kind, seed)
            runs.append(done)
            print(f"seed {seed}, {kind}: {done['end']:.2f} in the last fifth, {done['whole']:.2f} in all", flush=True)
            write_result(options.out, {"options": settings_of(options), "runs": runs})
    rows = []
    for statistic, name in (("end", "last fifth"), ("whole", "whole run")):
        values = [[each[statistic] for each in runs if each["kind"] == kind] for kind in KINDS]
        rows.append([name, *map(spread, values), difference(*values)])
    print_table(f"Mean return of finished episodes, {options.task}", ["of", *KINDS, "difference [95%]"], rows)


def run(options: Options, kind: str, seed: int) -> dict[str, Any]:
    """One run of the real command; its curve and statistics."""
    words = [options.task, *shlex.split(options.settings), *KINDS[kind], "--seed", str(seed)]
    words += ["--observations", str(options.observations), *NO_HEADS]
    rows = train(*words).rows
    finished = [row for row in rows if row["episodes"]]
    curve = [part for part in np.array_split(np.array(finished, dtype=object), POINTS) if len(part)]
    return {
        "kind": kind,
        "seed": seed,
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
    main()
