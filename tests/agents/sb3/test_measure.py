"""Jobs of Stable-Baselines3 whose network is in part frozen, or whose actions are several at once, are measured as well."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env

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
