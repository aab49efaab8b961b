"""The estimator against exact answers: the cases of the theory, invariances, and the coverage of its intervals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from statistics_by_hand import exact_statistics, relative_error, statistics_of

from rlscale.noise import BlockStatistics, block_statistics, fieller, noise_scale, pool
from rlscale.noise.scale import degrees_of, leave_one_out


def blocks_of(per_observation: np.ndarray, blocks: int) -> BlockStatistics:
    """Equal blocks of consecutive rows of (observations, parameters)."""
    parts = np.split(per_observation, blocks)
    return statistics_of(np.array([p.mean(0) for p in parts]), [len(p) for p in parts])


# --- exact cases -------------------------------------------------------------------------------------------------------


def test_two_blocks_by_hand():
    # g_1 = (3, 0) over 1 observation, g_2 = (1, 1) over 3: ĝ = (1.5, 0.75), |ĝ|² = 2.8125, N = 4
    noise = noise_scale(block_statistics(torch.tensor([[3.0, 0.0], [1.0, 1.0]]), [1, 3]))
    assert noise.trace_cov == pytest.approx((1 * 9 + 3 * 2 - 4 * 2.8125) / 1)
    assert noise.grad_sq == pytest.approx((16 * 2.8125 - (1 * 9 + 9 * 2)) / (16 - 10))
    assert noise.b_simple is None
    assert "three blocks" in noise.reason


def test_gaussian_mean_through_autograd():
    """Case 1: loss ½|θ-x|², so B_simple = tr S / |θ-μ|²."""
    generator = torch.Generator().manual_seed(1)
    scale = torch.tensor([1.0, 2.0, 0.5, 1.5])
    offset = torch.tensor([0.3, -0.2, 0.1, 0.4])
    x = torch.randn(4000, 32, 4, generator=generator) * scale
    theta = offset.clone().requires_grad_()
    gradients = [list(torch.autograd.grad((0.5 * (theta - block).square().sum(1)).mean(), [theta])) for block in x]
    noise = noise_scale(block_statistics(gradients, [32] * 4000))
    truth = float(scale.square().sum() / offset.square().sum())
    assert relative_error(truth, noise.b_simple) < 0.06
    assert noise.interval[0] < truth < noise.interval[1]
    assert noise.trace_cov == pytest.approx(float(scale.square().sum()), rel=0.05)
    assert noise.grad_sq == pytest.approx(float(offset.square().sum()), rel=0.05)


def test_linear_regression():
    """Case 2: B_simple = (δᵀCδ + σ²)·tr C / |Cδ|² + 1 for x ~ N(0, C), residual noise σ, δ = w - w*."""
    rng = np.random.default_rng(1)
    c, delta, sigma = np.array([2.0, 1.0, 0.25]), np.array([0.5, -1.0, 2.0]), 0.7
    x = rng.normal(size=(4000 * 64, 3)) * np.sqrt(c)
    residual = x @ delta - sigma * rng.normal(size=len(x))
    truth = ((delta**2 * c).sum() + sigma**2) * c.sum() / ((c * delta) ** 2).sum() + 1
    noise = noise_scale(blocks_of(x * residual[:, None], 4000))
    assert relative_error(truth, noise.b_simple) < 0.06
    assert noise.interval[0] < truth < noise.interval[1]


@pytest.mark.parametrize("steps", [8, 128])
def test_correlated_steps_of_one_environment(steps):
    """Case 3: AR(1) noise makes tr Σ = σ²d·[1 + 2 Σ_{t<T} (1 - t/T) ρᵗ] for environment blocks; shuffled blocks miss it."""
    rng = np.random.default_rng(2)
    envs, d, rho, mean = 2000, 3, 0.9, 0.5
    noise = np.empty((envs, steps, d))
    noise[:, 0] = rng.normal(size=(envs, d))
    for t in range(1, steps):
        noise[:, t] = rho * noise[:, t - 1] + math.sqrt(1 - rho**2) * rng.normal(size=(envs, d))
    gradients = (mean + noise).reshape(envs * steps, d)
    t = np.arange(1, steps)
    effective = d * (1 + 2 * ((1 - t / steps) * rho**t).sum())
    by_environment = noise_scale(blocks_of(gradients, envs))
    assert by_environment.trace_cov == pytest.approx(effective, rel=0.06)
    assert relative_error(effective / (d * mean**2), by_environment.b_simple) < 0.08
    shuffled = noise_scale(blocks_of(rng.permutation(gradients), envs))
    assert shuffled.trace_cov == pytest.approx(d, rel=0.06)


def test_duplicated_observations():
    """Case 4: every observation m times makes the noise per observation m-fold."""
    rng = np.random.default_rng(3)
    gradients = 0.4 + rng.normal(size=(32, 50, 5))
    once = noise_scale(statistics_of(gradients.mean(1), [50] * 32))
    thrice = noise_scale(statistics_of(gradients.mean(1), [150] * 32))
    assert thrice.trace_cov == pytest.approx(3 * once.trace_cov)
    assert thrice.grad_sq == pytest.approx(once.grad_sq)
    assert thrice.b_simple == pytest.approx(3 * once.b_simple)


def test_no_gradient_is_not_resolved():
    """Case 5: G = 0; the interval includes infinity, the estimate is withheld with its reason, and |G|² is not clamped."""
    rng = np.random.default_rng(4)
    estimates = [noise_scale(blocks_of(rng.normal(size=(32 * 20, 50)), 32)) for _ in range(200)]
    withheld = [noise for noise in estimates if noise.b_simple is None]
    assert len(withheld) >= 190
    assert all(math.isinf(noise.interval[1]) and noise.reason for noise in withheld)
    assert np.mean([noise.grad_sq < 0 for noise in estimates]) == pytest.approx(0.5, abs=0.15)
    assert abs(np.mean([noise.grad_sq for noise in estimates])) < 4 * np.std([noise.grad_sq for noise in estimates]) / math.sqrt(
        200
    )
    assert withheld[0].noise_scale.value is None
    assert "not resolved" in str(withheld[0].noise_scale)


def test_gradients_without_noise_have_no_noise_scale():
    noise = noise_scale(statistics_of(np.ones((8, 4)), [64] * 8))
    assert noise.b_simple is None
    assert noise.reason == "tr Σ is not above zero"
    assert noise.interval == (0.0, 0.0)


def test_no_ratio_is_below_zero():
    assert fieller(-10.0, 10.0, 0.01 * np.eye(2), 2.0) == (0.0, 0.0)
    # Both below zero, as with the curvature of a saddle: their ratio is no noise scale, whatever it is.
    assert fieller(-100.0, -1.0, np.diag([25.0, 0.01]), 2.0) == fieller(10.0, -10.0, 0.01 * np.eye(2), 2.0) == (0.0, math.inf)


def test_exact_statistics_are_exact():
    noise = noise_scale(exact_statistics(640, 2.5, 32))
    assert noise.trace_cov == pytest.approx(640)
    assert noise.grad_sq == pytest.approx(2.5)
    assert noise.b_simple == pytest.approx(256)


# --- invariances (case 9) ----------------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(3, 12), st.integers(1, 40), st.integers(0, 2**32 - 1))


@given(shapes, st.floats(1e-3, 1e3))
def test_the_loss_scale_cancels(shape, scale):
    blocks, d, seed = shape
    rng = np.random.default_rng(seed)
    g, sizes = 1.0 + rng.normal(size=(blocks, d)), rng.integers(1, 20, blocks)
    one, other = noise_scale(statistics_of(g, sizes)), noise_scale(statistics_of(scale * g, sizes))
    assert other.trace_cov == pytest.approx(scale**2 * one.trace_cov, rel=1e-9)
    assert (one.b_simple is None) == (other.b_simple is None)
    if one.b_simple is not None:
        assert other.b_simple == pytest.approx(one.b_simple, rel=1e-6)
        assert other.interval == pytest.approx(one.interval, rel=1e-6)


@given(shapes)
def test_layers_add(shape):
    blocks, d, seed = shape
    rng = np.random.default_rng(seed)
    g, sizes = rng.normal(size=(blocks, d + 3)), rng.integers(1, 20, blocks)
    whole = noise_scale(statistics_of(g, sizes))
    parts = [noise_scale(statistics_of(part, sizes)) for part in (g[:, :d], g[:, d:])]
    assert whole.trace_cov == pytest.approx(sum(p.trace_cov for p in parts), rel=1e-6, abs=1e-9)
    assert whole.grad_sq == pytest.approx(sum(p.grad_sq for p in parts), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("blocks", [8, 16, 32, 64])
def test_the_number_of_blocks_does_not_matter(blocks):
    rng = np.random.default_rng(6)
    gradients = 0.3 + rng.normal(size=(64 * 500, 10))
    assert relative_error(1 / 0.09, noise_scale(blocks_of(gradients, blocks)).b_simple) < 0.12


@given(shapes)
def test_empty_blocks_do_not_matter(shape):
    blocks, d, seed = shape
    rng = np.random.default_rng(seed)
    g, sizes = 1.0 + rng.normal(size=(blocks, d)), rng.integers(1, 20, blocks)
    padded = statistics_of(np.concatenate([g, rng.normal(size=(2, d))]), [*sizes, 0, 0])
    one, other = noise_scale(statistics_of(g, sizes)), noise_scale(padded)
    assert other.blocks == one.blocks == blocks
    assert (other.trace_cov, other.grad_sq) == pytest.approx((one.trace_cov, one.grad_sq))
    assert other.interval == pytest.approx(one.interval)


# --- intervals ---------------------------------------------------------------------------------------------------------


def draw(rng, blocks: int, d: int, grad: float, heavy_tails: bool, size: int = 32) -> BlockStatistics:
    """One batch of K blocks of 32 observations with unit-variance gradient noise in d dimensions."""
    if heavy_tails:
        g = rng.standard_t(4, size=(blocks, size, d)).mean(1) / math.sqrt(2)
    else:
        g = rng.normal(size=(blocks, d)) / math.sqrt(size)
    g[:, 0] += grad
    mean = g.mean(0)
    return BlockStatistics([size] * blocks, (g * g).sum(1), g @ mean)


@pytest.mark.parametrize("heavy_tails", [False, True])
@pytest.mark.parametrize("blocks", [8, 16, 32])
@pytest.mark.parametrize("signal", [10, 100])
def test_coverage_where_resolved(blocks, heavy_tails, signal):
    """95% intervals contain the truth in 92 to 99% of 500 draws; `signal` is N|G|²/tr Σ."""
    rng = np.random.default_rng([blocks, heavy_tails, signal])
    d = 20
    grad = math.sqrt(signal * d / (blocks * 32))
    estimates = [noise_scale(draw(rng, blocks, d, grad, heavy_tails)) for _ in range(500)]
    truth = d / grad**2
    assert sum(noise.b_simple is not None for noise in estimates) > 475
    assert 0.92 <= np.mean([noise.interval[0] <= truth <= noise.interval[1] for noise in estimates]) <= 0.99


@pytest.mark.parametrize("d", [1, 3])
def test_coverage_in_few_dimensions(d):
    """Where tr Σ has few degrees of freedom it is skewed, and Fieller's set alone would cover 86%."""
    rng = np.random.default_rng(d)
    grad = math.sqrt(100 * d / (8 * 32))
    covered = [
        (lambda i: i[0] <= d / grad**2 <= i[1])(noise_scale(draw(rng, 8, d, grad, heavy_tails=False)).interval)
        for _ in range(1000)
    ]
    assert 0.93 <= np.mean(covered) <= 0.99


