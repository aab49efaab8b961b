# SPDX-License-Identifier: GPL-3.0-only
"""Rules of MinAtar's Space Invaders, N environments at a time.

The game is by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.
"""

import numpy as np

from .base import Game, starts, within

__all__ = ["SpaceInvaders"]

_DX = np.array([0, -1, 1, 0])
# [x of the cannon, column]: the smaller, the nearer; of two at the same distance the left one.
_NEARNESS = np.array([[2 * abs(column - x) + (column > x) for column in range(10)] for x in range(10)])
_NOTHING = np.zeros((10, 10), dtype=bool)  # [y, x]
_WAVE = np.pad(np.ones((4, 6), dtype=bool), ((0, 6), (2, 2)))


class SpaceInvaders(Game):
    """A cannon in the lowest row under a block of aliens that marches, comes lower at every edge, and shoots.

    Channels: cannon, aliens, aliens going left, aliens going right, own bullets, their bullets.
    Actions: nothing, left, right, shoot.
    """

    channels = 6
    actions = 4

    x = starts(5)
    shot_timer = starts(0, np.int16)
    bullets = starts(_NOTHING, np.bool_)
    alien_bullets = starts(_NOTHING, np.bool_)
    aliens = starts(_WAVE, np.bool_)
    heading = starts(-1, np.int16)
    interval = starts(12, np.int16)  # the longest pause between moves
    move_timer = starts(12, np.int16)
    alien_shot_timer = starts(10, np.int16)

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shooting = np.flatnonzero((actions == 3) & (self.shot_timer == 0))
        self.bullets[shooting, 9, self.x[shooting]] = True
        self.shot_timer[shooting] = 5
        self.x = within(self.x + _DX[actions], 0, 9)
        x = self.x
        # All maps as one piece: what runs over from one map into the next is in the row that is then emptied.
        flat = self.bullets.reshape(-1)
        flat[:-10] = flat[10:]
        self.bullets[:, 9] = False
        flat = self.alien_bullets.reshape(-1)
        flat[10:] = flat[:-10]
        self.alien_bullets[:, 0] = False

        cannon = self.lanes * 100 + 90 + x
        terminal = self.alien_bullets.take(cannon) | self.aliens.take(cannon)
        moving = np.flatnonzero(self.move_timer == 0)
        if moving.size:
            terminal[moving] |= self._march(moving)
        shooting = np.flatnonzero(self.alien_shot_timer == 0)
        if shooting.size:
            self.alien_shot_timer[shooting] = 10
            aliens = self.aliens.take(shooting, axis=0).view(np.uint8)
            columns = np.einsum("nyx->nx", aliens)  # aliens in each; many times as fast as `any` on maps so small
            column = np.where(columns, _NEARNESS[x[shooting]], 99).argmin(axis=1)
            row = 9 - self.aliens[shooting, ::-1, column].argmax(axis=1)
            self.alien_bullets[shooting, row, column] = True

        reward = self._kill()
        self.shot_timer -= self.shot_timer > 0
        self.move_timer -= 1
        self.alien_shot_timer -= 1
        return reward, terminal

    def _march(self, moving: np.ndarray) -> np.ndarray:
        """Move the aliens of these environments; where that ends the episode, (M,)."""
        aliens, heading = self.aliens[moving], self.heading[moving]
        self.move_timer[moving] = np.minimum(aliens.sum(axis=(1, 2)), self.interval[moving])
        turning = np.where(heading < 0, aliens[:, :, 0].any(axis=1), aliens[:, :, 9].any(axis=1))
        left, right = ~turning & (heading < 0), ~turning & (heading > 0)
        landed = turning & aliens[:, 9].any(axis=1)
        # Aliens that leave below come back on top, but that episode is over.
        aliens[turning] = np.roll(aliens[turning], 1, axis=1)
        aliens[left, :, :9] = aliens[left, :, 1:]
        aliens[left, :, 9] = False
        aliens[right, :, 1:] = aliens[right, :, :9]
        aliens[right, :, 0] = False
        self.aliens[moving] = aliens
        self.heading[moving] = np.where(turning, -heading, heading)
        return landed | aliens[np.arange(moving.size), 9, self.x[moving]]

    def _kill(self) -> np.ndarray:
        """Remove aliens together with the bullets that are in their cells, and send the next wave: (N,) rewards."""
        hits = np.flatnonzero(self.aliens & self.bullets)
        if not hits.size:
            return np.zeros(self.lanes.size)
        self.aliens.reshape(-1)[hits] = False
        self.bullets.reshape(-1)[hits] = False
        lanes = hits // 100
        cleared = np.unique(lanes[~self.aliens[lanes].any(axis=(1, 2))])
        self.interval[cleared] = np.maximum(self.interval[cleared] - 1, 6)
        self.aliens[cleared, 0:4, 2:8] = True
        return np.bincount(lanes, minlength=self.lanes.size)

    def observation(self) -> np.ndarray:
        observation, flat, start = self.blank()
        flat[start + 90 + self.x] = 1
        observation[:, 1] = self.aliens
        observation[self.lanes, np.where(self.heading < 0, 2, 3)] = self.aliens
        observation[:, 4] = self.bullets
        observation[:, 5] = self.alien_bullets
        return observation
