"""Episodes of a Stable-Baselines3 job without `Monitor`, which the callback counts itself, over several calls of `learn`."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from rlscale.agents.sb3 import NoiseCallback
from rlscale.records.run import read_run

ENVIRONMENTS, STEPS = 8, 60


class Walk(gymnasium.Env):
    """A point a step, for a hundred steps."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._taken += 1
        return np.zeros(1, np.float32), 1.0, self._taken == 100, False, {}


def walks():
    return DummyVecEnv([Walk] * ENVIRONMENTS)


def model_of():
    return PPO("MlpPolicy", walks(), n_steps=STEPS, batch_size=STEPS * ENVIRONMENTS, n_epochs=1, device="cpu")


def learn(model, callback, rollouts=1, **settings):
    model.learn(rollouts * STEPS * ENVIRONMENTS, callback=callback, **settings)


def episodes_of(folder):
    return [(row["episodes"], row["return_mean"], row["episode_length_mean"]) for row in read_run(folder).rows]


def test_an_episode_that_goes_on_in_a_second_learn_is_counted_whole(tmp_path):
    model, callback = model_of(), NoiseCallback(tmp_path / "run", blocks=4)
    learn(model, callback)
    learn(model, callback, reset_num_timesteps=False)
    assert episodes_of(tmp_path / "run") == [(0, None, None), (ENVIRONMENTS, 100.0, 100.0)]


@pytest.mark.parametrize("anew", ["reset", "other environments", "restored model"])
def test_episodes_that_begin_anew_are_counted_from_there(tmp_path, anew):
    model, callback = model_of(), NoiseCallback(tmp_path / "run", blocks=4)
    learn(model, callback)
    if anew == "other environments":
        model.set_env(walks())
    elif anew == "restored model":
        model.save(tmp_path / "model")
        model = PPO.load(tmp_path / "model", env=walks(), device="cpu")
    learn(model, callback, rollouts=2, reset_num_timesteps=anew == "reset")
    assert episodes_of(tmp_path / "run") == [(0, None, None), (0, None, None), (ENVIRONMENTS, 100.0, 100.0)]
