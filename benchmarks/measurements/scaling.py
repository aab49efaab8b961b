"""Whole runs on two actors: waiting for a batch, sampling the next one meanwhile, or learning from fragments as they come.

    python -m rlscale.benchmarks.measurements.scaling [--rounds N] [--iterations N] [--out FILE]

Each run is an `rlscale train atari/pong` of its own, with `--lag 0`, `--lag 1` or `--stream`; the kinds take turns.
"""

import itertools
import statistics
from pathlib import Path

import tyro

from .measuring import NATURE, NO_HEADS, in_turn, median_and_spread, precisions, print_table, require_some, train, write_result

BATCH = 8192
WARM_UP = 2
VARIANTS = {"lag 0": ["--lag", "0"], "lag 1": ["--lag", "1"], "stream": ["--stream"]}
PARTS = ("sampling_seconds", "waiting_seconds", "learning_seconds", "noise_seconds")
# 16 environments of each actor, two rounds a batch.
SETTINGS = "--actors 2 --environments 32 --rollout-length 128 --epochs 1 --mini-batch None --advantage-scale running"
SETTINGS += f" --network {NATURE}"


def main(rounds: int = 5, iterations: int = 4, out: Path = Path("results/scaling.json")) -> None:
    """Measure whole runs that overlap sampling and learning in three ways.

    Args:
        rounds: Paired rounds.
        iterations: Counted iterations of each run.
        out: Where the record goes.
    """
    require_some("--rounds", rounds)
    readings: dict[str, list[list[dict[str, float]]]] = {name: [] for name in VARIANTS}
    for turn in range(rounds):
        for name in in_turn(VARIANTS, turn):
            readings[name].append(run_once(VARIANTS[name], iterations))
        print(f"round {turn + 1} of {rounds}", flush=True)
    rates = {name: [total(run, "batch_observations") / total(run, "seconds") for run in runs] for name, runs in readings.items()}
    rows = []
    for name, runs in readings.items():
        gain = [round(rate / waiting, 3) for rate, waiting in zip(rates[name], rates["lag 0"], strict=True)]
        shares = [median_and_spread([round(100 * total(run, part) / total(run, "seconds"), 1) for run in runs]) for part in PARTS]
        rows.append([name, f"{statistics.median(rates[name]):,.0f}", median_and_spread(gain), *shares])
    columns = ["", "obs./s", "× lag 0", "sampling, %", "waiting, %", "learning, %", "noise, %"]
    print_table(f"Two actors, {BATCH:,} observations a step, one epoch: median [middle half]", columns, rows)
    write_result(out, {"precision": list(precisions())[-1], "end_to_end": readings})


def run_once(words: list[str], iterations: int) -> list[dict[str, float]]:
    """One run in processes of its own; the first iterations are not counted."""
    steps = ["--batch-size", BATCH, "--optimizer-steps", iterations + WARM_UP]
    rows = train("atari/pong", *SETTINGS.split(), *steps, *words, *NO_HEADS).rows
    counted = [
        {"seconds": after["seconds"] - before["seconds"], **{name: after[name] for name in ("batch_observations", *PARTS)}}
        for before, after in itertools.pairwise(rows)
    ]
    return counted[WARM_UP - 1 :]


def total(run: list[dict[str, float]], name: str) -> float:
    """Sum of a field over the counted iterations of a run."""
    return sum(row[name] for row in run)


if __name__ == "__main__":
    tyro.cli(main)
