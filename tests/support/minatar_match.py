"""MinAtar's original games played beside ours: same random numbers, same actions, every step compared.

The originals draw from `PlainStream`, so that nothing need be recorded.
"""

from collections import Counter

import minatar
import numpy as np

from rlscale.envs.minatar.env import MinAtarEnv

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
LETTERS = "nlurdf"
MOVES = {"n": (0, 0), "l": (-1, 0), "u": (0, -1), "r": (1, 0), "d": (0, 1), "f": (0, 0)}


class PlainStream:
    """splitmix64 in plain integers: what `Streams` draws for one environment, under the names of `numpy.random.RandomState`."""

    def __init__(self, seed):
        self.state = self.mix((int(seed) + GOLDEN) & WORD)

    @staticmethod
    def mix(word):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
        return word ^ (word >> 31)

    def rand(self, size=None):
        if size is not None:
            return np.array([self.rand() for _ in range(size)])
        self.state = (self.state + GOLDEN) & WORD
        return (self.mix(self.state) >> 11) / 2**53

    def randint(self, low, high=None, size=None):
        if size is not None:
            return np.array([self.randint(low, high) for _ in range(size)])
        if high is None:
            low, high = 0, low
        return low + int(self.rand() * (high - low))


class Match:
    """N environments and N originals, stepped side by side.

    `begin(i, theirs, ours)`, when given, changes the start of environment i on both sides alike; `events` is for counting.
    """

    def __init__(self, game, envs, begin=None):
        self.begin, self.events = begin, Counter()
        seeds = np.arange(envs) * 11 + 5
        self.env = MinAtarEnv(game, envs)
        self.ours = self.env._game
        observation = self.env.reset(seeds)
        self.wrappers = [minatar.Environment(game) for _ in seeds]
        for wrapper, seed in zip(self.wrappers, seeds, strict=True):
            wrapper.random = wrapper.env.random = PlainStream(seed)
            wrapper.reset()
        self.games = [wrapper.env for wrapper in self.wrappers]
        self.minimal = self.wrappers[0].minimal_action_set()
        self.ended = np.zeros(envs, dtype=bool)
        self.compare(observation, np.ones(envs, dtype=bool))

    def step(self, letters):
        chosen = [LETTERS.index(letter) for letter in letters]
        step = self.env.step(np.array([self.minimal.index(action) for action in chosen]))
        assert np.array_equal(step.reset, self.ended)
        assert not step.truncated.any()
        for i, wrapper in enumerate(self.wrappers):
            if step.reset[i]:
                wrapper.reset()
                reward, self.ended[i] = 0, False
            else:
                reward, self.ended[i] = wrapper.act(chosen[i])
            assert (step.reward[i], step.terminated[i]) == (reward, self.ended[i]), f"environment {i}"
        self.compare(step.observation, step.reset)
        self.events["resets"] += int(step.reset.sum())
        return step

    def compare(self, observation, started):
        expected = np.stack([wrapper.state() for wrapper in self.wrappers]).transpose(0, 3, 1, 2)
        same = (observation == expected).all(axis=(1, 2, 3))
        assert same.all(), f"environments {np.flatnonzero(~same)}"
        if self.begin is not None:
            for i in np.flatnonzero(started):
                self.begin(i, self.games[i], self.ours)

    def highest(self, event, values):
        self.events[event] = max(self.events[event], *map(int, values))


def mostly(rng, letter, letters, slips=0.02):
    """`letter`, or with probability `slips` a random one of `letters`."""
    return letters[rng.integers(len(letters))] if rng.random() < slips else letter


def towards(here, aim):
    return "n" if aim == here else "l" if aim < here else "r"
