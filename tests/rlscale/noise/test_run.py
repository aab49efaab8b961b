"""The mean over full-batch steps against exact answers, of one run and of several, and the coverage of its intervals."""

import math

import numpy as np
import pytest
from scipy.stats import t as student
from statistics_by_hand import exact_statistics, relative_error, statistics_of

from rlscale.noise import BlockStatistics, average_windows, fieller, pool, ratio_of_sums, run_average


def test_run_average_under_drift():
    """Case 7: |G|² = 1000 for 6 updates, then 1 for 294, tr Σ = 640, B = 128: 570.6, where the ratio of sums says 30.5."""
    updates = [exact_statistics(640, 1000, 32)] * 6 + [exact_statistics(640, 1, 32)] * 294
    assert run_average(updates, batch_size=128, window=6).b_simple == pytest.approx(570.6, abs=0.05)
    assert run_average(updates, batch_size=128, window=1).b_simple == pytest.approx(570.6, abs=0.05)
    assert pool(updates).b_simple == pytest.approx(30.5, abs=0.05)


def test_every_update_may_have_a_batch_of_its_own():
    updates = [exact_statistics(640, 1000, 32)] * 6 + [exact_statistics(640, 1, 32)] * 294
    assert run_average(updates, [128.0] * 300) == run_average(updates, 128.0)
    # At B = 𝓑 = tr Σ / |G|² each update is half a full-batch step: the mean of 𝓑 is (6 · 0.64 + 294 · 640) / 300.
    batch = [0.64] * 6 + [640.0] * 294
    assert run_average(updates, batch, window=1).b_simple == pytest.approx(627.2128)
    with pytest.raises(ValueError, match="batch_size"):
        run_average(updates, [128.0] * 299 + [0.0])
    with pytest.raises(ValueError, match="300"):
        run_average(updates, [128.0] * 299)


def test_run_average_of_windows_without_any_signal_is_withheld():
    noise_only = exact_statistics(640, -10, 32)
    assert run_average([noise_only] * 4, batch_size=1e6, window=1).b_simple is None


def test_run_average_of_a_constant_is_that_constant():
    noise = run_average([exact_statistics(640, 2, 32)] * 45, batch_size=128)
    assert noise.b_simple == pytest.approx(320)
    assert noise.interval == pytest.approx((320, 320))
    assert noise.updates == 45


def test_run_average_is_not_biased_by_noise_where_single_updates_are():
    rng = np.random.default_rng(5)
    truth, size, blocks, d = 400.0, 16, 32, 100
    grad = math.sqrt(d / truth)
    updates = []
    for _ in range(300):
        g = rng.normal(size=(blocks, d)) / math.sqrt(size)
        g[:, 0] += grad
        updates.append(statistics_of(g, [size] * blocks))
    windows = run_average(updates, batch_size=size * blocks, window=20)
    assert relative_error(truth, windows.b_simple) < 0.05
    assert windows.interval[0] < truth < windows.interval[1]


def test_several_runs_are_summed_before_anything_is_divided():
    """Two windows by hand, B = 100. tr Σ and |G|² summed over runs: first 400 and 6 of two updates, Q = 3 + 2 = 5; then 300 and
    1, Q = 0.5 + 1.5 = 2. So (400/5 + 300/2) / (6/5 + 1/2) = 230 / 1.7."""
    first = [exact_statistics(100, 5, 25), exact_statistics(200, 2, 25)]
    second = [exact_statistics(300, 1, 25), exact_statistics(100, -1, 25)]
    assert run_average([first, second], batch_size=100, window=1).b_simple == pytest.approx(230 / 1.7)
    # One window of both updates: 700 / 7, whatever Q is.
    assert run_average([first, second], batch_size=100, window=2).b_simple == pytest.approx(100)


