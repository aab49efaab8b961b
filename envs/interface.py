"""`TaskEnv`, the one interface to the vector environments of all tasks, and `Step`, the result of a step.

Every environment resets itself on the step *after* an end (Gymnasium's NEXT_STEP mode): that step ignores its action and
returns reward 0, so it is no experience, and `Step.reset` marks it.
"""

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Step", "TaskEnv"]


class Step(NamedTuple):
    """The result of one step of N environments.

    Attributes:
        observation: (N, *task.observation_shape), after the step; later steps do not reuse the array.
        reward: (N,) float32, raw.
        terminated: (N,) bool, the return ends here. A lost life counts where the environment was made so.
        truncated: (N,) bool, the episode was cut short, and its return goes on in theory.
        reset: (N,) bool, this step only reset the environment and ignored the action: never learn from it.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray


class TaskEnv:
    """N environments of one task, stepped together. A family must define `reset` and `step`, the rest where it can.

    Attributes:
        num_envs: N.
    """

    num_envs: int

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start all environments anew, environment i from `seeds[i]` (non-negative, below 2**31); the observations."""
        raise NotImplementedError

    def step(self, actions: np.ndarray) -> Step:
        """Take `actions`, (N,) int64, or (N, k) float32 continuous ones, which the environment clips to their bounds."""
        raise NotImplementedError

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray | None:
        """Start only the environments of the (N,) bool mask anew; the observations of all.

        None, and nothing happens, where environments cannot be started one by one.
        """
        return None

    def begin_episodes(self, seeds: np.ndarray) -> np.ndarray:
        """Start all environments anew for another evaluation; the observations.

        As `reset`, except where new seeds are dear: there the environments may go on with their own random numbers.
        """
        return self.reset(seeds)

    def get_state(self) -> dict[str, Any] | None:
        """All that is needed to go on exactly from here; None where these environments cannot be saved."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called."""
        raise NotImplementedError(f"{type(self).__name__} has no state to restore")

    def draw_from(self, seeds: np.ndarray) -> None:
        """Go on from the present state with other random numbers, those of (N,) seeds; for environments that can be saved."""
        raise NotImplementedError(f"{type(self).__name__} cannot be told what to draw from")

    def close(self) -> None:
        """Give back what the environments hold."""
