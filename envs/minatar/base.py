# SPDX-License-Identifier: GPL-3.0-only
"""What the MinAtar games share: random streams, how a game keeps its state and what it must do, small help with arrays. No rules.

The games are by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.
"""

from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

__all__ = ["Game", "Streams", "members", "starts", "within"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(bits: np.ndarray) -> np.ndarray:
    """splitmix64's output function, a bijection of 64-bit words."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


class Streams:
    """One stream of uniform random numbers per environment: splitmix64, N at a time.

    A stream depends on its seed alone and moves on only when its own environment draws, so environments may draw at different
    steps and in any company. Draws of one environment come in the order in which the original game makes them.

    Attributes:
        state: (N,) uint64; a draw adds a constant and mixes the sum.
    """

    def __init__(self, num_envs: int) -> None:
        self.state = np.zeros(num_envs, dtype=np.uint64)

    def seed(self, seeds: np.ndarray, which: np.ndarray) -> None:
        """Start the streams of the (N,) bool mask anew from (N,) non-negative seeds."""
        # Mixed, because the streams of raw neighbouring seeds would be near each other.
        self.state[which] = _mix(np.asarray(seeds)[which].astype(np.uint64) + _GOLDEN)

    def uniform(self, which: np.ndarray | slice) -> np.ndarray:
        """The next number in [0, 1) of each chosen environment (indices without repeats), (M,) float64."""
        state = self.state[which] + _GOLDEN
        self.state[which] = state
        return (_mix(state) >> np.uint64(11)) * 2.0**-53

    def integers(self, which: np.ndarray, low: int, high: int | np.ndarray) -> np.ndarray:
        """The next integer of each chosen environment, from `low` up to but not including `high`, (M,) int64."""
        return low + (self.uniform(which) * (high - low)).astype(np.int64)


def members(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat indices, rows and columns of what is true in a (rows, N) mask; several times as fast as its `nonzero`."""
    flat = np.flatnonzero(mask)
    row = flat // mask.shape[1]
    return flat, row, flat - row * mask.shape[1]


def within(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """np.clip, which is slow on arrays of this size."""
    return np.minimum(np.maximum(values, low), high)


class _Start(NamedTuple):
    value: Any
    dtype: type[np.generic]
    rows: tuple[int, ...]
    kept: bool


def starts(value: Any, dtype: type[np.generic] = np.int64, *rows: int, kept: bool = False) -> np.ndarray:
    """Declare an array of a game's state in its class, by what each environment has in it at the start of an episode.

    An instance has an array of that name in its place: (*rows, N, *shape of the value).

    Args:
        value: a number, or an array of them.
        dtype: of the array.
        rows: sizes of the axes before that of the environments.
        kept: whether a restart leaves it as it is, because it means nothing until the game has written it.
    """
    return cast(np.ndarray, _Start(value, dtype, rows, kept))


class Game:
    """N environments of one game. x grows to the right and y downwards, both from 0 to 9.

    A step is worked out for all N, those included that it only resets, because that is cheaper than leaving them out; what
    comes out for these is thrown away. Only draws must be spared (`live`), or a stream would run ahead.

    A game declares its arrays with `starts`. Every array attribute is saved as state.

    Attributes:
        streams: where random numbers come from.
        lanes: (N,) 0..N-1.
        channels: C of the (C, 10, 10) observations.
        actions: size of the minimal action set.
    """

    channels: ClassVar[int]
    actions: ClassVar[int]

    def __init__(self, num_envs: int, streams: Streams) -> None:
        self.streams = streams
        self.lanes = np.arange(num_envs)
        self._starts = {name: start for name, start in vars(type(self)).items() if isinstance(start, _Start)}
        for name, start in self._starts.items():
            setattr(self, name, np.full((*start.rows, num_envs, *np.shape(start.value)), start.value, start.dtype))

    def restart(self, which: np.ndarray) -> None:
        """Put the environments of these indices at the start of an episode; a game adds what it draws."""
        for name, start in self._starts.items():
            if not start.kept:
                getattr(self, name)[(slice(None),) * len(start.rows) + (which,)] = start.value

    def play(self, actions: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step of all: (N,) rewards and (N,) ends. Only environments of the (N,) mask `live` may draw."""
        raise NotImplementedError

    def observation(self) -> np.ndarray:
        """(N, C, 10, 10) uint8, a new array."""
        raise NotImplementedError

    def blank(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """An empty observation, the same array flat, and where each environment begins in it, (N,)."""
        observation = np.zeros((self.lanes.size, self.channels, 10, 10), dtype=np.uint8)
        return observation, observation.reshape(-1), self.lanes * (self.channels * 100)

    def get_state(self) -> dict[str, Any]:
        return {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def set_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.copy())
