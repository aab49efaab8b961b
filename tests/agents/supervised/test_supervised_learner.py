"""The supervised learner: noise statistics of a planted linear regression, steps of SGD by hand, and determinism by seed."""

import numpy as np
import pytest
import torch
from torch import nn

from rlscale.agents.supervised import (
    SupervisedConfig,
    SupervisedEvaluator,
    SupervisedLearner,
    SupervisedNetwork,
    SupervisedUpdate,
    make_network,
)
from rlscale.agents.supervised.networks import Autoencoder
from rlscale.envs.supervised import Examples, find_supervised
from rlscale.noise import pool

CPU = torch.device("cpu")


class Linear(SupervisedNetwork):
    """Half the squared error of w·x, from w = 0."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def losses(self, inputs, targets, generator):
        return (inputs @ self.weight - targets).square() / 2


def regression(count, spectrum, noise, seed=0):
    """x ~ N(0, C) with C = diag(spectrum), y = Σ x + noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, len(spectrum))) * np.sqrt(spectrum)
    y = x.sum(1) + noise * rng.standard_normal(count)
    return Examples(x.astype(np.float32), y.astype(np.float32))


def learner_of(examples, length=1, **settings):
    update = SupervisedUpdate(**{"learning_rate": 0.0, "warm_up": 0} | settings.pop("update", {}))
    return SupervisedLearner(
        SupervisedConfig("planted", update=update, **settings), Linear(examples.inputs.shape[1]), examples, length, CPU
    )


@pytest.mark.parametrize(("batch", "blocks"), [(64, 32), (60, 7), (16, 32)])
def test_the_noise_scale_of_a_linear_regression_is_the_formula(batch, blocks):
    """(δᵀCδ + σ²) tr C / |Cδ|² + 1, at parameters that stay where they are."""
    spectrum, sigma = np.array([1.0, 2.0, 0.5, 4.0]), 3.0
    learner = learner_of(regression(200_000, spectrum, sigma), batch_size=batch, blocks=blocks)
    measured = [learner.step().statistics for _ in range(400 if batch > 16 else 1000)]
    assert {len(one.size) for one in measured} == {min(blocks, batch)}
    assert {one.size.sum() for one in measured} == {batch}
    delta = -np.ones(4)
    exact = (spectrum @ delta**2 + sigma**2) * spectrum.sum() / ((spectrum * delta) ** 2).sum() + 1
    assert pool(measured).b_simple == pytest.approx(exact, rel=0.02)
    assert pool(measured).grad_sq == pytest.approx(((spectrum * delta) ** 2).sum(), rel=0.02)


def test_an_observation_of_a_text_counts_for_itself():
    """Examples of eight observations each: B, sizes and tr Σ are in observations, G is the mean either way."""
    examples = regression(50_000, np.array([1.0, 2.0]), 1.0)
    single = learner_of(examples, batch_size=32, blocks=8)
    eight = learner_of(examples, length=8, batch_size=256, blocks=8)
    for _ in range(20):
        one, other = single.step(), eight.step()
        assert (one.observations, other.observations) == (32, 256)
        np.testing.assert_array_equal(other.statistics.size, 8 * one.statistics.size)
        np.testing.assert_array_equal(other.statistics.square, one.statistics.square)


@pytest.mark.parametrize("blocks", [0, 3])
def test_the_loss_of_a_step_is_the_mean_of_its_examples(monkeypatch, blocks):
    """All examples are alike: from w = 0 half the square of 3, and G = -3 x, however many pieces a batch is learned in."""
    monkeypatch.setattr("rlscale.agents.supervised.learner.CHUNK", 4)
    examples = Examples(np.tile(np.float32([[0.6, 0.8]]), (5, 1)), np.full(5, 3.0, np.float32))
    step = learner_of(examples, batch_size=14, blocks=blocks).step()
    assert step.loss == pytest.approx(4.5)
    assert step.gradient_norm == pytest.approx(3.0)


def test_measuring_changes_no_step():
    examples = regression(1000, np.array([1.0, 2.0, 0.5]), 1.0)
    update = {"learning_rate": 0.01, "warm_up": 5}
    plain, measured = (learner_of(examples, batch_size=48, blocks=blocks, update=update) for blocks in (0, 16))
    for _ in range(50):
        one, other = plain.step(), measured.step()
        assert one.statistics is None
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
    np.testing.assert_allclose(plain.weights(), measured.weights(), rtol=1e-4)


