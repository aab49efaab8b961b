"""`BoxActions`, continuous actions, and `Actions`, what a task's actions are: a number of discrete ones, or a box."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlscale.errors import UsageError

__all__ = ["Actions", "BoxActions", "actions_of_space"]


@dataclass(frozen=True)
class BoxActions:
    """Continuous actions: k real numbers, each with its bounds.

    A policy may choose any numbers; `fit` brings them within the bounds on their way to the environment.

    Attributes:
        low, high: k numbers each; may be infinite.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __len__(self) -> int:
        """k."""
        return len(self.low)

    def fit(self, actions: np.ndarray, space: Any) -> np.ndarray:
        """Actions (N, k) clipped to the bounds, as (N, …) in the shape and type of one environment's Gymnasium space."""
        fitted: np.ndarray = np.clip(actions.astype(space.dtype), self.low, self.high, dtype=space.dtype)
        return fitted.reshape(len(actions), *space.shape)


Actions = int | BoxActions
"""The number of discrete actions, or continuous ones."""


def actions_of_space(task_id: str, space: Any) -> Actions:
    """The actions of a task whose environments have that Gymnasium space; a Box of several dimensions is flattened.

    Raises:
        UsageError: the space is neither Discrete nor a Box of floating-point numbers.
    """
    from gymnasium.spaces import Box, Discrete

    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and math.prod(space.shape):
        low, high = (tuple(float(bound) for bound in np.ravel(bounds)) for bounds in (space.low, space.high))
        return BoxActions(low, high)
    kind = f"{type(space).__name__} actions"
    if isinstance(space, Box):
        kind += f" of type {space.dtype}" if math.prod(space.shape) else f" of shape {space.shape}"
    raise UsageError("TASK", f"{task_id} has {kind}", "Only Discrete actions, or a Box of floating-point numbers, can be learned")
