"""Noise on rewards and cloned environments move the noise scale by amounts that are known beforehand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import read_batch
from fleets import settings_for, weights_for

from rlscale.agents.checks import check_config
from rlscale.agents.config import Budget, NoiseSettings, default_config
from rlscale.agents.learning.advantages import generalized_advantages
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.agents.train import train
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.noise import pool
from rlscale.records.run import read_run

CPU = torch.device("cpu")


def config_of(task, *, environments=8, length=16, noise=None, clones=1, reward_noise=0.0, seed=0, **update):
    config = default_config(task)
    plain = dict(epochs=1, mini_batch=None, max_grad_norm=None, precision="float32", threads=1, network="mlp")
    return replace(
        config,
        seed=seed,
        rollout=replace(
            config.rollout, environments=environments, rollout_length=length, clones=clones, reward_noise=reward_noise
        ),
        update=replace(config.update, **{**plain, **update}),
        noise=noise or NoiseSettings(blocks=4),
        budget=Budget(observations=100_000),
    )


def fragment_of(task_id="classic/cartpole", environments=8, length=40):
    settings = settings_for(task_id, environments, length)
    worker = RolloutWorker(settings, 0)
    worker.set_weights(weights_for(settings))
    return worker.sample(0)


def test_noise_changes_advantages_as_rewards_do_and_leaves_their_scale():
    """σξ on every reward: the advantages of r + σξ, divided by the scale that those of r alone have."""
    task, fragment = find_task("classic/cartpole"), fragment_of()
    assert fragment.terminated.any()
    settings = dict(environments=8, length=40, advantage_scale="running", seed=7)
    quiet = Learner(config_of(task, **settings), task, CPU, False)
    noisy = Learner(config_of(task, reward_noise=3.0, **settings), task, CPU, False)
    plain, moved = read_batch(quiet, [fragment]), read_batch(noisy, [fragment])
    assert moved.scale_square == plain.scale_square
    by_hand, target = generalized_advantages(
        reward=fragment.reward + 3.0 * fragment.reward_noise(7),
        value=fragment.value,
        bootstrap_value=fragment.bootstrap_value,
        terminated=fragment.terminated,
        truncated=fragment.truncated,
        discount=quiet._config.update.discount,
        gae_lambda=quiet._config.update.gae_lambda,
    )
    scale = np.sqrt(plain.scale_square) + 1e-8
    np.testing.assert_allclose(moved.advantage.numpy(), by_hand.reshape(-1) / scale, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moved.target.numpy(), target.reshape(-1), rtol=1e-4, atol=1e-4)


def test_noise_is_the_fragments_own():
    """Standard normal, the same whenever the fragment is read again, another one for another fragment, group or seed."""
    fragment = fragment_of(length=400)
    drawn = fragment.reward_noise(0)
    assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(1, abs=4 / np.sqrt(2 * drawn.size))
    assert np.array_equal(drawn, fragment.reward_noise(0))
    others = [fragment.reward_noise(1)]
    others += [replace(fragment, **{name: 5}).reward_noise(0) for name in ("group", "generation", "index")]
    assert all(abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 0.1 for other in others)


@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_noise_on_a_bandits_rewards_adds_what_it_must(sigma):
    """π(1) = p, reward = action, no baseline: tr Σ/|G|² = 1/p - 1 + σ²/(p(1-p)), since E|∇ ln π|² = p(1-p) and |G| as much."""
    p, task, environments = 0.3, find_task("bandits:Bandit"), 256
    noise = NoiseSettings(blocks=environments, policy_noise_period=1, value_noise_period=0, entropy_noise_period=0)
    config = config_of(
        task,
        environments=environments,
        length=32,
        noise=noise,
        reward_noise=sigma,
        advantage_scale="none",
        shuffle="environments",
        value_coef=0.0,
        entropy_coef=0.0,
    )
    learner = Learner(config, task, CPU, False)
    with torch.no_grad():
        for head, bias in ((learner.network.policy_head, np.log([1 - p, p])), (learner.network.value_head, [0.0])):
            head.weight.zero_()
            head.bias.copy_(torch.tensor(bias))
    measured = []
    for iteration in range(20):
        worker = RolloutWorker(WorkerSettings(task, environments, 32, "mlp", False, 1, True, 0, seed=iteration), 0)
        worker.set_weights(learner.weights())
        fragment = replace(worker.sample(iteration), index=iteration)
        measured += [n.statistics for n in learn_batch(learner, [fragment], iteration, 0.0).noise if n.head == "policy"]
    found = pool(measured)
    assert found.b_simple == pytest.approx(1 / p - 1 + sigma**2 / (p * (1 - p)), rel=0.15)


@pytest.mark.parametrize("clones", [2, 4])
def test_a_run_with_clones_is_the_run_without_them(tmp_path, clones):
    """The same steps with `clones` times the observations, and `clones` times the noise scale."""
    task = find_task("classic/cartpole")
    budget = Budget(optimizer_steps=5)
    noise = NoiseSettings(blocks=4, policy_noise_period=1, value_noise_period=1)
    alone = replace(config_of(task, environments=8, noise=noise), budget=budget)
    cloned = replace(config_of(task, environments=8 * clones, noise=noise, clones=clones), budget=budget)
    train(alone, tmp_path / "alone", command=[])
    train(cloned, tmp_path / "cloned", command=[])
    first, second = (read_run(tmp_path / name) for name in ("alone", "cloned"))
    for a, b in zip(first.rows, second.rows, strict=True):
        assert b["observations"] == clones * a["observations"]
        assert b["episodes"] == a["episodes"]
        assert b["policy_loss"] == pytest.approx(a["policy_loss"], rel=1e-3, abs=1e-6)
        assert b["gradient_norm"] == pytest.approx(a["gradient_norm"], rel=1e-3)
    for head in ("joint", "policy", "value"):
        scales = [pool([s for _, s in run.noise(head, "rollout")]).b_simple for run in (first, second)]
        assert scales[1] == pytest.approx(clones * scales[0], rel=2e-3)


def test_clones_stay_in_one_block():
    """12 environments of which each is there three times, in as many blocks as there are environments."""
    task = find_task("classic/cartpole")
    learner = Learner(config_of(task, environments=12, clones=3, noise=NoiseSettings(blocks=32)), task, CPU, False)
    fragment = fragment_of(environments=4).cloned(3)
    read_batch(learner, [fragment])
    for _, blocks in (*learner._blocks.of_environments(1), learner._blocks.of_heads()):
        assert [block.tolist() for block in blocks] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_a_sweep_of_clones_has_sizes_that_they_divide():
    plan = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), clones=4, jobs=1, reward_noise=0.0))
    assert plan.sizes[0] == 20
    trial = plan.next_trials({})[0]
    config = plan.config_of(trial)
    assert config.rollout.clones == 4
    assert config.rollout.environments % 4 == 0
    noisy = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), reward_noise=2.5))
    assert noisy.config_of(noisy.next_trials({})[0]).rollout.reward_noise == 2.5


def test_bad_input_is_named():
    task = find_task("classic/cartpole")
    with pytest.raises(UsageError, match="--clones: 3 do not divide the 8 environments"):
        check_config(config_of(task, clones=3))
    with pytest.raises(UsageError, match="--clones: clones would get rewards of their own"):
        check_config(config_of(task, clones=2, reward_noise=1.0))
    with pytest.raises(UsageError, match="--reward-noise: -1"):
        check_config(config_of(task, reward_noise=-1.0))
    with pytest.raises(UsageError, match="with 5 steps each and 4 clones"):
        make_plan("classic/cartpole", SweepOptions(tasks=(), clones=4, batch_sizes="30,60"))
