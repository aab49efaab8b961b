"""The measurement of a Stable-Baselines3 model on the fake accelerator: the CPU's statistics, and no wait for each block."""

import pytest
import torch
from accelerated import sum_in_equal_pieces

pytest.importorskip("stable_baselines3")
import fake_accelerator as fake
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env

from rlscale.agents.sb3.measure import measure_rollout

fake.register()

STEPS, ENVIRONMENTS, BLOCKS = 6, 8, 3
THERE = torch.device("fake")


@pytest.mark.parametrize("kind", [PPO, A2C])
@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_the_statistics_are_the_cpus_and_the_host_waits_for_the_whole(kind, task):
    """A wait for the sizes of the blocks and one for all statistics; distributions that check their arguments have their own."""
    settings = {"batch_size": 12, "clip_range_vf": 0.2} if kind is PPO else {}
    model = kind("MlpPolicy", make_vec_env(task, ENVIRONMENTS, seed=0), n_steps=STEPS, device="cpu", seed=0, **settings)
    _, callback = model._setup_learn(STEPS * ENVIRONMENTS)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
    with sum_in_equal_pieces():
        here = measure_rollout(model, BLOCKS, 0)
        model.policy.to(THERE)
        model.device = THERE
        with fake.counting() as counts:
            there = measure_rollout(model, BLOCKS, 0)
    assert [record.head for record in here] == ["policy", "value", "entropy", "joint", "joint_policy_parameters"]
    for one, other in zip(here, there, strict=True):
        assert (one.head, one.statistics) == (other.head, other.statistics)
    waiting = [wait.partition(" at ")[2].partition(":")[0] for wait in counts.syncs]
    assert [file for file in waiting if file in ("measure.py", "devices.py")] == ["measure.py", "devices.py"]
    assert set(waiting) <= {"measure.py", "devices.py", "distributions.py"}