def test_coverage_where_not_resolved_is_not_too_low():
    rng = np.random.default_rng(8)
    grad = math.sqrt(1.0 * 20 / (16 * 32))
    covered = [
        (lambda i: i[0] <= 20 / grad**2 <= i[1])(noise_scale(draw(rng, 16, 20, grad, heavy_tails=False)).interval)
        for _ in range(1000)
    ]
    assert np.mean(covered) >= 0.93


def test_coverage_of_pooled_intervals_under_persistent_noise():
    """Each environment's noise persists over 10 updates (AR(1), ρ = 0.9): resampling updates would cover far too rarely."""
    rng = np.random.default_rng(9)
    blocks, d, size, updates, rho = 16, 20, 32, 10, 0.9
    grad = math.sqrt(20 * d / (blocks * size))
    covered, naive = [], []
    for number in range(500):
        noise = rng.normal(size=(blocks, d))
        window = []
        for _ in range(updates):
            noise = rho * noise + math.sqrt(1 - rho**2) * rng.normal(size=(blocks, d))
            g = noise / math.sqrt(size)
            g[:, 0] += grad
            window.append(BlockStatistics([size] * blocks, (g * g).sum(1), g @ g.mean(0)))
        low, high = pool(window).interval
        covered.append(low <= d / grad**2 <= high)
        if number < 100:
            renamed = [BlockStatistics(s.size, s.square, s.dot, s.block + 100 * i) for i, s in enumerate(window)]
            low, high = pool(renamed).interval
            naive.append(low <= d / grad**2 <= high)
    assert 0.92 <= np.mean(covered) <= 0.99
    assert np.mean(naive) < 0.9


