# SPDX-License-Identifier: GPL-3.0-only
"""Rules of MinAtar's Asterix, N environments at a time.

The game is by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.
"""

import numpy as np

from .base import Game, members, starts, within

__all__ = ["Asterix"]

_DX = np.array([0, -1, 0, 1, 0])
_DY = np.array([0, 0, -1, 0, 1])


class Asterix(Game):
    """The player walks in eight rows among enemies to avoid and gold to take; each row holds at most one of either.

    Channels: player, enemy, trail, gold. Actions: nothing, left, up, right, down.
    """

    channels = 4
    actions = 5

    x = starts(5)
    y = starts(5)
    # (8, N), one for each row from y = 1: what is there (its channel, 0 for nothing), where, and going which way.
    kind = starts(0, np.int16, 8)
    thing_x = starts(0, np.int16, 8, kept=True)
    heading = starts(1, np.int16, 8, kept=True)
    spawn_speed = starts(10, np.int16)
    spawn_timer = starts(10, np.int16)
    move_speed = starts(5, np.int16)
    move_timer = starts(5, np.int16)
    ramp_timer = starts(100, np.int16)
    ramp_index = starts(0, np.int16)

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        spawning = np.flatnonzero((self.spawn_timer == 0) & live)
        if spawning.size:
            self._spawn(spawning)
            self.spawn_timer[spawning] = self.spawn_speed[spawning]
        self.x = within(self.x + _DX[actions], 0, 9)
        self.y = within(self.y + _DY[actions], 1, 8)

        reward, terminal = self._meet()
        moving = self.move_timer == 0
        if moving.any():
            self.move_timer = np.where(moving, self.move_speed, self.move_timer)
            self.thing_x += self.heading * moving
            self.kind *= (self.thing_x >= 0) & (self.thing_x <= 9)
            gained, met = self._meet()
            reward += gained
            terminal |= met
        self.spawn_timer -= 1
        self.move_timer -= 1
        self._ramp()
        return reward, terminal

    def _spawn(self, spawning: np.ndarray) -> None:
        rightwards = self.streams.uniform(spawning) < 1 / 2
        gold = self.streams.uniform(spawning) < 1 / 3
        free = self.kind.take(spawning, axis=1) == 0
        count = free.sum(axis=0)
        some = count > 0
        which, free = spawning[some], free[:, some]
        chosen = self.streams.integers(which, 0, count[some])
        row = (free.cumsum(axis=0) > chosen).argmax(axis=0)
        self.kind[row, which] = np.where(gold[some], 3, 1)
        self.thing_x[row, which] = np.where(rightwards[some], 0, 9)
        self.heading[row, which] = np.where(rightwards[some], 1, -1)

    def _meet(self) -> tuple[np.ndarray, np.ndarray]:
        """Take the gold where the player stands: (N,) rewards, and where it met an enemy, (N,)."""
        place = (self.y - 1) * self.lanes.size + self.lanes
        kind = np.where(self.thing_x.take(place) == self.x, self.kind.take(place), 0)
        gold = kind == 3
        self.kind.reshape(-1)[place[gold]] = 0
        return gold.astype(np.float32), kind == 1

    def _ramp(self) -> None:
        ramping = (self.spawn_speed > 1) | (self.move_speed > 1)
        due = np.flatnonzero(ramping & (self.ramp_timer < 0))
        self.ramp_timer -= ramping
        if due.size:
            move_speed, index = self.move_speed[due], self.ramp_index[due]
            self.move_speed[due] = move_speed - ((move_speed > 1) & (index % 2 == 1))
            self.spawn_speed[due] = np.maximum(self.spawn_speed[due] - 1, 1)
            self.ramp_index[due] = index + 1
            self.ramp_timer[due] = 100

    def observation(self) -> np.ndarray:
        observation, flat, start = self.blank()
        flat[start + self.y * 10 + self.x] = 1
        place, row, lane = members(self.kind != 0)
        x = self.thing_x.take(place)
        behind = x - self.heading.take(place)
        line = start.take(lane) + (row + 1) * 10
        flat[line + self.kind.take(place) * 100 + x] = 1
        seen = (behind >= 0) & (behind <= 9)
        flat[(line + 200 + behind)[seen]] = 1
        return observation
