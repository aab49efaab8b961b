"""Many environments for few steps, or few environments for many steps? Return and noise scale at a fixed iteration batch.

    python -m rlscale.benchmarks.measurements.learning.shapes [--tasks TASK ...] [--seeds N] [--observations N] [--out FILE]

Every run learns from iteration batches of the same size in the same mini-batches; only environments and rollout length differ.
Steps of one environment are correlated, so a batch of few environments may say less; a short rollout leaves more of the return to
the value function. The mean return of the last fifth of a run and that of the whole run are compared between shapes by Welch's
interval over seeds. Runs that the record already holds are not made again.
"""

import json
import math
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from scipy.stats import ttest_ind

from rlscale.analysis.summary import noise_over_run

from ..measuring import print_table, returns_of, settings_of, train, write_result

HEADS = ("policy", "joint")


@dataclass(frozen=True)
class Options:
    """Compare learning with many environments to learning with long rollouts."""

    tasks: tuple[str, ...] = ("minatar/breakout", "minatar/asterix")
    """The tasks."""
    environments: tuple[int, ...] = (16, 64, 256, 1024)
    """Of one run; its rollouts are as long as fills the batch. The others are compared to the first."""
    batch: int = 4096
    """Observations of an iteration."""
    seeds: int = 3
    """Runs of each shape."""
    observations: int = 600_000
    """Observations of each run."""
    settings: str = "--epochs 2 --mini-batch 1024 --learning-rate 5e-3 --entropy-coef 0.03 --policy-noise-period 4 --threads 1"
    """What all runs have in common, as typed after `rlscale train TASK`."""
    out: Path = Path("results/shapes.json")
    """Where the record goes."""


def main(options: Options) -> None:
    """Make the runs that are missing, and print a table for each task."""
    asked = json.loads(json.dumps(settings_of(options)))
    runs: list[dict[str, Any]] = []
    if options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))["readings"]
        if {**found["options"], **{name: asked[name] for name in ("seeds", "tasks", "environments")}} != asked:
            raise SystemExit(f"{options.out} holds runs of other options: choose another --out")
        runs = found["runs"]
    for seed in range(options.seeds):
        for task in options.tasks:
            for environments in options.environments:
                labels = {"task": task, "environments": environments, "seed": seed}
                if not any(labels.items() <= run.items() for run in runs):
                    runs.append(labels | run(options, task, environments, seed))
                    write_result(options.out, {"options": asked, "runs": runs})
    for task in options.tasks:
        print_table(f"{task}, {options.batch:,} observations an iteration", *compare(options, runs, task))


def run(options: Options, task: str, environments: int, seed: int) -> dict[str, Any]:
    """One run of the real command: its returns, and the noise scale over the whole of it."""
    shape = ["--environments", str(environments), "--rollout-length", str(options.batch // environments)]
    budget = ["--seed", str(seed), "--observations", str(options.observations)]
    record = train(task, *shlex.split(options.settings), *shape, *budget)
    noise = {head: noise_over_run(record, head, "rollout") for head in HEADS}
    return {
        **returns_of(record.rows),
        "noise": {head: None if found is None else found.noise_scale.value for head, found in noise.items()},
    }


def compare(options: Options, runs: list[dict[str, Any]], task: str) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a task's table; brackets are 95% intervals of the difference from the first shape."""
    chosen = {n: [one for one in runs if one["task"] == task and one["environments"] == n] for n in options.environments}
    columns = [
        "environments x steps",
        "return, last fifth",
        "more than the first",
        "whole run",
        *(f"noise scale, {h}" for h in HEADS),
    ]
    rows = []
    for environments, those in chosen.items():
        ends, first = ([one["end"] for one in some] for some in (those, chosen[options.environments[0]]))
        low, high = ttest_ind(ends, first, equal_var=False).confidence_interval(0.95) if len(ends) > 1 else (math.nan, math.nan)
        row = [
            f"{environments:,} x {options.batch // environments}",
            f"{statistics.fmean(ends):.2f}",
            f"{statistics.fmean(ends) - statistics.fmean(first):+.2f} [{low:.2f}, {high:.2f}]",
            f"{statistics.fmean(one['whole'] for one in those):.2f}",
        ]
        for head in HEADS:
            resolved = [one["noise"][head] for one in those if one["noise"][head]]
            middle = f"{math.exp(statistics.fmean(map(math.log, resolved))):,.0f}" if resolved else "–"
            row.append(f"{middle} ({len(resolved)} of {len(those)} resolved)")
        rows.append(row)
    return columns, rows


if __name__ == "__main__":
    main(tyro.cli(Options))
