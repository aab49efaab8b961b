"""`IterationBatch`: the fragments of one iteration side by side, with their advantages, as a learner reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from rlscale.envs import Task

from ..config import TrainConfig
from ..devices import upload
from ..rollout import Fragment
from .advantages import generalized_advantages
from .frames import CpuFrames, DeviceFrames, Positions

__all__ = ["ADVANTAGE_DECAY", "FragmentSlot", "IterationBatch", "Moments", "Sum", "arrange_slots"]

ADVANTAGE_DECAY = 0.99
"""Share of the advantages' running scale that an iteration keeps, at the batch size that the settings were found at."""
Sum = Callable[[torch.Tensor], None]
"""Sums a tensor over all learners, in place; with one learner it does nothing."""


@dataclass(frozen=True)
class FragmentSlot:
    """Where a fragment lies in its iteration batch.

    Attributes:
        round: how many fragments of the same environments come before it in the batch.
        columns: the columns of its environments.
        environment: number of its first environment in the whole fleet.
    """

    round: int
    columns: range
    environment: int


def arrange_slots(groups: Sequence[int], environments: int, learners: int = 1) -> list[FragmentSlot]:
    """The slot of each fragment of an iteration, in the order in which the fragments are taken.

    Column c of the batch is one environment; its later rounds continue the column downwards.

    Args:
        groups: the group of environments that made each fragment; every group occurs equally often.
        environments: number of environments of each fragment.
        learners: that read the columns in equal shares, one beside another, and learn from fragments as they come: successive
            ones are laid into the shares of different learners, so that none waits for another to be through with its share.

    Raises:
        ValueError: a group occurs more often than another.
    """
    first_seen = list(dict.fromkeys(groups))
    in_shares = [group for learner in range(learners) for group in first_seen[learner::learners]]
    columns = {group: place * environments for place, group in enumerate(in_shares)}
    rounds: dict[int, int] = {}
    slots = []
    for group in groups:
        rounds[group] = rounds.get(group, -1) + 1
        slots.append(FragmentSlot(rounds[group], range(columns[group], columns[group] + environments), group * environments))
    if len(set(rounds.values())) > 1:
        raise ValueError("every group must give equally many fragments to a batch")
    return slots


