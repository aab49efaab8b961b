"""The frontier against exact answers, planted truths with the coverage of their intervals, and what it refuses to say."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, minimize
from scipy.stats import chi2, norm, t

from rlscale.frontier import adaptive_gain, fit

BREAKOUT = np.array([128, 512, 2048, 8192, 32768]), np.array([528, 252, 116, 62, 50])  # MinAtar, goal 4, from a prototype
S_MIN, B_CRIT = 100.0, 1000.0


def steps(b, s_min: float = S_MIN, b_crit: float = B_CRIT):
    return s_min * (1 + b_crit / np.asarray(b, dtype=float))


def sizes_around(count: int, factor: float = 16.0) -> np.ndarray:
    """`count` batch sizes from B_crit/factor to factor · B_crit."""
    return B_CRIT * np.exp(np.linspace(-math.log(factor), math.log(factor), count))


def covers(estimate, truth: float) -> bool:
    return estimate.interval is not None and estimate.interval[0] <= truth <= estimate.interval[1]


def reference(b, s, exponent: bool = False):
    """Slow and independent: (S_min, B_crit, α) and the residuals by least squares in ln S."""
    x, y = np.log(b), np.log(s)

    def residuals(p):
        return p[0] + np.logaddexp(0, (p[2] if exponent else 1.0) * (p[1] - x)) - y

    best = least_squares(residuals, [y.min(), x.mean(), 1.0][: 3 if exponent else 2], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    return np.exp(best.x[:2]), best.x[2:], best.fun


# --- exact cases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "s_min", "b_crit"),
    [
        (4.0 ** np.arange(7), 75.0, 52.0),
        (10.0 ** np.arange(8), 1e5, 3e4),
        ([1.0, 2.0, 4.0], 0.5, 1.7),
        ([3e4, 1e5, 1e7], 9.0, 2e6),
    ],
)
def test_points_without_noise_are_exact(sizes, s_min, b_crit):
    frontier = fit(sizes, steps(sizes, s_min, b_crit))
    assert frontier.s_min.value == pytest.approx(s_min, rel=1e-6)
    assert frontier.b_crit.value == pytest.approx(b_crit, rel=1e-6)
    assert frontier.e_min.value == pytest.approx(s_min * b_crit, rel=1e-6)
    assert frontier.residual < 1e-6
    assert frontier.b_crit.interval == pytest.approx((b_crit, b_crit), rel=1e-3)
    # twice the fewest steps and twice the fewest observations at B_crit
    assert frontier.optimizer_steps(b_crit) == pytest.approx(2 * s_min, rel=1e-6)
    assert frontier.observations(b_crit) == pytest.approx(2 * s_min * b_crit, rel=1e-6)
    np.testing.assert_allclose(frontier.optimizer_steps(np.array(sizes)), steps(sizes, s_min, b_crit), rtol=1e-6)
    np.testing.assert_allclose(frontier.observations(np.array(sizes)), sizes * steps(sizes, s_min, b_crit), rtol=1e-6)


def test_steps_and_observations_lie_on_the_papers_hyperbola():
    frontier = fit(*BREAKOUT)
    b = np.geomspace(1, 1e6, 20)
    s, e = frontier.optimizer_steps(b) / frontier.s_min.value, frontier.observations(b) / frontier.e_min.value
    np.testing.assert_allclose((s - 1) * (e - 1), 1, rtol=1e-6)


@pytest.mark.parametrize(("eta", "s_min", "b_crit"), [(0.03, 75.6, 52.6), (1.0, 1.17, 217.1)])
def test_linear_regression(eta, s_min, b_crit):
    """Case 8: the exact steps of SGD at 𝓑 = 51. Large steps are no longer the theory's, which S_min ≈ 1 betrays."""
    b = 4.0 ** np.arange(7)
    s = math.log(100) / -np.log(1 - (2 * eta - eta**2) / (1 + 51 / b))
    frontier = fit(b, s)
    assert frontier.s_min.value == pytest.approx(s_min, abs=0.05)
    assert frontier.b_crit.value == pytest.approx(b_crit, abs=0.05)
    cloned = fit(4 * b, s)  # every environment four times
    assert cloned.b_crit.value == pytest.approx(4 * frontier.b_crit.value)
    assert cloned.s_min.value == pytest.approx(frontier.s_min.value)


