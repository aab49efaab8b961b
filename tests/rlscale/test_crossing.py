"""When a goal is reached: planted learning curves whose crossing is known exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlscale.crossing import Evaluated, GoalSearch, choose_goal, earliest_step, find_crossing, is_on_grid, smooth

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
    points = [Evaluated(s, math.log(s), 0.0, 128) for s in (80, 85, 90, 95, 101, 107, 113, 120, 131)]
    crossing = find_crossing(points, math.log(100)).optimizer_steps
    assert crossing.value == pytest.approx(100.0, rel=1e-6)
    assert crossing.interval == pytest.approx((100.0, 100.0), rel=1e-6)


@pytest.mark.parametrize("goal", [500.0, 1.0, 0.98, 0.1, -200.0])
def test_a_goal_that_is_the_best_return_there_is_is_reached(goal):
    """Policies that all return exactly the goal, as CartPole's 500: the curve through them is the goal but for rounding."""
    steps = [s for s in range(1, 400) if is_on_grid(s)]
    always = find_crossing([Evaluated(s, goal, 0.0, 64) for s in steps], goal).optimizer_steps
    assert always.value == pytest.approx(10)
    rising = [Evaluated(s, min(goal, goal + (s - 100) / 10), 0.0, 64) for s in steps]
    later = find_crossing(rising, goal).optimizer_steps
    assert 100 < later.value < 200  # where the smoothing no longer reaches back to those below


@pytest.mark.parametrize(("inner_steps", "earliest"), [(1, 10), (2, 5), (3, 4), (4, 3), (12, 3)])
def test_iterations_of_many_optimizer_steps_count_sooner(inner_steps, earliest):
    """A return of S²: a goal of 25 is reached after five steps, one of 144 after twelve."""
    assert earliest_step(inner_steps) == earliest
    found = GoalSearch([25.0, 144.0], earliest)
    for steps in range(1, 30):
        if found.keep(steps):
            while due := found.due():
                for s in due:
                    found.take(Evaluated(s, float(s * s), 0.0, 64))
    assert min(found.evaluated) == math.ceil(earliest * math.exp(-0.48))
    first, second = (found.crossings[goal].optimizer_steps for goal in (25.0, 144.0))
    if earliest < 5:
        assert first.value == pytest.approx(5.0, rel=0.03)
        assert first.interval[0] > 4.5
    else:
        assert (first.value, first.interval[0]) == (pytest.approx(earliest), 0.0), "the goal may have been held before"
    assert second.value == pytest.approx(12.0, rel=0.03)


def test_a_goal_never_reached_has_no_crossing():
    points = [Evaluated(s, math.log(s), 0.1, 128) for s in (80, 90, 100)]
    assert find_crossing(points, 10.0).optimizer_steps.reason == "the goal was not reached"
    with pytest.raises(ValueError, match="at least one"):
        find_crossing([], 1.0)


def test_a_goal_that_holds_from_the_first_evaluation_is_reached_there_at_the_latest():
    points = [Evaluated(s, math.log(s), 0.1, 128) for s in (80, 90, 100, 110)]
    crossing = find_crossing(points, 1.0).optimizer_steps
    assert crossing.value == pytest.approx(80)
    assert crossing.interval == (0.0, pytest.approx(80))


def test_no_goal_is_reached_below_ten_steps():
    points = [Evaluated(s, math.log(s), 0.01, 128) for s in range(1, 20)]
    crossing = find_crossing(points, math.log(4)).optimizer_steps
    assert crossing.value == pytest.approx(10)
    assert crossing.interval == (0.0, pytest.approx(10))
    assert find_crossing(points, math.log(12)).optimizer_steps.value == pytest.approx(12, rel=0.01)


def test_an_interval_has_no_end_where_the_goal_may_never_have_been_reached():
    """A curve that rises to the goal and stays there: of the curves like it many stay below, as far as they are seen."""
    points = [Evaluated(s, min(0.0, math.log(s / 100)), 0.1, 128) for s in range(40, 160) if is_on_grid(s)]
    crossing = find_crossing(points, -0.003).optimizer_steps
    assert crossing.value is not None
    assert crossing.interval[1] == math.inf


def test_an_interval_reaches_down_to_zero_where_the_goal_may_have_held_from_ten_steps_on():
    """The curve crosses the goal at 11 steps, within two standard errors of what it was at ten."""
    points = [Evaluated(s, math.log(s), 0.2, 128) for s in range(1, 30)]
    crossing = find_crossing(points, math.log(11)).optimizer_steps
    assert crossing.value == pytest.approx(11, rel=0.01)
    assert crossing.interval[0] == 0.0
    assert 11 < crossing.interval[1] < 20


