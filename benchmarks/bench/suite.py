"""The suite of `rlscale bench`: what one round measures on Atari Pong, in observations per second.

Every round measures everything once, so that the spread over rounds holds the drift of the machines. Change VERSION whenever
what is measured changes: results of two versions cannot be compared.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from rich.console import Console

from rlscale.agents.compute import Compute
from rlscale.agents.config import NoiseSettings, TrainConfig
from rlscale.agents.setup import prepare
from rlscale.envs import Task
from rlscale.text import format_quantity

from ..console import make_table
from ..steps import Steps
from ..workers.calibration import Shape, measure_fleet, measure_learner, sample_fragments

__all__ = ["SUITE", "TASK", "UPDATE", "VERSION", "actor_counts", "end_to_end", "measure_round", "show"]

SUITE, VERSION = "rlscale-bench", 1
TASK = "atari/pong"
UPDATE: dict[str, Any] = {"network": "nature_cnn", "epochs": 4}  # whatever the defaults: figures of all versions compare
ENVIRONMENTS = 32  # of an actor
FRAGMENTS = 2  # of 64 environments x 32 steps, for the learner alone
ITERATIONS = 2  # counted, end to end
NOTHING = NoiseSettings(0, policy_noise_period=0, value_noise_period=0, entropy_noise_period=0, iteration_noise_period=0)
JOINT = replace(NOTHING, joint_noise_period=1)


def actor_counts(cpus: int, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """Actors of the fleets: powers of two, all CPUs, and as many as whole nodes have."""
    counts = {2**k for k in range(16)} | {cpus}
    total = 0
    for node in nodes:
        for _ in range(node["count"] if len(nodes) > 1 or node["count"] > 1 else 0):
            total += node["cpus"]
            counts.add(total)
    return sorted(n for n in counts if 0 < n <= cpus)


def measure_round(
    config: TrainConfig, task: Task, compute: Compute, counts: Sequence[int], seconds: float, steps: Steps, number: int
) -> dict[str, float]:
    """Observations per second of everything, once."""
    found: dict[str, float] = {}
    for count in counts:
        steps.begin(f"round {number}: {count} actor{'s' * (count > 1)}")
        reading = measure_fleet(config, task, compute, Shape(count, 1, ENVIRONMENTS), seconds)
        found[f"sampling, {count} actor{'s' * (count > 1)}"] = statistics.median(reading.rates)
    steps.begin(f"round {number}: the learner")
    found |= measure_learning(config, task, compute)
    steps.begin(f"round {number}: end to end")
    found["end to end, 4 epochs, noise measured"] = measure_whole(config, task, max(counts))
    return found


def measure_learning(config: TrainConfig, task: Task, compute: Compute) -> dict[str, float]:
    """One epoch and one step of a batch, without any noise measurement and with the joint one; the default update as well."""
    fragments = sample_fragments(config, task, compute, 64, FRAGMENTS)
    single = replace(config.update, epochs=1, mini_batch=None)
    variants = {
        "learning, one step": (single, NOTHING),
        "learning, one step, noise measured": (single, JOINT),
        "learning, 4 epochs of mini-batches": (config.update, NOTHING),
    }
    found = {}
    for name, (update, noise) in variants.items():
        reading = measure_learner(replace(config, update=update, noise=noise), task, compute, fragments, None)
        found[name] = reading["batch_size"] / statistics.median(reading["seconds"])
    return found


def measure_whole(config: TrainConfig, task: Task, actors: int) -> float:
    """Sampling and learning in turn, as `rlscale train` does; of the noise only the joint one, which every update yields."""
    rollout = replace(config.rollout, actors=actors, environments=16 * actors, rollout_length=64)
    return end_to_end(replace(config, rollout=rollout, noise=JOINT), task)


def end_to_end(config: TrainConfig, task: Task) -> float:
    """Observations per second of a run with these settings, its first iteration not counted."""
    with closing(prepare(config, task).start()) as session:
        rows = [iterated[0] for _ in range(ITERATIONS + 1) if (iterated := session.iterate()) is not None]
    return sum(row["batch_observations"] for row in rows[1:]) / (rows[-1]["seconds"] - rows[0]["seconds"])


def show(console: Console, rounds: Sequence[Mapping[str, float]]) -> None:
    """Medians with the middle half."""
    table = make_table(f"{SUITE} {VERSION}: observations per second, Atari Pong", [""], ["median [middle half]"])
    for name in rounds[0]:
        values = [row[name] for row in rounds if name in row]
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        table.add_row(name, f"{format_quantity(middle)} [{format_quantity(low)}, {format_quantity(high)}]")
    console.print(table)