def test_breakout_depends_on_the_range_of_sizes():
    b, s = BREAKOUT
    frontier = fit(b, s)
    (s_min, b_crit), _, residuals = reference(b, s)
    assert frontier.s_min.value == pytest.approx(s_min, rel=1e-5)
    assert frontier.b_crit.value == pytest.approx(b_crit, rel=1e-5) == pytest.approx(1440, abs=1)
    assert frontier.residual == pytest.approx(math.sqrt(np.mean(residuals**2)), rel=1e-5)
    assert fit(b[:3], s[:3], confidence=0.8).b_crit.value == pytest.approx(647, abs=1)
    assert fit(b[2:], s[2:]).b_crit.value == pytest.approx(3182, abs=1)
    for i, size in enumerate(b):
        rest = np.arange(5) != i
        assert frontier.leave_one_size_out[size] == pytest.approx(reference(b[rest], s[rest])[0][1], rel=1e-5)


def test_breakout_with_a_free_exponent_fits_three_times_better():
    frontier = fit(*BREAKOUT)
    _, alpha, residuals = reference(*BREAKOUT, exponent=True)
    assert frontier.exponent.value == pytest.approx(alpha[0], rel=1e-3) == pytest.approx(0.67, abs=0.01)
    assert frontier.residual > 3 * math.sqrt(np.mean(residuals**2))
    assert frontier.exponent.interval[1] < 1


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
def test_a_planted_exponent_is_exact(alpha):
    b = sizes_around(9, 100)
    frontier = fit(b, S_MIN * (1 + (B_CRIT / b) ** alpha))
    assert frontier.exponent.value == pytest.approx(alpha, rel=1e-4)


def test_overhead_batch():
    frontier = fit(*BREAKOUT)
    assert frontier.overhead_batch(1.0) == frontier.b_crit
    fifth = frontier.overhead_batch()
    assert fifth.value == pytest.approx(0.2 * frontier.b_crit.value)
    assert fifth.interval == pytest.approx((0.2 * frontier.b_crit.interval[0], 0.2 * frontier.b_crit.interval[1]))
    assert frontier.observations(fifth.value) == pytest.approx(1.2 * frontier.e_min.value)
    for of in (frontier.optimizer_steps, frontier.observations):
        with pytest.raises(ValueError, match="batch_size must be positive"):
            of(np.array([64.0, -100.0]))
    with pytest.raises(ValueError, match="overhead"):
        frontier.overhead_batch(0)


def test_the_points_are_kept_as_given():
    frontier = fit([4, 8, 16], [30, 20, math.inf], [120, math.nan, 160], group=["a", "b", None])
    assert [(p.batch_size, p.optimizer_steps, p.observations, p.group, p.censored) for p in frontier.points] == [
        (4, 30, 120, "a", False),
        (8, 20, None, "b", False),
        (16, math.inf, 160, None, True),
    ]


# --- the interval ------------------------------------------------------------------------------------------------------


def test_the_interval_is_the_profile_likelihoods_with_students_t():
    """Independent: at either end the residual sum of squares has risen by t² of its mean square (sizes - 2 degrees)."""
    b = sizes_around(7)
    s = steps(b) * np.exp(0.1 * np.array([1, -1, 1, -1.5, 1, -1, 1]))  # neighbours differ: nothing is added for likeness
    frontier = fit(b, s)
    x, y = np.log(b), np.log(s)

    def rss(ln_b_crit, ln_s_min=None, ln_e_min=None):
        bend = np.logaddexp(0, ln_b_crit - x)
        a = (y - bend).mean() if ln_s_min is None and ln_e_min is None else ln_s_min
        a = ln_e_min - ln_b_crit if ln_e_min is not None else a
        return ((y - a - bend) ** 2).sum()

    least = rss(math.log(frontier.b_crit.value))
    limit = least * (1 + t.ppf(0.975, 5) ** 2 / 5)
    for end in frontier.b_crit.interval:
        assert rss(math.log(end)) == pytest.approx(limit, rel=1e-5)
    for name in ("s_min", "e_min"):
        for end in getattr(frontier, name).interval:
            lowest = min(rss(c, **{f"ln_{name}": math.log(end)}) for c in np.linspace(x[0], x[-1], 20_001))
            assert lowest == pytest.approx(limit, rel=1e-4)
    narrow = fit(b, s, confidence=0.5).b_crit.interval
    assert frontier.b_crit.interval[0] < narrow[0] < narrow[1] < frontier.b_crit.interval[1]


