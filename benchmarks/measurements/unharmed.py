"""Whether overlap, bfloat16 and several learners harm learning: runs with all three beside plain ones, over seeds.

    python -m rlscale.benchmarks.measurements.unharmed [--task TASK] [--seeds N] [--observations N] [--out FILE]

Plain is `--lag 0 --precision float32 --learners 1`, the other `--lag 1 --precision bfloat16 --learners 2`; everything else is
equal. Two statistics of each run: the mean return of the episodes that finished in the last fifth of the observations, and in
the whole run (the height of the learning curve). Runs are told apart from seeds by Welch's interval of the difference of means.
"""

from __future__ import annotations

import math
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy.stats import t as student

from rlscale.records.run import read_run

from .measuring import print_table, write_result

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
            run = train(options, kind, seed)
            runs.append(run)
            print(f"seed {seed}, {kind}: {run['end']:.2f} in the last fifth, {run['whole']:.2f} in all", flush=True)
            write_result(options.out, {"options": said(options), "runs": runs})
    rows = []
    for statistic, name in (("end", "last fifth"), ("whole", "whole run")):
        values = [[run[statistic] for run in runs if run["kind"] == kind] for kind in KINDS]
        rows.append([name, *(f"{spread(v)}" for v in values), difference(*values)])
    print_table(f"Mean return of finished episodes, {options.task}", ["of", *KINDS, "difference [95%]"], rows)


def train(options: Options, kind: str, seed: int) -> dict[str, Any]:
    """One run of the real command; its curve and statistics."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", options.task, *shlex.split(options.settings), *KINDS[kind], "--seed", str(seed)]
        words += ["--observations", str(options.observations), "--policy-noise-period", "0", "--value-noise-period", "0"]
        words += ["--entropy-noise-period", "0", "--run", f"{folder}/run"]
        done = subprocess.run([sys.executable, "-m", "rlscale", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
        rows = read_run(Path(folder) / "run").rows
    finished = [row for row in rows if row["episodes"]]
    late = [row for row in finished if row["observations"] > 0.8 * options.observations]
    curve = [part for part in np.array_split(np.array(finished, dtype=object), POINTS) if len(part)]
    return {
        "kind": kind,
        "seed": seed,
        "command": ["rlscale", *words[:-1], "RUN"],
        "end": mean_return(late),
        "whole": mean_return(finished),
        "curve": [[part[-1]["observations"], mean_return(list(part))] for part in curve],
        "lags": sorted({lag for row in rows for lag, _ in row["fragment_lags"]}),
    }


def mean_return(rows: list[dict[str, Any]]) -> float:
    """Over all episodes of the rows; nan if there were none."""
    episodes = sum(row["episodes"] for row in rows)
    return sum(row["return_mean"] * row["episodes"] for row in rows) / episodes if episodes else math.nan


def spread(values: list[float]) -> str:
    """Mean, and standard deviation between seeds."""
    deviation = f" (sd {statistics.stdev(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def difference(plain: list[float], other: list[float]) -> str:
    """Difference of the means with Welch's interval."""
    gap = statistics.fmean(other) - statistics.fmean(plain)
    if len(plain) < 2:
        return f"{gap:+.2f}"
    a, b = statistics.variance(plain) / len(plain), statistics.variance(other) / len(other)
    freedom = (a + b) ** 2 / (a**2 / (len(plain) - 1) + b**2 / (len(other) - 1))
    reach = float(student.ppf(0.975, freedom)) * math.sqrt(a + b)
    return f"{gap:+.2f} ({gap - reach:+.2f}, {gap + reach:+.2f})"


def said(options: Options) -> dict[str, Any]:
    """The options, for the record."""
    return {"task": options.task, "seeds": options.seeds, "observations": options.observations, "settings": options.settings}


if __name__ == "__main__":
    main()
