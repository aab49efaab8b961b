"""Distributions over actions against torch's own, and what is drawn from them against what they say."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from rlscale.agents.networks import ActingNetwork, Categorical, DiagonalGaussian, PolicyValueNet, distribution_of
from rlscale.envs import BoxActions


def gaussian(n, k, seed=0):
    g = torch.Generator().manual_seed(seed)
    parameters = torch.cat([3 * torch.randn(n, k, generator=g), 0.7 * torch.randn(n, k, generator=g)], dim=1)
    mean, log_std = parameters.split(k, dim=1)
    return parameters, Independent(Normal(mean, log_std.exp()), 1), torch.randn(n, k, generator=g)


def discrete(n, actions, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, actions, generator=g)
    return logits, torch.distributions.Categorical(logits=logits), torch.randint(0, actions, (n,), generator=g)


@pytest.mark.parametrize(
    "made", [gaussian(50, 1), gaussian(50, 4), discrete(50, 2), discrete(50, 6)], ids=["one", "four", "of two", "of six"]
)
def test_log_probability_and_entropy_are_torchs(made):
    parameters, expected, action = made
    kind = DiagonalGaussian if action.ndim == 2 else Categorical
    ours = kind(parameters)
    torch.testing.assert_close(ours.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(ours.entropy(), expected.entropy())


@pytest.mark.parametrize("k", [1, 3])
def test_a_gaussians_gradients_are_torchs(k):
    parameters, _, action = gaussian(20, k)
    parameters.requires_grad_()
    mean, log_std = parameters.split(k, dim=1)
    torchs = Independent(Normal(mean, log_std.exp()), 1)
    ours = DiagonalGaussian(parameters)
    for one, other in ((ours.log_prob(action), torchs.log_prob(action)), (ours.entropy(), torchs.entropy())):
        gradients = [torch.autograd.grad(x.sum(), parameters, retain_graph=True)[0] for x in (one, other)]
        torch.testing.assert_close(*gradients)


def test_the_density_of_one_number_by_hand():
    """N(1, 2²) at 4: z = 1.5."""
    by_hand = -0.5 * 1.5**2 - math.log(2) - 0.5 * math.log(2 * math.pi)
    parameters, action = torch.tensor([[1.0, math.log(2)]]), torch.tensor([[4.0]])
    assert float(DiagonalGaussian(parameters).log_prob(action)) == pytest.approx(by_hand, rel=1e-6)
    assert float(DiagonalGaussian(parameters).entropy()) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 4), rel=1e-6)


def test_what_is_drawn_has_the_mean_the_deviation_and_the_log_probability():
    n = 40_000
    parameters = torch.tensor([[0.5, -2.0, math.log(0.3), math.log(3.0)]]).expand(n, 4)
    kind, generator = distribution_of(BoxActions((-1.0, -1.0), (1.0, 1.0))), np.random.default_rng(0)
    assert kind is DiagonalGaussian
    action, log_prob = kind.draw(kind(parameters).numbers().numpy(), kind.noise(generator, (n, 2)))
    assert (action.dtype, action.shape, log_prob.dtype, log_prob.shape) == (np.float32, (n, 2), np.float32, (n,))
    np.testing.assert_allclose(action.mean(0), [0.5, -2.0], atol=4 * 3.0 / math.sqrt(n))
    np.testing.assert_allclose(action.std(0), [0.3, 3.0], rtol=4 / math.sqrt(2 * n))
    assert abs(np.corrcoef(action.T)[0, 1]) < 4 / math.sqrt(n)
    np.testing.assert_allclose(log_prob, kind(parameters).log_prob(torch.from_numpy(action)), atol=1e-5)
    sampled = kind(parameters).sample(np.random.default_rng(0))
    assert np.array_equal(sampled, action), "the same numbers, the same actions"


def test_what_is_drawn_of_discrete_actions():
    logits = torch.tensor([[2.0, 0.0, -1.0]]).expand(20_000, 3)
    kind, generator = distribution_of(3), np.random.default_rng(0)
    assert kind is Categorical
    action, log_prob = kind.draw(kind(logits).numbers().numpy(), kind.noise(generator, (20_000,)))
    frequency = np.bincount(action, minlength=3) / 20_000
    np.testing.assert_allclose(frequency, torch.softmax(logits[0], -1), atol=0.015)
    np.testing.assert_allclose(log_prob, kind(logits).log_prob(torch.from_numpy(action)), atol=1e-6)
    np.testing.assert_allclose(np.bincount(kind(logits).sample(generator)) / 20_000, torch.softmax(logits[0], -1), atol=0.015)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_new_gaussian_policy_is_standard_normal_and_its_acting_copy_the_same(bfloat16):
    torch.manual_seed(0)
    network = PolicyValueNet("mlp", (8,), BoxActions((-1.0,) * 3, (1.0,) * 3))
    observation = torch.randn(5, 8)
    with torch.no_grad():
        fresh = network(observation).policy
        assert not fresh[:, 3:].any(), "log σ begins at zero"
        assert fresh[:, :3].abs().max() < 0.1
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        expected = network(observation).policy
    assert expected.dtype == torch.float32
    acting = ActingNetwork(network, bfloat16)(observation).policy
    assert (acting.dtype, acting.shape) == (torch.float32, (5, 6))
    torch.testing.assert_close(acting, expected, rtol=2e-2 if bfloat16 else 1e-6, atol=2e-2 if bfloat16 else 1e-6)
    assert (acting[:, 3:] == acting[0, 3:]).all()