def test_copies_of_runs_are_no_evidence():
    b, s = BREAKOUT
    once, thrice = fit(b, s), fit(np.repeat(b, 3), np.repeat(s, 3))
    for name in ("s_min", "e_min", "b_crit"):
        one, other = getattr(once, name), getattr(thrice, name)
        assert other.value == pytest.approx(one.value, rel=1e-6)
        assert other.interval == pytest.approx(one.interval, rel=1e-6)


def test_neighbours_that_err_alike_widen_the_interval():
    b, error = sizes_around(8), 0.1
    smooth = fit(b, steps(b) * np.exp(error * np.array([-1, -1, 1, 1, 1, 1, -1, -1]))).b_crit.interval
    rough = fit(b, steps(b) * np.exp(error * np.array([-1, 1, -1, 1, 1, -1, 1, -1]))).b_crit.interval
    assert math.log(smooth[1] / smooth[0]) > 1.3 * math.log(rough[1] / rough[0])


def sweep(rng, b, noise: float, runs: int = 3, rates: int = 5, ratio: float = 2.0, drift: float | None = None) -> np.ndarray:
    """ln S of fresh runs at the rate that was best on one noisy run each; (sizes, runs), with S_MIN and B_CRIT planted.

    S(rate) = S exp(ln²(rate/best)) on a grid of `rates`, a factor `ratio` apart. Its centre is off by up to half a step: at
    every size another way, or with `drift` at all sizes the same way, while it follows only (best rate)^drift.
    """
    best = -np.log1p(B_CRIT / b)
    off = math.log(ratio) * rng.uniform(-0.5, 0.5, len(b) if drift is None else 1)
    grid = ((1 if drift is None else drift) * best + off)[:, None] + math.log(ratio) * (np.arange(rates) - (rates - 1) / 2)
    lost = (grid - best[:, None]) ** 2
    chosen = (lost + noise * rng.normal(size=lost.shape)).argmin(1)
    return (np.log(steps(b)) + lost[np.arange(len(b)), chosen])[:, None] + noise * rng.normal(size=(len(b), runs))


@pytest.mark.parametrize(
    ("sizes", "noise", "typical", "options"),
    [
        (10, 0.05, 1.27, {}),
        (10, 0.20, 2.05, {}),
        (10, 0.05, 1.19, {"ratio": math.sqrt(2), "drift": 0.75, "rates": 9}),
        (10, 0.05, 1.30, {"drift": 0.75}),
        (6, 0.10, 1.67, {}),
        (5, 0.20, 3.1, {}),
        (3, 0.05, 4.0, {}),
    ],
)
def test_coverage_of_b_crit_after_the_best_of_several_rates(sizes, noise, typical, options):
    """Of 250 intervals of 95% at least 90% hold the truth. `typical` is the median of upper over lower end."""
    rng = np.random.default_rng([sizes, round(100 * noise)])
    b = sizes_around(sizes)
    frontiers = [fit(np.repeat(b, 3), np.exp(sweep(rng, b, noise, **options)).ravel()) for _ in range(250)]
    assert np.mean([covers(f.b_crit, B_CRIT) for f in frontiers]) >= 0.9
    ratios = np.array([math.log(f.b_crit.interval[1]) - math.log(max(f.b_crit.interval[0], 1e-300)) for f in frontiers])
    assert np.median(ratios) == pytest.approx(math.log(typical), rel=0.12 if sizes > 5 else 0.25)
    if sizes == 10:
        assert np.mean(ratios <= math.log(4)) >= 0.94
        assert all(f.b_crit.value is not None for f in frontiers)


