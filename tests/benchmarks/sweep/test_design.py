"""Which run comes next, where that can be said by hand."""

import math

import numpy as np
import pytest
from planted import failing_rates

from rlscale.benchmarks.sweep.design import (
    _BENT,
    _KNOWN,
    RunSoFar,
    _information,
    _is_sharp,
    _sharpest,
    _slopes,
    _stays_open,
    fit_known,
    next_run,
)
from rlscale.frontier import response

SIZES = tuple(5 * 2**j for j in range(14))


def pilot(*runs):
    """Runs at 640 observations; one that missed the goal spent 1,600 steps."""
    return [RunSoFar(640, rate, steps, min(steps, 1600) * 640, n) for n, (rate, steps) in enumerate(runs)]


PILOT = pilot((0.01, 400), (0.04, math.inf), (0.0025, 900))


def following(runs, noise_scale, most_observations=math.inf):
    course = {"noise_scale": noise_scale, "sizes": SIZES, "most_observations": most_observations, "ratio": 2.0}
    return next_run(runs, pilot_size=640, pilot_rate=0.01, **course)


@pytest.mark.parametrize(
    ("noise_scale", "smallest"), [(640.0, 80), (10_000.0, 1280), (None, 80), (320.0, 40), (40.0, 40), (0.5, 40)]
)
def test_the_span_begins_at_an_eighth_of_the_noise_scale_or_of_half_the_pilots_size(noise_scale, smallest):
    """A run at five observations would take 128 times the pilot's steps: no noise scale of the pilot is worth that."""
    first = following(PILOT, noise_scale)
    assert (first.stage, first.batch_size) == ("span", smallest)


def test_a_rate_that_costs_more_for_each_run_that_arrives_is_left():
    """The pilot's fastest rate may be one beyond which most seeds fail: on MinAtar Breakout nine of twelve runs at it did."""
    brink = pilot((0.01, 440), (0.04, 400), (0.0025, 900))
    first = following(brink, 640.0)
    assert first.learning_rate == pytest.approx(0.04 * math.sqrt(80 / 640), rel=1e-3)
    missed = RunSoFar(80, first.learning_rate, math.inf, first.most_steps * 80, 3)
    # Two runs for five expected ones there, one for 1.1 at the first rate: 5 against 1.1 a run that arrives.
    assert following([*brink, missed], 640.0).learning_rate == pytest.approx(0.01 * math.sqrt(160 / 640), rel=1e-3)
    arrived = RunSoFar(80, first.learning_rate, 2800, 2800 * 80, 3)
    assert following([*brink, arrived], 640.0).learning_rate == pytest.approx(0.04 * math.sqrt(160 / 640), rel=1e-3)


def test_runs_that_arrive_and_runs_that_fail_are_weighed_by_their_steps():
    """Of the fastest rate, 1 + 4 for the one that failed + 2,800 of 3,200 steps, over two: 2.94, against 2.75 and 3.1."""
    for steps, rate in ((1100, 0.01), (1240, 0.04)):
        runs = pilot((0.01, steps), (0.04, 400), (0.0025, 9000))
        small = 0.04 * math.sqrt(80 / 640)
        runs += [RunSoFar(80, small, math.inf, 12_800 * 80, 3), RunSoFar(80, small, 2800, 2800 * 80, 4)]
        assert following(runs, 640.0).learning_rate == pytest.approx(rate * math.sqrt(160 / 640), rel=1e-3)


def test_the_second_run_of_a_size_is_an_octave_off_above_or_below():
    """Of sizes in turn, because too high a rate fails: the other two runs of a size are at the cheapest rate known."""
    runs = [*PILOT]
    octaves_off = []
    while (planned := following(runs, 640.0)) is not None and planned.stage == "span":
        known = fit_known(runs)
        if known is not None:
            octaves_off.append(math.log2(planned.learning_rate / known.cheapest_rate(planned.batch_size)))
        steps = 200 * (1 + 640 / planned.batch_size)
        runs.append(RunSoFar(planned.batch_size, planned.learning_rate, steps, steps * planned.batch_size, len(runs)))
    assert octaves_off == pytest.approx([round(off) for off in octaves_off], abs=0.01)
    assert {round(off) for off in octaves_off} == {-1, 0, 1}
    assert sum(abs(off) < 0.1 for off in octaves_off) > len(octaves_off) / 2


def test_an_unknown_surface_is_spanned_at_the_pilots_fastest_rate():
    first = following(PILOT, 640.0)
    assert first.learning_rate == pytest.approx(0.01 * math.sqrt(80 / 640), rel=1e-3)
    assert first.most_steps == 2.5 * 400 * 640 / 80


