"""The Hessian-weighted noise scale on linear regression, where tr(HΣ) / (G·HG) is known exactly (science of case 2)."""

import numpy as np
import pytest
import torch

from rlscale.noise import block_statistics, hessian_statistics, noise_scale, pool

VARIANCES = np.array([4.0, 2.0, 1.0, 0.5, 0.25, 0.1])  # C, diagonal
DELTA = np.array([0.1, -0.1, 0.2, 1.0, 0.5, -0.2])
SIGMA = 0.7  # of the label noise


def exact():
    """B_simple and B_noise: for a gradient x(x·δ) + xη, Σ = (δ·Cδ + σ²) C + Cδ(Cδ)ᵀ and H = C."""
    c, d = VARIANCES, DELTA
    spread = (d * c * d).sum() + SIGMA**2
    simple = spread * c.sum() / ((c * d) ** 2).sum() + 1
    return simple, spread * (c**2).sum() / (d * c**3 * d).sum() + 1


def batch(rng, blocks=32, size=64):
    x = rng.normal(size=(blocks, size, len(DELTA))) * np.sqrt(VARIANCES)
    error = x @ DELTA + SIGMA * rng.normal(size=x.shape[:2])
    return (x * error[..., None]).mean(1), np.full(blocks, size), x


def test_regression_has_its_exact_noise_scale_in_the_hessian_of_other_observations():
    rng = np.random.default_rng(0)
    plain, curved = [], []
    for _ in range(60):
        gradients, sizes, _ = batch(rng)
        other = batch(rng)[2].reshape(-1, len(DELTA))
        hessian = other.T @ other / len(other)
        plain.append(block_statistics(gradients, sizes))
        curved.append(hessian_statistics(gradients, sizes, gradients @ hessian))
    simple, noise = exact()
    assert noise > 1.4 * simple  # so the test tells them apart
    assert pool(plain).b_simple == pytest.approx(simple, rel=0.04)
    found = pool(curved)
    assert found.b_simple == pytest.approx(noise, rel=0.04)
    assert found.interval[0] <= noise <= found.interval[1]


def test_the_unit_hessian_gives_the_plain_statistics():
    gradients, sizes, _ = batch(np.random.default_rng(1))
    sizes = sizes - np.arange(len(sizes)) % 3  # unequal ones too
    plain, curved = block_statistics(gradients, sizes), hessian_statistics(gradients, sizes, gradients)
    np.testing.assert_allclose(curved.square, plain.square)
    np.testing.assert_allclose(curved.dot, plain.dot)
    assert noise_scale(curved).b_simple == pytest.approx(noise_scale(plain).b_simple)


def test_a_graph_and_an_empty_block_are_no_hindrance():
    """Gradients that were made to be differentiated again; a mean over no observation is 0/0."""
    gradients, sizes, _ = batch(np.random.default_rng(1))
    made = torch.tensor(gradients, requires_grad=True)
    whole = hessian_statistics(gradients, sizes, gradients * 2)
    np.testing.assert_array_equal(hessian_statistics(made, sizes, made * 2).dot, whole.dot)
    sizes = np.append(sizes, 0)
    more = np.vstack([gradients, np.full_like(gradients[:1], np.nan)])
    with_empty = hessian_statistics(more, sizes, more * 2)
    np.testing.assert_allclose(with_empty.square[:-1], whole.square)
    np.testing.assert_allclose(with_empty.dot[:-1], whole.dot)


def test_a_direction_of_negative_curvature_is_not_resolved():
    gradients, sizes, _ = batch(np.random.default_rng(2))
    found = noise_scale(hessian_statistics(gradients, sizes, -gradients))
    assert found.b_simple is None
    assert np.isinf(found.interval[1])


def test_noise_in_directions_of_negative_curvature_is_not_resolved():
    """H = diag(1, -1, …) with G along the first direction: G·HG = 9 stands out, and tr(HΣ) is below zero."""
    hessian = np.array([1.0] + [-1.0] * 20)
    gradients = np.random.default_rng(0).normal(size=(32, 21)) + np.array([3.0] + [0.0] * 20)
    found = noise_scale(hessian_statistics(gradients, np.full(32, 64), gradients * hessian))
    assert found.trace_cov < 0 < found.grad_sq
    assert found.b_simple is None
    assert found.reason == "tr Σ is not above zero"
    assert found.interval == (0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g, n: (g, n, g[:-1]), "do not fit"),
        (lambda g, n: (g, n[:-1], g), "do not fit"),
        (lambda g, n: (g[:1], n[:1], g[:1]), "two blocks"),
        (lambda g, n: (g, -n, g), "block_sizes"),
        (lambda g, n: (g, n, g * np.nan), "not finite"),
    ],
)
def test_bad_arguments_are_named(change, says):
    gradients, sizes, _ = batch(np.random.default_rng(3))
    with pytest.raises(ValueError, match=says):
        hessian_statistics(*change(gradients, sizes))
