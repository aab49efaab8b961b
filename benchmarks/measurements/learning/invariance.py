"""Whether PPO-EWMA is batch size-invariant (Hilton, Cobbe and Schulman 2021): returns at a whole, a quarter, a sixteenth batch.

    python -m rlscale.benchmarks.measurements.learning.invariance [--tasks TASK ...] [--seeds N] [--observations N] [--out FILE]

The settings are those of the whole batch. Both batch sizes of a run, the iteration's and the optimizer step's, are divided by c
= 1, 4, 16 through the number of environments, and `--tuned-batch` fits everything else by the paper's rules. Runs with an
averaged proximal policy (`--proximal-average`) stand beside runs without, whose proximal policy is the one that acted: it is the
same in all else. Every run is one of `rlscale train`; seeds are the outer loop, the same command goes on where it stopped, and
with more seeds it makes those that are missing.
"""

import json
import shlex
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy.stats import ttest_ind

from rlscale.agents.train import train
from rlscale.records import read_run

from ...options import parse_train
from ..measuring import NO_HEADS, NO_ITERATION, mean_return, print_table, returns_of, settings_of, write_result

POINTS = 30  # of a learning curve in the record


@dataclass(frozen=True)
class Options:
    """PPO and PPO-EWMA at three batch sizes."""

    tasks: tuple[str, ...] = ("minatar/breakout", "minatar/space_invaders")
    """The tasks."""
    seeds: int = 3
    """Runs of each kind."""
    divisors: tuple[int, ...] = (1, 4, 16)
    """c: what both batch sizes are divided by."""
    observations: int = 200_000
    """Observations of each run."""
    environments: int = 128
    """Environments of the whole batch."""
    mini_batch: int = 256
    """Observations of an optimizer step of the whole batch."""
    proximal_average: float = 8.0
    """Center of mass of the averaged policy at the whole batch, in optimizer steps: as many as an iteration has."""
    settings: str = (
        "--rollout-length 16 --epochs 1 --shuffle transitions --learning-rate 0.002 --beta2 0.99 --entropy-coef 0.03 "
        "--advantage-scale running --max-grad-norm None --precision float32 --threads 1"
    )
    """What all runs have in common, as typed after `rlscale train TASK`."""
    out: Path = Path("results/invariance.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    asked = json.loads(json.dumps(settings_of(options)))
    runs: list[dict[str, Any]] = []
    if options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))["readings"]
        if {**found["options"], "seeds": options.seeds} != asked:
            raise SystemExit(f"{options.out} holds runs of other options: choose another --out")
        runs = found["runs"]
    done = [(r["seed"], r["task"], r["divisor"], r["averaged"]) for r in runs]
    for seed, task, divisor, averaged in product(range(options.seeds), options.tasks, options.divisors, (True, False)):
        if (seed, task, divisor, averaged) not in done:
            runs.append(run(options, task, divisor, averaged, seed))
            print(f"seed {seed} {task} 1/{divisor} {averaged=}: {runs[-1]['end']:.2f} in the last fifth", flush=True)
            write_result(options.out, {"options": asked, "runs": runs})
    for task in options.tasks:
        show(task, [r for r in runs if r["task"] == task], options)


def run(options: Options, task: str, divisor: int, averaged: bool, seed: int) -> dict[str, Any]:
    """One run: its statistics, its learning curve, and what the clip did."""
    words = [task, *shlex.split(options.settings), *NO_HEADS, *NO_ITERATION, "--joint-noise-period", "0"]
    words += ["--environments", str(options.environments // divisor), "--mini-batch", str(options.mini_batch // divisor)]
    words += ["--tuned-batch", str(options.mini_batch), "--seed", str(seed), "--observations", str(options.observations)]
    words += ["--proximal-average", str(options.proximal_average)] if averaged else []
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if train(parse_train(words), Path(folder) / "run", command=[]).state == "stopped":
            raise SystemExit("stopped within a run, which is not recorded")
        rows = read_run(Path(folder) / "run").rows
    edges = np.arange(1, POINTS + 1) * options.observations / POINTS
    numbers = np.searchsorted(edges, [row["observations"] for row in rows]).clip(max=POINTS - 1)
    parts = [[row for row, number in zip(rows, numbers, strict=True) if number == point] for point in range(POINTS)]
    return {
        "task": task,
        "divisor": divisor,
        "averaged": averaged,
        "seed": seed,
        "command": ["rlscale", "train", *words],
        **returns_of(rows),
        "curve": [[float(edge), mean_return(part)] for edge, part in zip(edges, parts, strict=True)],
        "clip_fraction": statistics.fmean(row["clip_fraction"] for row in rows),
        "cpu_seconds": time.process_time() - started,
    }


def show(task: str, runs: list[dict[str, Any]], options: Options) -> None:
    """Mean returns by kind, and by how much the smallest batch differs from the others, with Welch's interval."""
    rows = []
    for statistic, averaged in product(("end", "whole"), (True, False)):
        values = [[r[statistic] for r in runs if (r["divisor"], r["averaged"]) == (c, averaged)] for c in options.divisors]
        cells = [" ".join(f"{v:.2f}" for v in of_size) for of_size in values]
        gaps = []
        for other in values[:-1]:
            low, high = ttest_ind(values[-1], other, equal_var=False).confidence_interval(0.95)
            gaps.append(f"{statistics.fmean(values[-1]) - statistics.fmean(other):+.2f} ({low:+.2f}, {high:+.2f})")
        rows.append([{"end": "last fifth", "whole": "whole run"}[statistic], "yes" if averaged else "no", *cells, *gaps])
    sizes = [f"1/{c}" for c in options.divisors]
    columns = ["of", "averaged", *sizes, *(f"{sizes[-1]} - {size}" for size in sizes[:-1])]
    print_table(f"Mean return of finished episodes, {task}", columns, rows)


if __name__ == "__main__":
    main()
