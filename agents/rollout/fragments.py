"""`Fragment`, the unit of experience, and how the learner gets exact stacked observations back from its single frames.

`FragmentSummary` travel ahead of it. How fragments are made is in `worker`; what is learned from them in `learner`.
"""

import warnings
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

__all__ = ["Fragment", "FragmentSummary", "FragmentTensors", "steps_since_reset", "tensor_view"]


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


class FragmentTensors:
    """The frames of a fragment as a tensor on the CPU, from which observations are restored.

    Args:
        fragment: the frames are shared with it, never copied.
        stack: frames per observation; 1 for observations that are not images.
    """

    def __init__(self, fragment: Fragment, stack: int) -> None:
        self.steps, self.environments = fragment.steps, fragment.environments
        self.stack = stack
        self.frame_shape = fragment.frames.shape[2:]
        self.frames = tensor_view(fragment.frames).reshape(len(fragment.frames) * self.environments, -1)
        # An observation at t shows the frame of t - age only if no reset step lies in t - age … t - 1.
        self._age_of_reset = torch.from_numpy(steps_since_reset(fragment.reset, stack))

    def observations(self, step: torch.Tensor, environment: torch.Tensor) -> torch.Tensor:
        """The observations at those steps of those environments, as the environment gave them.

        Args:
            step, environment: (n,) int64.

        Returns:
            (n, stack, height, width) for images, (n, features) otherwise, in the frames' own type.
        """
        if self.stack == 1:
            picked = self.frames[step * self.environments + environment]
            return picked.view(-1, *self.frame_shape)
        row = (step[:, None] + torch.arange(self.stack)) * self.environments + environment[:, None]
        observation = self.frames.index_select(0, row.reshape(-1)).view(-1, self.stack, self.frames.shape[1])
        age = self._age_of_reset[step, environment]
        for missing in range(1, self.stack):
            stale = (age < missing).nonzero().squeeze(1)  # rarely more than a handful of rows
            if len(stale):
                observation[stale, self.stack - 1 - missing] = 0
        return observation.view(-1, self.stack, *self.frame_shape)


def steps_since_reset(reset: np.ndarray, stack: int) -> np.ndarray:
    """(T, N): how many earlier frames each observation shows, at most stack - 1: steps since the last reset step.

    Carry-in frames need no mask: the environment has already put zeros where it showed none.
    """
    ages = np.empty(reset.shape, dtype=np.int8)
    age = np.full(reset.shape[1], stack - 1, dtype=np.int8)
    for t in range(len(reset)):
        ages[t] = age
        age = np.where(reset[t], 0, np.minimum(age + 1, stack - 1)).astype(np.int8)
    return ages


def tensor_view(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares a read-only array from the object store; nothing here writes to it."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