def test_a_transient_policy_of_the_first_steps_reaches_nothing():
    """What MinAtar's Freeway gave at a batch of 8,192: one policy that passed the goal, after two optimizer steps."""
    returns = {1: (0.73, 0.08), 2: (5.02, 0.20), 3: (0.68, 0.08), 4: (0.35, 0.06)}
    points = [Evaluated(s, *returns.get(s, (0.4, 0.07)), 128) for s in range(1, 40)]
    found = GoalSearch([2.0])
    for steps in range(1, 40):
        if found.keep(steps):
            while due := found.due():
                for s in due:
                    found.take(points[s - 1])
    assert not found.crossings
    assert found.not_before(2.0) == pytest.approx(found.settled)
    assert min(found.evaluated) == 7, "the curve at ten steps, where goals may first be reached, does not depend on fewer"
    assert smooth(points, np.log([10.0])) == pytest.approx(smooth(points[6:], np.log([10.0])), abs=1e-3)
    reason = find_crossing(points, 2.0).optimizer_steps.reason
    assert reason == "the goal was passed and did not hold over the next 30% of the steps"


@pytest.mark.parametrize(("errors", "reached"), [(1.9, 100), (2.1, 180)])
def test_a_crossing_counts_where_the_goal_holds_less_two_standard_errors(errors, reached):
    """After 100 steps the return passes the goal, and from 105 to 180 it dips below it.

    Half-way between two policies the curve is their mean, with an error of 0.1/√2.
    """
    dip = errors * 0.1 / math.sqrt(2)

    def curve(steps):
        return 1.0 if 100 <= steps < 105 or steps >= 180 else 1.0 - dip if steps >= 105 else 0.0

    points = [Evaluated(s, curve(s), 0.1, 128) for s in range(60, 300, 2)]
    narrow = 0.002  # a kernel within one step of the grid: the curve goes through the points
    assert find_crossing(points, 0.999, bandwidth=narrow).optimizer_steps.value == pytest.approx(reached, abs=2)


def test_a_run_that_has_just_passed_a_goal_is_known_to_have_been_below_it_until_then():
    found = GoalSearch([5.0])
    for steps in range(1, 115):
        if found.keep(steps):
            while due := found.due():
                for s in due:
                    found.take(Evaluated(s, 6.0 if s >= 100 else 0.0, 0.1, 128))
    assert not found.crossings
    assert 80 < found.not_before(5.0) < 100
    assert "were not seen to their end" in find_crossing(list(found.evaluated.values()), 5.0).optimizer_steps.reason


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
    assert found.crossings[1.0].optimizer_steps.value == pytest.approx(10)
    assert steps <= 14


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


@pytest.mark.parametrize(("errors", "asked"), [(1.9, [22, 23, 26, 28, 29, 33, 35, 39]), (2.1, [])])
def test_the_policies_around_one_that_might_reach_a_goal_are_evaluated(errors, asked):
    """Of 25, 31 and 37 steps only the middle one comes near, by so many standard errors of its evaluation."""
    found = GoalSearch([5.0])
    for steps in range(1, 40):
        found.keep(steps)
    assert found.due() == [25, 31, 37]
    for steps, mean in ((25, 0.0), (31, 5.0 - errors * 0.1), (37, 0.0)):
        found.take(Evaluated(steps, mean, 0.1, 128))
    assert found.due() == asked


def test_training_episodes_stand_in_for_evaluations():
    """Steps from 30 on are spared: their training episodes say where the goal was reached, and no policy is evaluated."""
    found, rng, asked = GoalSearch([5.0]), np.random.default_rng(8), []
    for steps in range(1, 1000):
        if found.finished:
            break
        if found.keep(steps):
            if steps >= 30:
                found.spare(steps)
                found.take(replace(noisy(rising, steps, 64, rng), training=True))
            while due := found.due():
                asked += due
                for s in due:
                    found.take(noisy(rising, s, 64, rng))
    assert max(asked) < 30
    assert found.crossings[5.0].optimizer_steps.value == pytest.approx(150, rel=0.05)


def test_the_goal_that_is_chosen_lies_where_the_curve_is_steepest_for_its_noise():
    """A return that creeps to 20 up to 200 steps, rises to 100 until 300, and creeps on."""

    def cliff(steps):
        return float(np.interp(math.log(steps), np.log([12, 200, 300, 2000]), [10.0, 20.0, 100.0, 110.0]))

    points = [Evaluated(round(12 * 1.2**k), cliff(round(12 * 1.2**k)), 3.0, 16) for k in range(28)]
    chosen = choose_goal(points)
    assert 30 < chosen.goal < 90
    assert chosen == find_crossing(points, chosen.goal)
    noise_below = [replace(point, return_error=30.0 if point.return_mean < 90 else 0.5) for point in points]
    assert choose_goal(noise_below).goal >= 70, "the narrowest interval is where the noise is small"
    assert choose_goal(points, worth=300).optimizer_steps.value >= 300


