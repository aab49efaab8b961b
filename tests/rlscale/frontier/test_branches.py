"""The local frontier from branches: planted progress is found again, its interval holds, and what is not resolved says why."""

import math

import numpy as np
import pytest
from scipy.stats import t

from rlscale.frontier import fit_branches
from rlscale.frontier.branches import _Fit, _say_why

B_LOCAL, BEST_AT, OBSERVATIONS = 500.0, 0.01, 40_000
SIZES = tuple(31.25 * 4**j for j in range(6))


def planted(rng, sd, error=0.0, seeds=4, b_local=B_LOCAL, centre=0.0, start=0.0, sizes=SIZES):
    """Branches of p₀ = 1 / 40,000, three rates an octave apart, k = 0.3, ε* ∝ √B."""
    rows = []
    for size in sizes:
        best = 1 / (1 + size / b_local)
        for octave in (-1, 0, 1):
            u = centre + octave * math.log(2)
            for _ in range(seeds):
                scatter = best * sd * rng.standard_t(4) / math.sqrt(2) + error * rng.normal()
                rows.append(
                    (size, BEST_AT * math.sqrt(size / 500) * math.exp(u), best * math.exp(-0.3 * u * u) + scatter - start)
                )
    size, rate, gain = np.array(rows).T
    return size, rate, gain, np.full(len(size), OBSERVATIONS)


def test_exact_branches_give_the_planted_figures():
    found = fit_branches(*planted(np.random.default_rng(0), 1e-6))
    assert found.b_local.value == pytest.approx(B_LOCAL, rel=0.01)
    assert found.progress * OBSERVATIONS == pytest.approx(1.0, rel=0.01)
    assert found.best_rates == pytest.approx([BEST_AT * math.sqrt(size / 500) for size in SIZES], rel=0.02)
    assert [gain for gain, _ in found.gains] == pytest.approx([1 / (1 + size / B_LOCAL) for size in SIZES], rel=0.02)


def test_at_b_local_progress_is_half_and_at_a_quarter_of_it_four_fifths():
    found = fit_branches(*planted(np.random.default_rng(0), 1e-6))
    assert found.largest_within(0.5).value == pytest.approx(found.b_local.value)
    assert found.largest_within(0.2).value == pytest.approx(found.b_local.value / 4)
    assert found.largest_within(0.2).interval == pytest.approx([end / 4 for end in found.b_local.interval])
    with pytest.raises(ValueError, match="share"):
        found.largest_within(1.0)


def test_the_interval_holds():
    """30 of planted checkpoints: at a true coverage of 95%, 25 or fewer are hit once in 1,500 times."""
    rng, hits, start = np.random.default_rng(7), 0, 0.06  # 0.06: how far off the common start is read
    for _ in range(30):
        offset = start * rng.normal()
        branches = planted(rng, 0.4, error=0.08, seeds=2, centre=0.5 * rng.normal(), start=offset)
        found = fit_branches(*branches, gain_error=np.full(len(branches[0]), 0.08), start_error=start)
        low, high = found.b_local.interval
        hits += low <= B_LOCAL <= high
    assert hits >= 26


def test_the_interval_is_narrower_with_more_seeds():
    def width(seeds):
        low, high = fit_branches(*planted(np.random.default_rng(3), 0.4, seeds=seeds)).b_local.interval
        return math.log(high / low)

    assert width(16) < 0.7 * width(4)


@pytest.mark.parametrize(
    ("b_local", "sizes", "says"),
    [(1e7, SIZES[:3], "add larger ones"), (0.1, SIZES[3:], "add smaller ones")],
)
def test_sizes_on_one_side_of_the_bend_do_not_resolve_it(b_local, sizes, says):
    found = fit_branches(*planted(np.random.default_rng(1), 0.3, b_local=b_local, sizes=sizes)).b_local
    assert found.value is None
    assert says in found.reason


def test_a_bend_beyond_the_sizes_is_no_measurement():
    """Exact branches show the beginning of it; where it lies would follow from the model alone. The limit is told."""
    found = fit_branches(*planted(np.random.default_rng(1), 0.01, b_local=4 * SIZES[3], sizes=SIZES[:4])).b_local
    assert found.value is None
    assert found.interval[0] == pytest.approx(4 * SIZES[3], rel=0.2)
    assert found.interval[0] < 4 * SIZES[3] < found.interval[1] == math.inf
    found = fit_branches(*planted(np.random.default_rng(1), 0.01, b_local=SIZES[2] / 4, sizes=SIZES[2:])).b_local
    assert found.value is None
    assert (found.interval[0], found.interval[1]) == (0.0, pytest.approx(SIZES[2] / 4, rel=0.2))