def test_a_run_that_ends_early_counts_as_long_as_it_lasts():
    """Windows of one update: in the first 400 and 6 of two runs, Q = 5; in the second 200 and 2 of one, Q = 2 + 2."""
    first = [exact_statistics(100, 5, 25), exact_statistics(200, 2, 25)]
    second = [exact_statistics(300, 1, 25)]
    noise = run_average([second, first], batch_size=100, window=1)
    assert noise.b_simple == pytest.approx((400 / 5 + 200 / 4) / (6 / 5 + 2 / 4))
    assert (noise.updates, noise.blocks, noise.observations) == (3, 8, 300)


def test_one_run_in_a_list_is_that_run():
    rng = np.random.default_rng(0)
    updates = [statistics_of(0.5 + rng.normal(size=(8, 20)), [16] * 8) for _ in range(13)]
    assert run_average([updates], 128) == run_average(updates, 128) == run_average([updates, []], 128)


def test_windows_are_the_fewest_equal_ones():
    """Twelve updates are windows of four, not of five, five and two."""
    updates = [exact_statistics(640, 1000, 32)] * 4 + [exact_statistics(640, 1, 32)] * 8
    assert run_average(updates, 128) == run_average(updates, 128, window=4)
    assert run_average(updates, 128).b_simple == pytest.approx(run_average(updates, 128, window=1).b_simple)


def planted(rng, updates: int, grad_sq, *, blocks: int = 16, size: int = 32, d: int = 100) -> list[BlockStatistics]:
    """A run of unit-variance noise in d dimensions, so tr Σ = d, with |G|² as given for every update."""
    g = rng.normal(size=(updates, blocks, d)) / math.sqrt(size)
    g[:, :, 0] += np.sqrt(np.broadcast_to(grad_sq, updates))[:, None]
    squares, dots = (g * g).sum(2), np.einsum("ukd,ud->uk", g, g.mean(1))
    return [BlockStatistics([size] * blocks, square, dot) for square, dot in zip(squares, dots, strict=True)]


def covered(noise, truth) -> bool:
    return noise.interval[0] <= truth <= noise.interval[1]


def test_an_early_transient_needs_short_windows():
    """|G|² falls by the factor 21 within some four updates of fifty: windows of 20 read too low and cover some 10%, those of 5
    cover 97%."""
    rng = np.random.default_rng(0)
    batch, trace = 512, 100
    grad_sq = trace / batch * (1 + 20 * np.exp(-np.arange(50) / 4))
    q = grad_sq + trace / batch
    truth = (trace / q).sum() / (grad_sq / q).sum()
    runs = [planted(rng, 50, grad_sq) for _ in range(100)]
    assert np.mean([covered(run_average(run, batch, window=20), truth) for run in runs]) < 0.2
    usual = [run_average(run, batch) for run in runs]
    assert np.mean([covered(noise, truth) for noise in usual]) >= 0.92
    assert np.mean([noise.b_simple for noise in usual]) == pytest.approx(truth, rel=0.03)
    assert np.mean([noise.interval[1] / noise.interval[0] for noise in usual]) < 1.3


def test_runs_that_are_not_resolved_are_resolved_together():
    """𝓑 = 16 B: a third of the runs resolve, and the mean of those reads 0.7 times the truth; six runs together read it."""
    rng = np.random.default_rng(1)
    batch, d = 512, 100
    truth = 16.0 * batch
    alone, together = [], []
    for _ in range(100):
        runs = [planted(rng, 32, d / truth) for _ in range(6)]
        together.append(run_average(runs, batch))
        alone += [run_average(run, batch).b_simple for run in runs[:2]]
    resolved = [value for value in alone if value is not None]
    assert 0.2 < len(resolved) / len(alone) < 0.4
    assert 0.65 < np.mean(resolved) / truth < 0.8
    assert 0.88 <= np.mean([covered(noise, truth) for noise in together]) <= 0.99
    values = [noise.b_simple for noise in together if noise.b_simple is not None]
    assert len(values) > 94
    assert np.median(values) == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize(("count", "scatter"), [(2, 0.0), (2, 0.3), (3, 0.3), (6, 0.3)])