@pytest.mark.parametrize(("few", "rho"), [(1, 0.0), (9, 0.9)])
def test_coverage_where_updates_have_different_blocks(few, rho):
    """Some of 10 updates hold 16 blocks, the others always the same three, as RLlib's jobs of few environments do.

    Where most of them hold three, those rule the noise, and an interval with the 15 degrees of freedom of all blocks covers 92%.
    """
    rng = np.random.default_rng(1)
    d, size, grad = 20, 32, 0.5
    covered = []
    for _ in range(500):
        noise, window = rng.normal(size=(16, d)), []
        for update in range(10):
            noise = rho * noise + math.sqrt(1 - rho**2) * rng.normal(size=(16, d))
            blocks = [2, 8, 13] if update < few else np.arange(16)
            g = noise[blocks] / math.sqrt(size)
            g[:, 0] += grad
            window.append(BlockStatistics([size] * len(g), (g * g).sum(1), g @ g.mean(0), blocks))
        low, high = pool(window).interval
        covered.append(low <= d / grad**2 <= high)
    assert 0.94 <= np.mean(covered) <= 0.995


def test_one_update_of_few_blocks_hardly_widens_the_interval():
    """Of 40 updates one holds three blocks: two degrees of freedom instead of 15 would make the interval twice as long."""
    rng = np.random.default_rng(2)
    window = [draw(rng, 16, 20, 0.5, heavy_tails=False) for _ in range(40)]
    g = rng.normal(size=(3, 20)) / math.sqrt(32) + 0.5 * np.eye(20)[0]
    short = BlockStatistics([32] * 3, (g * g).sum(1), g @ g.mean(0), [2, 8, 13])
    low, high = pool(window).interval
    lowest, highest = pool([*window, short]).interval
    assert math.log(highest / lowest) < 1.3 * math.log(high / low)


