# SPDX-License-Identifier: GPL-3.0-only
"""Rules of MinAtar's Breakout, N environments at a time.

The game is by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.
"""

import numpy as np

from .base import Game, starts, within

__all__ = ["Breakout"]

_DX = np.array([0, -1, 1])
_WALL = np.pad(np.ones((3, 10), dtype=np.uint8), ((1, 6), (0, 0)))  # [y, x]


class Breakout(Game):
    """A ball on diagonals, a paddle in the lowest row, three rows of bricks.

    Channels: paddle, ball, trail, bricks. Actions: nothing, left, right.
    """

    channels = 4
    actions = 3

    paddle = starts(4)
    x = starts(0)
    y = starts(3)
    dx = starts(1)
    dy = starts(1)
    last_x = starts(0)
    last_y = starts(3)
    inside = starts(False, np.bool_)  # the ball met a brick in the last step; it breaks no other until it is out
    bricks = starts(_WALL, np.uint8)

    def restart(self, which: np.ndarray) -> None:
        super().restart(which)
        from_right = self.streams.integers(which, 0, 2) == 1
        self.x[which] = self.last_x[which] = np.where(from_right, 9, 0)
        self.dx[which] = np.where(from_right, -1, 1)

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.paddle = within(self.paddle + _DX[actions], 0, 9)
        last_x, last_y = self.x, self.y
        ahead = last_x + self.dx
        x = within(ahead, 0, 9)
        dx = np.where(x != ahead, -self.dx, self.dx)
        ahead = last_y + self.dy
        top = ahead < 0
        y = within(ahead, 0, 9)  # a ball that fell stays in the lowest row, where its episode is over

        cell = self.lanes * 100 + y * 10 + x
        brick = (self.bricks.take(cell) == 1) & ~top
        broken = brick & ~self.inside
        self.bricks.reshape(-1)[cell[broken]] = 0
        self.inside = brick

        low = y == 9
        bounced = broken
        fallen = low
        if low.any():
            lanes = np.flatnonzero(low)
            empty = lanes[~self.bricks[lanes, 1:4].any(axis=(1, 2))]
            self.bricks[empty, 1:4] = 1
            straight = low & (last_x == self.paddle)
            corner = low & ~straight & (x == self.paddle)
            dx = np.where(corner, -dx, dx)
            caught = straight | corner
            bounced = broken | caught
            fallen = low & ~caught
        self.dx, self.dy = dx, np.where(bounced | top, -self.dy, self.dy)
        self.x, self.y = x, np.where(bounced, last_y, y)
        self.last_x, self.last_y = last_x, last_y
        return broken.astype(np.float32), fallen

    def observation(self) -> np.ndarray:
        observation, flat, start = self.blank()
        flat[start + 90 + self.paddle] = 1
        flat[start + 100 + self.y * 10 + self.x] = 1
        flat[start + 200 + self.last_y * 10 + self.last_x] = 1
        observation[:, 3, 1:4] = self.bricks[:, 1:4]
        return observation