def test_coverage_of_several_runs(count, scatter):
    """Three runs or more may differ in their own noise scale, here by a factor e^0.3; two tell nothing of that."""
    rng = np.random.default_rng([count, int(10 * scatter)])
    batch, d = 256, 50
    truth = 2.0 * batch
    found = []
    for _ in range(150):
        scales = truth * np.exp(scatter * rng.normal(size=count))
        found.append(run_average([planted(rng, 15, d / scale, blocks=8, d=d) for scale in scales], batch))
    rate = np.mean([covered(noise, truth) for noise in found])
    if count > 2 or not scatter:
        assert 0.89 <= rate <= 0.995
        assert np.mean([noise.b_simple is not None for noise in found]) > 0.9
    else:
        assert rate < 0.85


def test_two_runs_are_deleted_block_by_block():
    """Blocks of the same number in two runs are different environments, so each is left out by itself."""
    rng = np.random.default_rng(2)
    runs = [planted(rng, 5, 1.0, blocks=4) for _ in range(2)]
    together = run_average(runs, 128)
    renamed = [BlockStatistics(s.size, s.square, s.dot, s.block + 4) for s in runs[1]]
    about_zero = [[BlockStatistics(s.size, s.square, s.dot, s.block - 2) for s in run] for run in runs]
    assert run_average(about_zero, 128).interval == together.interval, "whatever their numbers are"
    same = pool([*runs[0], *renamed])
    assert together.blocks == same.blocks == 8
    assert together.b_simple == pytest.approx(same.b_simple)
    assert together.interval == pytest.approx(same.interval, rel=0.05)  # the windows' Q varies with the blocks


def test_blocks_of_several_runs_may_have_numbers_of_64_bits():
    rng = np.random.default_rng(3)
    runs = [planted(rng, 5, 1.0, blocks=4) for _ in range(2)]
    far = np.array([-(2**63), -1, 2**62, 2**63 - 1])
    named = [[BlockStatistics(s.size, s.square, s.dot, far) for s in run] for run in runs]
    assert run_average(named, 128) == run_average(runs, 128)


def test_windows_without_updates_are_not_read():
    """Beyond the end of a run there is nothing, and what stands there may be NaN."""
    trace, grad, updates = (
        [[640.0, 200.0], [600.0, 0.0], [640.0, 210.0]],
        [[1.0, 3.0], [1.1, 0.0], [1.0, 3.0]],
        [[5, 5], [5, 0], [5, 5]],
    )
    found = average_windows(trace, grad, updates, 128)
    assert found == average_windows(np.array(trace), np.array(grad), np.array(updates), 128)
    trace[1][1] = grad[1][1] = math.nan
    assert found.value is not None
    assert average_windows(trace, grad, updates, 128) == found
    assert ratio_of_sums([90.0, 110.0, 100.0], [1.0, 1.1, 1.0]).value == pytest.approx(300 / 3.1)


def test_figures_of_runs_that_cannot_be_summed_are_refused():
    some, none = np.ones((3, 2)), np.full((3, 2), math.nan)
    for figures in ((none, some, some), (some, none, some), (some, some, none), (some, some, [[1, 1], [1, 1], [3, -1]])):
        with pytest.raises(ValueError, match="must be finite in every window with updates, and updates not negative"):
            average_windows(*figures, batch_size=4)
    with pytest.raises(ValueError, match="one shape"):
        average_windows(some[0], some[0], some[0], 4)
    with pytest.raises(ValueError, match="one length"):
        ratio_of_sums(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="must be finite"):
        ratio_of_sums([1.0, 1.0, math.nan], np.ones(3))


def test_runs_without_noise_have_no_average():
    none, some = np.zeros((3, 2)), np.ones((3, 2))
    assert average_windows(none, some, some, batch_size=128).reason == "tr Σ is not above zero"
    assert average_windows(some, some, some, batch_size=128).value == pytest.approx(1)