def test_unequal_blocks_are_unbiased_and_covered():
    rng = np.random.default_rng(10)
    sizes = np.array([8, 16, 24, 32, 40, 48, 64, 96] * 2)
    d, grad = 20, 0.5
    estimates = []
    for _ in range(1000):
        g = rng.normal(size=(16, d)) / np.sqrt(sizes)[:, None]
        g[:, 0] += grad
        estimates.append(noise_scale(statistics_of(g, sizes)))
    for name, truth in (("trace_cov", d), ("grad_sq", grad**2)):
        values = np.array([getattr(noise, name) for noise in estimates])
        assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(1000)
    truth = d / grad**2
    assert 0.93 <= np.mean([noise.interval[0] <= truth <= noise.interval[1] for noise in estimates]) <= 0.99


def test_top_tenth_share():
    g = np.zeros((20, 2))
    g[0] = [10.0, 0.0]
    g[1:, 1] = np.tile([0.1, -0.1], 10)[:19]
    assert noise_scale(statistics_of(g, [4] * 20)).top_tenth_share > 0.9
    even = np.tile([[1.0, 0.0], [-1.0, 0.0]], (10, 1))
    assert noise_scale(statistics_of(even, [4] * 20)).top_tenth_share == pytest.approx(0.1)
    emptier = statistics_of(np.concatenate([even, np.zeros((20, 2))]), [4] * 20 + [0] * 20)
    assert noise_scale(emptier).top_tenth_share == pytest.approx(0.1), "an empty block is none"


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.ones((3, 2)), [np.ones((3, 2))], [[1.0]], BlockStatistics([1, 1], [1, 1], [1, 1])])
def test_anything_but_statistics_is_refused(wrong):
    with pytest.raises(ValueError, match="statistics: give what block_statistics returns"):
        pool(wrong)


