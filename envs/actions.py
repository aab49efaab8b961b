"""`BoxActions`, continuous actions, and `Actions`, what a task's actions are: a number of discrete ones, or a box."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlscale.errors import UsageError

__all__ = ["Actions", "BoxActions", "actions_of_space", "to_space"]


@dataclass(frozen=True)
class BoxActions:
    """Continuous actions: k real numbers, each with its bounds.

    A policy may choose any numbers; `to_space` brings them within the bounds on their way to the environment.

    Attributes:
        low, high: k numbers each; may be infinite.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __len__(self) -> int:
        """k."""
        return len(self.low)


Actions = int | BoxActions
"""The number of discrete actions, or continuous ones."""


def to_space(kind: Actions, actions: np.ndarray, space: Any) -> np.ndarray:
    """What a policy chose, (N,) or (N, k), as one environment's Gymnasium space has it: numbers are clipped to their bounds."""
    if not isinstance(kind, BoxActions):
        return (actions + int(space.start)).astype(space.dtype)
    return np.clip(actions.astype(space.dtype), kind.low, kind.high, dtype=space.dtype).reshape(len(actions), *space.shape)


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
