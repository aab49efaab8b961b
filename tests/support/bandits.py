"""Environments with known answers, written the way a user would write one of their own (see docs/tasks.md)."""

from __future__ import annotations

import time

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Bandit(VectorEnv):
    """Two arms, one-step episodes, reward = action x a factor that each environment keeps for ever.

    Every second step only resets, so half of all steps must be masked.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    factors = (1.0,)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = Box(-1, 1, (2,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._factor = np.ones(num_envs)
        self._ended = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._factor = self.np_random.choice(self.factors, size=self.num_envs)
        self._ended[:] = False
        return self._observation(), {}

    def step(self, actions):
        reward = np.where(self._ended, 0.0, actions * self._factor)
        self._ended = ~self._ended
        return self._observation(), reward, self._ended.copy(), np.zeros(self.num_envs, dtype=bool), {}

    def _observation(self):
        return np.ones((self.num_envs, 2), dtype=np.float32)


class Endless(Bandit):
    """A mistake of a user's: one-step episodes that reset within the step, so that the step of the reset ends one as well."""

    def step(self, actions):
        self._ended[:] = False
        return super().step(actions)


class ScaledBandit(Bandit):
    """Half of the environments pay nothing, half pay twice."""

    factors = (0.0, 2.0)


class Switches(Bandit):
    """Two choices in one action."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = MultiDiscrete([2, 3])


class WholeNumbers(Bandit):
    """A box of whole numbers."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = Box(0, 3, (2,), np.int64)


class Lever(Bandit):
    """A real number is chosen, and it is the reward."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def step(self, actions):
        return super().step(actions[:, 0])


class Episodes(Bandit):
    """Episodes of 1 or of 20 steps, by a coin, with reward 1 a step: short ones finish more often."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self._left = self.np_random.choice([1, 20], self.num_envs)
        return observation, info

    def step(self, actions):
        reset = self._ended
        self._left = np.where(reset, self.np_random.choice([1, 20], self.num_envs), self._left - 1)
        self._ended = (self._left == 0) & ~reset
        reward = np.where(reset, 0.0, 1.0)
        return self._observation(), reward, self._ended.copy(), np.zeros(self.num_envs, dtype=bool), {}


class SlowBandit(Bandit):
    """A tenth of a second for a step."""

    def step(self, actions):
        time.sleep(0.1)
        return super().step(actions)


class SlowToMake(Bandit):
    """Twelve seconds to make, unless it is the one from which the task is read."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        time.sleep(12 if num_envs > 1 else 0)


class MistakenBandit(Bandit):
    """Divides by zero at the tenth step."""

    taken = 0

    def step(self, actions):
        self.taken += 1
        return super().step(actions * (1 // (10 - self.taken)))


def broken(num_envs: int):
    raise RuntimeError("no such simulator")


class NanReward(Bandit):
    """A mistake of a user's: environment 2 pays nan in its step 40."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self._steps = 0

    def step(self, actions):
        self._steps += 1
        observation, reward, *rest = super().step(actions)
        if self._steps == 40:
            reward[2] = np.nan
        return observation, reward, *rest


class InfiniteObservation(NanReward):
    """Another one: environment 1 shows an infinite second feature in its step 7."""

    def step(self, actions):
        observation, reward, *rest = super().step(actions)
        if self._steps == 7:
            observation = observation.copy()
            observation[1, 1] = np.inf
        return observation, reward, *rest


class InfiniteFirstObservation(Bandit):
    """And one before any step: environment 3 begins with an infinite first feature."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        observation = observation.copy()
        observation[3, 0] = np.inf
        return observation, info
