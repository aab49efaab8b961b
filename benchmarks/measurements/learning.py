"""The learner alone: its speed against the size of blocks and chunks, and what bfloat16 does to the noise that it measures.

    python -m rlscale.benchmarks.measurements.learning [--rounds N] [--out FILE]

Speed: one epoch over the whole batch, one optimizer step, the joint noise measured, on real Pong fragments; all configurations
take turns in each round. Noise: float32 and bfloat16 at the same parameters on the same fragments, which were sampled with these
parameters: the initial ones, and those after some updates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from rlscale.agents.compute import computes_bfloat16
from rlscale.agents.config import NoiseSettings, TrainConfig, default_config
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import Task, find_task
from rlscale.noise import estimate

from .measuring import median_and_spread, print_table, rounds_of, write_result

BATCH, ROLLOUT = 8192, 64
BLOCK_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
CHUNKS = (128, 256, 512, 1024, 2048)
USUAL = (256, 512)  # block and chunk
JOINT = NoiseSettings(policy_noise_period=0, value_noise_period=0, entropy_noise_period=0)
HEADS = ("joint", "policy", "value")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """The learner alone: blocks, chunks, precision."""

    rounds: int = 7
    """Paired rounds, and fragments on which the precisions are compared at each set of parameters."""
    updates: int = 30
    """Updates before the second set of parameters."""
    out: Path = Path("results/learning.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    task = find_task("atari/pong")
    both = computes_bfloat16(CPU)
    worker = RolloutWorker(WorkerSettings(task, BATCH // ROLLOUT, ROLLOUT, task.network, both, 0, True, 0, 0), 0)
    precisions = (False, True) if both else (False,)
    speed = measure_speed(task, [worker.sample(0)], precisions, options.rounds)
    rows = []
    for reading in speed:
        same = [r for r in speed if r["precision"] == reading["precision"]]
        usual = next(r for r in same if (r["block_size"], r["chunk"]) == USUAL)
        share = [100 * b / a for a, b in zip(reading["seconds"], usual["seconds"], strict=True)]
        rate = BATCH / statistics.median(reading["seconds"])
        sizes = [f"{reading['block_size']:,}", str(BATCH // reading["block_size"]), str(reading["chunk"])]
        rows.append([reading["precision"], *sizes, f"{rate:,.0f}", median_and_spread(share)])
    columns = ["precision", "block", "blocks", "chunk", "observations/s", "% of the rate at 256, 512"]
    print_table(f"Learning from {BATCH:,} observations of Pong: median [middle half]", columns, rows)
    noise: list[dict[str, Any]] = []
    if both:
        noise = compare_precisions(task, worker, options.rounds, options.updates)
        print_noise(noise, options.updates)
    worker.close()
    write_result(options.out, {"speed": speed, "noise": noise})


def configure(task: Task, noise: NoiseSettings, chunk: int) -> TrainConfig:
    """One epoch and one optimizer step of the whole batch."""
    config = default_config(task)
    return replace(
        config,
        rollout=replace(config.rollout, environments=BATCH // ROLLOUT, rollout_length=ROLLOUT),
        update=replace(config.update, epochs=1, mini_batch=None, chunk=chunk),
        noise=noise,
    )


def measure_speed(task: Task, fragments: list[Fragment], precisions: tuple[bool, ...], rounds: int) -> list[dict[str, Any]]:
    """Seconds of one update for every block size, chunk and precision."""
    block, chunk = USUAL
    sizes = [(size, chunk) for size in BLOCK_SIZES] + [(block, size) for size in CHUNKS if size != chunk]
    cases = [(bfloat16, block, chunk) for bfloat16 in precisions for block, chunk in sizes]

    def updating(bfloat16: bool, block: int, chunk: int) -> Callable[[], object]:
        learner = Learner(configure(task, replace(JOINT, blocks=BATCH // block), chunk), task, CPU, bfloat16)
        return lambda: learn_batch(learner, fragments, 0, 1e-5)

    seconds = rounds_of({str(case): updating(*case) for case in cases}, rounds)
    return [
        {
            "precision": "bfloat16" if case[0] else "float32",
            "block_size": case[1],
            "chunk": case[2],
            "seconds": seconds[str(case)],
        }
        for case in cases
    ]


def compare_precisions(task: Task, worker: RolloutWorker, samples: int, updates: int) -> list[dict[str, Any]]:
    """The noise of every head in both precisions, on so many fragments, before and after so many updates in float32."""
    config = configure(task, replace(JOINT, policy_noise_period=1, value_noise_period=1), 256)
    learners = {"float32": Learner(config, task, CPU, False), "bfloat16": Learner(config, task, CPU, True)}
    trained = learners["float32"]
    readings = []
    for made in (0, updates):
        while trained.optimizer_steps < made:
            worker.set_weights(trained.weights())
            learn_batch(trained, [worker.sample(0)], 1, config.update.learning_rate)
        worker.set_weights(trained.weights())
        state = trained.get_state()
        for sample in range(samples):
            fragment = worker.sample(0)
            for precision, learner in learners.items():
                learner.set_state(state)
                for record in learn_batch(learner, [fragment], 0, 0.0).noise:
                    if record.head in HEADS:
                        found = estimate(record.statistics)
                        readings.append(
                            {
                                "updates": made,
                                "sample": sample,
                                "precision": precision,
                                "head": record.head,
                                "trace_cov": found.trace_cov,
                                "grad_sq": found.grad_sq,
                                "b_simple": found.b_simple,
                                "low": found.interval[0],
                                "high": found.interval[1] if found.b_simple is not None else None,
                                "blocks": found.blocks,
                            }
                        )
            print(f"noise in both precisions after {made} updates: {sample + 1} of {samples}", flush=True)
        trained.set_state(state)
    return readings


def print_noise(readings: list[dict[str, Any]], updates: int) -> None:
    """How far bfloat16 is from float32, beside the width of the interval that float32 itself has."""
    rows = []
    for made in (0, updates):
        for head in HEADS:
            exact, rough = (
                [r for r in readings if (r["updates"], r["head"], r["precision"]) == (made, head, precision)]
                for precision in ("float32", "bfloat16")
            )
            pairs = list(zip(exact, rough, strict=True))
            differences = [
                [100 * (b[name] / a[name] - 1) for a, b in pairs if a[name] is not None and b[name] is not None]
                for name in ("trace_cov", "grad_sq", "b_simple")
            ]
            widths = [50 * (a["high"] - a["low"]) / a["b_simple"] for a in exact if a["b_simple"] is not None]
            cells = [median_and_spread([round(value, 2) for value in values]) if values else "" for values in differences]
            width = f"± {statistics.median(widths):.0f}" if widths else ""
            rows.append([str(made), head, *cells, f"{len(widths)} of {len(exact)}", width])
    columns = ["updates", "head", "tr Σ, %", "|G|², %", "noise scale, %", "resolved", "interval, %"]
    print_table("Noise in bfloat16 against float32, same parameters and fragments: median [middle half]", columns, rows)


if __name__ == "__main__":
    main()
