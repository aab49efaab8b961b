"""`Task`: what is learned, how its environments are made, and the defaults that a family of tasks brings with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from .actions import Actions, BoxActions
from .interface import TaskEnv

__all__ = [
    "SMALLEST_IMAGE",
    "EnvCost",
    "EnvMaker",
    "Network",
    "SweepDefaults",
    "Task",
    "TaskListing",
    "TrainingDefaults",
    "make_env",
]

Network = Literal["nature_cnn", "small_cnn", "minatar_cnn", "mlp"]
SMALLEST_IMAGE = 36  # pixels of a side; on a smaller image the Nature network's third convolution has no input left


@dataclass(frozen=True)
class TrainingDefaults:
    """What `rlscale train` uses for PPO where the user says nothing; every default here is that of a small task.

    Attributes:
        observations: agent steps in all.
        environments: number of environments.
        rollout_length: steps of one fragment.
        epochs: passes over each iteration batch.
        learning_rate: of Adam.
        anneal: let the rate fall linearly to zero at the last of those observations.
        entropy_coef: weight of the entropy bonus.
        gae_lambda: λ of generalized advantage estimation.
    """

    observations: int = 1_000_000
    environments: int = 16
    rollout_length: int = 32
    epochs: int = 8
    learning_rate: float = 1e-3
    anneal: bool = False
    entropy_coef: float = 0.0
    gae_lambda: float = 0.9


@dataclass(frozen=True)
class SweepDefaults:
    """What `rlscale sweep` uses where the user says nothing.

    Attributes:
        learning_rate: ε* of the centre ε*/(1 + B*/B)^α of each batch size's grid of learning rates.
        rate_batch: B* of that centre, in observations.
        observations: a run that has spent so many without reaching its goals is given up.
        rollout_length: steps of each environment per batch.
        episodes: of one evaluation of a frozen policy.
        actors: most Ray actors that sample for each run; 0: the run samples itself.
        random_first_steps: up to so many random steps per environment before a run: about an episode.
    """

    learning_rate: float = 3e-3
    rate_batch: float = 2048.0
    observations: int = 10_000_000
    rollout_length: int = 5
    episodes: int = 64
    actors: int = 0
    random_first_steps: int = 100


@dataclass(frozen=True)
class EnvCost:
    """What an environment costs, and so how many of them `rlscale workers` gives to one rollout worker.

    The defaults are for environments that are cheap to make and to step.

    Attributes:
        few: environments of the smallest worker that is measured.
        many: environments of a worker where the number of workers is varied.
        most: environments of the largest worker that is considered.
        alone: environments in the measurement of the simulator without a policy.
        memory_bytes: private memory that one environment adds to its process; 0 where that is negligible.
        together: environments that an evaluation steps together on each thread, so that those whose episodes are over cost no
            more; None where a step of all costs hardly more than a step of one.
        threaded: whether the environments step on the threads that `make_env` gives them; else on the caller's alone.
    """

    few: int = 16
    many: int = 256
    most: int = 512
    alone: int = 256
    memory_bytes: int = 0
    together: int | None = None
    threaded: bool = False


class EnvMaker(Protocol):
    """A function of a family that makes environments of a task; see `make_env` for its arguments."""

    def __call__(self, task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv: ...


@dataclass(frozen=True)
class Task:
    """A task, with everything that is special about its family. No other code needs to ask which family it belongs to.

    Attributes:
        id: its name, for example `atari/pong`; `find_task(task.id)` gives the same task again.
        frame_shape: shape of one stored observation frame: (height, width), which are stacked, (channels, height, width), or
            (features,).
        frame_dtype: NumPy's name of the frame's type, `uint8` or `float32`.
        actions: number of discrete actions, or the box of continuous ones.
        preprocessing: what happens between the simulator and the frame, for people.
        make_env: makes environments of the task; a function of a module, so that the task can be pickled.
        frame_stack: frames that make one observation; the oldest comes first.
        frame_skip: simulator frames per observation.
        discount: default γ.
        network: default network.
        pixels: observations are pixels of 0 … 255, which a network divides by 255; else it takes the numbers as they are. The
            Nature CNN and the small one are for pixels alone, and always divide.
        clip_reward: learn from the reward's sign (the raw reward is still recorded).
        reward_scale: learn from the reward times this (the raw reward is still recorded). Without it the value, which starts at
            zero, needs thousands of optimizer steps to reach returns in the hundreds.
        goals: raw returns worth reaching, ascending; empty when none are known.
        training: defaults of `rlscale train`.
        sweep: defaults of `rlscale sweep`.
        cost: what an environment costs.
        user_make: for a user's own task only: their callable, which takes the number of environments and returns a
            `gymnasium.vector.VectorEnv`, or their class of `gymnasium.Env`.
    """

    id: str
    frame_shape: tuple[int, ...]
    frame_dtype: Literal["uint8", "float32"]
    actions: Actions
    preprocessing: str
    make_env: EnvMaker
    frame_stack: int = 1
    frame_skip: int = 1
    discount: float = 0.99
    network: Network = "mlp"
    pixels: bool = False
    clip_reward: bool = False
    reward_scale: float = 1.0
    goals: tuple[float, ...] = ()
    training: TrainingDefaults = TrainingDefaults()
    sweep: SweepDefaults = SweepDefaults()
    cost: EnvCost = EnvCost()
    user_make: Callable[[int], Any] | None = None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """(stack or channels, height, width) of an image task, (features,) of any other."""
        return (self.frame_stack, *self.frame_shape) if len(self.frame_shape) == 2 else self.frame_shape

    def room_for_actions(self, *shape: int) -> np.ndarray:
        """Uninitialized actions: (*shape,) int64 of discrete ones, (*shape, k) float32 of continuous ones."""
        if isinstance(self.actions, BoxActions):
            return np.empty((*shape, len(self.actions)), dtype=np.float32)
        return np.empty(shape, dtype=np.int64)

    def random_actions(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Actions (count, …) of a policy that knows nothing: uniform, or, of continuous ones, standard normal.

        A policy that is still untrained acts just so, whatever the bounds.
        """
        if isinstance(self.actions, BoxActions):
            return generator.standard_normal((count, len(self.actions)), dtype=np.float32)
        return generator.integers(0, self.actions, size=count)


@dataclass(frozen=True)
class TaskListing:
    """One line of `rlscale tasks`: a task's name, or a form that many names have, such as `gym/<id>`, and what it is."""

    id: str
    note: str


def make_env(task: Task, num_envs: int, *, threads: int = 1, cut_on_life_loss: bool = True) -> TaskEnv:
    """Environments of a task, stepped together.

    Args:
        task: from `find_task`.
        num_envs: N, at least 1.
        threads: threads that step the environments, where a family has threads of its own (Atari and EnvPool); the caller's
            thread steps all others.
        cut_on_life_loss: whether a lost life ends the return (`terminated`) while the game goes on, in Atari games with lives.
    """
    return task.make_env(task, num_envs, threads=threads, cut_on_life_loss=cut_on_life_loss)
