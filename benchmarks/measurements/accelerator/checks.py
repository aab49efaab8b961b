"""Is the same learned on an accelerator as on the CPU: each difference as a `Check`, with what rounding allows."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch

from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.devices import upload
from rlscale.agents.learning import IterationBatch, Learner, Positions, UpdateResult, arrange_slots, learn_batch
from rlscale.agents.networks import ActingNetwork, make_network
from rlscale.agents.rollout import Fragment, RolloutWorker, WorkerSettings
from rlscale.envs import Network, find_task
from rlscale.text import first_line

from ..learner import ALL
from ..measuring import CPU

__all__ = ["ROLLOUT", "Check", "attempt", "check_all", "config_for", "far", "no_room", "sample"]

T = TypeVar("T")

ROLLOUT = 64
FIRST_STEPS = 100  # random ones, so that environments differ
CHECKED = 512  # observations of a batch that both devices learn from
POLICIES: dict[str, tuple[Network, str]] = {  # with the task that each learns
    "mlp": ("mlp", "classic/cartpole"),
    "mlp, continuous actions": ("mlp", "classic/pendulum"),
    "minatar_cnn": ("minatar_cnn", "minatar/breakout"),
    "small_cnn": ("small_cnn", "atari/pong"),
    "nature_cnn": ("nature_cnn", "atari/pong"),
}


@dataclass(frozen=True)
class Check:
    """A difference between the devices, relative to what it is a difference of, and what rounding allows."""

    name: str
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether it is allowed; a difference that is no number is not."""
        return self.difference <= self.allowed