def test_the_cheapest_rate_keeps_off_a_brink_beside_the_best_one():
    """Runs a third above the best rate fail half of the time: a run there costs the patience of four runs."""
    near, far = [*PILOT[:1]], [*PILOT[:1]]
    for number in range(60):
        size, octave = (80, 320, 1280, 5120)[number % 4], (-2, -1, 0, 0.5, 1)[number % 5]
        steps = 200 * (1 + 640 / size) * math.exp(0.15 * (octave * math.log(2)) ** 2)
        rate = 0.01 * math.sqrt(size / 640) * 2**octave
        missed = RunSoFar(size, rate, math.inf, 4 * steps * size, number)
        made = RunSoFar(size, rate, steps, steps * size, number)
        far.append(made)
        near.append(missed if octave >= 0.5 and number % 2 else made)
    near, far = fit_known(near), fit_known(far)
    assert far.cheapest_rate(640) == pytest.approx(far.best_rate(640), rel=0.1)
    assert near.cheapest_rate(640) < 0.85 * near.best_rate(640)


def finished(most_observations, b_crit=2400, s_min=150, most_runs=120):
    """A sweep whose runs take what they are expected to, up to their budget, and the run after its last; None where it ended."""
    runs = [*PILOT]
    while len(runs) < most_runs and (planned := following(runs, float(b_crit), most_observations)) is not None:
        size, octave = planned.batch_size, math.log2(planned.learning_rate / 0.01 / math.sqrt(planned.batch_size / 640))
        scatter = 0.1 * math.sin(7.0 * len(runs))
        steps = s_min * (1 + b_crit / size) * math.exp(0.15 * (octave * math.log(2)) ** 2 + scatter)
        spent = min(steps * size, most_observations, planned.most_steps * size)
        runs.append(RunSoFar(size, planned.learning_rate, steps if spent == steps * size else math.inf, spent, len(runs)))
    return runs, planned


def test_no_run_is_spent_on_a_size_at_which_the_budget_ends_before_the_goal():
    """Of S_min 150 and B_crit 2,400: at B = 20,480 the goal takes 3.4 million observations, and a run may have 3 million."""
    runs, after = finished(3_000_000)
    assert max(run.batch_size for run in runs) == 10_240
    assert all(math.isfinite(run.optimizer_steps) for run in runs[len(PILOT) :])
    assert after is None, "the sweep ends although the largest size of its span is out of reach"
    rich, _ = finished(math.inf)
    assert max(run.batch_size for run in rich) == 20_480


@pytest.mark.parametrize(("b_crit", "s_min", "budget"), [(40_000, 6.3, 300_000), (20_000, 12, 450_000)])
def test_a_sweep_ends_whose_frontier_bends_beyond_the_sizes_that_it_can_afford(b_crit, s_min, budget):
    """At the sizes at which a run's budget suffices S falls nearly as 1/B, however many runs there are."""
    runs, after = finished(budget, b_crit=b_crit, s_min=s_min)
    assert after is None
    assert len(runs) == 60
    low, high = fit_known(runs).interval()
    assert high == math.inf
    assert math.exp(low) < b_crit
    rich, _ = finished(20 * budget, b_crit=b_crit, s_min=s_min, most_runs=60)
    assert max(run.batch_size for run in rich) > 2 * max(run.batch_size for run in runs[-20:])
    assert fit_known(rich).interval()[1] < math.inf, "with twenty times the budget the frontier's bend is seen"
    assert not _stays_open(fit_known(rich), rich * 3, 100), "a bend that was seen is not open, wherever the sizes end now"


@pytest.mark.parametrize("budget", [1.2, 1.5, 2.0, 3.0, 6.0])
@pytest.mark.parametrize(("noise_scale", "b_crit"), [(640.0, 640), (10_000.0, 640), (10_000.0, 5120), (40.0, 40)])
def test_a_tight_budget_still_leaves_three_sizes_to_try(budget, noise_scale, b_crit):
    """Budget: in observations of the pilot at its best rate. Sizes up to its own take fewer observations than it did."""
    runs = [*PILOT]
    for number in range(3, 9):
        planned = following(runs, noise_scale, budget * 400 * 640)
        assert planned.stage == "span"
        steps = 400 / (1 + b_crit / 640) * (1 + b_crit / planned.batch_size)
        reached = steps * planned.batch_size < budget * 400 * 640
        runs.append(RunSoFar(planned.batch_size, planned.learning_rate, steps if reached else math.inf, 1e5, number))
    reached = {run.batch_size for run in runs if math.isfinite(run.optimizer_steps)}
    assert len(reached) >= 3
    assert max(reached) >= 8 * min(reached), "so that the frontier can bend between them"


@pytest.mark.parametrize("least", [160, 320, 640])
@pytest.mark.parametrize("reaches", [1.0, 0.3])
def test_three_sizes_are_tried_where_the_budget_is_known_to_suffice_for_two(least, reaches):
    """The pilot is at the smallest sizes and took half of the budget: no larger size than twice its own is expected to reach.

    If the third does not reach the goal either, no surface ever comes of it, and the sweep ends.
    """
    budget, b_crit = 2 * 400 * 640, 640 * reaches
    runs, sizes = [*PILOT], [least * 2**j for j in range(8)]
    course = {"noise_scale": 640.0, "sizes": sizes, "most_observations": budget, "ratio": 2.0}
    while planned := next_run(runs, pilot_size=640, pilot_rate=0.01, **course):
        steps = 400 / (1 + b_crit / 640) * (1 + b_crit / planned.batch_size)
        reached = steps * planned.batch_size < budget
        runs.append(RunSoFar(planned.batch_size, planned.learning_rate, steps if reached else math.inf, 1e5, len(runs)))
        if fit_known(runs):
            break
    assert len({run.batch_size for run in runs}) >= 3
    assert len(runs) <= 3 + 6 * 5


