"""Connect Four against a player who drops discs at random, N boards at a time in NumPy. Nothing else lives here.

A board is two 64-bit integers, a bit a cell, so that a disc is dropped and four in a row are found by a few shifts.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["ConnectFourVectorEnv"]

_ROWS, _COLUMNS = 6, 7
_HEIGHT = _ROWS + 1  # bits of a column: the cell above it stays empty, so that no line runs over into the next column
_BOTTOM = np.array([1 << (_HEIGHT * column) for column in range(_COLUMNS)], dtype=np.uint64)
_COLUMN = _BOTTOM * np.uint64((1 << _ROWS) - 1)  # the cells of each column
_CELLS = np.array([_HEIGHT * column + row for row in range(_ROWS) for column in range(_COLUMNS)], dtype=np.uint64)
_FULL = np.bitwise_or.reduce(_COLUMN)
_LINES = np.array([1, _HEIGHT - 1, _HEIGHT, _HEIGHT + 1], dtype=np.uint64)  # up, down to the right, to the right, up to the right


class ConnectFourVectorEnv(EpisodesVectorEnv):
    """N boards of 6 rows and 7 columns. Action c drops a disc into column c; then the other player drops one at random.

    Four discs in a row, column or diagonal win: the last reward is 1 where the agent has them, −1 where the other player has
    or where the agent chose a full column, and 0 where the board is full; all others are 0. Who begins is drawn. The state is
    (2,): the agent's discs and the other player's. The observation is (84,): the agent's cells from the lowest row up, then the
    other player's.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (2 * _ROWS * _COLUMNS,), np.float32), Discrete(_COLUMNS), _ROWS * _COLUMNS)

    def start(self, count: int) -> np.ndarray:
        state = np.zeros((count, 2), dtype=np.uint64)
        second = self.np_random.integers(0, 2, count) == 1
        state[second, 1] = _BOTTOM[self.np_random.integers(0, _COLUMNS, int(second.sum()))]
        return state

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state = state.copy()
        reward = np.zeros(len(state))
        disc = _drop(state, actions)
        reward[disc == 0] = -1
        state[:, 0] |= disc
        reward[_has_four(state[:, 0])] = 1
        ended = (reward != 0) | _is_full(state)
        answers = ~ended
        state[answers, 1] |= _drop(state[answers], self._any_column(state[answers]))
        reward[answers & _has_four(state[:, 1])] = -1
        return state, reward, (reward != 0) | _is_full(state)

    def _any_column(self, state: np.ndarray) -> np.ndarray:
        """A column of each board that is not full, each as likely."""
        free = ((state[:, 0] | state[:, 1])[:, None] & _COLUMN) != _COLUMN
        return (self.np_random.random(free.shape) * free).argmax(axis=1)

    def observe(self, state: np.ndarray) -> np.ndarray:
        cells = (state[:, :, None] >> _CELLS) & np.uint64(1)
        return cells.reshape(len(state), -1).astype(np.float32)


def _drop(state: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(N,) the bit of the lowest empty cell of a column of each board; 0 where it is full."""
    return ((state[:, 0] | state[:, 1]) + _BOTTOM[columns]) & _COLUMN[columns] & ~(state[:, 0] | state[:, 1])


def _has_four(discs: np.ndarray) -> np.ndarray:
    """(N,) whether four of these discs are in a line."""
    pairs = discs[:, None] & (discs[:, None] >> _LINES)
    return (pairs & (pairs >> (_LINES * np.uint64(2)))).any(axis=1)


def _is_full(state: np.ndarray) -> np.ndarray:
    return (state[:, 0] | state[:, 1]) == _FULL