@cache
def sample(policy: str, observations: int, groups: int = 2, seed: int = 0) -> Sequence[Fragment]:
    """Fragments of the task of one of `POLICIES`, by it as it begins, on the CPU."""
    network, task_id = POLICIES[policy]
    task = find_task(task_id)
    each = max(observations // ROLLOUT // groups, 1)
    settings = WorkerSettings(task, each, ROLLOUT, network, False, 0, True, FIRST_STEPS, seed, groups=groups)
    with closing(RolloutWorker(settings, 0)) as worker:
        return [worker.sample(0, group) for group in range(groups)]


def config_for(policy: str, fragments: Sequence[Fragment], **update: Any) -> TrainConfig:
    """Settings of one optimizer step from these fragments."""
    network, task_id = POLICIES[policy]
    config = default_config(find_task(task_id))
    environments = sum(fragment.environments for fragment in fragments)
    plain = {"network": network, "epochs": 1, "mini_batch": None, "advantage_scale": "running"}
    rollout = replace(config.rollout, environments=environments, rollout_length=ROLLOUT)
    return replace(config, rollout=rollout, update=replace(config.update, **{**plain, **update}), noise=ALL)


def no_room() -> AbstractContextManager[Any]:
    """Inside, the accelerator seems full, so that frames visit it."""
    return mock.patch("rlscale.agents.learning.frames.free_bytes", return_value=0)


def attempt(name: str, checks: list[Check], measured: Callable[[], T]) -> T | None:
    """What is measured; None where that fails: then a check that failed says so, and what else can be measured still is.

    An operator may be missing, and a run that ends in an error ends this process (`measuring.output_of`).
    """
    try:
        return measured()
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        print(f"{name}: {said}", file=sys.stderr)
        checks.append(Check(f"{name}: {said.replace('|', '/')}", math.nan, 0.0))
        return None


def far(one: np.ndarray, other: np.ndarray) -> float:
    """The length of the difference of two vectors, relative to the first."""
    return float(np.linalg.norm(other - one)) / max(float(np.linalg.norm(one)), 1e-30)


def compare(name: str, policy: str, device: torch.device, visits: bool = False, **update: Any) -> list[Check]:
    """One update from the same parameters and fragments on the CPU and the device, in float32 throughout."""
    fragments = sample(policy, CHECKED)
    config, task = config_for(policy, fragments, **update), find_task(POLICIES[policy][1])
    learned: list[tuple[UpdateResult, np.ndarray]] = []
    begun = Learner(config, task, CPU, False).weights()
    for where in (CPU, device):
        learner = Learner(config, task, where, False)
        with no_room() if visits else nullcontext():
            learned.append((learn_batch(learner, fragments, 0, 1e-3), learner.weights() - begun))
    (here, change), (there, other) = learned
    kinds = {"|g_k|²": "square", "g_k·ĝ": "dot"}
    checks = []
    for label, field in kinds.items():
        apart = [
            far(getattr(a.statistics, field), getattr(b.statistics, field)) for a, b in zip(here.noise, there.noise, strict=True)
        ]
        checks.append(Check(f"{name}: {label} of all heads", float(np.max(apart)), 1e-3))
    figures = [abs(there.figures[figure] - value) / max(abs(value), 1e-3) for figure, value in here.figures.items()]
    return [
        *checks,
        Check(f"{name}: figures", float(np.max(figures)), 1e-2),
        Check(f"{name}: step of the parameters", far(change, other), 2e-2),
    ]


def compare_exactly(device: torch.device) -> list[Check]:
    """What no device may round: observations stacked again, and a checkpoint that was made there and read on the CPU."""
    fragments = sample("nature_cnn", CHECKED)
    config, task = config_for("nature_cnn", fragments), find_task("atari/pong")
    learner, reader = Learner(config, task, device, False), Learner(config, task, CPU, False)
    learn_batch(learner, fragments, 0, 1e-3)
    reader.set_state(learner.get_state())
    checks = [Check("a checkpoint read on the CPU", float(np.abs(reader.weights() - learner.weights()).max()), 0.0)]
    placed = list(zip(arrange_slots([f.group for f in fragments], fragments[0].environments), fragments, strict=True))
    columns = range(sum(f.environments for f in fragments))
    chosen = np.random.default_rng(0).permutation(ROLLOUT * len(columns))

    def observations(where: torch.device) -> torch.Tensor:
        return IterationBatch(placed, columns, task, config, None, where).observations(Positions.of(chosen, where)).cpu()

    expected = observations(CPU)
    for name, held in (("held there", nullcontext()), ("visiting it", no_room())):
        with held:
            checks.append(Check(f"observations of frames {name}", float((observations(device) != expected).sum()), 0.0))
    return checks


def compare_acting(policy: str, device: torch.device) -> list[Check]:
    """The numbers that actions are drawn from: logits, or means and log σ."""
    network, task_id = POLICIES[policy]
    task = find_task(task_id)
    frames = sample(policy, CHECKED)[0].frames[: task.frame_stack]
    seen = np.ascontiguousarray(frames.swapaxes(0, 1)).reshape(-1, *task.observation_shape)
    drawn_from = []
    for where in (CPU, device):
        acting = ActingNetwork(make_network(task, network, 0).to(where), False)
        drawn_from.append(acting(upload(torch.from_numpy(seen), where)).policy.cpu().numpy())
    return [Check(f"acting, {policy}: what actions are drawn from", far(*drawn_from), 1e-3)]


def check_all(device: torch.device) -> list[Check]:
    """All checks of one accelerator, which this process must use already (`use_device`), or float32 might be TF32."""
    cases: dict[str, Callable[[], list[Check]]] = {
        "observations and a checkpoint": partial(compare_exactly, device),
        **{f"acting, {policy}": partial(compare_acting, policy, device) for policy in POLICIES},
        **{policy: partial(compare, policy, policy, device) for policy in POLICIES},
        "nature_cnn, streamed": partial(compare, "nature_cnn, streamed", "nature_cnn", device, stream=True),
        "nature_cnn, frames visiting": partial(compare, "nature_cnn, frames visiting", "nature_cnn", device, visits=True),
    }
    checks: list[Check] = []
    for name, compared in cases.items():
        checks += attempt(name, checks, compared) or []
    return checks
