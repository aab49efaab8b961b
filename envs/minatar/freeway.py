# SPDX-License-Identifier: GPL-3.0-only
"""Rules of MinAtar's Freeway, N environments at a time.

The game is by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.
"""

import numpy as np

from .base import Game, starts

__all__ = ["Freeway"]

_DY = np.array([0, -1, 1])
_ROWS = np.arange(10, 90, 10)[:, None]


class Freeway(Game):
    """The chicken crosses eight lanes of cars from the lowest row to the highest; an episode lasts 2,501 steps.

    Channels: chicken, car, then five for trails, one for each speed. Actions: nothing, up, down.
    """

    channels = 7
    actions = 3

    y = starts(9)
    move_timer = starts(3, np.int16)
    time_left = starts(2500, np.int16)
    # (8, N), one for each row from y = 1. A car moves once in `pause` + 1 steps.
    car_x = starts(0, np.int16, 8)
    car_timer = starts(0, np.int16, 8)
    pause = starts(1, np.int16, 8)
    heading = starts(1, np.int16, 8)

    def restart(self, which: np.ndarray) -> None:
        super().restart(which)
        self._new_speeds(which)

    def _new_speeds(self, which: np.ndarray) -> None:
        for row in range(8):
            self.pause[row, which] = self.car_timer[row, which] = self.streams.integers(which, 1, 6)
        for row in range(8):
            self.heading[row, which] = np.where(self.streams.uniform(which) < 0.5, -1, 1)

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        walking = (actions != 0) & (self.move_timer == 0)
        self.move_timer[walking] = 3
        y = np.minimum(self.y + np.where(walking, _DY[actions], 0), 9)
        won = y == 0
        if won.any():
            self._new_speeds(np.flatnonzero(won & live))
            y[won] = 9

        moving = self.car_timer == 0
        before = self.car_x
        x = before + self.heading * moving
        x[x < 0] = 9
        x[x > 9] = 0
        self.car_timer = np.where(moving, self.pause, self.car_timer - 1)
        self.car_x = x
        # Only the car of the chicken's row can hit it, before it moves or after. The lowest row has none, and being hit there
        # by the car above would change nothing.
        place = (np.minimum(y, 8) - 1) * self.lanes.size + self.lanes
        hit = (before.take(place) == 4) | (x.take(place) == 4)
        self.y = np.where(hit, 9, y)

        self.move_timer -= self.move_timer > 0
        self.time_left -= 1
        return won.astype(np.float32), self.time_left < 0

    def observation(self) -> np.ndarray:
        observation, flat, start = self.blank()
        flat[start + self.y * 10 + 4] = 1
        line = start + _ROWS
        flat[line + 100 + self.car_x] = 1
        behind = self.car_x - self.heading
        behind[behind < 0] = 9
        behind[behind > 9] = 0
        flat[line + (self.pause + 1) * 100 + behind] = 1
        return observation