def test_intervals_of_goals_are_compared_as_ratios():
    """Two cliffs, the later one with less noise: its interval is the narrower one in ln S, and the wider one in steps."""
    steps = [round(12 * 1.1**k) for k in range(70)]
    height = np.interp(np.log(steps), np.log([12, 80, 120, 2000, 2300, 9000]), [10.0, 10.0, 50.0, 50.0, 90.0, 90.0])
    points = [Evaluated(s, float(r), 8.0 if s < 500 else 2.0, 16) for s, r in zip(steps, height, strict=True)]
    early, late = (find_crossing(points, goal).optimizer_steps.interval for goal in (30.0, 70.0))
    assert late[1] / late[0] < early[1] / early[0]
    assert late[1] - late[0] > early[1] - early[0]
    assert choose_goal(points).goal > 50


def test_no_goal_is_chosen_where_none_is_told():
    flat = [Evaluated(round(12 * 1.2**k), 5.0, 1.0, 16) for k in range(20)]
    early = [Evaluated(s, 10.0 if s < 30 else 50.0, 1.0, 16) for s in (10, 15, 20, 25, 30, 36, 43, 52, 62)]
    late = [Evaluated(s, 10.0 if s < 2000 else 50.0, 1.0, 16) for s in (100, 200, 400, 800, 1600, 2000)]
    assert choose_goal(flat) is None
    assert choose_goal(early) is None, "fewer than fifty steps are few for a sweep"
    assert choose_goal(early, worth=10).optimizer_steps.value < 36
    assert choose_goal(late) is None, "it has not been held yet"
    assert choose_goal(flat[:1]) is None


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (Evaluated(0, 1.0, 0.1, 16), "a step of 1 or more"),
        (Evaluated(5, math.nan, 0.1, 16), "a finite mean"),
        (Evaluated(5, 1.0, math.nan, 1), "a finite error"),
        (Evaluated(5, 1.0, 0.1, 0), "an episode"),
        (Evaluated(5, 1.0, 0.1, math.nan), "an episode"),
        (Evaluated(math.inf, 1.0, 0.1, 16), "a step of 1 or more"),
        (Evaluated(math.nan, 1.0, 0.1, 16), "a step of 1 or more"),
        (Evaluated(80, 1.0, 0.1, 16), "two evaluations at one step"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(wrong, word):
    """It would make a goal that was held one that was not."""
    points = [Evaluated(s, math.log(s), 0.1, 128) for s in (60, 70, 80, 90, 100)]
    with pytest.raises(ValueError, match=f"points: .*{word}"):
        find_crossing([*points, wrong], 4.3)
    for settings in ({"bandwidth": 0.0}, {"earliest": 0}):
        with pytest.raises(ValueError, match="bandwidth must be positive, and earliest 1 or more"):
            find_crossing(points, 4.3, **settings)


@pytest.mark.parametrize("goals", [[], [2.0, 1.0], [1.0, 1.0]])
def test_goals_must_ascend(goals):
    with pytest.raises(ValueError, match="ascending"):
        GoalSearch(goals)


def straight(scatter, far=0.0):
    """Exact evaluations of a return that grows by 10 with ln S, every second policy `scatter` above it and the others below."""
    steps = [s for s in range(30, 1000) if is_on_grid(s)]
    own = [(scatter if abs(math.log(s / 150)) < 0.6 else far) * (-1) ** number for number, s in enumerate(steps)]
    return [Evaluated(s, 10 * math.log(s / 150) + d, 0.0, 128) for s, d in zip(steps, own, strict=True)]


def test_the_interval_is_as_wide_as_policies_scatter_about_the_curve_near_the_crossing():
    """±0.2 of single policies is an error of the smoothed curve of 0.2 √Σw², so ±1.96 of that over the slope of 10, in ln S."""
    points = straight(0.2)
    low, high = find_crossing(points, 0.0).optimizer_steps.interval
    x = np.log([p.optimizer_steps for p in points])
    unit = np.eye(len(points))
    weights = [
        smooth([replace(p, return_mean=float(e)) for p, e in zip(points, row, strict=True)], np.array([math.log(150)]))[0]
        for row in unit
    ]
    assert len(x) == len(weights)
    expected = 2 * 1.96 * 0.2 * math.sqrt(sum(w * w for w in weights)) / 10
    assert math.log(high / low) == pytest.approx(expected, rel=0.15)
    scattered = find_crossing(straight(0.2, far=2.0), 0.0).optimizer_steps.interval
    assert math.log(scattered[1] / scattered[0]) == pytest.approx(math.log(high / low), rel=0.15), (
        "far policies count for nothing"
    )
