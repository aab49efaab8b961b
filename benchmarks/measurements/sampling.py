"""Sampling with Ray actors against the machine's own limit, side by side in one run.

    python -m rlscale.benchmarks.measurements.sampling [--rounds N] [--out FILE]

The limit: as many bare one-thread processes, each an `AtariVectorEnv` and a network forward in a loop, nothing kept, no Ray.
Processes and actors both stay alive for the whole run and take turns, so that each round compares like with like.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import tyro

from rlscale.agents.cluster.connect import connect, disconnect
from rlscale.agents.compute import computes_bfloat16
from rlscale.agents.machine import keep_freed_memory
from rlscale.agents.networks import ActingNetwork, flatten_parameters, make_network
from rlscale.agents.rollout.ray_fleet import RayFleet
from rlscale.agents.rollout.worker import WorkerSettings
from rlscale.envs import find_task
from rlscale.envs.atari import rom_of

from .measuring import median_and_spread, print_table, write_result


@dataclass(frozen=True)
class Options:
    """Sampling rate of Ray actors against bare processes."""

    task: str = "atari/pong"
    """An Atari task."""
    rounds: int = 9
    """Paired rounds."""
    seconds: float = 4.0
    """Seconds of each turn."""
    environments: int = 16
    """Environments of each actor and each process."""
    rollout_length: int = 128
    """Steps of a fragment."""
    out: Path = Path("results/sampling.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    workers = len(os.sched_getaffinity(0))
    task = find_task(options.task)
    readings, rows = [], []
    for bfloat16 in (False, True) if computes_bfloat16(torch.device("cpu")) else (False,):
        settings = WorkerSettings(
            task, options.environments, options.rollout_length, task.network, bfloat16, 1, True, 0, 0, workers=workers
        )
        weights = flatten_parameters(make_network(task, task.network, 0)).numpy()
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(workers)]
        processes = [context.Process(target=bare_loop, args=(end, settings, i)) for i, (_, end) in enumerate(pipes)]
        for process in processes:
            process.start()
        connect(None, workers)
        fleet = RayFleet(settings, 2 * workers)
        bare, ray_rates = [], []
        try:
            for turn in range(options.rounds + 1):
                for pipe, _ in pipes:
                    pipe.send(options.seconds)
                limit = sum(pipe.recv() for pipe, _ in pipes)
                observations, started = 0, time.perf_counter()
                while time.perf_counter() - started < options.seconds:
                    fleet.request(weights, turn, workers)
                    observations += workers * options.environments * options.rollout_length
                    for _ in range(workers):
                        fleet.take()
                    fleet.release(workers)
                rate = observations / (time.perf_counter() - started)
                if turn:  # the first turn warms up
                    bare.append(limit)
                    ray_rates.append(rate)
        finally:
            fleet.close()
            disconnect()
            for process in processes:
                process.kill()
        precision = "bfloat16" if bfloat16 else "float32"
        readings.append({"precision": precision, "bare": bare, "ray": ray_rates, "environments_each": options.environments})
        shares = [100 * r / b for r, b in zip(ray_rates, bare, strict=True)]
        rows.append(
            [precision, f"{statistics.median(bare):,.0f}", f"{statistics.median(ray_rates):,.0f}", median_and_spread(shares)]
        )
    columns = ["precision", f"{workers} bare processes, observations/s", f"{workers} Ray actors, observations/s", "share, %"]
    print_table(f"Sampling {options.task}: median [middle half]", columns, rows)
    write_result(options.out, readings)


def bare_loop(pipe: Connection, settings: WorkerSettings, index: int) -> None:
    """On each request step and infer for so many seconds; answer with observations per second."""
    from ale_py.vector_env import AtariVectorEnv

    torch.set_num_threads(1)
    keep_freed_memory()  # as the actors do: the limit must not be held back by what they avoid
    env = AtariVectorEnv(rom_of(settings.task), settings.environments, num_threads=1)
    network = ActingNetwork(make_network(settings.task, settings.network, 0), settings.bfloat16)
    generator = np.random.default_rng(index)
    observation, _ = env.reset(seed=index)
    while True:
        seconds = pipe.recv()
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            logits = network(torch.from_numpy(observation)).logits.numpy()
            action = (logits + generator.gumbel(size=logits.shape)).argmax(1)
            observation = env.step(action)[0]
            steps += 1
        pipe.send(steps * settings.environments / (time.perf_counter() - started))


if __name__ == "__main__":
    main()
