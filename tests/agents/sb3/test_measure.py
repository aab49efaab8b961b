"""Jobs of Stable-Baselines3 with a frozen part of the network or several actions at once are measured; how tasks are named."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

from rlscale.agents.sb3 import NoiseCallback
from rlscale.records.run import read_run

ENVIRONMENTS, STEPS = 8, 20


class Switches(gymnasium.Env):
    """Pays for every switch that is on, for ten steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, actions):
        self.action_space = actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._taken += 1
        return np.zeros(1, np.float32), float(np.sum(action)), self._taken == 10, False, {}


def heads_of(folder, model):
    """What is recorded after two iterations, and how many observations each head is of."""
    model.learn(2 * STEPS * ENVIRONMENTS, callback=NoiseCallback(folder, every=1, blocks=4))
    rows = read_run(folder).rows
    assert len(rows) == 2
    assert all(sum(entry["size"]) == STEPS * ENVIRONMENTS for row in rows for entry in row["noise"])
    return [[entry["head"] for entry in row["noise"]] for row in rows]


def freeze_log_std(policy):
    policy.log_std.requires_grad_(False)


def freeze_value(policy):
    policy.value_net.requires_grad_(False)
    policy.mlp_extractor.value_net.requires_grad_(False)


@pytest.mark.parametrize("kind", [PPO, A2C])
@pytest.mark.parametrize(
    ("freeze", "heads"),
    [
        (freeze_log_std, ["policy", "value", "joint", "joint_policy_parameters"]),
        (freeze_value, ["policy", "entropy", "joint", "joint_policy_parameters"]),
    ],
)
def test_a_frozen_part_of_the_network_leaves_out_its_loss_alone(tmp_path, kind, freeze, heads):
    """The entropy of a Gaussian policy depends on log σ alone."""
    settings = {"batch_size": 40, "n_epochs": 1} if kind is PPO else {}
    model = kind("MlpPolicy", make_vec_env("Pendulum-v1", n_envs=ENVIRONMENTS), n_steps=STEPS, device="cpu", seed=0, **settings)
    freeze(model.policy)
    assert heads_of(tmp_path / "run", model) == [heads, heads]


@pytest.mark.parametrize("actions", [gymnasium.spaces.MultiBinary(3), gymnasium.spaces.MultiDiscrete([2, 3])])
def test_several_choices_in_one_action_are_measured(tmp_path, actions):
    environments = make_vec_env(Switches, n_envs=ENVIRONMENTS, env_kwargs={"actions": actions})
    model = PPO("MlpPolicy", environments, n_steps=STEPS, batch_size=40, n_epochs=1, device="cpu", seed=0)
    heads = ["policy", "value", "entropy", "joint", "joint_policy_parameters"]
    assert heads_of(tmp_path / "run", model) == [heads, heads]


def test_a_task_has_the_name_of_its_environments(tmp_path, monkeypatch):
    """An id's entry point may be one that cannot be pickled, and an environment need not have an id."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    two = gymnasium.spaces.Discrete(2)
    gymnasium.register("Closure-v0", entry_point=lambda: Switches(two))
    names = {
        "Closure-v0": make_vec_env("Closure-v0", n_envs=4, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"}),
        "Switches": make_vec_env(Switches, n_envs=4, env_kwargs={"actions": two}),
        "Pendulum-v1": make_vec_env("Pendulum-v1", n_envs=4),
    }
    for name, environments in names.items():
        model = PPO("MlpPolicy", environments, n_steps=STEPS, batch_size=40, n_epochs=1, device="cpu", seed=0)
        model.learn(STEPS * 4, callback=NoiseCallback(tmp_path / name, every=1, blocks=4))
        environments.close()
        assert read_run(tmp_path / name).manifest["task"]["id"] == name
