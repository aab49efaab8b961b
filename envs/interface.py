"""`TaskEnv`, the one interface over the vector environments of all tasks, and `Step`, what a step gives. Nothing is made here.

Every environment resets itself on the step *after* an end (Gymnasium's NEXT_STEP mode): that step ignores its action and
returns reward 0, so it is no experience, and `Step.reset` marks it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["Step", "TaskEnv"]


class Step(NamedTuple):
    """What one step of N environments gave.

    Attributes:
        observation: (N, *task.observation_shape), after the step; not reused by later steps.
        reward: (N,) float32, raw.
        terminated: (N,) bool, the return ends here; a lost life counts when the environment was made so.
        truncated: (N,) bool, the episode was cut short: its return goes on in theory.
        reset: (N,) bool, this step only reset the environment. Its action was ignored: never learn from it.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray


class TaskEnv(Protocol):
    """N environments of one task, stepped together."""

    num_envs: int

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start all environments anew, environment i from `seeds[i]` (non-negative, below 2**31); the observations."""
        ...

    def step(self, actions: np.ndarray) -> Step:
        """Take `actions`, (N,) int64."""
        ...

    def get_state(self) -> dict[str, Any] | None:
        """All that is needed to go on exactly from here; None when these environments cannot be saved."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called."""
        ...

    def close(self) -> None: ...
