"""scikit-learn's digits as a task: name the picture, one a step. A positive control, since its noise is that of a classifier."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from rlscale.errors import UsageError

from ..episodes import EpisodesVectorEnv

__all__ = ["DigitsVectorEnv"]


class DigitsVectorEnv(EpisodesVectorEnv):
    """N pictures of 8×8 pixels, drawn from 1,797 with replacement; reward 1 for the right one of ten names, and the episode ends.

    Raises:
        UsageError: scikit-learn, which holds the pictures, is not installed.
    """

    def __init__(self, num_envs: int) -> None:
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise UsageError("TASK", "toy/digits needs scikit-learn", "Install it: pip install scikit-learn") from None
        super().__init__(num_envs, Box(0, 1, (64,), np.float32), Discrete(10), 1)
        images, self._names = load_digits(return_X_y=True)
        self._images = (images / 16).astype(np.float32)

    def start(self, count: int) -> np.ndarray:
        return self.np_random.integers(0, len(self._names), count)

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return state.copy(), (self._names[state] == actions).astype(float), np.ones(len(state), dtype=bool)

    def observe(self, state: np.ndarray) -> np.ndarray:
        return self._images[state]
