"""Where a second of training goes: emulator, inference, Ray, learner and noise as shares of an end-to-end second.

    python -m rlscale.benchmarks.measurements.limits [--rounds N] [--network NAME] [--out FILE]

Each stage is measured alone at the rate that this machine reaches with all its cores, so that one over the rate is the time that
an observation costs there. Bare processes step the emulator, without and with the network; the difference is inference. Ray
actors do the same and keep what they sampled; the difference is Ray and the keeping. The learner's update of one batch has all
threads, without and with the joint noise. What is left of the end-to-end second of `rlscale train`, whose actors and learner take
turns, belongs to none of them. Everything runs once in a round, and shares are taken within it. How near the learner is to what
the processor can do at all: its floating-point operations a second, as a share of those of one large float32 matrix product.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

from rlscale.agents.cluster import connected
from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.learning import Learner, learn_batch
from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout import RayFleet, RolloutWorker, WorkerSettings
from rlscale.benchmarks.bench.suite import end_to_end
from rlscale.cpus import usable_cpus
from rlscale.envs import Network, Task

from .learner import JOINT, NOTHING
from .measuring import CPU, NATURE, median_and_spread, precisions, print_table, write_result
from .sampling import ask, atari_task, sample, start_bare

ITERATIONS = 2  # counted, of a learner or end to end, in a round
LEARNERS = {"learner": NOTHING, "learner, noise measured": JOINT}
STAGES = ("emulator", "inference", "Ray and keeping", "learner", "noise", "the rest")


def main(
    task: str = "atari/pong",
    network: Network = NATURE,
    rounds: int = 5,
    seconds: float = 4.0,
    out: Path = Path("results/limits.json"),
) -> None:
    """Measure where a second of training goes.

    Args:
        task: An Atari task, trained with its default batch and mini-batch, in four epochs.
        network: The policy's.
        rounds: Paired rounds.
        seconds: Seconds of each stage of sampling in a round, at least.
        out: Where the record goes.
    """
    played, cores = atari_task(task), usable_cpus()
    usual = default_config(played)
    update = replace(usual.update, network=network, epochs=4, threads=cores)
    readings = {}
    for precision, bfloat16 in precisions().items():
        precise = replace(update, precision="bfloat16" if bfloat16 else "float32")
        environments = -(-usual.rollout.environments // cores) * cores  # as many for every core
        rollout = replace(usual.rollout, actors=cores, environments=environments)
        config = replace(usual, rollout=rollout, update=precise, noise=JOINT)
        readings[precision] = measure(config, played, cores, bfloat16, rounds, seconds)
    for precision, found in readings.items():
        shares = [shares_of(rates) for rates in found]
        rows = [[stage, median_and_spread([100 * share[stage] for share in shares])] for stage in STAGES]
        whole = statistics.median(rates["end to end"] for rates in found)
        title = f"{task}, {network}, {precision}, {cores} cores: {whole:,.0f} observations/s end to end"
        print_table(title, ["stage", "% of an end-to-end second, median [middle half]"], rows)
        near = median_and_spread([100 * nearness(rates) for rates in found])
        print(f"the learner does {near}% of the operations a second of a float32 matrix product")
    write_result(out, {"task": task, "network": network, "rounds": readings})


def measure(config: TrainConfig, task: Task, cores: int, bfloat16: bool, rounds: int, seconds: float) -> list[dict[str, float]]:
    """Of each round: observations per second of each stage, the learner's operations an observation, and a product's a second."""
    torch.set_num_threads(cores)
    environments, steps, network = config.rollout.environments, config.rollout.rollout_length, config.update.network
    one = WorkerSettings(task, environments // cores, steps, network, bfloat16, 1, True, 0, 0, workers=cores)
    with closing(RolloutWorker(replace(one, environments=environments, workers=1), 0)) as worker:
        fragment = worker.sample(0)
    learners = {name: Learner(replace(config, noise=noise), task, CPU, bfloat16) for name, noise in LEARNERS.items()}
    operations = operations_of(lambda: learn_batch(learners["learner"], [fragment], 1, 1e-5)) / (environments * steps)
    weights = flatten_parameters(make_network(task, network, 0)).numpy()
    processes, pipes = start_bare(one, cores)
    found: list[dict[str, float]] = []
    try:
        # The fleet stays alive beside the actors of the whole.
        with connected(None, 2 * cores), closing(RayFleet(one, 2 * cores)) as fleet:
            for turn in range(rounds + 1):
                rates = {"emulator": ask(pipes, seconds, infer=False), "with inference": ask(pipes, seconds)}
                rates["by Ray actors"] = sample(fleet, cores, environments // cores * steps, weights, turn, seconds)
                for name, learner in learners.items():
                    started = time.perf_counter()
                    for _ in range(ITERATIONS):
                        learn_batch(learner, [fragment], 1, 1e-5)
                    rates[name] = ITERATIONS * environments * steps / (time.perf_counter() - started)
                rates["end to end"] = end_to_end(config, task)
                rates |= {"operations": operations, "matrix product": matrix_rate()}
                found += [rates] if turn else []  # the first one warms up and is not counted
                print(f"round {turn} of {rounds}", flush=True)
    finally:
        for process in processes:
            process.kill()
    return found


def operations_of(work: Callable[[], object]) -> int:
    """Floating-point operations of the convolutions and matrix products that it does, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def matrix_rate(size: int = 1024, times: int = 20) -> float:
    """Floating-point operations per second of a square float32 matrix product with all threads."""
    one, two = torch.ones(size, size), torch.ones(size, size)
    started = time.perf_counter()
    for _ in range(times):
        torch.mm(one, two)
    return 2 * size**3 * times / (time.perf_counter() - started)


def nearness(rates: dict[str, float]) -> float:
    """The learner's operations a second, as a share of those of a large matrix product."""
    return rates["learner"] * rates["operations"] / rates["matrix product"]


def shares_of(rates: dict[str, float]) -> dict[str, float]:
    """Each stage's share of the time that an observation takes end to end; they sum to one."""
    cost = {name: 1 / rates[name] for name in rates.keys() - {"operations", "matrix product"}}
    seconds = {
        "emulator": cost["emulator"],
        "inference": cost["with inference"] - cost["emulator"],
        "Ray and keeping": cost["by Ray actors"] - cost["with inference"],
        "learner": cost["learner"],
        "noise": cost["learner, noise measured"] - cost["learner"],
    }
    seconds["the rest"] = cost["end to end"] - sum(seconds.values())
    return {stage: seconds[stage] / cost["end to end"] for stage in STAGES}


if __name__ == "__main__":
    tyro.cli(main)