def test_what_reached_the_goal_is_within_the_budget_whatever_the_surface_says():
    """Every run at 80 to 320 reached the goal with 0.9 of its budget, and the surface expects 1.1 of two thirds at 80."""
    s_min, b_crit = 500.0, 2000.0
    budget = 1.35 * s_min * b_crit
    runs = []
    for number, (size, octave) in enumerate([(320, 0), (320, 1), (320, -1), *[(80, 0), (160, 0), (320, 0)] * 2]):
        steps = s_min * (1 + b_crit / size) * math.exp(0.05 * octave**2 + 0.02 * math.sin(7.0 * number))
        runs.append(RunSoFar(size, 0.01 * math.sqrt(size / 640) * 2.0**octave, steps, steps * size, number))
    assert following(runs, b_crit, budget).batch_size >= 40


@pytest.mark.parametrize(("ratio", "shape_too"), [(2.0, True), (4.0, True), (8.0, False)])
def test_the_next_run_is_the_one_that_sharpens_most_for_its_cost(ratio, shape_too):
    """By the formulas written out: the fall of a variance by one more run (Sherman and Morrison), over (B + 256) · S.

    No run is made for the exponent's sake once there are 90 at ratio 2, which are 22 at ratio 4 and 10 at ratio 8.
    """
    wanted = [(_KNOWN, response.C, (math.log(ratio) / 4) ** 2), (_BENT, response.ALPHA, (0.095 * math.log(ratio)) ** 2)]
    runs = [*PILOT]
    while (planned := following(runs, 640.0)) is not None and planned.stage == "span":
        steps = 200 * (1 + 640 / planned.batch_size) * (1 + 0.2 * math.sin(5.0 * len(runs)))
        runs.append(RunSoFar(planned.batch_size, planned.learning_rate, steps, steps * planned.batch_size, len(runs)))
    known, sizes = fit_known(runs), [40 * 2**k for k in range(10)]
    made = np.log([[run.batch_size, run.learning_rate] for run in runs])
    assert 10 < len(runs) < 22
    size, rate = _sharpest(known, runs, sizes, ratio)
    best = None
    for one in sizes:
        for half_octaves in range(-4, 4):
            own, fall_per_cost = known.best_rate(one) * 2 ** (half_octaves / 2), 0.0
            x = np.log([[one, own]])
            for draw in np.random.default_rng(0).standard_normal((12, len(_KNOWN))):
                moved = known.theta.copy()
                moved[_KNOWN] += np.linalg.cholesky(np.linalg.inv(_information(known.theta, made, known, _KNOWN))) @ np.clip(
                    draw, -2, 2
                )
                expected = _slopes(moved, x, known)[2][0]
                for indices, parameter, enough in wanted if shape_too else wanted[:1]:
                    place = indices.index(parameter)
                    before = np.linalg.inv(_information(moved, made, known, indices))[place, place]
                    after = np.linalg.inv(_information(moved, np.vstack([made, x]), known, indices))[place, place]
                    fall_per_cost += (before - after) / enough / expected
            if best is None or fall_per_cost > best[0]:
                best = (fall_per_cost, one, own)
    assert (size, rate) == (best[1], pytest.approx(best[2]))
    # At the best rate a run costs its steps, or two and a half times as many where it is stuck.
    at_best = np.log([[one, known.best_rate(one)] for one in sizes])
    stuck = response.stuck_share(
        known.theta, np.zeros(len(sizes)), np.minimum(known.best.runs.nearness_to_ends(at_best[:, 0]), 2.0)
    )
    expected = [(one + 256) * known.steps(one) * (1 + 1.5 * share) for one, share in zip(sizes, stuck, strict=True)]
    assert _slopes(known.theta, at_best, known)[2].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("seed", "sharp"), [(0, False), (3, True)])
def test_no_sweep_is_sharp_whose_page_will_have_no_figure(seed, sharp):
    """Steps that fall with the rate until runs fail: the fitted best rates are far from all that reached the goal, or near."""
    sizes, rates, steps, observations = (10 * [*column] for column in failing_rates(seed))
    runs = [RunSoFar(int(b), r, s, e, n) for n, (b, r, s, e) in enumerate(zip(sizes, rates, steps, observations, strict=True))]
    known = fit_known(runs)
    assert known.interval()[1] - known.interval()[0] < math.log(2)
    assert _is_sharp(known, runs, 2.0, 5) == sharp
