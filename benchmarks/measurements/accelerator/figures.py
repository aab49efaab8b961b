"""How fast an accelerator learns and acts, what it holds and what crosses: the figures of docs/massive.md."""

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rlscale.agents.cluster import connected
from rlscale.agents.cluster.resources import gpus_there
from rlscale.agents.compute import computes_bfloat16
from rlscale.agents.devices import upload
from rlscale.agents.learning import Learner, RemoteLearners, arrange_slots, learn_batch
from rlscale.agents.networks import ActingNetwork, make_network
from rlscale.envs import find_task
from rlscale.noise import noise_scale

from ..learner import ALL, JOINT, NOTHING
from ..measuring import CPU, precisions, rounds_of
from ..scaling import VARIANTS, run_once, total
from .checks import Check, config_for, far, no_room, sample

__all__ = [
    "compare_noise",
    "measure_acting",
    "measure_learner",
    "measure_memory",
    "measure_runs",
    "measure_several",
    "measure_transfer",
]

CHUNKS = (1024, 4096, 16384)
ACTED = (16, 256, 1024)  # observations of a step
SEVERAL = 2


def measure_learner(device: torch.device, batch: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of an update from one batch of Pong, by case; all cases take turns."""
    fragments = sample("nature_cnn", batch)
    half = computes_bfloat16(device)

    def updating(
        bfloat16: bool, noise: Any, visits: bool = False, where: torch.device = device, **update: Any
    ) -> Callable[[], object]:
        config = replace(config_for("nature_cnn", fragments, **update), noise=noise)
        learner = Learner(config, find_task("atari/pong"), where, bfloat16)

        def learn() -> object:
            with no_room() if visits else nullcontext():
                return learn_batch(learner, fragments, 0, 1e-5)

        return learn

    cases = {"float32": updating(False, NOTHING)}
    if half:
        cases["bfloat16"] = updating(True, NOTHING)
    cases |= {
        "joint noise": updating(half, JOINT),
        "all heads": updating(half, ALL),
        "streamed": updating(half, NOTHING, stream=True),
        "frames visiting": updating(half, NOTHING, visits=True),
        **{f"chunk {chunk:,}": updating(half, NOTHING, chunk=chunk) for chunk in CHUNKS},
        "on the CPU": updating(list(precisions().values())[-1], NOTHING, where=CPU),
    }
    return rounds_of(cases, rounds)


def measure_memory(device: torch.device, batch: int) -> dict[str, float | None]:
    """The most bytes an observation that an update held there beside its learner; None where torch cannot say."""
    module = torch.get_device_module(device)
    if not hasattr(module, "reset_peak_memory_stats"):
        return {"held": None, "streamed": None, "frames visiting": None}
    fragments = sample("nature_cnn", batch)
    found: dict[str, float | None] = {}
    for name, stream, visits in (("held", False, False), ("streamed", True, False), ("frames visiting", False, True)):
        config = replace(config_for("nature_cnn", fragments, stream=stream), noise=JOINT)
        learner = Learner(config, find_task("atari/pong"), device, computes_bfloat16(device))
        with no_room() if visits else nullcontext():
            learn_batch(learner, fragments, 0, 1e-5)
            before = module.memory_allocated(device)
            module.reset_peak_memory_stats(device)
            learn_batch(learner, fragments, 0, 1e-5)
        found[name] = (module.max_memory_allocated(device) - before) / batch
    return found


def measure_transfer(device: torch.device, rounds: int, size: int = 1 << 26) -> list[float]:
    """Bytes a second from page-locked memory to the device."""
    pinned, there = torch.zeros(size, dtype=torch.uint8).pin_memory(), torch.empty(size, dtype=torch.uint8, device=device)
    rates = []
    for _ in range(rounds + 1):
        torch.accelerator.synchronize(device)
        started = time.perf_counter()
        there.copy_(pinned, non_blocking=True)
        torch.accelerator.synchronize(device)
        rates.append(size / (time.perf_counter() - started))
    return rates[1:]


def measure_acting(device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of acting on so many observations of Pong, from the array to the array, on both devices."""
    task = find_task("atari/pong")
    cases: dict[str, Callable[[], object]] = {}
    for where, bfloat16 in ((CPU, list(precisions().values())[-1]), (device, computes_bfloat16(device))):
        policy = ActingNetwork(make_network(task, "nature_cnn", 0).to(where), bfloat16)
        for count in ACTED:
            seen = torch.zeros((count, *task.observation_shape), dtype=torch.uint8)
            cases[f"{where.type}, {count}"] = partial(_act, policy, seen, where)
    return rounds_of(cases, rounds)


def _act(policy: ActingNetwork, seen: torch.Tensor, where: torch.device) -> torch.Tensor:
    return policy(upload(seen, where)).policy.cpu()


def compare_noise(device: torch.device, batch: int, rounds: int) -> list[float]:
    """tr Σ of the joint loss in bfloat16 over that in float32, each round of other fragments; empty without bfloat16."""
    if not computes_bfloat16(device):
        return []
    found = []
    for seed in range(rounds):
        fragments = sample("nature_cnn", batch, seed=seed)
        config = replace(config_for("nature_cnn", fragments), noise=JOINT)
        traces = []
        for bfloat16 in (False, True):
            result = learn_batch(Learner(config, find_task("atari/pong"), device, bfloat16), fragments, 0, 0.0)
            traces.append(noise_scale(next(record for record in result.noise if record.head == "joint").statistics).trace_cov)
        found.append(traces[1] / traces[0])
    return found


def measure_several(device: torch.device, batch: int, rounds: int) -> tuple[list[Check], dict[str, list[float]]]:
    """Two learners, an accelerator each, beside one: the same update, and seconds of it. Nothing where there are fewer."""
    if torch.accelerator.device_count() < SEVERAL:
        return [], {}
    import ray

    fragments, task = sample("nature_cnn", batch), find_task("atari/pong")
    config = replace(config_for("nature_cnn", fragments), noise=JOINT)
    shared = replace(config, update=replace(config.update, learners=SEVERAL))
    with connected(None, SEVERAL):
        if gpus_there() < SEVERAL:  # torch knows accelerators that Ray does not
            return [], {}
        references = [ray.put(fragment) for fragment in fragments]
        slots = arrange_slots([f.group for f in fragments], fragments[0].environments)
        alone = Learner(config, task, device, False)
        with closing(RemoteLearners(shared, task, torch.device(device.type), False, 1)) as together:
            begun = alone.weights()
            learn_batch(alone, fragments, 0, 1e-3, slots)
            learn_batch(together, references, 0, 1e-3, slots)
            moved = far(alone.weights() - begun, together.weights() - begun)
            tasks: dict[str, Callable[[], object]] = {
                "1 learner": lambda: learn_batch(alone, fragments, 0, 1e-5, slots),
                "2 learners": lambda: learn_batch(together, references, 0, 1e-5, slots),
            }
            return [Check("two learners: step of the parameters", moved, 2e-2)], rounds_of(tasks, rounds)


def measure_runs(device: torch.device, runs: int) -> dict[str, list[float]]:
    """Observations a second of whole runs of Pong on two actors, by how they overlap sampling and learning."""
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS} if runs else {}
    for _ in range(runs):
        for name, words in VARIANTS.items():
            rows = run_once([*words, "--device", str(device)], 4)
            rates[name].append(total(rows, "batch_observations") / total(rows, "seconds"))
    return rates
