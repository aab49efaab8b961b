# SPDX-License-Identifier: GPL-3.0-only
"""Rules of MinAtar's Seaquest, N environments at a time.

The game is by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.

A cell is one number, 16 y + x + 1: a step sideways is ±1, two things meet where the numbers are equal, and a last digit of 0 or
11 (base 16) is off the board. 0 is no cell of the board.

The original keeps lists and scans them from the newest entry to the oldest or the other way round, which decides who is hit
where several share a cell. Here the two bullets and the two divers that can be about at a time sit in slots 0 (newer) and 1
(older), enemies carry their time of birth, and the order of enemy bullets, which only ever hit the player, does not matter.
"""

import numpy as np

from .base import Game, members, starts, within

__all__ = ["Seaquest"]

_SPENT = -1  # a bullet that is gone: unlike 0 it is equal to the cell of no enemy, not even of a dead one
_FULL = 200  # oxygen
_LATER = 1 << 40  # longer than any episode: added to a time of birth, it sorts one kind of enemy behind the other

_DX = np.array([0, -1, 0, 1, 0, 0])
_DY = np.array([0, 0, -1, 0, 1, 0])
_FIRE = 5

# Where a cell is in a plane of 100; meaningless off the board.
_FLAT = np.array([(cell >> 4) * 10 + (cell & 15) - 1 for cell in range(160)])
_BACK, _BULLET, _TRAIL, _ENEMY_BULLET, _FISH, _SUB, _OXYGEN, _DIVERS, _DIVER = (100 * plane for plane in range(1, 10))
_COLUMNS = np.arange(10)
_OXYGEN_BAR = (np.arange(11)[:, None] > _COLUMNS).astype(np.uint8)  # [tenths, x]
_DIVER_BAR = ((_COLUMNS < 9) & (9 - np.arange(7)[:, None] <= _COLUMNS)).astype(np.uint8)  # [divers aboard, x]


def _on_board(cells: np.ndarray) -> np.ndarray:
    """Whether x is neither -1 nor 10, which is as far as anything gets."""
    digit = cells & 15
    return (digit != 0) & (digit != 11)


