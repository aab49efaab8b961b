"""An environment of your own: walk right to the end of a corridor. From the folder that holds this file:

rlscale train own_environment:make --observations 50000
rlscale report runs/own_environment-make-*
"""

from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 10


class Corridor(VectorEnv):
    """N corridors, stepped together in NumPy; each begins anew on the step after its end."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space = Box(0, 1, (LENGTH,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(0, LENGTH - 1, self.num_envs)
        self.ended = np.zeros(self.num_envs, dtype=bool)
        return self.see(), {}

    def step(self, actions):
        reset = self.ended
        self.place = np.clip(self.place + 2 * actions - 1, 0, LENGTH - 1)
        self.place[reset] = self.np_random.integers(0, LENGTH - 1, reset.sum())
        self.ended = (self.place == LENGTH - 1) & ~reset
        reward = np.where(reset, 0.0, self.ended - 0.01)
        return self.see(), reward, self.ended, np.zeros(self.num_envs, dtype=bool), {}

    def see(self):
        return np.eye(LENGTH, dtype=np.float32)[self.place]


def make(num_envs):
    """What `rlscale` calls with the number of environments."""
    return Corridor(num_envs)
