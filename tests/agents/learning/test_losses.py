"""The PPO loss against a slow version, observation by observation, and A2C as its unclipped case."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlscale.agents.learning.losses import ppo_losses
from rlscale.agents.networks import Categorical, DiagonalGaussian


def inputs(n, actions, seed):
    g = torch.Generator().manual_seed(seed)
    return {
        "logits": torch.randn(n, actions, generator=g),
        "value": torch.randn(n, generator=g),
        "action": torch.randint(0, actions, (n,), generator=g),
        "behaviour_log_prob": -torch.rand(n, generator=g) * 2 - 0.1,
        "advantage": torch.randn(n, generator=g),
        "value_target": torch.randn(n, generator=g),
    }


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(2, 5), st.sampled_from([None, 0.1, 0.5]), st.booleans(), st.integers(0, 2**31))
def test_matches_a_slow_version(n, actions, clip, lagged, seed):
    x = inputs(n, actions, seed)
    if lagged:
        x["proximal_log_prob"] = inputs(n, actions, seed + 1)["behaviour_log_prob"]
    logits = x.pop("logits")
    losses = ppo_losses(policy=Categorical(logits), **x, clip=clip, value_coef=0.5, entropy_coef=0.02)
    for i in range(n):
        exps = [math.exp(v) for v in logits[i].tolist()]
        probs = [e / sum(exps) for e in exps]
        proximal = x["proximal_log_prob"] if lagged else x["behaviour_log_prob"]
        ratio = probs[int(x["action"][i])] / math.exp(float(proximal[i]))
        a = float(x["advantage"][i]) * math.exp(float(proximal[i]) - float(x["behaviour_log_prob"][i]))
        clipped = ratio if clip is None else min(max(ratio, 1 - clip), 1 + clip)
        policy = -min(ratio * a, clipped * a)
        value = 0.5 * float(x["value"][i] - x["value_target"][i]) ** 2
        entropy = -sum(p * math.log(p) for p in probs)
        expected = [policy, value, entropy, policy + 0.5 * value - 0.02 * entropy]
        assert [float(loss[i]) for loss in losses[:4]] == pytest.approx(expected, rel=1e-3, abs=1e-4)
        behaviour = probs[int(x["action"][i])] / math.exp(float(x["behaviour_log_prob"][i]))
        assert float(losses.approx_kl[i]) == pytest.approx(behaviour - 1 - math.log(behaviour), rel=1e-3, abs=1e-4)
        assert float(losses.clip_fraction[i]) == (clip is not None and abs(ratio - 1) > clip)


@pytest.mark.parametrize("lagged", [False, True])
def test_an_entropy_policy_takes_the_entropys_gradient_out_of_the_policys(lagged):
    x = inputs(16, 3, 1)
    if lagged:
        x["proximal_log_prob"] = inputs(16, 3, 2)["behaviour_log_prob"]
    logits = x.pop("logits").requires_grad_()
    settings = dict(**x, clip=0.2, value_coef=0.5, entropy_coef=0.02)
    whole = ppo_losses(policy=Categorical(logits), **settings)
    for_policy, for_entropy = logits.view_as(logits), logits.view_as(logits)
    parts = ppo_losses(policy=Categorical(for_policy), entropy_policy=Categorical(for_entropy), **settings)
    torch.testing.assert_close(torch.stack(parts), torch.stack(whole), rtol=0, atol=0)
    policy, entropy = torch.autograd.grad(parts.joint.sum(), (for_policy, for_entropy))
    torch.testing.assert_close(policy, torch.autograd.grad(whole.policy.sum(), logits, retain_graph=True)[0])
    torch.testing.assert_close(entropy, -0.02 * torch.autograd.grad(whole.entropy.sum(), logits)[0])


def test_continuous_actions_enter_by_their_log_probability_alone():
    """The loss of a Gaussian policy is that of a number for each observation, which torch's own distribution gives."""
    x, g = inputs(16, 3, 1), torch.Generator().manual_seed(5)
    del x["logits"]
    x["action"], parameters = torch.randn(16, 2, generator=g), 0.5 * torch.randn(16, 4, generator=g)
    found = ppo_losses(policy=DiagonalGaussian(parameters), **x, clip=0.2, value_coef=0.5, entropy_coef=0.02)
    torchs = torch.distributions.Normal(parameters[:, :2], parameters[:, 2:].exp())
    ratio = (torchs.log_prob(x["action"]).sum(1) - x["behaviour_log_prob"]).exp()
    policy = -torch.minimum(ratio * x["advantage"], ratio.clamp(0.8, 1.2) * x["advantage"])
    torch.testing.assert_close(found.policy, policy)
    torch.testing.assert_close(found.entropy, torchs.entropy().sum(1))
    torch.testing.assert_close(found.joint, policy + 0.5 * found.value - 0.02 * torchs.entropy().sum(1))


def test_at_the_behaviour_policy_the_gradient_is_that_of_a2c():
    x = inputs(16, 3, 0)
    logits = x.pop("logits").requires_grad_()
    log_probs = torch.log_softmax(logits, -1).gather(1, x["action"][:, None])[:, 0]
    x["behaviour_log_prob"] = log_probs.detach()
    for clip in (None, 0.2):
        ours = ppo_losses(policy=Categorical(logits), **x, clip=clip, value_coef=0, entropy_coef=0).joint.sum()
        ours = torch.autograd.grad(ours, logits)[0]
        a2c = -(log_probs * x["advantage"]).sum()
        torch.testing.assert_close(ours, torch.autograd.grad(a2c, logits, retain_graph=True)[0])
