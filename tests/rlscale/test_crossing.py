"""When a goal is reached: planted learning curves whose crossing is known exactly."""

import math

import numpy as np
import pytest

from rlscale.crossing import Evaluated, GoalSearch, find_crossing, is_on_grid, smooth

SPREAD = 3.0  # of one episode's return


def noisy(curve, steps, episodes, rng):
    """An evaluation of the policy after `steps`, whose true mean return is curve(ln steps)."""
    returns = curve(math.log(steps)) + SPREAD * rng.standard_normal(episodes)
    return Evaluated(steps, float(returns.mean()), float(returns.std(ddof=1) / math.sqrt(episodes)), episodes)


def search(curve, goals, rng, *, episodes=128, most=100_000):
    """Run a search against a planted curve; the search, and the steps the run took."""
    found = GoalSearch(goals)
    for steps in range(1, most):
        if found.keep(steps):
            while due := found.due():
                for s in due:
                    assert s >= found.oldest_needed, "asked for a policy that was said to be no longer needed"
                    found.take(noisy(curve, s, episodes, rng))
        if found.finished:
            return found, steps
    return found, most


def test_the_grid_holds_every_step_while_small_and_then_every_six_percent():
    grid = [s for s in range(1, 100_000) if is_on_grid(s)]
    assert grid[:15] == list(range(1, 16))
    ratios = np.diff(np.log(grid[40:]))
    assert ratios == pytest.approx(math.log(1.06), abs=0.02)
    assert not is_on_grid(0)


@pytest.mark.parametrize("bandwidth", [0.05, 0.12, 1.0])
def test_smoothing_leaves_a_straight_line_in_log_steps_as_it_is(bandwidth):
    steps = [1, 2, 3, 5, 10, 11, 12, 50, 53, 56, 900]
    points = [Evaluated(s, 2.0 + 3.0 * math.log(s), 0.1, 8 + s % 3) for s in reversed(steps)]
    at = np.linspace(0, math.log(900), 57)
    assert smooth(points, at, bandwidth) == pytest.approx(2.0 + 3.0 * at, abs=1e-9)


def test_a_crossing_without_noise_is_exact_for_a_straight_line():
    points = [Evaluated(s, math.log(s), 0.0, 128) for s in (80, 85, 90, 95, 101, 107, 113, 120)]
    crossing = find_crossing(points, math.log(100)).optimizer_steps
    assert crossing.value == pytest.approx(100.0, rel=1e-6)
    assert crossing.interval == pytest.approx((100.0, 100.0), rel=1e-6)


def test_a_goal_never_reached_and_one_reached_before_the_first_evaluation_have_no_crossing():
    points = [Evaluated(s, math.log(s), 0.1, 128) for s in (80, 90, 100)]
    assert find_crossing(points, 10.0).optimizer_steps.reason == "the goal was not reached"
    assert find_crossing(points, 1.0).optimizer_steps.reason == "above the goal at the first evaluation"
    with pytest.raises(ValueError, match="at least one"):
        find_crossing([], 1.0)


def rising(x):
    """A return that climbs from 0 to 10 around S = 150."""
    return 10 / (1 + math.exp(-3 * (x - math.log(150))))


def test_the_interval_covers_and_the_crossing_is_not_early():
    rng = np.random.default_rng(1)
    truth = 150.0
    errors, covered = [], 0
    for _ in range(120):
        found, _ = search(rising, [5.0], rng)
        crossing = found.crossings[5.0].optimizer_steps
        errors.append(math.log(crossing.value / truth))
        low, high = crossing.interval
        covered += low <= truth <= high
    assert abs(np.mean(errors)) < 0.01
    assert np.std(errors) < 0.04
    assert covered >= 0.9 * 120


@pytest.mark.parametrize(("scatter", "slope"), [(0.5, 3.0), (1.0, 1.5)])
def test_the_interval_covers_what_policies_scatter_about_the_curve(scatter, slope):
    """Successive policies differ by more than their evaluations do, and the interval has to hold that too."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(150):
        own = {}

        def curve(x, own=own):
            return 10 / (1 + math.exp(-slope * (x - math.log(150)))) + own.setdefault(x, scatter * rng.standard_normal())

        found, _ = search(curve, [5.0], rng)
        low, high = found.crossings[5.0].optimizer_steps.interval
        covered += low <= 150 <= high
    assert covered >= 0.87 * 150


def test_the_first_lucky_evaluation_would_be_early():
    """What the smoothing is for: with few episodes, taking the first evaluation that reaches the goal reads S too low."""
    rng = np.random.default_rng(2)
    first, smoothed = [], []

    def slowly_rising(x):
        return rising(math.log(150) + (x - math.log(150)) / 3)

    for _ in range(60):
        points = [noisy(slowly_rising, s, 8, rng) for s in range(30, 600) if is_on_grid(s)]
        first.append(math.log(next(p.optimizer_steps for p in points if p.return_mean >= 5) / 150))
        smoothed.append(math.log(find_crossing(points, 5.0).optimizer_steps.value / 150))
    assert np.mean(first) < -0.1
    assert abs(np.mean(smoothed)) < 0.5 * abs(np.mean(first))


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_the_same_curve_later_in_log_steps_gives_the_same_crossing_later(shift):
    """Nothing in the answer depends on how many steps a batch size needs, beyond the grid of whole steps."""
    rng = np.random.default_rng(3)
    found, steps = search(lambda x: rising(x - shift), [2.0, 5.0, 8.0], rng)
    assert found.finished
    for goal, crossing in found.crossings.items():
        truth = 150 * math.exp(shift + math.log(goal / (10 - goal)) / 3)
        assert math.log(crossing.optimizer_steps.value / truth) == pytest.approx(0, abs=0.12)
    # The run ends within a few coarse steps of its last goal, and evaluates a small part of its policies.
    assert steps < 1.4 * found.crossings[8.0].optimizer_steps.value
    assert len(found.evaluated) < 90


def test_a_lucky_stretch_is_not_a_crossing():
    def curve(x):
        return 6.0 if 3.6 < x < 3.68 else rising(x)  # two policies, S = 37 and 39, reach the goal, then none until 150

    found, _ = search(curve, [5.0], np.random.default_rng(4))
    assert found.crossings[5.0].optimizer_steps.value == pytest.approx(150, rel=0.15)


def test_a_goal_below_the_first_policy_is_reached_at_once():
    found, steps = search(lambda x: 7.0 + x, [1.0], np.random.default_rng(5))
    assert found.crossings[1.0].optimizer_steps.value == 1.0
    assert steps <= 5


def test_one_lucky_first_policy_does_not_reach_a_goal():
    found = GoalSearch([5.0])
    for steps in (1, 2, 3, 4, 5, 6):
        if found.keep(steps):
            while due := found.due():
                for s in due:
                    found.take(Evaluated(s, 5.1 if s == 1 else 1.0, 0.8, 8))
    assert not found.crossings


def test_a_run_that_stays_below_asks_only_for_coarse_evaluations():
    found, _ = search(lambda x: 0.0, [5.0], np.random.default_rng(6), most=5000)
    assert not found.finished
    assert len(found.evaluated) < 1.2 * math.log(5000) / math.log(1.19) + 2


@pytest.mark.parametrize("goals", [[], [2.0, 1.0], [1.0, 1.0]])
def test_goals_must_ascend(goals):
    with pytest.raises(ValueError, match="ascending"):
        GoalSearch(goals)