@pytest.mark.parametrize("sizes", [4, 5, 8])
def test_coverage_with_one_run_per_size(sizes):
    """Here a normal quantile instead of Student's t would cover 83 to 91%, and one standard error 53 to 64%."""
    rng = np.random.default_rng(sizes)
    b = sizes_around(sizes)
    frontiers = [fit(b, steps(b) * np.exp(0.1 * rng.normal(size=sizes))) for _ in range(300)]
    for name, truth in (("b_crit", B_CRIT), ("s_min", S_MIN), ("e_min", S_MIN * B_CRIT)):
        assert 0.91 <= np.mean([covers(getattr(f, name), truth) for f in frontiers]) <= 0.98


@pytest.mark.parametrize("runs", [[3] * 8, [8, 1, 1, 1, 1, 8]])
def test_coverage_where_sizes_err_more_than_their_runs(runs):
    """Errors of whole sizes of 15% under a noise of 5%: pooling the runs as if independent would cover about 70%."""
    rng = np.random.default_rng(len(runs))
    b = sizes_around(len(runs))
    covered = []
    for _ in range(200):
        errors = np.repeat(0.15 * rng.normal(size=len(b)), runs) + 0.05 * rng.normal(size=sum(runs))
        covered.append(covers(fit(np.repeat(b, runs), steps(np.repeat(b, runs)) * np.exp(errors)).b_crit, B_CRIT))
    assert 0.9 <= np.mean(covered) <= 0.99


def test_offsets_that_seeds_share():
    """A seed's offset at all sizes moves S_min and leaves B_crit alone; named groups let the intervals know."""
    rng = np.random.default_rng(1)
    b, seeds = sizes_around(6), 5
    known, unknown = [], []
    for _ in range(200):
        errors = 0.3 * rng.normal(size=seeds) + 0.05 * rng.normal(size=(6, seeds))
        s = (steps(b)[:, None] * np.exp(errors)).ravel()
        known.append(fit(np.repeat(b, seeds), s, group=np.tile(np.arange(seeds), 6)))
        unknown.append(fit(np.repeat(b, seeds), s))
    usual = 0.3 * math.sqrt(chi2.median(seeds - 1) / (seeds - 1))  # what five seeds show of a deviation of 0.3
    for name, truth in (("s_min", S_MIN), ("e_min", S_MIN * B_CRIT)):
        assert np.mean([covers(getattr(f, name), truth) for f in known]) >= 0.9
        assert np.mean([covers(getattr(f, name), truth) for f in unknown]) < 0.9
        widths = [math.log(high / low) for low, high in (getattr(f, name).interval for f in known)]
        assert np.median(widths) == pytest.approx(2 * t.ppf(0.975, seeds - 1) * usual / math.sqrt(seeds), rel=0.1)
    assert np.mean([covers(f.b_crit, B_CRIT) for f in known]) >= 0.91
    assert np.median([f.b_crit.interval[1] / f.b_crit.interval[0] for f in known]) < 1.3


def test_coverage_of_the_exponent():
    rng = np.random.default_rng(2)
    b = sizes_around(8, 30)
    covered = [
        covers(fit(b, S_MIN * (1 + (B_CRIT / b) ** 0.7) * np.exp(0.1 * rng.normal(size=8))).exponent, 0.7) for _ in range(75)
    ]
    assert 0.87 <= np.mean(covered) <= 0.99


# --- runs that missed their goal ---------------------------------------------------------------------------------------


def censor(b, s, most_steps=math.inf, most_observations=math.inf):
    """Arguments of `fit` when a run may take so many steps and observations."""
    limit = np.minimum(most_steps, most_observations / b)
    return b, np.where(s > limit, math.inf, s), np.where(s > limit, limit * b, math.nan)