def test_pool_refuses():
    with pytest.raises(ValueError, match="at least one update"):
        pool([])
    with pytest.raises(ValueError, match="two blocks"):
        noise_scale(BlockStatistics([4, 0], [1.0, 1.0], [1.0, 1.0]))


def test_the_share_of_the_noisiest_blocks_counts_observations_and_sums_over_updates():
    """Twenty blocks ±1, two of them ten times as large: 80 of 152; then an update in which those two alone are noisy."""
    gradients, sizes = np.zeros((20, 2)), np.full(20, 4.0)
    gradients[:, 0] = np.tile([1.0, -1.0], 10)
    sizes[:2] = 40
    assert noise_scale(statistics_of(gradients, sizes)).top_tenth_share == pytest.approx(80 / 152)
    alike = statistics_of(gradients, np.full(20, 4.0))
    two = statistics_of(10 * gradients * (np.arange(20) < 2)[:, None], np.full(20, 4.0))
    assert pool([two, alike]).top_tenth_share == pytest.approx(202 / 220)


def test_a_block_counts_as_much_as_its_update_has_few():
    """Ten blocks in one update, three others in the next: variances of 1/100 and 1/9 each (Satterthwaite)."""
    held = [BlockStatistics(np.ones(len(b)), np.ones(len(b)), np.ones(len(b)), b) for b in (np.arange(10), np.arange(10, 13))]
    assert degrees_of(held) == pytest.approx((10 / 100 + 3 / 9) ** 2 / (10 / 100**2 + 3 / 9**2) - 1)
    assert degrees_of(held[:1] * 4) == pytest.approx(9)


def test_the_jackknife_of_updates_with_blocks_of_their_own_adds_their_jackknives():
    """Σ over updates of (K - 1)/K Σ deviation² is what all J parts together give by (J - 1)/J Σ deviation²."""
    rng = np.random.default_rng(11)
    first, second = draw(rng, 4, 6, 0.5, heavy_tails=False), draw(rng, 7, 6, 0.5, heavy_tails=False)
    second = BlockStatistics(second.size, second.square, second.dot, np.arange(4, 11))
    together = leave_one_out([first, second])
    for part, alone in zip(together, zip(leave_one_out([first]), leave_one_out([second]), strict=True), strict=True):
        squares = [((a[0, 1:] - a[0, 0]) ** 2).sum() * (len(a[0]) - 2) / (len(a[0]) - 1) for a in alone]
        whole = part.sum(0)
        assert 10 / 11 * ((whole[1:] - whole[0]) ** 2).sum() == pytest.approx(sum(squares))
