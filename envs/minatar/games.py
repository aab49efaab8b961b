# SPDX-License-Identifier: GPL-3.0-only
"""Rules of four MinAtar games, N environments at a time; Seaquest has a file of its own, `rlscale.envs.minatar.seaquest`.

Sticky actions, resets and saving live in `rlscale.envs.minatar.env`, random streams in `rlscale.envs.minatar.base`.

The games are by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar.env`.
"""

from __future__ import annotations

import numpy as np

from .base import Game, Streams, members, within

__all__ = ["Asterix", "Breakout", "Freeway", "SpaceInvaders"]


class Breakout(Game):
    """A ball on diagonals, a paddle in the lowest row, three rows of bricks.

    Channels: paddle, ball, trail, bricks. Actions: nothing, left, right.
    """

    channels = 4
    actions = 3

    def __init__(self, num_envs: int, streams: Streams) -> None:
        super().__init__(num_envs, streams)
        self.paddle = np.zeros(num_envs, dtype=np.int64)
        self.x = np.zeros(num_envs, dtype=np.int64)
        self.y = np.zeros(num_envs, dtype=np.int64)
        self.dx = np.ones(num_envs, dtype=np.int64)
        self.dy = np.ones(num_envs, dtype=np.int64)
        self.last_x = np.zeros(num_envs, dtype=np.int64)
        self.last_y = np.zeros(num_envs, dtype=np.int64)
        self.inside = np.zeros(num_envs, dtype=bool)  # the ball met a brick in the last step; it breaks no other until it is out
        self.bricks = np.zeros((num_envs, 10, 10), dtype=np.uint8)

    def restart(self, which: np.ndarray) -> None:
        from_right = self.streams.integers(which, 0, 2) == 1
        self.x[which] = self.last_x[which] = np.where(from_right, 9, 0)
        self.y[which] = self.last_y[which] = 3
        self.dx[which] = np.where(from_right, -1, 1)
        self.dy[which] = 1
        self.paddle[which] = 4
        self.inside[which] = False
        self.bricks[which] = 0
        self.bricks[which, 1:4] = 1

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.paddle = within(self.paddle + _BREAKOUT_DX[actions], 0, 9)
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


_BREAKOUT_DX = np.array([0, -1, 1])


class Asterix(Game):
    """The player walks in eight rows among enemies to avoid and gold to take; each row holds at most one of either.

    Channels: player, enemy, trail, gold. Actions: nothing, left, up, right, down.
    """

    channels = 4
    actions = 5

    def __init__(self, num_envs: int, streams: Streams) -> None:
        super().__init__(num_envs, streams)
        self.x = np.zeros(num_envs, dtype=np.int64)
        self.y = np.ones(num_envs, dtype=np.int64)
        # (8, N), one for each row from y = 1: what is there (its channel, 0 for nothing), where, and going which way.
        self.kind = np.zeros((8, num_envs), dtype=np.int16)
        self.thing_x = np.zeros((8, num_envs), dtype=np.int16)
        self.heading = np.ones((8, num_envs), dtype=np.int16)
        self.spawn_speed = np.zeros(num_envs, dtype=np.int16)
        self.spawn_timer = np.zeros(num_envs, dtype=np.int16)
        self.move_speed = np.zeros(num_envs, dtype=np.int16)
        self.move_timer = np.zeros(num_envs, dtype=np.int16)
        self.ramp_timer = np.zeros(num_envs, dtype=np.int16)
        self.ramp_index = np.zeros(num_envs, dtype=np.int16)

    def restart(self, which: np.ndarray) -> None:
        self.x[which] = self.y[which] = 5
        self.kind[:, which] = 0
        self.spawn_speed[which] = self.spawn_timer[which] = 10
        self.move_speed[which] = self.move_timer[which] = 5
        self.ramp_timer[which] = 100
        self.ramp_index[which] = 0

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        spawning = np.flatnonzero((self.spawn_timer == 0) & live)
        if spawning.size:
            self._spawn(spawning)
            self.spawn_timer[spawning] = self.spawn_speed[spawning]
        self.x = within(self.x + _ASTERIX_DX[actions], 0, 9)
        self.y = within(self.y + _ASTERIX_DY[actions], 1, 8)

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


_ASTERIX_DX = np.array([0, -1, 0, 1, 0])
_ASTERIX_DY = np.array([0, 0, -1, 0, 1])


