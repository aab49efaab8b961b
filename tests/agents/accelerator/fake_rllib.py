"""The measurement inside RLlib's learner on the fake accelerator: the CPU's statistics, and no wait for each block."""

import gymnasium
import numpy as np
import pytest
import torch
from accelerated import sum_in_equal_pieces

pytest.importorskip("ray.rllib")
import fake_accelerator as fake
from making import make_fragment
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlscale.agents.rllib.measure import NoiseLearner, measure_noise

fake.register()

STEPS, ENVIRONMENTS, BLOCKS = 12, 8, 4
THERE = torch.device("fake")


class Kept(NoiseLearner):
    """Keeps what was measured, and of what."""

    def _measure(self, batch, blocks):
        self.batch, self.blocks = dict(batch), blocks
        self.records = super()._measure(batch, blocks)
        return self.records


def episodes():
    made = make_fragment(np.random.default_rng(0), STEPS, ENVIRONMENTS, log_prob=np.full((STEPS, ENVIRONMENTS), -0.7, np.float32))
    return [
        SingleAgentEpisode(
            id_=f"of{e}@{e}",
            observations=[*made.frames[:, e], made.frames[-1, e]],
            actions=list(made.action[:, e]),
            rewards=list(made.reward[:, e].astype(float)),
            terminated=False,
            truncated=True,
            extra_model_outputs={
                Columns.ACTION_LOGP: list(made.log_prob[:, e]),
                Columns.ACTION_DIST_INPUTS: list(np.zeros((STEPS, 2), np.float32)),
            },
            len_lookback_buffer=0,
        ).to_numpy()
        for e in range(ENVIRONMENTS)
    ]


@pytest.mark.parametrize("minibatch", [1000, 10])
def test_the_statistics_are_the_cpus_and_the_host_waits_for_the_whole(tmp_path, minibatch):
    """A wait for the mask, one for the sizes of the blocks and one for all statistics; RLlib's own loss has its own."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=ENVIRONMENTS)
        .training(train_batch_size_per_learner=128, minibatch_size=minibatch, num_epochs=1, use_kl_loss=False)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], vf_share_layers=False))
        .learners(learner_class=Kept)
    )
    learner = measure_noise(config, tmp_path / "run", every=1, blocks=BLOCKS).build_learner(env=gymnasium.make("CartPole-v1"))
    learner.update(episodes=episodes(), timesteps={}, num_epochs=1, minibatch_size=minibatch)
    batch, blocks = learner.batch, learner.blocks
    with sum_in_equal_pieces():
        here = {record.head: record.statistics for record in NoiseLearner._measure(learner, batch, blocks)}
        learner.module[DEFAULT_MODULE_ID].unwrapped().to(THERE)
        learner._device = THERE
        moved = {name: column.to(THERE) if isinstance(column, torch.Tensor) else column for name, column in batch.items()}
        with fake.counting() as counts:
            there = {record.head: record.statistics for record in NoiseLearner._measure(learner, moved, blocks)}
    assert set(here) == set(there) == {"policy", "value", "entropy", "joint", "joint_policy_parameters"}
    for head, statistics in here.items():
        for name in ("size", "square", "dot"):
            np.testing.assert_array_equal(getattr(statistics, name), getattr(there[head], name))
    waiting = [wait.partition(" at ")[2].partition(":")[0] for wait in counts.syncs]
    assert [file for file in waiting if file in ("measure.py", "devices.py")] == ["measure.py", "measure.py", "devices.py"]
    assert set(waiting) <= {"measure.py", "devices.py", "ppo_torch_learner.py", "torch_utils.py"}