def test_the_interval_of_a_ratio_of_sums_is_fiellers_of_the_sums():
    """Where Σ|G|² is two standard errors from zero, with five runs, it has no upper end, and its lower end is not zero."""
    trace, grad = np.array([90.0, 110.0, 100.0, 95.0, 105.0]), np.array([1.0, 0.1, 0.2, 0.0, 0.3])
    error = math.sqrt(5 * grad.var(ddof=1))  # of the sum
    assert 1.5 < grad.sum() / error < student.ppf(0.975, 4)
    found = ratio_of_sums(trace, grad)
    assert (found.value, found.interval[1]) == (None, math.inf)
    covariance = 5 * np.cov(trace, grad)
    assert found.interval[0] == pytest.approx(fieller(500, grad.sum(), covariance, student.ppf(0.975, 4))[0], rel=1e-6)
    assert found.interval[0] > 100
    clear = ratio_of_sums(trace, grad + 1)
    assert clear.value == pytest.approx(500 / 6.6)
    assert 0 < clear.interval[0] < clear.value < clear.interval[1] < math.inf
    with pytest.raises(ValueError, match="three runs"):
        ratio_of_sums(trace[:2], grad[:2])


def test_run_average_refuses():
    with pytest.raises(ValueError, match="at least one update"):
        run_average([], batch_size=4)
    with pytest.raises(ValueError, match="at least one update"):
        run_average([[], []], batch_size=4)
    with pytest.raises(ValueError, match="two blocks"):
        run_average([[BlockStatistics([4, 0], [1.0, 1.0], [1.0, 1.0])]], batch_size=4)
    with pytest.raises(ValueError, match="batch_size"):
        run_average([exact_statistics(1, 1, 4)], batch_size=0)
    with pytest.raises(ValueError, match="window"):
        run_average([exact_statistics(1, 1, 4)], batch_size=4, window=0)
    run = [exact_statistics(1, 1, 4)] * 3
    for mixed in ([run, run[0]], [*run, run]):
        with pytest.raises(ValueError, match="runs: updates and lists of updates are mixed"):
            run_average(mixed, batch_size=4)
    with pytest.raises(ValueError, match="batch_size: 1 sizes for 3 updates"):
        run_average(run, batch_size=[4])
    with pytest.raises(ValueError, match="one shape"):
        average_windows(np.ones((3, 2)), np.ones((3, 1)), np.ones((3, 2)), 4)
    with pytest.raises(ValueError, match="batch_size"):
        average_windows(np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 2)), -4)


def test_windows_of_more_updates_count_for_more():
    trace = np.array([[640.0, 200.0], [600.0, 300.0], [640.0, 210.0]])
    grad = np.array([[1.0, 3.0], [1.1, 2.8], [1.0, 3.0]])
    updates = np.array([[5, 5], [5, 1], [5, 5]])
    t, g = (updates * trace).sum(0), (updates * grad).sum(0)
    q = (g + t / 128) / updates.sum(0)  # the mean squared gradient of a batch in that window
    assert average_windows(trace, grad, updates, 128).value == pytest.approx((t / q).sum() / (g / q).sum())


def test_three_runs_have_two_degrees_of_freedom():
    """By the jackknife of the log ratio, leaving out a run at a time."""
    rng = np.random.default_rng(0)
    trace, grad = 640.0 * np.exp(0.1 * rng.normal(size=(3, 4))), np.exp(0.1 * rng.normal(size=(3, 4)))
    found = average_windows(trace, grad, np.full((3, 4), 5), batch_size=128)

    def of(runs):
        t, g = trace[runs].mean(0), grad[runs].mean(0)
        q = g + t / 128
        return (t / q).sum() / (g / q).sum()

    logs = np.log([of(np.delete(np.arange(3), run)) for run in range(3)])
    spread = student.ppf(0.975, 2) * math.sqrt(2 * logs.var())
    assert found.value == pytest.approx(of(np.arange(3)))
    assert found.interval[0] <= found.value * math.exp(-spread) * 1.0001
    assert found.interval[1] >= found.value * math.exp(spread) * 0.9999
