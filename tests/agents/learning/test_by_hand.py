"""What a learner computes of one batch, each against a few lines that compute it otherwise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import read_batch, whole_gradient
from making import make_fragment

from rlscale.agents.config import Rollout, default_config
from rlscale.agents.learning import Learner, arrange_slots, learn_batch
from rlscale.agents.learning.advantages import generalized_advantages
from rlscale.agents.learning.blocks import BatchBlocks
from rlscale.envs import find_task

TASK = find_task("classic/cartpole")


def config_for(rollout=(), **update):
    base = default_config(TASK)
    plain = {"epochs": 1, "mini_batch": None, "threads": 1, "advantage_scale": "none", "entropy_coef": 0.01}
    rollout = replace(Rollout(environments=8, rollout_length=6), **dict(rollout))
    return replace(base, rollout=rollout, update=replace(base.update, **{**plain, **update}))


def learner_for(rollout=(), **update):
    return Learner(config_for(rollout, **update), TASK, torch.device("cpu"), False)


def fragment():
    """Of random numbers, in which reward and clipped reward have nothing to do with each other."""
    rng = np.random.default_rng(0)
    return make_fragment(rng, 6, 8, reset=rng.random((6, 8)) < 0.2)


def test_the_clipped_reward_is_what_is_learned_from():
    learner, made = learner_for(), fragment()
    update = learner._config.update
    advantage, _ = generalized_advantages(
        reward=made.clipped_reward,
        value=made.value,
        bootstrap_value=made.bootstrap_value,
        terminated=made.terminated,
        truncated=made.truncated,
        discount=update.discount,
        gae_lambda=update.gae_lambda,
    )
    np.testing.assert_allclose(read_batch(learner, [made]).advantage.numpy(), advantage.reshape(-1), rtol=1e-5)


def test_the_share_of_the_variance_that_the_value_explains():
    learner, made = learner_for(), fragment()
    batch = read_batch(learner, [made])
    target, valid = batch.target.numpy().reshape(6, 8), batch.valid.numpy().reshape(6, 8)
    by_hand = 1 - (target - made.value)[valid].var() / target[valid].var()
    assert batch.moments.explained_variance == pytest.approx(by_hand, rel=1e-5)


def test_a_gradient_below_the_largest_norm_stays_as_it_is():
    learner = learner_for(max_grad_norm=1e6)
    expected = whole_gradient(learner, read_batch(learner, [fragment()]))
    learn_batch(learner, [fragment()], 0, 0.0)
    torch.testing.assert_close(learner._optimizer.mean, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [0.05, 0.2])
def test_ratios_are_clipped_where_the_option_says(clip):
    """Of a policy that acted with probabilities some 15% off, so that some ratios lie between the two."""
    learner, made = learner_for(clip=clip, max_grad_norm=None), fragment()
    off = 0.15 * np.random.default_rng(3).normal(size=made.log_prob.shape).astype(np.float32)
    made = replace(made, log_prob=made.log_prob + off)
    expected = whole_gradient(learner, read_batch(learner, [made]))
    learn_batch(learner, [made], 0, 0.0)
    torch.testing.assert_close(learner._optimizer.mean, expected, rtol=1e-4, atol=1e-6)


def test_of_a_lagged_batch_mini_batches_are_clipped_about_the_policy_that_began():
    """Its later mini-batches are far from that policy, but each would be near the one before it."""
    learner = learner_for({"lag": 1}, mini_batch=6, shuffle="transitions", learning_rate=0.05)
    assert learn_batch(learner, [fragment()], 0, 0.05).figures["clip_fraction"] > 0


def test_figures_are_means_over_the_steps_of_one_iteration():
    """At rate 0 those of two epochs of four mini-batches of one size are the whole batch's, whatever came before."""
    made = make_fragment(np.random.default_rng(0), 12, 4)
    off = 0.15 * np.random.default_rng(3).normal(size=made.log_prob.shape).astype(np.float32)
    made = replace(made, log_prob=made.log_prob + off)
    rollout = {"environments": 4, "rollout_length": 12}
    whole = learn_batch(learner_for(rollout), [made], 0, 0.0).figures
    learner = learner_for(rollout, mini_batch=12, epochs=2, shuffle="environments")
    learn_batch(learner, [made], 0, 0.0)
    figures = learn_batch(learner, [made], 1, 0.0).figures
    assert learner.optimizer_steps == 16
    assert 0 < whole["clip_fraction"] < 1
    for name in ("policy_loss", "value_loss", "entropy", "joint_loss", "approx_kl", "clip_fraction"):
        assert figures[name] == pytest.approx(whole[name], rel=1e-4), name
    batch, norms = read_batch(learner, [made]), []
    for environment in range(4):
        batch.valid = torch.arange(48) % 4 == environment
        norms.append(float(whole_gradient(learner, batch).norm()))
    assert figures["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-4)
    assert whole["gradient_norm"] < 0.8 * figures["gradient_norm"]


def test_rmsprop_is_torchs():
    learner = learner_for(optimizer="rmsprop", max_grad_norm=None)
    reference = torch.nn.Parameter(torch.from_numpy(learner.weights()))
    step = torch.optim.RMSprop([reference], lr=1e-3, alpha=0.99, eps=1e-5)
    for _ in range(2):
        reference.grad = whole_gradient(learner, read_batch(learner, [fragment()]))
        step.step()
        learn_batch(learner, [fragment()], 0, 1e-3)
    np.testing.assert_allclose(learner.weights(), reference.detach(), atol=1e-6)


def test_blocks_of_other_environments_have_other_names():
    """Fragments of an adaptive batch come from environments that take turns."""
    config = config_for({"environments": 32, "batch_size": "adaptive", "fragment_environments": 8})
    rng = np.random.default_rng(0)
    first, second = (BatchBlocks(config, 0, arrange_slots([group], 8), rng).of_heads()[0] for group in (0, 1))
    assert not set(first.tolist()) & set(second.tolist())
