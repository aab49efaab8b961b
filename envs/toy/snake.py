"""Snake on 8×8 cells, N boards at a time in NumPy. Nothing else lives here.

The body is kept as the number of steps for which each of its cells stays covered, so that a step is a subtraction.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["SnakeVectorEnv"]

_SIDE = 8
_LONGEST = 300  # steps
_MOVES = np.array([(0, -1), (-1, 0), (0, 1), (1, 0)])  # row and column of a step to the left, up, to the right, down


class SnakeVectorEnv(EpisodesVectorEnv):
    """N boards of 8 rows and 8 columns. Actions 0 to 3 move the head to the left, up, to the right or down.

    A snake of one cell starts at random, and so does an apple. The head eats an apple that it moves onto: the reward is 1, the
    snake grows by a cell, and another apple comes to a free cell. The game ends where the head leaves the board or meets the
    body, or the snake fills the board, and is cut after 300 steps. The cell that the tail leaves in a step is free in that step.

    The state is (66,): of each cell, row by row, the steps for which the snake stays there, then the cell of the head and that of
    the apple. The observation is (192,): 1 at the cells of the body, then at the head, then at the apple.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (3 * _SIDE * _SIDE,), np.float32), Discrete(4), _LONGEST)

    def start(self, count: int) -> np.ndarray:
        state = np.zeros((count, _SIDE * _SIDE + 2), dtype=np.int16)
        each, head = np.arange(count), self.np_random.integers(0, _SIDE * _SIDE, count)
        state[each, head] = 1
        state[:, -2] = head
        state[:, -1] = self._free_cell(state)
        return state

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state = state.copy()
        each = np.arange(len(state))
        body, length = state[:, :-2], state[each, state[:, -2]]
        row, column = (np.stack(np.divmod(state[:, -2], _SIDE), axis=1) + _MOVES[actions]).T
        outside = (row < 0) | (row >= _SIDE) | (column < 0) | (column >= _SIDE)
        head = np.where(outside, state[:, -2], row * _SIDE + column)
        eats = ~outside & (head == state[:, -1])
        body -= ((body > 0) & ~eats[:, None]).astype(np.int16)
        dies = outside | (body[each, head] > 0)
        moves = ~dies
        body[each[moves], head[moves]] = (length + eats)[moves]
        state[moves, -2] = head[moves]
        full = eats & (body > 0).all(axis=1)
        hungry = eats & ~full
        state[hungry, -1] = self._free_cell(state[hungry])
        return state, eats.astype(np.float64), dies | full

    def _free_cell(self, state: np.ndarray) -> np.ndarray:
        """A cell of each board that the snake does not cover, each as likely."""
        free = state[:, :-2] == 0
        return (self.np_random.random(free.shape) * free).argmax(axis=1)

    def observe(self, state: np.ndarray) -> np.ndarray:
        seen = np.zeros((len(state), 3, _SIDE * _SIDE), dtype=np.float32)
        each = np.arange(len(state))
        seen[:, 0] = state[:, :-2] > 0
        seen[each, 1, state[:, -2]] = 1
        seen[each, 2, state[:, -1]] = 1
        return seen.reshape(len(state), -1)