@pytest.mark.parametrize(
    ("sizes", "noise", "budget"),
    [
        (6, 0.2, {"most_steps": 6 * S_MIN}),
        (10, 0.2, {"most_observations": 8 * S_MIN * B_CRIT}),
    ],
)
def test_runs_that_missed_their_goal_are_used(sizes, noise, budget):
    """A budget cuts off one end, some seeds of a size reaching the goal and some not: dropping the others biases B_crit."""
    rng = np.random.default_rng(sizes)
    b = np.repeat(sizes_around(sizes), 3)
    used, dropped, missed = [], [], []
    for _ in range(100):
        size, s, e = censor(b, steps(b) * np.exp(noise * rng.normal(size=len(b))), **budget)
        used.append(fit(size, s, e))
        dropped.append(fit(size[np.isfinite(s)], s[np.isfinite(s)]))
        missed.append(np.isinf(s).mean())
    assert 0.15 < np.mean(missed) < 0.35
    assert np.mean([covers(f.b_crit, B_CRIT) for f in used]) >= 0.89
    assert np.median([f.b_crit.interval[1] for f in used]) < 2.5 * B_CRIT
    assert np.mean([covers(f.s_min, S_MIN) for f in used]) >= 0.89
    assert np.mean([covers(f.e_min, S_MIN * B_CRIT) for f in used]) >= 0.89
    errors = [np.array([math.log(f.b_crit.value / B_CRIT) for f in fs if f.b_crit.value is not None]) for fs in (used, dropped)]
    assert abs(errors[0].mean()) < 0.035
    assert abs(errors[1].mean()) > max(0.025, 2 * abs(errors[0].mean()))
    assert np.square(errors[0]).mean() < 0.85 * np.square(errors[1]).mean()


def test_censoring_is_the_likelihoods():
    """Independent: the same (S_min, B_crit, σ) as a general optimizer finds, σ with its degrees of freedom."""
    b = np.array([16.0, 64, 256, 1024, 4096, 16384])
    lost = np.array([False, False, False, False, True, True])
    reached = steps(b) * np.exp([0.1, -0.2, 0.1, 0.15, 0, 0])
    limit = np.log(steps(b) * 1.2)  # both took more steps than planted

    def negative(p):  # the normalizing power n - 2 in place of n is the correction for the two fitted parameters
        model, sigma = p[0] + np.logaddexp(0, p[1] - np.log(b)), math.exp(p[2])
        z = (np.log(reached) - model)[~lost] / sigma
        return 0.5 * (z**2).sum() + (len(z) - 2) * p[2] - norm.logsf((limit - model)[lost] / sigma).sum()

    best = minimize(
        negative, [math.log(S_MIN), math.log(B_CRIT), -2], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )
    frontier = fit(b, np.where(lost, math.inf, reached), np.where(lost, np.exp(limit) * b, math.nan), confidence=0.5)
    assert frontier.s_min.value == pytest.approx(math.exp(best.x[0]), rel=2e-3)
    assert frontier.b_crit.value == pytest.approx(math.exp(best.x[1]), rel=2e-3)
    assert math.exp(best.x[0]) > 1.15 * S_MIN


def test_a_run_that_was_given_up_early_says_nothing():
    b, s = BREAKOUT
    plain = fit(b, s)
    with_it = fit([*b, 256], [*s, math.inf], [*(b * s), 256 * 2])  # the fit expects some 360 steps there, it took 2
    for name in ("s_min", "e_min", "b_crit"):
        assert getattr(with_it, name).value == pytest.approx(getattr(plain, name).value, rel=1e-3)
        assert getattr(with_it, name).interval == pytest.approx(getattr(plain, name).interval, rel=1e-2)


@pytest.mark.parametrize(
    ("sizes", "budget", "side"),
    [
        ([16, 32, 64, 128, 256, 16_384], {"most_observations": 3 * S_MIN * B_CRIT}, 1),
        ([64, 8192, 16_384, 32_768, 65_536], {"most_steps": 3 * S_MIN}, 0),
    ],
)
def test_a_censored_end_gives_a_limit(sizes, budget, side):
    """All sizes that reached the goal lie on one branch; the one that did not bounds B_crit from the other side."""
    rng = np.random.default_rng(3)
    b = np.repeat(np.array(sizes, dtype=float), 3)
    covered, limits = [], []
    for _ in range(50):
        size, s, e = censor(b, steps(b) * np.exp(0.03 * rng.normal(size=len(b))), **budget)
        used, dropped = fit(size, s, e).b_crit, fit(size[np.isfinite(s)], s[np.isfinite(s)]).b_crit
        assert dropped.value is None
        assert dropped.interval[side] in (0, math.inf)
        covered.append(covers(used, B_CRIT))
        limits.append(0 < used.interval[side] < math.inf)
    assert np.mean(covered) >= 0.93
    assert np.mean(limits) > 0.9


