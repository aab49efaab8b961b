"""Do two kinds of settings learn alike? Whole training runs of each kind beside each other, over seeds.

    python -m rlscale.benchmarks.measurements.learning.beside QUESTION [--seeds N] [--out FILE]

* `unharmed`, `unharmed-pong`: do overlap, bfloat16 and several learners harm learning?
* `shapes`: many environments for few steps, or few environments for many? Steps of one environment are correlated, so a batch of
  few environments may say less; a short rollout leaves more of the return to the value function.
* `invariance`: is PPO-EWMA batch size-invariant (Hilton, Cobbe and Schulman 2021)? Both batch sizes of a run, the iteration's and
  the optimizer step's, are divided by 1, 4 and 16 through the number of environments, and `--tuned-batch` fits everything else by
  the paper's rules. Runs with an averaged proximal policy stand beside runs without, whose proximal policy is the one that acted.

Every run gives two statistics: the mean return of the episodes that finished in the last fifth of the observations, and that of
the whole run (the height of the learning curve). Welch's interval of a difference of means says what seeds alone explain. Seeds
are the outer loop; runs that the record already holds are not made again, so the same command goes on where it stopped.
"""

import json
import math
import shlex
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from scipy.stats import ttest_ind

from rlscale.agents.train import train
from rlscale.analysis.summary import noise_over_run
from rlscale.records import read_run

from ...options import parse_train
from ..measuring import NO_HEADS, NO_ITERATION, made_here, mean_return, print_table, require_some, returns_of, write_result

POINTS = 30  # of a learning curve in the record
STATISTICS = {"end": "last fifth", "whole": "whole run"}
HEADS = ("policy", "joint")  # whose noise scale is kept, where it was measured


@dataclass(frozen=True)
class Question:
    """Kinds of runs that are compared, on each of some tasks.

    Attributes:
        tasks: as typed after `rlscale train`.
        seeds: runs of each kind on each task, if the user names no number.
        observations: of each run.
        settings: what all runs have in common, as typed after the task.
        noise: likewise, what is not measured.
        kinds: what the record calls each kind, and its own words.
    """

    tasks: tuple[str, ...]
    seeds: int
    observations: int
    settings: str
    noise: Sequence[str]
    kinds: Sequence[tuple[dict[str, Any], list[str]]]