class Seaquest(Game):
    """The player's submarine shoots enemies, collects divers, and must surface with one before the oxygen is used up.

    Channels: submarine's front, its back, own bullets, trails, enemy bullets, fish, enemy submarines, oxygen, divers aboard,
    divers. Actions: nothing, left, up, right, down, shoot.
    """

    channels = 10
    actions = 6

    x = starts(5)
    y = starts(0)
    heading = starts(-1)
    shot_timer = starts(0, np.int16)
    oxygen = starts(_FULL)
    aboard = starts(0)
    surfaced = starts(True, np.bool_)
    age = starts(0)
    spawn_speed = starts(20, np.int16)
    spawn_timer = starts(20, np.int16)
    diver_spawn_timer = starts(30, np.int16)
    move_speed = starts(5, np.int16)
    ramp_index = starts(0, np.int16)
    # (2, N): a bullet flies at most 9 steps and 5 lie between two shots; a diver is about for less than 60 steps and one
    # comes every 30.
    bullet = starts(_SPENT, np.int16, 2)
    bullet_heading = starts(1, np.int16, 2, kept=True)
    diver = starts(0, np.int16, 2)
    diver_heading = starts(1, np.int16, 2, kept=True)
    diver_timer = starts(0, np.int16, 2, kept=True)
    # (places, N): fish and submarines; more places are added when an environment needs them. A free place is in cell 0.
    enemy = starts(0, np.int16, 4)
    enemy_heading = starts(1, np.int16, 4, kept=True)
    enemy_timer = starts(0, np.int16, 4, kept=True)
    reload = starts(0, np.int16, 4, kept=True)
    is_sub = starts(False, np.bool_, 4, kept=True)
    born = starts(0, np.int64, 4, kept=True)
    # (2, 9, N): enemy bullets going left, then right; bit x of a row is its cell x.
    shots = starts(0, np.int16, 2, 9)

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        spawning = np.flatnonzero((self.spawn_timer == 0) & live)
        if spawning.size:
            self._spawn_enemies(spawning)
            self.spawn_timer[spawning] = self.spawn_speed[spawning]
        spawning = np.flatnonzero((self.diver_spawn_timer == 0) & live)
        if spawning.size:
            self._spawn_divers(spawning)
            self.diver_spawn_timer[spawning] = 30

        self._steer(actions)
        here = (self.y * 16 + self.x + 1).astype(np.int16)
        reward = np.zeros(self.lanes.size)
        self._fly_bullets(reward)
        self._move_divers(here)
        terminal = self._move_enemies(here, reward)
        terminal |= self._fly_shots()

        self.age += 1
        self.spawn_timer -= self.spawn_timer > 0
        self.diver_spawn_timer -= self.diver_spawn_timer > 0
        self.shot_timer -= self.shot_timer > 0
        terminal |= self.oxygen <= 0
        under = self.y > 0
        self.oxygen -= under
        surfacing = np.flatnonzero(~(under | self.surfaced))
        self.surfaced &= ~under
        if surfacing.size:
            empty = self.aboard[surfacing] == 0
            terminal[surfacing[empty]] = True
            self._surface(surfacing[~empty], reward)
        return reward, terminal

    def _spawn_enemies(self, which: np.ndarray) -> None:
        rightwards = self.streams.uniform(which) < 1 / 2
        is_sub = self.streams.uniform(which) < 1 / 3
        y = self.streams.integers(which, 1, 9)
        heading = np.where(rightwards, 1, -1)
        # Nothing comes into a row in which anything goes the other way.
        opposed = (self.enemy[:, which] >> 4 == y) & (self.enemy_heading[:, which] != heading)
        some = ~opposed.any(axis=0)
        which, heading = which[some], heading[some]
        free = self.enemy[:, which] == 0
        if not free.any(axis=0).all():
            for name in ("enemy", "enemy_heading", "enemy_timer", "reload", "is_sub", "born"):
                places = getattr(self, name)
                setattr(self, name, np.concatenate([places, np.zeros_like(places)]))
            free = self.enemy[:, which] == 0
        place = free.argmax(axis=0)
        self.enemy[place, which] = y[some] * 16 + np.where(heading > 0, 1, 10)
        self.enemy_heading[place, which] = heading
        self.enemy_timer[place, which] = self.move_speed[which]
        self.reload[place, which] = 10
        self.is_sub[place, which] = is_sub[some]
        self.born[place, which] = self.age[which]

    def _spawn_divers(self, which: np.ndarray) -> None:
        rightwards = self.streams.uniform(which) < 1 / 2
        y = self.streams.integers(which, 1, 9)
        for slots in (self.diver, self.diver_heading, self.diver_timer):
            slots[1, which] = slots[0, which]
        self.diver[0, which] = y * 16 + np.where(rightwards, 1, 10)
        self.diver_heading[0, which] = np.where(rightwards, 1, -1)
        self.diver_timer[0, which] = 5

    def _steer(self, actions: np.ndarray) -> None:
        firing = np.flatnonzero((actions == _FIRE) & (self.shot_timer == 0))
        if firing.size:
            for slots in (self.bullet, self.bullet_heading):
                slots[1, firing] = slots[0, firing]
            self.bullet[0, firing] = self.y[firing] * 16 + self.x[firing] + 1
            self.bullet_heading[0, firing] = self.heading[firing]
            self.shot_timer[firing] = 5
        dx = _DX[actions]
        self.x = within(self.x + dx, 0, 9)
        self.y = within(self.y + _DY[actions], 0, 8)
        self.heading = np.where(dx == 0, self.heading, dx)

    def _fly_bullets(self, reward: np.ndarray) -> None:
        flying = self.bullet != _SPENT
        cells = self.bullet + self.bullet_heading
        self.bullet = np.where(flying & _on_board(cells), cells, np.int16(_SPENT))
        hit = ((self.enemy == self.bullet[0]) | (self.enemy == self.bullet[1])).any(axis=0)
        if not hit.any():
            return
        which = np.flatnonzero(hit)
        for slot in (0, 1):
            # The newer bullet flies first. It hits a fish rather than a submarine, and of these the oldest.
            target = self.enemy[:, which] == self.bullet[slot, which]
            order = self.born[:, which] + _LATER * self.is_sub[:, which]
            place = np.where(target, order, 2 * _LATER).argmin(axis=0)
            self._strike(target.any(axis=0), place, slot, which, reward)

    def _strike(
        self, struck: np.ndarray, place: np.ndarray, slot: int | np.ndarray, which: np.ndarray, reward: np.ndarray
    ) -> None:
        """Where `struck` (M,), remove the enemy at `place` (M,) and the bullet in `slot`; `which` (M,) are the environments."""
        lanes = which[struck]
        self.enemy[place[struck], lanes] = 0
        self.bullet[slot if isinstance(slot, int) else slot[struck], lanes] = _SPENT
        reward[lanes] += 1

    def _move_divers(self, here: np.ndarray) -> None:
        for slot in (0, 1):
            cell = self.diver[slot]
            room = self.aboard < 6
            taken = room & (cell == here)
            ready = self.diver_timer[slot] == 0
            moved = cell + self.diver_heading[slot] * (ready & ~taken & (cell != 0))
            taken |= room & (moved == here)
            self.diver[slot] = np.where(taken | ~_on_board(moved), 0, moved)
            self.diver_timer[slot] = np.where(ready, 5, self.diver_timer[slot] - 1)
            self.aboard += taken

    def _move_enemies(self, here: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """Move fish and submarines, and let the latter shoot: where one met the player, (N,)."""
        met = self.enemy == here
        moving = self.enemy_timer == 0
        self.enemy_timer = np.where(moving, self.move_speed, self.enemy_timer - 1)
        cells = self.enemy + self.enemy_heading * (moving & (self.enemy != 0))
        self.enemy = cells * _on_board(cells)
        met |= self.enemy == here

        # A submarine that is shot down in this step still shoots.
        shooting = self.is_sub & (self.reload == 0) & (self.enemy != 0)
        self.reload = np.where(self.reload == 0, 10, self.reload - 1)
        if shooting.any():
            place, _, lane = members(shooting)
            cells = self.enemy.take(place)
            side = (self.enemy_heading.take(place) > 0).astype(np.int64)
            bits = np.int16(1) << ((cells & 15) - 1)
            np.bitwise_or.at(self.shots, (side, cells >> 4, lane), bits)

        # Bullets have flown, so an enemy in the cell of one has just moved there.
        meeting = ((self.enemy == self.bullet[0]) | (self.enemy == self.bullet[1])).any(axis=0)
        if meeting.any():
            self._run_into_bullets(np.flatnonzero(meeting), here, reward)
        return met.any(axis=0)

    def _run_into_bullets(self, which: np.ndarray, here: np.ndarray, reward: np.ndarray) -> None:
        order = self.born[:, which] + _LATER * self.is_sub[:, which]
        for _ in range(2):
            # Submarines move before fish, and the newest first; it meets the older of two bullets in its cell.
            enemy, newer, older = self.enemy[:, which], *self.bullet[:, which]
            target = ((enemy == newer) | (enemy == older)) & (enemy != here[which])
            place = np.where(target, order, -1).argmax(axis=0)
            slot = (enemy[place, np.arange(which.size)] == older).astype(np.int64)
            self._strike(target.any(axis=0), place, slot, which, reward)

    def _fly_shots(self) -> np.ndarray:
        """Move the enemy bullets: where one met the player, before or after it moved, (N,)."""
        bit = np.int16(1) << self.x.astype(np.int16)
        left, right = self.shots
        met = (left | right)[self.y, self.lanes]
        left >>= 1
        right <<= 1
        right &= 1023
        met |= (left | right)[self.y, self.lanes]
        return (met & bit) != 0

    def _surface(self, which: np.ndarray, reward: np.ndarray) -> None:
        full = self.aboard[which] == 6
        reward[which] += np.where(full, self.oxygen[which] * 10 // _FULL, 0)
        # One diver is taken even after all six were landed: the original goes on with -1, and surfaces freely once more.
        self.aboard[which] = np.where(full, 0, self.aboard[which]) - 1
        self.oxygen[which] = _FULL
        self.surfaced[which] = True
        move_speed, spawn_speed, index = self.move_speed[which], self.spawn_speed[which], self.ramp_index[which]
        faster = (move_speed > 2) & (index % 2 == 1)
        self.ramp_index[which] = index + ((spawn_speed > 1) | (move_speed > 2))
        self.move_speed[which] = move_speed - faster
        self.spawn_speed[which] = np.maximum(spawn_speed - 1, 1)

    def observation(self) -> np.ndarray:
        observation, flat, start = self.blank()
        front = start + self.y * 10 + self.x
        flat[front] = 1
        flat[front + (_BACK - self.heading)] = 1
        observation[:, _OXYGEN // 100, 9] = _OXYGEN_BAR.take(np.maximum(self.oxygen, 0) * 10 // _FULL, axis=0)
        observation[:, _DIVERS // 100, 9] = _DIVER_BAR.take(np.maximum(self.aboard, 0), axis=0)

        place, _, lane = members(self.bullet != _SPENT)
        flat[start.take(lane) + (_BULLET + _FLAT.take(self.bullet.take(place)))] = 1
        place, _, lane = members(self.enemy != 0)
        kind = np.where(self.is_sub.take(place), _SUB, _FISH)
        _draw(flat, start.take(lane), self.enemy.take(place), self.enemy_heading.take(place), kind)
        place, _, lane = members(self.diver != 0)
        _draw(flat, start.take(lane), self.diver.take(place), self.diver_heading.take(place), _DIVER)

        shots = self.shots[0] | self.shots[1]
        place, row, lane = members(shots != 0)
        bits = shots.take(place)[:, None] >> _COLUMNS
        observation[lane, _ENEMY_BULLET // 100, row] = bits & 1
        return observation


def _draw(flat: np.ndarray, start: np.ndarray, cell: np.ndarray, heading: np.ndarray, plane: int | np.ndarray) -> None:
    """Mark M cells in their plane, and the cells behind them as trails where these are on the board."""
    flat[start + plane + _FLAT.take(cell)] = 1
    behind = cell - heading
    seen = _on_board(behind)
    flat[(start + (_TRAIL + _FLAT.take(behind)))[seen]] = 1