def test_branches_that_show_neither_end_are_too_few():
    said = _say_why(np.arange(2.0), -math.inf, math.inf)
    assert "add more seeds" in said
    assert "larger" not in said


def test_a_checkpoint_where_nothing_is_learned_has_no_local_frontier():
    size, rate, gain, observations = planted(np.random.default_rng(2), 0.1)
    noise = np.random.default_rng(4).normal(0, 0.3, len(gain)) - 0.1
    found = fit_branches(size, rate, noise, observations, gain_error=np.full(len(gain), 0.3))
    assert found.b_local.value is None
    assert "gained nothing" in found.b_local.reason


def test_branches_that_a_high_rate_ruined_do_not_hide_what_the_others_gained():
    """Five rates of which the two highest lose: more than half of all branches gain nothing, those near the best rate do."""
    size, rate, gain, _ = planted(np.random.default_rng(2), 0.1, seeds=2)
    ruined = [(s, BEST_AT * math.sqrt(s / 500) * factor, -1.5) for s in SIZES for factor in (4, 8) for _ in range(4)]
    more = np.array(ruined).T
    size, rate, gain = (np.concatenate(pair) for pair in zip((size, rate, gain), more, strict=True))
    assert np.median(gain) < 0
    found = fit_branches(size, rate, gain, np.full(len(size), OBSERVATIONS), gain_error=np.full(len(size), 0.02))
    low, high = found.b_local.interval
    assert low <= B_LOCAL <= high < 3 * B_LOCAL


def test_branches_that_all_end_at_the_ceiling_of_the_return_say_so():
    size, rate, gain, observations = planted(np.random.default_rng(2), 0.1)
    found = fit_branches(size, rate, np.full(len(gain), 300.0), observations, gain_error=np.full(len(gain), 1.0))
    assert found.b_local.value is None
    assert "may have a ceiling" in found.b_local.reason


def test_a_gain_within_the_evaluation_error_is_none():
    """A policy that does not change any more gains the error of the start, the same in every branch."""
    size, rate, gain, observations = planted(np.random.default_rng(2), 0.1)
    still = np.full(len(gain), 0.01)
    found = fit_branches(size, rate, still, observations, gain_error=np.full(len(gain), 0.1), start_error=0.05)
    assert found.b_local.value is None
    assert found.b_local.interval == (0.0, math.inf)
    assert "gained nothing" in found.b_local.reason
    assert math.isnan(found.progress)


@pytest.mark.parametrize(("times", "nothing"), [(1.8, True), (2.3, False)])
def test_branches_gained_nothing_below_twice_the_error_of_start_and_end(times, nothing):
    """The smallest batches gain 1 / (1 + 31.25 / 500) = 16/17, and errors of 3 and 4 parts make one of 5."""
    branches, part = planted(np.random.default_rng(2), 1e-6), 16 / 17 / times / 5
    found = fit_branches(*branches, gain_error=np.full(len(branches[0]), 4 * part), start_error=3 * part)
    assert math.isnan(found.progress) is nothing
    assert ("gained nothing" in str(found.b_local.reason)) is nothing


def test_one_collapsed_branch_is_an_outlier():
    size, rate, gain, observations = planted(np.random.default_rng(5), 0.3)
    whole = fit_branches(size, rate, gain, observations).b_local.value
    gain[len(gain) // 2] = -20.0
    assert fit_branches(size, rate, gain, observations).b_local.value == pytest.approx(whole, rel=0.3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s, r, g, o: (s[:-1], r, g, o), "one length"),
        (lambda s, r, g, o: (0 * s, r, g, o), "batch_size"),
        (lambda s, r, g, o: (s, -r, g, o), "learning_rate"),
        (lambda s, r, g, o: (s, r, g * math.nan, o), "gain"),
        (lambda s, r, g, o: (s[:24], r[:24], g[:24], o[:24]), "three batch sizes"),
    ],
)
def test_bad_arguments_are_named(change, says):
    with pytest.raises(ValueError, match=says):
        fit_branches(*change(*planted(np.random.default_rng(0), 0.1)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"confidence": 95}, "confidence must lie between 0 and 1"),
        ({"start_error": -0.5}, "start_error must be zero or more"),
        ({"gain_error": math.nan}, "gain_error must be zero or more, and finite"),
    ],
)
def test_bad_options_are_named(wrong, says):
    branches = planted(np.random.default_rng(0), 0.1)
    if "gain_error" in wrong:
        wrong = {"gain_error": np.r_[wrong["gain_error"], np.zeros(len(branches[0]) - 1)]}
    with pytest.raises(ValueError, match=says):
        fit_branches(*branches, **wrong)


