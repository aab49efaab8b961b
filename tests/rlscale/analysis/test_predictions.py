"""The noise scale of several trials together: exact answers, and trials that resolve nothing by themselves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from rungs import BATCH, trial_of

from rlscale.analysis.predictions import geometric_mean, pooled_noise, predict
from rlscale.estimate import Estimate
from rlscale.noise import POOL_WINDOW, RUN_WINDOW


def predicted(trials, head="joint", quantity="cumulative"):
    found, _ = predict(trials, 4.0, BATCH)
    return next((p for p in found if (p.head, p.quantity) == (head, quantity)), None)


def test_trials_are_summed_to_their_own_crossings_before_anything_is_divided():
    """tr Σ = 512, 1,024 and 768; |G|² is 5 in the first window and 1 later. By hand, from the windows before each crossing."""
    long = [trial_of(n, 19.9, [trace] * 4, [5.0, 1.0, 1.0, 9e9]) for n, trace in enumerate((512.0, 1024.0))]
    short = trial_of(2, 10.0, [768.0, 768.0, 9e9, 9e9], [5.0, 1.0, 9e9, 9e9])
    # Per update: Q = 5 + 1.5 in the first window, 1 + 1.5 in the second and, of the first two trials, in the third.
    trace = 15 * (768 / 6.5 + 768 / 2.5) + 10 * 768 / 2.5
    grad = 15 * (5 / 6.5 + 1 / 2.5) + 10 * 1 / 2.5
    found = predicted([*long, short])
    assert found.scale.value == pytest.approx(trace / grad)
    assert found.scale.interval[0] < found.scale.value < found.scale.interval[1]
    assert (found.runs, found.gain) == (3, pytest.approx(1)), "of twenty updates there is one noise scale"


def test_the_gain_of_a_batch_that_follows_the_noise_is_of_sums_over_trials():
    """Twenty updates at a noise scale of 256 and ten at 2,048, of trials none of which shows a signal in all of them."""
    grad = [(-2.0, 3.0), (2.0, -1.0), (6.0, 1.0)]  # a mean of 2, then of 1
    trials = [trial_of(n, 30.0, [512.0] * 4 + [2048.0] * 2, [g] * 4 + [later] * 2) for n, (g, later) in enumerate(grad)]
    steps = np.array([20 / (1 + 256 / BATCH), 10 / (1 + 2048 / BATCH)])
    roots = np.array([16.0, math.sqrt(2048)])
    assert predicted(trials).gain == pytest.approx((roots @ steps) ** 2 / (steps.sum() * (roots**2 @ steps)))
    assert predicted(trials, quantity="goal").gain is None
    unseen = [replace(t, noise_sums=(replace(t.noise_sums[0], grad_sq=(2.0,) * 4 + (-1.0,) * 2),)) for t in trials]
    assert predicted(unseen).gain is None


def test_the_start_and_the_goal_are_the_windows_there():
    few = POOL_WINDOW // RUN_WINDOW
    trials = [trial_of(n, 50.0, [100.0] * few + [500.0] * 2 + [2000.0] * few, [1.0] * (2 * few + 2)) for n in range(3)]
    assert predicted(trials, quantity="start").scale.value == pytest.approx(100)
    assert predicted(trials, quantity="goal").scale.value == pytest.approx(2000)


def test_adams_metric_is_a_quantity_of_its_own():
    plain = [trial_of(n, 20.0, [512.0] * 4, [2.0] * 4) for n in range(3)]
    both = [replace(t, noise_sums=(*t.noise_sums, replace(t.noise_sums[0], metric="adam", trace_cov=(60.0,) * 4))) for t in plain]
    assert predicted(both).scale.value == pytest.approx(256)
    assert predicted(both, quantity="cumulative_adam").scale.value == pytest.approx(30)
    assert predicted(plain, quantity="cumulative_adam") is None


def test_a_trial_that_missed_the_goal_is_left_out_and_two_are_too_few_to_sum():
    trials = [trial_of(n, 20.0, [512.0] * 4, [2.0] * 4) for n in range(3)]
    missed = trial_of(3, None, [9e9] * 4, [2.0] * 4)
    found = predicted([*trials, missed])
    assert found.scale.value == pytest.approx(256)
    assert (found.resolved, found.runs) == (3, 4), "how many of them count is said"
    assert predicted([*trials[:2], missed]).scale.value == pytest.approx(300), "their own figures, as in older records"
    assert predict([missed], 5.0, BATCH) == ((), None)


def test_a_trial_that_ended_at_an_earlier_goal_never_tried_this_one():
    """As in a grid that reached a later goal only when it was extended."""
    trials = [trial_of(number, 20, [300.0] * 4, [1.0] * 4) for number in range(3)]
    earlier = [replace(trial_of(number, None, [600.0] * 4, [1.0] * 4), last_goal=2.0) for number in range(3, 8)]
    found, _ = predict([*trials, *earlier], 4.0, BATCH)
    assert {(one.resolved, one.runs) for one in found} == {(3, 3)}
    missed = [replace(trial, last_goal=4.0) for trial in earlier]
    assert {(one.resolved, one.runs) for one in predict([*trials, *missed], 4.0, BATCH)[0]} == {(3, 8)}


def test_trials_that_are_not_resolved_are_resolved_together_without_bias():
    """A noise scale of 16 batches: a third of the runs resolve it, and the mean of those would read 0.7 of the truth.

    Sixty sweeps of eight runs of 40 updates: |G|² of a window is estimated with an error a little above its size, as in 100
    dimensions of equal noise.
    """
    rng = np.random.default_rng(1)
    truth, windows, error = 16.0 * BATCH, 8, 1.1
    values, covered, alone = [], 0, []
    for _ in range(60):
        trials = []
        for number in range(8):
            grad = 1.0 + error * rng.standard_normal(windows)
            trace = truth * (1 + 0.05 * rng.standard_normal(windows))
            trials.append(trial_of(number, 40.0, trace, grad))
            single = trace.sum() / grad.sum()
            if grad.mean() > 2.36 * error / math.sqrt(windows):
                alone.append(math.log(single / truth))
        found = predicted(trials).scale
        low, high = found.interval
        covered += low <= truth <= high
        values.append(math.log((found.value or high) / truth))
    assert np.mean(alone) < -0.2, "those that resolve by themselves read too low"
    assert abs(np.median(values)) < 0.06
    assert covered >= 54


def test_a_ratio_of_sums_does_not_depend_on_the_batch_of_the_runs():
    """Windows of unequal length count by their updates; the mean over full-batch steps does depend on it."""
    trials = [trial_of(n, 20, [300.0 + n, 100.0, 80.0, 60.0], [1.0, 0.5 + 0.1 * n, 0.2, 0.1]) for n in range(4)]
    larger = [replace(trial, observations=8 * trial.observations) for trial in trials]
    ends = [20.0] * 4
    assert pooled_noise(trials, ends, "joint", "sums") == pooled_noise(larger, ends, "joint", "sums")
    means = [pooled_noise(those, ends, "joint", "cumulative").value for those in (trials, larger)]
    assert means[0] != pytest.approx(means[1], rel=0.01)
    assert pooled_noise(larger, ends, "joint", "cumulative", 8).value == pytest.approx(means[0])
    total = sum(300.0 + n + 240 for n in range(4)) / sum(1.8 + 0.1 * n for n in range(4))
    assert pooled_noise(trials, ends, "joint", "sums").value == pytest.approx(total)


def test_the_mean_over_seeds_of_fewer_runs_says_that_it_is_open_where_one_is_not_resolved():
    found = geometric_mean([Estimate(100.0, (90.0, 120.0)), Estimate(None, (40.0, math.inf), "noise")])
    assert found.interval[1] == math.inf
