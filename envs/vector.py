"""`VectorTaskEnv`, a `TaskEnv` around any `gymnasium.vector.VectorEnv`, and `task_of_spaces`, a task that is known by its spaces.

Families whose environments follow Gymnasium's interface build on these two.
"""

import math
from typing import Any

import numpy as np

from rlscale.errors import UsageError

from .interface import Step, TaskEnv
from .task import Task

__all__ = ["VectorTaskEnv", "task_of_spaces"]


def task_of_spaces(task_id: str, observation: Any, action: Any, **rest: Any) -> Task:
    """A task with Discrete actions whose observations, Box or Discrete, are flattened to one row of features.

    Args:
        task_id: its name.
        observation: Gymnasium's space of one environment's observations.
        action: the space of its actions.
        rest: the other fields of `Task`.

    Raises:
        UsageError: spaces that cannot be learned.
    """
    from gymnasium.spaces import Box, Discrete

    if not isinstance(action, Discrete):
        raise UsageError("TASK", f"{task_id} has {type(action).__name__} actions", "Only Discrete actions can be learned")
    if not isinstance(observation, Box | Discrete):
        raise UsageError(
            "TASK", f"{task_id} has {type(observation).__name__} observations", "Only Box or Discrete can be learned"
        )
    return Task(
        id=task_id,
        frame_shape=(int(observation.n) if isinstance(observation, Discrete) else math.prod(observation.shape),),
        frame_dtype="uint8" if observation.dtype == "uint8" else "float32",
        actions=int(action.n),
        preprocessing="flattened",
        **rest,
    )


class VectorTaskEnv(TaskEnv):
    """The environments of a `gymnasium.vector.VectorEnv` that resets on the step after an end.

    Args:
        task: the task.
        env: its N environments.
        one_seed: they are natively vectorized: all draw from one generator, which takes the first seed.
    """

    def __init__(self, task: Task, env: Any, *, one_seed: bool) -> None:
        self.num_envs = env.num_envs
        self._task, self._env, self._one_seed = task, env, one_seed
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._first_action = int(env.single_action_space.start)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        observation, _ = self._env.reset(seed=int(seeds[0]) if self._one_seed else [int(seed) for seed in seeds])
        self._ended = np.zeros(self.num_envs, dtype=bool)
        return self._flatten(observation)

    def step(self, actions: np.ndarray) -> Step:
        observation, reward, terminated, truncated, _ = self._env.step(actions + self._first_action)
        reset, self._ended = self._ended, np.asarray(terminated | truncated, dtype=bool)
        return Step(
            self._flatten(observation),
            np.asarray(reward, dtype=np.float32),
            np.array(terminated, dtype=bool),
            np.array(truncated, dtype=bool),
            reset,
        )

    def _flatten(self, observation: np.ndarray) -> np.ndarray:
        from gymnasium.spaces import Discrete

        space = self._env.single_observation_space
        if isinstance(space, Discrete):
            return np.eye(self._task.frame_shape[0], dtype=np.float32)[np.asarray(observation) - int(space.start)]
        # The environment may reuse its buffer at the next step; astype copies. Always row by row: the last bits of a matrix
        # product depend on the layout, and a copy of a state that goes on would have another one.
        return np.asarray(observation).reshape(self.num_envs, -1).astype(self._task.frame_dtype, order="C")

    def close(self) -> None:
        self._env.close()
