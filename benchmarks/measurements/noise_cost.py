"""What the noise measurement costs the learner: paired in one process, on real Pong fragments.

    python -m rlscale.benchmarks.measurements.noise_cost [--rounds N] [--batch N] [--blocks N] [--out FILE]

Per round the same update is made without any measurement, with the joint statistic of every optimizer step, and with all
heads due as well; the last is spread over the default period. Chunks are the default ones, which suit the learner with and
without measurement best.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from rlscale.agents.compute import computes_bfloat16
from rlscale.agents.config import NoiseSettings, default_config
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import Task, find_task

from .measuring import median_and_spread, print_table, rounds_of, write_result

ROLLOUT = 128
NOTHING = NoiseSettings(joint_noise_period=0, policy_noise_period=0, value_noise_period=0, entropy_noise_period=0)
JOINT = replace(NOTHING, joint_noise_period=1)
ALL = NoiseSettings(policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)


@dataclass(frozen=True)
class Options:
    """What the noise measurement costs the learner."""

    rounds: int = 15
    """Paired rounds; where 8,192 observations are one case of several, a third of them there, five at least."""
    batch: int | None = None
    """Only this optimization batch, with one epoch: a single case allows many rounds."""
    blocks: int | None = None
    """Blocks of every step; as many as a run takes by itself, unless told."""
    out: Path = Path("results/noise-cost.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    if options.batch is not None and (options.batch < 2 * ROLLOUT or options.batch % ROLLOUT):
        print(f"noise_cost: --batch: give a multiple of {ROLLOUT}, {2 * ROLLOUT} or more", file=sys.stderr)
        sys.exit(2)
    if options.blocks is not None and options.blocks < 2:
        print("noise_cost: --blocks: give 2 or more, fewer cannot show noise", file=sys.stderr)
        sys.exit(2)
    task = find_task("atari/pong")
    cases = ((2048, 1), (2048, 4), (8192, 1)) if options.batch is None else ((options.batch, 1),)
    readings: list[dict[str, object]] = []
    rows: list[list[str]] = []
    for bfloat16 in (False, True) if computes_bfloat16(torch.device("cpu")) else (False,):
        for batch, epochs in cases:
            rounds = options.rounds if batch < 8192 or options.batch else max(5, options.rounds // 3)
            seconds = measure(task, batch, epochs, bfloat16, rounds, options.blocks)
            precision, period = "bfloat16" if bfloat16 else "float32", NoiseSettings().period("policy", epochs)
            sizes = {
                "optimization_batch": batch,
                "epochs": epochs,
                "period": period,
                "blocks": replace(JOINT, blocks=options.blocks).step_blocks(batch, batch // ROLLOUT, equal=False),
            }
            readings.append({"precision": precision, **sizes, "seconds": seconds})
            joint = [100 * (b / a - 1) for a, b in zip(seconds["nothing"], seconds["joint"], strict=True)]
            heads = [
                100 * ((b - a) + (c - b) / period) / a
                for a, b, c in zip(seconds["nothing"], seconds["joint"], seconds["all"], strict=True)
            ]
            rows.append(
                [
                    precision,
                    f"{batch:,}",
                    str(sizes["blocks"]),
                    str(epochs),
                    f"{epochs * batch / statistics.median(seconds['nothing']):,.0f}",
                    median_and_spread(joint),
                    f"{period}",
                    median_and_spread(heads),
                ]
            )
    columns = [
        "precision",
        "optimization batch",
        "blocks",
        "epochs",
        "observations/s",
        "joint: +%",
        "period",
        "joint and heads: +%",
    ]
    print_table("Cost of the noise measurement, % of the learner's time: median [middle half]", columns, rows)
    write_result(options.out, readings)


def measure(task: Task, batch: int, epochs: int, bfloat16: bool, rounds: int, blocks: int | None) -> dict[str, list[float]]:
    """Seconds of one update with and without each measurement, `rounds` times."""
    environments = batch // ROLLOUT
    worker = RolloutWorker(WorkerSettings(task, environments, ROLLOUT, task.network, bfloat16, 0, True, 200, 0), 0)
    fragments = [worker.sample(0)]
    worker.close()
    updates = {
        name: _update(task, environments, epochs, replace(noise, blocks=blocks), bfloat16, fragments)
        for name, noise in (("nothing", NOTHING), ("joint", JOINT), ("all", ALL))
    }
    return rounds_of(updates, rounds)


def _update(
    task: Task, environments: int, epochs: int, noise: NoiseSettings, bfloat16: bool, fragments: list[Fragment]
) -> Callable[[], object]:
    config = default_config(task)
    config = replace(
        config,
        rollout=replace(config.rollout, environments=environments, rollout_length=ROLLOUT),
        update=replace(config.update, epochs=epochs, mini_batch=None),
        noise=noise,
    )
    learner = Learner(config, task, torch.device("cpu"), bfloat16)
    return lambda: learn_batch(learner, fragments, 0, 1e-5)


if __name__ == "__main__":
    main()