def test_a_censored_end_asks_for_observations():
    b = np.array([16.0, 64, 256, 1024, 4096, 16384])
    far = censor(b, steps(b, S_MIN, 8000) * np.array([1.05, 0.95, 1.05, 1, 1, 1]), most_observations=9000 * S_MIN)
    assert fit(*far).b_crit.reason.endswith("give the runs above 256 more observations")
    near = censor(b, steps(b, S_MIN, 30) * np.array([1, 1, 1.05, 0.95, 1, 1.05]), most_steps=1.2 * S_MIN)
    assert "give the runs below 256 more observations" in fit(*near).b_crit.reason


# --- what is not identified --------------------------------------------------------------------------------------------


def advised(frontier) -> float:
    return float(frontier.b_crit.reason.split("add a batch size of ")[1].split(" ")[0].replace(",", ""))


def test_only_the_branch_that_falls_as_one_over_b():
    rng = np.random.default_rng(4)
    b = np.repeat([4.0, 8, 16, 32, 64], 3)
    frontiers = [fit(b, steps(b, S_MIN, 2000) * np.exp(0.05 * rng.normal(size=len(b)))) for _ in range(100)]
    for frontier in frontiers:
        assert frontier.b_crit.value is frontier.s_min.value is None
        assert frontier.b_crit.interval[1] == math.inf
        assert frontier.s_min.interval[0] == 0
        assert frontier.e_min.value == pytest.approx(S_MIN * 2000, rel=0.2)
        assert "above" in str(frontier.b_crit)
        with pytest.raises(ValueError, match="add a batch size of"):
            frontier.optimizer_steps(128)
        with pytest.raises(ValueError, match="not identified"):
            frontier.observations(128)
    for name, truth in (("b_crit", 2000), ("s_min", S_MIN), ("e_min", S_MIN * 2000)):
        assert np.mean([covers(getattr(f, name), truth) for f in frontiers]) >= 0.93
    assert np.median([f.b_crit.interval[0] for f in frontiers]) > 200  # far above the sizes: the limit is worth having
    assert all(256 <= advised(f) <= 8192 for f in frontiers)
    assert np.median([advised(f) for f in frontiers]) >= 2048  # where the frontier bends


def test_only_the_flat_branch():
    rng = np.random.default_rng(5)
    b = np.repeat([1024.0, 2048, 4096, 8192, 16384], 3)
    frontiers = [fit(b, steps(b, S_MIN, 60) * np.exp(0.05 * rng.normal(size=len(b)))) for _ in range(100)]
    for frontier in frontiers:
        assert frontier.b_crit.value is frontier.e_min.value is None
        assert frontier.b_crit.interval[0] == frontier.e_min.interval[0] == 0
        assert frontier.s_min.value == pytest.approx(S_MIN, rel=0.2)
        assert frontier.b_crit.reason.endswith("or fewer")
        with pytest.raises(ValueError, match="or fewer"):
            frontier.optimizer_steps(2048)
    for name, truth in (("b_crit", 60), ("s_min", S_MIN), ("e_min", S_MIN * 60)):
        assert np.mean([covers(getattr(f, name), truth) for f in frontiers]) >= 0.93
    assert np.median([f.b_crit.interval[1] for f in frontiers]) < 512
    assert all(4 <= advised(f) <= 256 for f in frontiers)


