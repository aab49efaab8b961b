"""A family of tasks with one task, `toy/coin`: what a family's module must offer, and no default that another family has."""

import numpy as np

from rlscale.envs import Step, Task, TaskEnv
from rlscale.envs.task import EnvCost, SweepDefaults, TaskListing, TrainingDefaults


class CoinEnv(TaskEnv):
    """Action 1 is paid; every second step only resets."""

    def __init__(self, task, num_envs, *, threads, cut_on_life_loss):
        self.num_envs = num_envs
        self._ended = np.zeros(num_envs, dtype=bool)

    def reset(self, seeds):
        self._ended[:] = False
        return np.ones((self.num_envs, 1), dtype=np.float32)

    def step(self, actions):
        reset, self._ended = self._ended, ~self._ended
        reward = np.where(reset, 0, actions).astype(np.float32)
        return Step(np.ones((self.num_envs, 1), dtype=np.float32), reward, self._ended.copy(), np.zeros_like(reset), reset)


def list_tasks():
    return [TaskListing("toy/coin", "heads or tails")]


def find_task(name):
    if name != "coin":
        return None
    return Task(
        id="toy/coin",
        frame_shape=(1,),
        frame_dtype="float32",
        actions=2,
        preprocessing="none",
        make_env=CoinEnv,
        discount=0.5,
        goals=(0.9,),
        training=TrainingDefaults(
            environments=64, rollout_length=8, epochs=3, learning_rate=0.02, entropy_coef=0.03, gae_lambda=0.8
        ),
        sweep=SweepDefaults(learning_rate=0.01, rate_batch=1024.0, observations=5000, rollout_length=4, episodes=20, actors=2),
        cost=EnvCost(few=2, many=4, most=6, alone=4),
    )
