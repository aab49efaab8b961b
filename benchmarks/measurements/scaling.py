"""What more processes bring on this machine: sampling, learning, and both at once.

    python -m rlscale.benchmarks.measurements.scaling [--rounds N] [--seconds N] [--iterations N] [--out FILE]

Sampling: fleets of Ray actors with equally many environments in all stay alive and take turns. Learning: one learner in this
process, with one thread and with two, and two learners with a thread each, take turns on the same fragments; what their sum over
all parameters takes is timed in the learners themselves, apart from an update. End to end: `rlscale train` in processes of its
own, which wait for a batch, sample the next one meanwhile (`--lag 1`), or learn from fragments as they come (`--stream`).
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from rlscale.agents.cluster.connect import connect, disconnect
from rlscale.agents.compute import computes_bfloat16
from rlscale.agents.config import NoiseSettings, default_config
from rlscale.agents.learning.batch import arrange_slots
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import RemoteLearners, learn_batch
from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout.ray_fleet import RayFleet
from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import Task, find_task
from rlscale.records.run import read_run

from .measuring import median_and_spread, print_table, rounds_of, write_result

TASK = "atari/pong"
ROLLOUT = 128
BATCH = 8192
CPU = torch.device("cpu")
SAMPLING_ENVIRONMENTS = 48  # of a fleet: divides over 1 to 4 actors
FLEETS = ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2))  # actors, and CPUs of each
ENVIRONMENTS = 32  # end to end: 16 of each actor, two rounds a batch
WARM_UP = 2
SUMS = 5  # timed in a row
NO_HEADS = NoiseSettings(policy_noise_period=0, value_noise_period=0, entropy_noise_period=0)
VARIANTS = {"lag 0": ["--lag", "0"], "lag 1": ["--lag", "1"], "stream": ["--stream"]}
PARTS = ("sampling_seconds", "waiting_seconds", "learning_seconds", "noise_seconds")


@dataclass(frozen=True)
class Options:
    """Sampling, learning and whole runs with more processes."""

    rounds: int = 5
    """Paired rounds of each part."""
    seconds: float = 4.0
    """Seconds of each fleet's turn, at least."""
    iterations: int = 4
    """Counted iterations of each run end to end."""
    out: Path = Path("results/scaling.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    task = find_task(TASK)
    bfloat16 = computes_bfloat16(CPU)
    readings = {
        "precision": "bfloat16" if bfloat16 else "float32",
        "sampling": measure_sampling(task, bfloat16, options.rounds, options.seconds),
        "learning": measure_learning(task, bfloat16, options.rounds),
        "end_to_end": measure_runs(options.rounds, options.iterations),
    }
    write_result(options.out, readings)


def measure_sampling(task: Task, bfloat16: bool, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Observations per second of each fleet in each round."""
    rates: dict[tuple[int, int], list[float]] = {case: [] for case in FLEETS}
    weights = flatten_parameters(make_network(task, task.network, 0)).numpy()
    connect(None, sum(actors * cpus for actors, cpus in FLEETS))  # all are alive, one at a time works
    fleets: dict[tuple[int, int], RayFleet] = {}
    try:
        for case in FLEETS:
            actors, cpus = case
            settings = WorkerSettings(
                task=task,
                environments=SAMPLING_ENVIRONMENTS // actors,
                rollout_length=ROLLOUT,
                network=task.network,
                bfloat16=bfloat16,
                threads=cpus,
                cut_on_life_loss=True,
                random_first_steps=0,
                seed=0,
                workers=actors,
            )
            fleets[case] = RayFleet(settings, 2 * actors)
        for turn in range(rounds + 1):
            for case in FLEETS[turn % len(FLEETS) :] + FLEETS[: turn % len(FLEETS)]:
                actors, observations, started = case[0], 0, time.perf_counter()
                while time.perf_counter() - started < (seconds if turn else 0.1):  # the first turn warms up
                    fleets[case].request(weights, turn, actors)
                    observations += SAMPLING_ENVIRONMENTS * ROLLOUT
                    for _ in range(actors):
                        fleets[case].take()
                    fleets[case].release(actors)
                if turn:
                    rates[case].append(observations / (time.perf_counter() - started))
            print(f"sampling: round {turn} of {rounds}", flush=True)
    finally:
        for fleet in fleets.values():
            fleet.close()
        disconnect()
    single = rates[1, 1]
    rows = [
        [
            str(actors),
            str(cpus),
            f"{statistics.median(found):,.0f}",
            median_and_spread([rate / one for rate, one in zip(found, single, strict=True)]),
        ]
        for (actors, cpus), found in rates.items()
    ]
    columns = ["actors", "CPUs of each", "observations/s", "× one actor"]
    print_table(f"Sampling Pong, {SAMPLING_ENVIRONMENTS} environments in all: median [middle half]", columns, rows)
    return [{"actors": actors, "actor_cpus": cpus, "observations_per_second": found} for (actors, cpus), found in rates.items()]


def measure_learning(task: Task, bfloat16: bool, rounds: int) -> dict[str, Any]:
    """Seconds of an update by each learner, and of the sum over both of two learners, in each round."""
    import ray

    environments = BATCH // ROLLOUT
    settings = WorkerSettings(task, environments // 2, ROLLOUT, task.network, bfloat16, 0, True, 0, 0, groups=2)
    worker = RolloutWorker(settings, 0)
    fragments = [worker.sample(0, group) for group in range(2)]
    worker.close()
    slots = arrange_slots([fragment.group for fragment in fragments], environments // 2)
    config = default_config(task)
    config = replace(
        config,
        rollout=replace(config.rollout, environments=environments, rollout_length=ROLLOUT),
        update=replace(config.update, epochs=1, mini_batch=None),
        noise=NO_HEADS,
    )
    shared = replace(config, update=replace(config.update, learners=2))
    threads = torch.get_num_threads()
    connect(None, 2)
    pair: RemoteLearners | None = None
    sums: list[float] = []
    try:
        references = [ray.put(fragment) for fragment in fragments]
        alone = Learner(config, task, CPU, bfloat16)
        pair = RemoteLearners(shared, task, CPU, bfloat16, 1)
        numbers = len(alone.parameters) + 1

        def learn(learner: Learner | RemoteLearners, with_threads: int) -> Callable[[], object]:
            def once() -> None:
                torch.set_num_threads(with_threads)
                learn_batch(learner, fragments if learner is alone else references, 0, 1e-5, slots)

            return once

        def add() -> None:
            assert pair is not None
            found = ray.get([actor.__ray_call__.remote(sum_seconds, numbers) for actor in pair._actors])
            sums.append(max(found))

        tasks = {
            "1 learner, 1 thread": learn(alone, 1),
            "1 learner, 2 threads": learn(alone, 2),
            "2 learners, 1 thread": learn(pair, 1),
        }
        seconds = rounds_of({**tasks, "sum": add}, rounds)
    finally:
        torch.set_num_threads(threads)
        if pair is not None:
            pair.close()
        disconnect()
    del seconds["sum"]  # with the call around it
    sums = sums[1:]  # the first one warmed up
    base = seconds["1 learner, 1 thread"]
    rows = []
    for name, found in seconds.items():
        shares = [100 * s / f for s, f in zip(sums, found, strict=True)]
        gain = [b / f for b, f in zip(base, found, strict=True)]
        rate = f"{BATCH / statistics.median(found):,.0f}"
        rows.append([name, rate, median_and_spread(gain), median_and_spread(shares) if name.startswith("2 learners") else ""])
    columns = ["", "observations/s", "× 1 learner, 1 thread", f"sum of {numbers:,} numbers, % of it"]
    print_table(f"Learning from {BATCH:,} observations of Pong a step: median [middle half]", columns, rows)
    return {"seconds": seconds, "sum_numbers": numbers, "sum_seconds": sums}


def sum_seconds(actor: Any, numbers: int) -> float:
    """In each learner: seconds of one sum of so many numbers over all of them."""
    total = torch.zeros(numbers)
    torch.distributed.all_reduce(total)  # not counted: all begin together
    started = time.perf_counter()
    for _ in range(SUMS):
        torch.distributed.all_reduce(total)
    return (time.perf_counter() - started) / SUMS


def measure_runs(rounds: int, iterations: int) -> dict[str, list[list[dict[str, float]]]]:
    """Counted iterations of every run: what they observed, how long they took and where the time went."""
    readings: dict[str, list[list[dict[str, float]]]] = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            readings[name].append(run_once(VARIANTS[name], iterations))
        print(f"end to end: round {turn + 1} of {rounds}", flush=True)
    rates = {name: [total(run, "batch_observations") / total(run, "seconds") for run in runs] for name, runs in readings.items()}
    rows = []
    for name, runs in readings.items():
        gain = [round(rate / waiting, 3) for rate, waiting in zip(rates[name], rates["lag 0"], strict=True)]
        shares = [median_and_spread([round(100 * total(run, part) / total(run, "seconds"), 1) for run in runs]) for part in PARTS]
        rows.append([name, f"{statistics.median(rates[name]):,.0f}", median_and_spread(gain), *shares])
    columns = ["", "obs./s", "× lag 0", "sampling, %", "waiting, %", "learning, %", "noise, %"]
    print_table(f"Two actors, {BATCH:,} observations a step, one epoch: median [middle half]", columns, rows)
    return readings


def run_once(words: list[str], iterations: int) -> list[dict[str, float]]:
    """One run in processes of its own; the first iterations are not counted."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            "train",
            TASK,
            "--actors",
            2,
            "--environments",
            ENVIRONMENTS,
            "--rollout-length",
            ROLLOUT,
            "--batch-size",
            BATCH,
        ]
        command += ["--epochs", 1, "--mini-batch", "None", "--advantage-scale", "running", *words, "--run", run]
        command += [word for head in ("policy", "value", "entropy") for word in (f"--{head}-noise-period", 0)]
        command += ["--optimizer-steps", iterations + WARM_UP]
        subprocess.run([sys.executable, "-m", "rlscale", *map(str, command)], check=True, stdout=subprocess.DEVNULL)
        rows = read_run(run).rows
    return [
        {
            "seconds": after["seconds"] - before["seconds"],
            **{name: after[name] for name in ("batch_observations", *PARTS)},
        }
        for before, after in itertools.pairwise(rows)
    ][WARM_UP - 1 :]


def total(run: list[dict[str, float]], name: str) -> float:
    """Over the counted iterations of a run."""
    return sum(row[name] for row in run)


if __name__ == "__main__":
    main()