@pytest.mark.parametrize(
    ("sizes", "b_crit", "advice"),
    [
        ([4, 8, 16, 32, 64], 2000, "add a batch size of 8,192 or more"),
        ([1024, 2048, 4096, 8192], 500, "add a batch size of 64 or fewer"),
        ([4, 8, 16], 3, "add a batch size of 1"),
        ([1, 2, 4], 0.5, "there is no smaller one to add"),
    ],
)
def test_advice_without_noise(sizes, b_crit, advice):
    reason = fit(sizes, steps(sizes, S_MIN, b_crit) * (1 + 1e-5 * np.cos(np.arange(len(sizes))))).b_crit.reason
    assert reason.endswith(advice)


def test_too_few_sizes():
    two = fit([64, 64, 256, 256], [30, 32, 20, 21])
    assert two.b_crit.value is two.b_crit.interval is two.s_min.value is two.e_min.value is None
    assert two.b_crit.reason.endswith("only two have, of 64 and 256 observations: add 16 and 1,024")
    assert math.isnan(two.residual)
    assert two.exponent.value is None
    assert two.leave_one_size_out == {64: None, 256: None}
    censored = fit([64, 256, 1024], [30, 20, math.inf], [1920, 5120, 9000])
    assert censored.b_crit.reason.endswith("of 64 and 256 observations: give the others more observations")
    missed_where_others_did_not = fit([64, 64, 256], [30, math.inf, 20], [1920, 9000, 5120])
    assert missed_where_others_did_not.b_crit.reason.endswith("of 64 and 256 observations: add 16 and 1,024")
    assert fit([640], [30]).b_crit.reason.endswith("only one has, of 640 observations: add 128 and 4,096")
    assert "no run reached its goal" in fit([64, 256, 1024], [math.inf] * 3, [1e3] * 3).b_crit.reason
    assert fit([64], [10]).leave_one_size_out == {64: None}
    assert "four batch sizes" in fit([64, 256, 1024], [30, 20, 15]).exponent.reason


def test_scatter_instead_of_a_bend():
    frontier = fit([100, 110, 120, 130], [10, 30, 12, 25])
    assert frontier.b_crit.value is None
    assert frontier.b_crit.interval == (0, math.inf)
    assert "add more runs" in frontier.b_crit.reason
    assert frontier.exponent.value is None
    assert "exponent" in frontier.exponent.reason


def test_without_the_one_size_on_the_other_branch():
    b = [4.0, 8, 16, 32, 100_000]
    error = np.exp(0.02 * np.array([1, -1, 1, -1, 0]))
    frontier = fit(b, steps(b, S_MIN, 4000) * error)
    assert frontier.b_crit.value == pytest.approx(4000, rel=0.1)
    assert frontier.leave_one_size_out[100_000] is None
    assert all(frontier.leave_one_size_out[size] == pytest.approx(4000, rel=0.1) for size in b[:4])


# --- invariances -------------------------------------------------------------------------------------------------------

draws = st.tuples(st.integers(4, 9), st.integers(1, 3), st.integers(0, 2**32 - 1))


def random_runs(draw, censored: bool = False):
    sizes, runs, seed = draw
    rng = np.random.default_rng(seed)
    b = np.repeat(sizes_around(sizes), runs)
    s = steps(b) * np.exp(0.1 * rng.normal(size=len(b)))
    return censor(b, s, most_steps=10 * S_MIN if censored else math.inf)