UNHARMED = Question(
    tasks=("minatar/breakout",),
    seeds=5,
    observations=600_000,
    settings=(
        "--environments 64 --rollout-length 32 --epochs 2 --mini-batch 1024 --learning-rate 5e-3 --entropy-coef 0.03 --threads 1"
    ),
    noise=NO_HEADS,
    kinds=[
        ({"kind": "plain"}, ["--lag", "0", "--precision", "float32", "--learners", "1"]),
        ({"kind": "lag 1, bfloat16, two learners"}, ["--lag", "1", "--precision", "bfloat16", "--learners", "2"]),
    ],
)
QUESTIONS = {
    "unharmed": UNHARMED,
    "unharmed-pong": replace(
        UNHARMED,
        tasks=("atari/pong",),
        seeds=1,
        observations=500_000,
        settings=(  # the network, and a rate that stays, were the task's defaults at the time of the record
            "--environments 16 --rollout-length 128 --epochs 3 --mini-batch 256 --learning-rate 4e-4 --actors 2 "
            "--network nature_cnn --no-anneal"
        ),
    ),
    "shapes": Question(
        tasks=("minatar/breakout", "minatar/asterix"),
        seeds=3,
        observations=600_000,
        settings="--epochs 2 --mini-batch 1024 --learning-rate 5e-3 --entropy-coef 0.03 --policy-noise-period 4 --threads 1",
        noise=[],
        kinds=[
            ({"environments": number}, ["--environments", str(number), "--rollout-length", str(4096 // number)])
            for number in (16, 64, 256, 1024)
        ],
    ),
    "invariance": Question(
        tasks=("minatar/breakout", "minatar/space_invaders"),
        seeds=5,
        observations=200_000,
        settings=(
            "--rollout-length 16 --epochs 1 --shuffle transitions --learning-rate 0.002 --beta2 0.99 --entropy-coef 0.03 "
            "--advantage-scale running --max-grad-norm None --precision float32 --threads 1"
        ),
        noise=[*NO_HEADS, *NO_ITERATION, "--joint-noise-period", "0"],
        kinds=[
            (
                {"divisor": divisor, "averaged": bool(average)},
                ["--environments", str(128 // divisor), "--mini-batch", str(256 // divisor), "--tuned-batch", "256", *average],
            )
            for divisor in (1, 4, 16)
            for average in (["--proximal-average", "8"], [])  # as many optimizer steps as an iteration has
        ],
    ),
}


@dataclass(frozen=True)
class Options:
    """Train kinds of settings beside each other, over seeds."""

    question: Annotated[Literal["unharmed", "unharmed-pong", "shapes", "invariance"], tyro.conf.Positional]
    """Which kinds."""
    seeds: int | None = None
    """Runs of each kind; None: as many as the published record has."""
    out: Path | None = None
    """Where the record goes; None: results/QUESTION.json."""


def main(options: Options) -> None:
    """Make the runs that are missing, and print a table for each task."""
    if options.seeds is not None:
        require_some("--seeds", options.seeds)
    question, out = QUESTIONS[options.question], options.out or Path(f"results/{options.question}.json")
    asked = {"observations": question.observations, "settings": question.settings}
    runs: list[dict[str, Any]] = []
    if out.exists():
        found = json.loads(out.read_text(encoding="utf-8"))["readings"]
        if not asked.items() <= found["options"].items():
            raise SystemExit(f"{out} holds runs of other options: choose another --out")
        runs = [{"task": found["options"].get("task"), **run} for run in found["runs"]]  # old ones of a single task lack it
    seeds = question.seeds if options.seeds is None else options.seeds
    for seed in range(seeds):
        for task in question.tasks:
            for kind, words in question.kinds:
                labels = {"task": task, **kind, "seed": seed}
                if not any(labels.items() <= run.items() for run in runs):
                    runs.append(labels | measure(question, task, seed, words))
                    print(f"seed {seed}, {task}, {named(kind)}: {runs[-1]['end']:.2f} in the last fifth", flush=True)
                    write_result(out, {"options": {"tasks": question.tasks, "seeds": seeds, **asked}, "runs": runs})
    for task in question.tasks:
        made = [(kind, [run for run in runs if {"task": task, **kind}.items() <= run.items()]) for kind, _ in question.kinds]
        print_table(f"{task}: mean return of finished episodes", *table(made))


def measure(question: Question, task: str, seed: int, words: Sequence[str]) -> dict[str, Any]:
    """One run: its statistics, its learning curve, its noise scale over the whole of it, and what it took."""
    words = [task, *shlex.split(question.settings), *question.noise, *words]
    words += ["--seed", str(seed), "--observations", str(question.observations)]
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if train(parse_train(words), Path(folder) / "run", command=[]).state == "stopped":
            raise SystemExit("stopped within a run, which is not recorded")
        record = read_run(Path(folder) / "run")
    seconds, rows = time.process_time() - started, record.rows
    edges = np.arange(1, POINTS + 1) * question.observations / POINTS
    numbers = np.searchsorted(edges, [row["observations"] for row in rows]).clip(max=POINTS - 1)
    parts = [[row for row, number in zip(rows, numbers, strict=True) if number == point] for point in range(POINTS)]
    noise = {head: noise_over_run(record, head, "rollout") for head in HEADS}
    return {
        "command": ["rlscale", "train", *words],
        **made_here(),
        **returns_of(rows),
        "curve": [[float(edge), mean_return(part)] for edge, part in zip(edges, parts, strict=True)],
        "noise": {head: None if found is None else found.noise_scale.value for head, found in noise.items()},
        "lags": sorted({lag for row in rows for lag, _ in row["fragment_lags"]}),
        "clip_fraction": statistics.fmean(row["clip_fraction"] for row in rows),
        "cpu_seconds": seconds,  # of this process, so without actors and further learners
    }


def named(kind: dict[str, Any]) -> str:
    """A kind for people."""
    return ", ".join(map(str, kind.values()))


def table(made: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a task's table: every kind with its runs, and each two kinds that differ in one label."""
    rows = []
    for kind, runs in made:
        row = [named(kind), *(spread([run[statistic] for run in runs]) for statistic in STATISTICS)]
        for head in HEADS:
            scales = [scale for run in runs if (scale := run.get("noise", {}).get(head))]
            middle = f"{math.exp(statistics.fmean(map(math.log, scales))):,.0f}" if scales else "–"
            row.append(f"{middle} ({len(scales)} of {len(runs)})")
        rows.append(row)
    for (first, runs), (second, others) in combinations(made, 2):
        if sum(first[label] != second[label] for label in first) == 1:
            gaps = [difference([run[s] for run in others], [run[s] for run in runs]) for s in STATISTICS]
            rows.append([f"{named(second)} less {named(first)}", *gaps])
    heads = [f"noise scale, {head} (resolved)" for head in HEADS]
    return [", ".join(made[0][0]), *STATISTICS.values(), *heads], rows


def spread(values: Sequence[float]) -> str:
    """Mean, and standard deviation between seeds."""
    deviation = f" (sd {statistics.stdev(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def difference(values: Sequence[float], others: Sequence[float]) -> str:
    """By how much the mean of some values is larger than that of others, with Welch's interval."""
    gap = statistics.fmean(values) - statistics.fmean(others)
    if min(len(values), len(others)) < 2:
        return f"{gap:+.2f}"
    low, high = ttest_ind(values, others, equal_var=False).confidence_interval(0.95)
    return f"{gap:+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    main(tyro.cli(Options))
