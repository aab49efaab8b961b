"""`Fragment`, the unit of experience: T steps of N environments, as single frames.

`FragmentSummary` travels ahead of it. How fragments are made is in `worker`; how observations are stacked from their frames
again, in `rlscale.agents.learning.frames`.
"""

import warnings
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

__all__ = ["Fragment", "FragmentSummary", "tensor_view"]


@dataclass(frozen=True)
class FragmentSummary:
    """What the one who keeps the record needs of a fragment: a few numbers, however large the fragment itself.

    Attributes:
        observations: valid ones.
        episode_return: (M,) float32, raw returns of the episodes that finished in this fragment.
        episode_length: (M,) int64, their lengths in observations.
        policy_version: iteration whose policy acted.
        actor: index of the worker that made it.
        group: which set of environments, numbered over all workers in the order in which they take turns.
        generation: how often these environments had been made before in this run: afresh after a resume, a loss, or a move.
        index: how many fragments of that group and generation had been made before. (group, generation, index) is the fragment's
            identity: it never comes twice in a run.
        seconds: seconds the worker took.
    """

    observations: int
    episode_return: np.ndarray
    episode_length: np.ndarray
    policy_version: int
    actor: int
    group: int
    generation: int
    index: int
    seconds: float


@dataclass(frozen=True)
class Fragment(FragmentSummary):
    """T steps of N environments by one frozen policy.

    Observation t of environment i is `frames[t : t + stack, i]`, with zeros for frames from before the last reset, as the
    environment itself gives it.

    Attributes:
        frames: (stack - 1 + T, N, *frame_shape), single frames: first the carry-in (what the first observation showed of
            earlier steps), then the newest frame of each observation. 7,056 bytes an observation on Atari, not 28,224.
        action: (T, N) int64, or (T, N, k) float32 continuous ones as they were drawn, not clipped.
        reward: (T, N) float32, raw score.
        clipped_reward: (T, N) float32, what is learned from; equal to `reward` where the task does not clip.
        terminated: (T, N) bool, the return ends with this step; a lost life may count.
        truncated: (T, N) bool, the episode was cut short at this step.
        reset: (T, N) bool, the step only reset the environment: no experience, masked everywhere.
        log_prob: (T, N) float32, of the action under the behaviour policy.
        value: (T, N) float32, by the behaviour policy's network.
        bootstrap_value: (N,) float32, value of the observation after the last step.
    """

    frames: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    clipped_reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    bootstrap_value: np.ndarray

    @property
    def summary(self) -> FragmentSummary:
        """All of it but what is learned from."""
        return FragmentSummary(**{field.name: getattr(self, field.name) for field in fields(FragmentSummary)})

    def cloned(self, times: int) -> "Fragment":
        """The same with so many copies of every environment, one beside the other; an episode is still one episode."""
        own = ("frames", "action", "reward", "clipped_reward", "terminated", "truncated", "reset", "log_prob", "value")
        copies = {name: getattr(self, name).repeat(times, axis=1) for name in own}
        observations = self.observations * times
        return replace(self, **copies, bootstrap_value=self.bootstrap_value.repeat(times), observations=observations)

    def reward_noise(self, seed: int) -> np.ndarray:
        """(T, N) float64 standard normal numbers, which the fragment's identity and the seed decide."""
        words = [seed, self.generation, self.group, self.index, 0x4015E]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words))).standard_normal(self.reward.shape)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.reward.shape[0])

    @property
    def environments(self) -> int:
        """N."""
        return int(self.reward.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, which is what travels."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))


def tensor_view(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares a read-only array from the object store; nothing here writes to it."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