def assert_scaled(one, other, s_factor: float, b_factor: float):
    for name, factor in (("s_min", s_factor), ("b_crit", b_factor), ("e_min", s_factor * b_factor)):
        before, after = getattr(one, name), getattr(other, name)
        assert (before.value is None) == (after.value is None)
        if before.value is not None:
            assert after.value == pytest.approx(factor * before.value, rel=1e-5)
        assert after.interval == pytest.approx(tuple(factor * end for end in before.interval), rel=1e-4)
    assert other.residual == pytest.approx(one.residual, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(draws, st.booleans(), st.floats(1e-3, 1e3), st.floats(1e-4, 1e4))
def test_the_units_of_steps_and_observations_cancel(draw, censored, s_factor, b_factor):
    b, s, e = random_runs(draw, censored)
    assert_scaled(fit(b, s, e), fit(b_factor * b, s_factor * s, s_factor * b_factor * e), s_factor, b_factor)


@settings(max_examples=30, deadline=None)
@given(draws, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter(draw, censored, random):
    b, s, e = random_runs(draw, censored)
    group = np.arange(len(b)) % 3
    order = list(range(len(b)))
    random.shuffle(order)
    assert_scaled(fit(b, s, e, group=group), fit(b[order], s[order], e[order], group=group[order]), 1, 1)


def test_the_names_of_groups_do_not_matter():
    b, s, _ = random_runs((6, 3, 7))
    numbers = np.tile([0, 1, 2], 6)
    assert_scaled(fit(b, s, group=numbers), fit(b, s, group=[f"seed {n}" for n in 7 - numbers]), 1, 1)
    apart = s * np.exp(0.4 * numbers)  # the groups matter
    known, tensor, unknown = (fit(b, apart, group=group) for group in (numbers, torch.from_numpy(numbers), None))
    assert_scaled(known, tensor, 1, 1)
    assert known.s_min.interval != pytest.approx(unknown.s_min.interval, rel=0.01)
    # every run a group of its own, or all runs one: no offset can be told apart
    assert_scaled(fit(b, s), fit(b, s, group=list(range(18))), 1, 1)
    assert_scaled(fit(b, s), fit(b, s, group=["one"] * 18), 1, 1)


# --- adaptive batch sizes ----------------------------------------------------------------------------------------------


def test_adaptive_gain():
    assert adaptive_gain([700] * 5, [1, 2, 3, 4, 5]) == pytest.approx(1)
    # half the steps at 𝓑 = 1, half at 4: (½ + 1)² / (1 · 2.5)
    assert adaptive_gain([1, 4], [0.5, 0.5]) == pytest.approx(0.9)
    assert adaptive_gain([400, 100, 400], [5, 10, 5]) == pytest.approx(0.9)
    # 𝓑 = s and 𝓑 = s² on (0, 1): (2/3)² / ½ and (½)² / (1/3)
    s = (np.arange(100_000) + 0.5) / 100_000
    assert adaptive_gain(s, np.full(100_000, 1e-5)) == pytest.approx(8 / 9)
    assert adaptive_gain(s**2, np.full(100_000, 1e-5)) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("noise_scales", "full_batch_steps", "word"),
    [
        ([1, 2], [1], "one length"),
        ([1, -2], [1, 1], "noise_scales"),
        ([1, 2], [1, -1], "full_batch_steps"),
        ([1, math.inf], [1, 1], "noise_scales"),
        ([0, 0], [1, 1], "no stretch"),
        ([], [], "no stretch"),
    ],
)
def test_adaptive_gain_refuses(noise_scales, full_batch_steps, word):
    with pytest.raises(ValueError, match=word):
        adaptive_gain(noise_scales, full_batch_steps)


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (([], []), "one entry for every run"),
        (([1, 2], [1]), "one entry for every run"),
        (([1, 2], [1, 2], [1]), "one entry for every run"),
        (([[1, 2]], [[1, 2]]), "one entry for every run"),
        (([0, 2], [1, 2]), "batch_size"),
        (([math.inf, 2], [1, 2]), "batch_size"),
        (([1, 2], [0, 2]), "optimizer_steps"),
        (([1, 2], [math.nan, 2]), "optimizer_steps"),
        (([1, 2], [math.inf, 2]), "observations"),
        (([1, 2], [math.inf, 2], [math.nan, 4]), "observations"),
        (([1, 2], [math.inf, 2], [0, 4]), "observations"),
        (([1, 2], [math.inf, 2], [math.inf, 4]), "observations"),
    ],
)
def test_fit_refuses(arguments, word):
    with pytest.raises(ValueError, match=word):
        fit(*arguments)


def test_fit_refuses_options():
    with pytest.raises(ValueError, match="group"):
        fit([1, 2, 4], [4, 3, 2], group=[1, 2])
    with pytest.raises(ValueError, match="group: a name must be a number or a text"):
        fit([1, 2, 4], [4, 3, 2], group=[[0], [1], [2]])
    with pytest.raises(ValueError, match="confidence"):
        fit([1, 2, 4], [4, 3, 2], confidence=95)
