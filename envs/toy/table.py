"""`TableVectorEnv`: N copies of a task that is a table of transitions, read from a Gymnasium environment."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["TableVectorEnv"]


class TableVectorEnv(EpisodesVectorEnv):
    """Environments with the states, transitions, rewards and starts of a Gymnasium environment that has them as `P`.

    Args:
        num_envs: N.
        name: Gymnasium's id.
        max_episode_steps: after which an episode is cut short.
        options: for `gymnasium.make`.
    """

    def __init__(self, num_envs: int, name: str, max_episode_steps: int, **options: Any) -> None:
        original = gymnasium.make(name, **options).unwrapped
        states, actions = int(original.observation_space.n), int(original.action_space.n)
        super().__init__(num_envs, Discrete(states), Discrete(actions), max_episode_steps)
        most = max(len(outcomes) for row in original.P.values() for outcomes in row.values())
        shape = (states, actions, most)
        probability = np.zeros(shape)
        self._next, self._reward, self._ends = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape, bool)
        for state, row in original.P.items():
            for action, outcomes in row.items():
                for i, (chance, after, reward, ends) in enumerate(outcomes):
                    at = state, action, i
                    probability[at], self._next[at], self._reward[at], self._ends[at] = chance, after, reward, ends
        below = probability.cumsum(-1)
        self._below = np.where(below > 1 - 1e-9, 2.0, below)  # a number below 1 never draws an outcome beyond the last
        self._starts = original.initial_state_distrib.cumsum()
        original.close()

    def start(self, count: int) -> np.ndarray:
        return np.searchsorted(self._starts, self.np_random.random(count) * self._starts[-1], side="right")

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        drawn = self.np_random.random(len(state))[:, None]
        at = state, actions, (drawn >= self._below[state, actions]).sum(1)
        return self._next[at], self._reward[at], self._ends[at]
