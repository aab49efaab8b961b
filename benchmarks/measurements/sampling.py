"""Sampling: fleets of Ray actors beside bare processes, which are the machine's own limit.

    python -m rlscale.benchmarks.measurements.sampling [--rounds N] [--seconds N] [--out FILE]

The limit is as many one-thread processes as there are cores, each with an `AtariVectorEnv` and a network forward in a loop; they
keep nothing and do not use Ray. The fleets have from one actor to twice as many as there are cores, and half as many with two
CPUs each. Every process and every actor has the same number of environments. All stay alive and take turns, so that each
round compares like with like.
"""

import multiprocessing
import statistics
import sys
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
import tyro
from ale_py.roms import get_all_rom_ids

from rlscale.agents.cluster import connected
from rlscale.agents.machine import keep_freed_memory
from rlscale.agents.networks import ActingNetwork, flatten_parameters, make_network
from rlscale.agents.rollout import RayFleet, WorkerSettings
from rlscale.cpus import usable_cpus
from rlscale.envs import Task, find_task
from rlscale.envs.atari import rom_of
from rlscale.errors import UsageError

from .measuring import NATURE, in_turn, median_and_spread, precisions, print_table, write_result


def main(
    task: str = "atari/pong",
    rounds: int = 9,
    seconds: float = 4.0,
    environments: int = 16,
    rollout_length: int = 128,
    out: Path = Path("results/sampling.json"),
) -> None:
    """Measure the sampling rate of Ray actors and of bare processes.

    Args:
        task: An Atari task.
        rounds: Paired rounds.
        seconds: Seconds of each turn, at least.
        environments: Environments of each actor and of each process.
        rollout_length: Steps of a fragment.
        out: Where the record goes.
    """
    cores = usable_cpus()
    # Actors, and CPUs of each.
    fleets = [(n, 1) for n in sorted({1, 2, cores, 2 * cores})] + [(n, 2) for n in sorted({1, max(cores // 2, 1)})]
    readings, rows = [], []
    for precision, bfloat16 in precisions().items():
        played = atari_task(task)
        settings = {
            (actors, cpus): WorkerSettings(
                played, environments, rollout_length, NATURE, bfloat16, cpus, True, 0, 0, workers=actors
            )
            for actors, cpus in fleets
        }
        bare, rates = measure(settings, cores, rounds, seconds)
        readings.append(
            {
                "precision": precision,
                "environments_each": environments,
                "bare": bare,
                "fleets": [{"actors": n, "actor_cpus": cpus, "observations_per_second": rates[n, cpus]} for n, cpus in fleets],
            }
        )
        rows.append([precision, f"{cores} bare processes", 1, f"{statistics.median(bare):,.0f}", "", ""])
        for (actors, cpus), found in rates.items():
            gain = [rate / one for rate, one in zip(found, rates[1, 1], strict=True)]
            share = [100 * rate / limit for rate, limit in zip(found, bare, strict=True)]
            cells = [f"{actors} Ray actors", cpus, f"{statistics.median(found):,.0f}", median_and_spread(gain)]
            rows.append([precision, *cells, median_and_spread(share)])
    columns = ["precision", "", "CPUs of each", "observations/s", "× one actor", "% of the bare processes"]
    print_table(f"Sampling {task}, {environments} environments each: median [middle half]", columns, rows)
    write_result(out, readings)


def atari_task(task: str) -> Task:
    """The task of that name, which must be an Atari game; for another one the process ends with a line that says so."""
    try:
        found = find_task(task)
        if rom_of(found) in get_all_rom_ids():
            return found
        problem = f"--task: {task} is no Atari game. Use for example atari/pong"
    except UsageError as error:
        problem = str(error)
    print(problem, file=sys.stderr)
    sys.exit(2)


def measure(
    settings: dict[tuple[int, int], WorkerSettings], cores: int, rounds: int, seconds: float
) -> tuple[list[float], dict[tuple[int, int], list[float]]]:
    """Observations per second of the bare processes and of each fleet, in each round."""
    one = next(iter(settings.values()))
    weights = flatten_parameters(make_network(one.task, one.network, 0)).numpy()
    processes, pipes = start_bare(one, cores)
    bare: list[float] = []
    rates: dict[tuple[int, int], list[float]] = {case: [] for case in settings}
    try:
        # All fleets are alive, one at a time works.
        with connected(None, sum(actors * cpus for actors, cpus in settings)), ExitStack() as held:
            fleets = {case: held.enter_context(closing(RayFleet(settings[case], 2 * case[0]))) for case in settings}
            for turn in range(rounds + 1):  # the first one warms up and is not counted
                limit = ask(pipes, seconds)
                bare += [limit] if turn else []
                for case in in_turn(fleets, turn):
                    rate = sample(fleets[case], case[0], one.environments * one.rollout_length, weights, turn, seconds)
                    rates[case] += [rate] if turn else []
                print(f"round {turn} of {rounds}", flush=True)
    finally:
        for process in processes:
            process.kill()
    return bare, rates


def sample(fleet: RayFleet, actors: int, observations: int, weights: np.ndarray, turn: int, seconds: float) -> float:
    """Observations per second of a fleet whose fragments have so many observations each."""
    total, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        fleet.request(weights, turn, actors)
        for _ in range(actors):
            fleet.take()
        fleet.release(actors)
        total += actors * observations
    return total / (time.perf_counter() - started)


def start_bare(settings: WorkerSettings, count: int) -> tuple[list[BaseProcess], list[Connection]]:
    """So many bare processes, to be killed in the end, and the ends of the pipes to ask them through."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=bare_loop, args=(end, settings, i)) for i, (_, end) in enumerate(pipes)]
    for process in processes:
        process.start()
    return list(processes), [pipe for pipe, _ in pipes]


def ask(pipes: list[Connection], seconds: float, *, infer: bool = True) -> float:
    """Observations per second of all bare processes together, with or without the network."""
    for pipe in pipes:
        pipe.send((seconds, infer))
    return sum(pipe.recv() for pipe in pipes)


def bare_loop(pipe: Connection, settings: WorkerSettings, index: int) -> None:
    """On each request, step and infer for so many seconds; answer with observations per second."""
    from ale_py.vector_env import AtariVectorEnv

    torch.set_num_threads(1)
    keep_freed_memory()  # as the actors do: the limit must not be held back by what they avoid
    height, width = settings.task.frame_shape
    env = AtariVectorEnv(rom_of(settings.task), settings.environments, num_threads=1, img_height=height, img_width=width)
    network = ActingNetwork(make_network(settings.task, settings.network, 0), settings.bfloat16)
    generator = np.random.default_rng(index)
    observation, _ = env.reset(seed=index)
    blank = network(torch.from_numpy(observation)).policy.numpy() * 0  # of all actions alike
    while True:
        seconds, infer = pipe.recv()
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            logits = network(torch.from_numpy(observation)).policy.numpy() if infer else blank
            action = (logits + generator.gumbel(size=logits.shape)).argmax(1)
            observation = env.step(action)[0]
            steps += 1
        pipe.send(steps * settings.environments / (time.perf_counter() - started))


if __name__ == "__main__":
    tyro.cli(main)