def test_the_scatter_that_is_reported_is_that_of_the_branches():
    """Standard deviation 0.3 of what the best rate gains, by t of four degrees of freedom."""
    rng = np.random.default_rng(0)
    size, off = np.repeat([32.0, 128.0, 512.0, 2048.0, 8192.0], 60), np.tile([-0.7, 0.0, 0.7], 100)
    best = 1 / (1 + size / 500)
    gain = best * np.exp(-0.3 * off**2) + best * 0.3 * rng.standard_t(4, len(size)) / math.sqrt(2)
    found = fit_branches(size, 0.01 * np.sqrt(size / 500) * np.exp(off), gain, np.full(len(size), 4e4))
    assert found.scatter == pytest.approx(0.3, rel=0.15)


def test_the_interval_ends_where_twice_the_loss_has_risen_by_what_is_allowed():
    branches = planted(np.random.default_rng(5), 0.3, seeds=3)
    fit = _Fit(np.log(branches[0]), np.log(branches[1]), branches[2], branches[3], np.zeros(len(branches[0])), 0.0)
    rise = len(branches[0]) / (len(branches[0]) - 6) * t.ppf(0.975, len(branches[0]) - 6) ** 2
    _, (theta, c), _ = fit.profile(rise)
    for end in fit_branches(*branches).b_local.interval:
        assert 2 * (fit.minimize(theta, math.log(end))[1] - fit.loss(theta, c)[0]) == pytest.approx(rise, rel=0.05)


def test_the_gradient_is_that_of_the_loss():
    """With the best rates far above the tried ones at small sizes and far below at large ones."""
    size, rate, gain, observations = planted(np.random.default_rng(6), 0.4, error=0.1, seeds=2)
    fit = _Fit(np.log(size), np.log(rate), gain, observations, np.full(len(gain), 0.1), 0.06)
    at = np.array([-10.4, math.log(BEST_AT) + 0.2, -0.3, -1.0, -0.8, 0.4, math.log(400)])
    assert fit.outside(at[:-1])[0] > 1
    assert fit.outside(at[:-1])[-1] < -1
    _, gradient = fit.loss(at[:-1], at[-1])
    for slope, step in zip(gradient, 1e-6 * np.eye(len(at)), strict=True):
        above, below = (fit.loss(place[:-1], place[-1])[0] for place in (at + step, at - step))
        assert slope == pytest.approx((above - below) / 2e-6, rel=1e-5)


def test_a_lucky_evaluation_at_the_start_is_added_back_to_all_gains():
    """All gains are 0.1 too low, and the error at the start is known to be about that: the fit of the bend finds it."""
    rng = np.random.default_rng(3)
    found = fit_branches(*planted(rng, 0.02, start=0.1), start_error=0.1)
    assert [gain for gain, _ in found.gains] == pytest.approx([1 / (1 + size / B_LOCAL) for size in SIZES], abs=0.05)


def test_the_error_of_a_median_gain_is_that_of_a_normal_median():
    """1.2533 σ / √n, with σ the middle half over 1.349; branches of a size at one rate differ in their seeds alone."""
    rng = np.random.default_rng(9)
    size = np.repeat(SIZES, 40)
    gain = (1 + 0.1 * rng.standard_normal(len(size))) / (1 + size / B_LOCAL)
    found = fit_branches(size, BEST_AT * np.sqrt(size / 500), gain, np.full(len(size), OBSERVATIONS))
    for (median, error), mine in zip(found.gains, np.split(gain, len(SIZES)), strict=True):
        middle_half = np.subtract(*np.quantile(mine, [0.75, 0.25]))
        assert error / median == pytest.approx(1.2533 / 1.349 * middle_half / math.sqrt(40) / np.median(mine), rel=0.01)