class Freeway(Game):
    """The chicken crosses eight lanes of cars from the lowest row to the highest; an episode lasts 2,501 steps.

    Channels: chicken, car, then five for trails, one for each speed. Actions: nothing, up, down.
    """

    channels = 7
    actions = 3

    def __init__(self, num_envs: int, streams: Streams) -> None:
        super().__init__(num_envs, streams)
        self.y = np.zeros(num_envs, dtype=np.int64)
        self.move_timer = np.zeros(num_envs, dtype=np.int16)
        self.time_left = np.zeros(num_envs, dtype=np.int16)
        # (8, N), one for each row from y = 1. A car moves once in `pause` + 1 steps.
        self.car_x = np.zeros((8, num_envs), dtype=np.int16)
        self.car_timer = np.zeros((8, num_envs), dtype=np.int16)
        self.pause = np.ones((8, num_envs), dtype=np.int16)
        self.heading = np.ones((8, num_envs), dtype=np.int16)

    def restart(self, which: np.ndarray) -> None:
        self._new_speeds(which)
        self.car_x[:, which] = 0
        self.y[which] = 9
        self.move_timer[which] = 3
        self.time_left[which] = 2500

    def _new_speeds(self, which: np.ndarray) -> None:
        for row in range(8):
            self.pause[row, which] = self.car_timer[row, which] = self.streams.integers(which, 1, 6)
        for row in range(8):
            self.heading[row, which] = np.where(self.streams.uniform(which) < 0.5, -1, 1)

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        walking = (actions != 0) & (self.move_timer == 0)
        self.move_timer[walking] = 3
        y = np.minimum(self.y + np.where(walking, _FREEWAY_DY[actions], 0), 9)
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
        line = start + _FREEWAY_ROWS
        flat[line + 100 + self.car_x] = 1
        behind = self.car_x - self.heading
        behind[behind < 0] = 9
        behind[behind > 9] = 0
        flat[line + (self.pause + 1) * 100 + behind] = 1
        return observation


_FREEWAY_DY = np.array([0, -1, 1])
_FREEWAY_ROWS = np.arange(10, 90, 10)[:, None]


class SpaceInvaders(Game):
    """A cannon in the lowest row under a block of aliens that marches, comes lower at every edge, and shoots.

    Channels: cannon, aliens, aliens going left, aliens going right, own bullets, their bullets.
    Actions: nothing, left, right, shoot.
    """

    channels = 6
    actions = 4

    def __init__(self, num_envs: int, streams: Streams) -> None:
        super().__init__(num_envs, streams)
        self.x = np.zeros(num_envs, dtype=np.int64)
        self.shot_timer = np.zeros(num_envs, dtype=np.int16)
        self.bullets = np.zeros((num_envs, 10, 10), dtype=bool)
        self.alien_bullets = np.zeros((num_envs, 10, 10), dtype=bool)
        self.aliens = np.zeros((num_envs, 10, 10), dtype=bool)
        self.aliens[:, 0:4, 2:8] = True
        self.heading = np.ones(num_envs, dtype=np.int16)
        self.interval = np.zeros(num_envs, dtype=np.int16)  # the longest pause between moves
        self.move_timer = np.zeros(num_envs, dtype=np.int16)
        self.alien_shot_timer = np.zeros(num_envs, dtype=np.int16)

    def restart(self, which: np.ndarray) -> None:
        self.x[which] = 5
        self.shot_timer[which] = 0
        self.bullets[which] = self.alien_bullets[which] = self.aliens[which] = False
        self.aliens[which, 0:4, 2:8] = True
        self.heading[which] = -1
        self.interval[which] = self.move_timer[which] = 12
        self.alien_shot_timer[which] = 10

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shooting = np.flatnonzero((actions == 3) & (self.shot_timer == 0))
        self.bullets[shooting, 9, self.x[shooting]] = True
        self.shot_timer[shooting] = 5
        self.x = within(self.x + _INVADERS_DX[actions], 0, 9)
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


_INVADERS_DX = np.array([0, -1, 1, 0])
# [x of the cannon, column]: the smaller, the nearer; of two at the same distance the left one.
_NEARNESS = np.array([[2 * abs(column - x) + (column > x) for column in range(10)] for x in range(10)])