class IterationBatch:
    """Some columns of an iteration batch: environment c in column c, its rounds of T steps below each other.

    Frames stay in their fragments; the small arrays are joined. The flat position of step t of environment c is
    t · (number of columns read) + c - columns.start.

    Args:
        placed: the fragments that hold any of the columns, each with its slot.
        columns: the columns to read; other environments of the fragments are left out.
        task: the run's task.
        config: discount, lambda, how advantages are scaled, and the noise that is added to rewards.
        scale_square: running mean square of the advantages so far, None at the start.
        device: where the learner works.
        add: see `Sum`; advantages are scaled over all learners' columns.
        early: scale by `scale_square` as it is, because only a part of the batch is here yet.

    Attributes:
        steps, environments: rows and columns.
        log_prob, advantage, target, valid: (steps · environments,) on the device, by flat position.
        action: the same, or (steps · environments, k) continuous ones.
        valid_cpu: the same mask as an array.
        moments: of the columns; unless `early`, of all learners' columns.
        scale_square: the running mean square with this batch; unless `early`.

    Raises:
        ValueError: the fragments do not fill the columns, or differ in length.
    """

    def __init__(
        self,
        placed: Sequence[tuple[FragmentSlot, Fragment]],
        columns: range,
        task: Task,
        config: TrainConfig,
        scale_square: float | None,
        device: torch.device,
        add: Sum = lambda total: None,
        *,
        early: bool = False,
    ) -> None:
        fragments = [f for _, f in placed]
        self.fragment_steps = fragments[0].steps
        if any(f.steps != self.fragment_steps for f in fragments):
            raise ValueError("fragments of one batch must have the same number of steps")
        first_round = min(slot.round for slot, _ in placed)
        rounds = max(slot.round for slot, _ in placed) - first_round + 1
        self.steps, self.environments = rounds * self.fragment_steps, len(columns)
        # Which fragment holds a column of a round, and which of its environments that is.
        owner = np.full((rounds, self.environments), -1, dtype=np.int32)
        column = np.zeros(self.environments, dtype=np.int64)
        shape = (self.steps, self.environments)
        action = task.room_for_actions(*shape)
        log_prob, advantage, target, value, noise = (np.zeros(shape, dtype=np.float32) for _ in range(5))
        valid = np.zeros(shape, dtype=bool)
        for number, (slot, f) in enumerate(placed):
            a, b = max(slot.columns.start, columns.start), min(slot.columns.stop, columns.stop)
            if b <= a:
                raise ValueError("a fragment holds none of the columns")
            inside = slice(a - slot.columns.start, b - slot.columns.start)
            here = slice(a - columns.start, b - columns.start)
            owner[slot.round - first_round, here] = number
            column[here] = np.arange(inside.start, inside.stop)
            start = (slot.round - first_round) * self.fragment_steps
            at = slice(start, start + self.fragment_steps), here
            of_fragment = slice(None), inside
            advantage[at], target[at], noise[at] = _estimate(f, inside, config)
            action[at], log_prob[at], value[at] = f.action[of_fragment], f.log_prob[of_fragment], f.value[of_fragment]
            valid[at] = ~f.reset[of_fragment]
        if (owner < 0).any():
            raise ValueError("the fragments do not fill the columns")
        self._frames: CpuFrames | DeviceFrames = (
            CpuFrames(fragments, owner, column, task.frame_stack)
            if device.type == "cpu"
            else DeviceFrames(fragments, owner, column, task.frame_stack, device)
        )
        target += noise
        self.moments = Moments(advantage[valid], target[valid], value[valid])
        if not early:
            add(self.moments.sums)
        self.scale_square = scale_square
        if config.update.advantage_scale == "running" and not early:
            self.scale_square = self.moments.running_square(scale_square, config.kept(ADVANTAGE_DECAY))
        # Scaled as without noise on rewards, which would else take weight from the policy against the entropy bonus.
        advantage += noise
        advantage = self._scaled(advantage, config.update.advantage_scale)

        def flat(array: np.ndarray) -> torch.Tensor:
            return upload(torch.from_numpy(array.reshape(-1, *array.shape[2:])), device)

        self.action, self.log_prob = flat(action), flat(log_prob)
        self.advantage, self.target, self.valid = flat(advantage), flat(target), flat(valid)
        self.valid_cpu = valid.reshape(-1)
        self.proximal: torch.Tensor | None = None  # log-probability under the policy that the update starts from

    def _scaled(self, advantage: np.ndarray, scale: str) -> np.ndarray:
        if scale == "batch":
            return ((advantage - self.moments.mean) / (self.moments.deviation + 1e-8)).astype(np.float32)
        if scale == "running":
            assert self.scale_square is not None
            return advantage / np.float32(np.sqrt(self.scale_square) + 1e-8)
        return advantage

    def observations(self, positions: Positions) -> torch.Tensor:
        """Observations at those positions on the device, as the environments gave them; the order is kept."""
        return self._frames.observations(positions)

    def count_valid(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Number of valid observations in each block of flat positions, float64."""
        return np.array([self.valid_cpu[block].sum() for block in blocks], dtype=np.float64)

    def of_environments(self, environments: np.ndarray) -> np.ndarray:
        """Flat positions of all steps of those environments, environment by environment."""
        return (environments[:, None] + np.arange(self.steps) * self.environments).reshape(-1)


def _estimate(fragment: Fragment, inside: slice, config: TrainConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
    """Advantages and value targets of those environments of a fragment, and what noise on their rewards adds to both."""
    here, update, noise = (slice(None), inside), config.update, config.rollout.reward_noise
    value, bootstrap = fragment.value[here], fragment.bootstrap_value[inside]
    advantages = partial(
        generalized_advantages,
        terminated=fragment.terminated[here],
        truncated=fragment.truncated[here],
        discount=update.discount,
        gae_lambda=update.gae_lambda,
    )
    advantage, target = advantages(reward=fragment.clipped_reward[here], value=value, bootstrap_value=bootstrap)
    if not noise:
        return advantage, target, 0.0
    reward = noise * fragment.reward_noise(config.seed)[here]  # advantages are linear in rewards
    added, _ = advantages(reward=reward, value=np.zeros_like(value), bootstrap_value=np.zeros_like(bootstrap))
    return advantage, target, added


class Moments:
    """Sums over valid observations, from which the scale of the advantages and the explained variance follow.

    Args:
        advantage, target, value: (n,) float32 of the valid observations.

    Attributes:
        sums: (7,) float64: count, and the sum and the sum of squares of advantage, target and target - value. On the CPU, where
            they are read before the device has anything to do.
    """

    def __init__(self, advantage: np.ndarray, target: np.ndarray, value: np.ndarray) -> None:
        a, t, error = (x.astype(np.float64) for x in (advantage, target, target - value))
        sums = [len(a), a.sum(), a @ a, t.sum(), t @ t, error.sum(), error @ error]
        self.sums = torch.tensor(sums, dtype=torch.float64)

    @property
    def count(self) -> int:
        """Number of valid observations."""
        return int(self.sums[0])

    @property
    def mean(self) -> float:
        """Mean of the advantages."""
        return float(self.sums[1]) / max(self.count, 1)

    @property
    def deviation(self) -> float:
        """Standard deviation of the advantages."""
        return _variance(self.count, self.sums[1], self.sums[2]) ** 0.5

    @property
    def explained_variance(self) -> float:
        """1 - Var(target - value) / Var(target)."""
        error = _variance(self.count, self.sums[5], self.sums[6])
        return 1.0 - error / max(_variance(self.count, self.sums[3], self.sums[4]), 1e-12)

    def running_square(self, previous: float | None, decay: float) -> float:
        """Running mean square of the advantages: it is expected to be the same at every batch size, as the batch's own is not.

        Without a correction of the start: the first batch, of an untrained value head, weighs `decay` ** k after k others.

        Args:
            previous: before this batch; None before the first.
            decay: share of it that is kept.
        """
        square = float(self.sums[2]) / max(self.count, 1)
        return square if previous is None else decay * previous + (1 - decay) * square


def _variance(count: int, total: torch.Tensor, squares: torch.Tensor) -> float:
    mean = float(total) / max(count, 1)
    return max(float(squares) / max(count, 1) - mean * mean, 0.0)
