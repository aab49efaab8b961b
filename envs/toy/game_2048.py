"""The game 2048, N boards at a time in NumPy: equal tiles that are pushed together become one. Nothing else lives here.

Rules: Gabriele Cirulli's 2048 (2014, MIT licence). What a push makes of a row of four cells is read from a table of all rows.
"""

from functools import cache

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["Game2048VectorEnv"]

_SIDE, _KINDS = 4, 16  # cells of a row; what a cell can hold: nothing, or a tile of 2 to 2^15
_LONGEST = 2000  # steps


class Game2048VectorEnv(EpisodesVectorEnv):
    """N boards of 4 rows and 4 columns. Actions 0 to 3 push all tiles to the left, up, to the right or down.

    Two equal tiles that meet become one of their sum, which is the reward. After a push that moved something, a 2 comes onto an
    empty cell, in one of ten cases a 4. A push that moves nothing changes nothing. A game ends where no push moves anything, and
    is cut after 2,000 steps. The state is (16,): the exponent of every cell's tile, 0 where there is none. The observation is
    (256,): a one-hot vector of 16 for each cell.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (_SIDE * _SIDE * _KINDS,), np.float32), Discrete(4), _LONGEST)

    def start(self, count: int) -> np.ndarray:
        state = np.zeros((count, _SIDE * _SIDE), dtype=np.int8)
        self._add_tile(state)
        self._add_tile(state)
        return state

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pushed, reward = _push(state, actions)
        moved = (pushed != state).any(axis=1)
        changed = pushed[moved]
        self._add_tile(changed)
        pushed[moved] = changed
        return pushed, reward, ~_can_move(pushed)

    def _add_tile(self, state: np.ndarray) -> None:
        """A 2 or a 4 onto an empty cell of each board, each cell as likely."""
        cell = (self.np_random.random(state.shape) * (state == 0)).argmax(axis=1)
        state[np.arange(len(state)), cell] = 1 + (self.np_random.random(len(state)) < 0.1)

    def observe(self, state: np.ndarray) -> np.ndarray:
        return np.eye(_KINDS, dtype=np.float32)[state].reshape(len(state), -1)


@cache
def _rows() -> tuple[np.ndarray, np.ndarray]:
    """(65536, 4) every row after a push to its first cell, and (65536,) the reward; a row's number has its cells as digits."""
    cells = np.stack(np.unravel_index(np.arange(_KINDS**_SIDE), (_KINDS,) * _SIDE), axis=1)
    pushed, reward = np.zeros_like(cells), np.zeros(len(cells))
    each = np.arange(len(cells))
    filled = np.zeros(len(cells), dtype=np.int64)  # cells of the pushed row so far
    open_to_merge = np.zeros(len(cells), dtype=bool)  # whether its last tile has not merged in this push
    for column in range(_SIDE):
        tile = cells[:, column]
        last = pushed[each, np.maximum(filled - 1, 0)]
        merges = (tile > 0) & open_to_merge & (tile == last) & (tile < _KINDS - 1)
        pushed[each[merges], filled[merges] - 1] += 1
        reward[merges] += 2.0 ** (tile[merges] + 1)
        placed = (tile > 0) & ~merges
        pushed[each[placed], filled[placed]] = tile[placed]
        filled += placed
        open_to_merge = np.where(tile > 0, placed, open_to_merge)
    return pushed.astype(np.int8), reward


def _push(state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, 16) the boards after these pushes, before a tile is added, and (N,) the sums of the tiles that became one."""
    boards = state.reshape(-1, _SIDE, _SIDE)
    upright = actions % 2 == 1
    backward = actions >= 2
    rows = np.where(upright[:, None, None], boards.transpose(0, 2, 1), boards)
    rows = np.where(backward[:, None, None], rows[:, :, ::-1], rows)
    numbers = rows.astype(np.int64) @ (_KINDS ** np.arange(_SIDE - 1, -1, -1))
    pushed_rows, rewards = _rows()
    rows = pushed_rows[numbers]
    rows = np.where(backward[:, None, None], rows[:, :, ::-1], rows)
    rows = np.where(upright[:, None, None], rows.transpose(0, 2, 1), rows)
    return rows.reshape(len(state), -1), rewards[numbers].sum(axis=1)


def _can_move(state: np.ndarray) -> np.ndarray:
    """(N,) whether a cell is empty or two equal tiles are neighbours."""
    boards = state.reshape(-1, _SIDE, _SIDE)
    beside = (boards[:, :, 1:] == boards[:, :, :-1]).any(axis=(1, 2)) | (boards[:, 1:] == boards[:, :-1]).any(axis=(1, 2))
    return beside | (state == 0).any(axis=1)
