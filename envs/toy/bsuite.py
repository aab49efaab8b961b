"""Two tasks of the Behaviour Suite for Reinforcement Learning, N at a time in NumPy: Catch and Umbrella.

Rules: Osband et al. 2020, "Behaviour Suite for Reinforcement Learning" (arXiv:1908.03568; code under the Apache licence 2.0),
`catch` and `umbrella_chain`. Nothing else lives here.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["CatchVectorEnv", "UmbrellaVectorEnv"]

_ROWS, _COLUMNS = 10, 5
_LENGTH, _DISTRACTORS = 10, 20


class CatchVectorEnv(EpisodesVectorEnv):
    """N boards of 10 rows and 5 columns: a ball falls a row a step, a paddle in the last row moves left, stays or moves right.

    An episode lasts nine steps. Its last reward is 1 where the paddle is below the ball and −1 where it is not; all others are 0.
    The state is (3,): the ball's row and column, and the paddle's column. The observation is (50,): 1 at ball and paddle.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (_ROWS * _COLUMNS,), np.float32), Discrete(3), _ROWS - 1)

    def start(self, count: int) -> np.ndarray:
        ball = self.np_random.integers(0, _COLUMNS, count)
        return np.stack([np.zeros(count, np.int64), ball, np.full(count, _COLUMNS // 2)], axis=1)

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        row = state[:, 0] + 1
        paddle = np.clip(state[:, 2] + actions - 1, 0, _COLUMNS - 1)
        landed = row >= _ROWS - 1
        reward = np.where(landed, np.where(paddle == state[:, 1], 1.0, -1.0), 0.0)
        return np.stack([np.minimum(row, _ROWS - 1), state[:, 1], paddle], axis=1), reward, landed

    def observe(self, state: np.ndarray) -> np.ndarray:
        boards = np.zeros((len(state), _ROWS, _COLUMNS), dtype=np.float32)
        each = np.arange(len(state))
        boards[each, state[:, 0], state[:, 1]] = 1
        boards[each, _ROWS - 1, state[:, 2]] = 1
        return boards.reshape(len(state), -1)


class UmbrellaVectorEnv(EpisodesVectorEnv):
    """N walks of ten steps. The first action takes an umbrella or leaves it; whether that was right is told by the last reward.

    The last reward is 1 where an umbrella was taken and is needed, or neither; else −1. All others are −1 or 1 by chance, and
    later actions do nothing. The state is what is seen, (23,): whether an umbrella is needed, whether one is carried (before the
    first action by chance), the share of the walk that is left, and twenty numbers, 0 or 1, that mean nothing and change every
    step.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (3 + _DISTRACTORS,), np.float32), Discrete(2), _LENGTH)

    def start(self, count: int) -> np.ndarray:
        state = self._coins(count, 3 + _DISTRACTORS)
        state[:, 2] = 1
        return state

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        done = self.steps + 1
        carried = np.where(done == 1, actions, state[:, 1]).astype(np.float32)
        ended = done >= _LENGTH
        reward = 2 * np.where(ended, carried == state[:, 0], self._coins(len(state))) - 1.0
        left = (1 - done / _LENGTH).astype(np.float32)
        moved = np.column_stack([state[:, 0], carried, left, self._coins(len(state), _DISTRACTORS)])
        return moved, reward, ended

    def _coins(self, *shape: int) -> np.ndarray:
        """0 or 1, each as likely."""
        return self.np_random.integers(0, 2, shape).astype(np.float32)