def test_steps_are_those_of_sgd_with_momentum_and_warm_up():
    examples = Examples(np.ones((1, 1), np.float32), np.ones(1, np.float32))  # loss ½(w - 1)², whatever is drawn
    learner = learner_of(examples, batch_size=4, update={"learning_rate": 0.1, "momentum": 0.5, "warm_up": 2})
    weight = velocity = 0.0
    for step in range(6):
        velocity = 0.5 * velocity + (weight - 1)
        weight -= 0.1 * min(1.0, (step + 1) / 2) * velocity
        taken = learner.step()
        assert taken.learning_rate == pytest.approx(0.1 * min(1.0, (step + 1) / 2))
        assert learner.weights()[0] == pytest.approx(weight, rel=1e-5)


def test_a_batch_larger_than_a_chunk_has_the_same_gradient(monkeypatch):
    examples = regression(500, np.array([1.0, 2.0, 0.5]), 1.0)
    whole = learner_of(examples, batch_size=300, blocks=3).step()
    monkeypatch.setattr("rlscale.agents.supervised.learner.CHUNK", 7)
    pieces = learner_of(examples, batch_size=300, blocks=3).step()
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    np.testing.assert_allclose(pieces.statistics.square, whole.statistics.square, rtol=1e-4)
    np.testing.assert_allclose(pieces.statistics.dot, whole.statistics.dot, rtol=1e-4)


def test_a_run_that_blows_up_says_so():
    examples = regression(100, np.array([1.0]), 1.0)
    learner = learner_of(examples, batch_size=8, update={"learning_rate": 1e30})
    with pytest.raises(ValueError, match="not finite"):
        [learner.step() for _ in range(10)]


def run_of(task, seed, steps=5):
    learned, held_out = task.load(None)
    learner = SupervisedLearner(
        SupervisedConfig(task.id, seed=seed, batch_size=16 * task.length, blocks=4),
        make_network(task, learned, seed),
        learned,
        task.length,
        CPU,
    )
    losses = [learner.step().loss for _ in range(steps)]
    evaluator = SupervisedEvaluator(make_network(task, learned, 99), held_out, task.length, CPU)
    return losses, learner.weights(), evaluator.evaluate(learner.weights())


@pytest.mark.parametrize("name", ["digits", "text", "digits-autoencoder", "digits-variational"])
def test_a_run_is_what_its_seed_says(name):
    task = find_supervised(f"supervised/{name}")
    state = torch.get_rng_state()
    first, again, other = run_of(task, 1), run_of(task, 1), run_of(task, 2)
    assert first[0] == again[0] != other[0]
    np.testing.assert_array_equal(first[1], again[1])
    np.testing.assert_array_equal(first[2], again[2])
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"


def test_the_score_of_a_classifier_is_whether_it_is_right():
    task = find_supervised("supervised/digits")
    learned, held_out = task.load(None)
    network = make_network(task, learned, 0)
    weights = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()
    with torch.no_grad():
        named = network.layers(torch.from_numpy(held_out.inputs) / 255).argmax(1).numpy()
    scores = SupervisedEvaluator(make_network(task, learned, 1), held_out, 1, CPU).evaluate(weights)
    np.testing.assert_array_equal(scores, (named == held_out.targets).astype(float))


def test_an_autoencoders_loss_is_the_mean_squared_error_of_pixels_from_0_to_1():
    network = Autoencoder((1, 2, 2), variational=False)
    picture = torch.tensor([[[[0, 255], [51, 102]]]], dtype=torch.uint8)
    with torch.no_grad():
        painted = network.decoder(network.encoder(picture / 255))
        (loss,) = network.losses(picture, picture, torch.Generator())
    assert loss == pytest.approx(((painted[0] - torch.tensor([0, 1, 0.2, 0.4])) ** 2).mean().item(), rel=1e-5)


def test_a_variational_autoencoders_divergence_is_that_of_the_normal_distributions():
    """A decoder that ignores the code: what is left beside its error is KL(N(μ, σ²) ‖ N(0, 1)), from torch's distributions."""
    network = Autoencoder((1, 2, 2), variational=True)
    picture = torch.tensor([[[[0, 255], [51, 102]]]], dtype=torch.uint8)
    with torch.no_grad():
        network.decoder[0].weight.zero_()
        painted = network.decoder(torch.zeros(1, 32))
        mean, log_std = network.encoder(picture / 255).chunk(2, dim=1)
        (loss,) = network.losses(picture, picture, torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal
    divergence = torch.distributions.kl_divergence(normal(mean, log_std.exp()), normal(0.0, 1.0)).sum()
    log_density = normal(painted, 0.1).log_prob(torch.tensor([[0, 1, 0.2, 0.4]])).sum()
    constant = normal(0.0, 0.1).log_prob(torch.tensor(0.0)) * 4
    assert loss == pytest.approx((divergence - log_density + constant).item() / 4, rel=1e-5)
