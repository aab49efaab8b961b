"""The plan of a sweep: which runs follow from which results, and a problem with a known critical batch size run through it."""

import itertools
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from regressions import NOISE_SCALE, Regression

from rlscale.agents.learning.results import NoiseRecord
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan, parse_sizes
from rlscale.benchmarks.sweep.trial import _gain, _noise_at_goals, run_trial
from rlscale.crossing import Crossing, GoalSearch
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.frontier import fit
from rlscale.noise import BlockStatistics
from rlscale.records.trial import GoalCrossing, TrialResult

CARTPOLE = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), batch_sizes="64..1024", goals=(100.0, 200.0)))


def reached(plan, trial, optimum=0.0, spread=0.02, best=None):
    """A result as a run would give it: S = 100 (1 + 500/B), worse away from the best rate."""
    noise = np.random.default_rng([trial.batch_size, trial.rate_index + 50, trial.seed]).normal(0, spread)
    steps = 100 * (1 + 500 / trial.batch_size) * math.exp(0.1 * (trial.rate_index - optimum) ** 2 + noise)
    found = trial.most_optimizer_steps is None or steps <= trial.most_optimizer_steps
    goals = [
        goal_at(goal, steps * share if found or share < 0.5 else None) for goal, share in zip(plan.goals, (0.4, 1.0), strict=True)
    ]
    return result_of(trial, goals, math.ceil(steps if found else trial.most_optimizer_steps))


def goal_at(goal, steps):
    """A goal reached after so many steps, or missed."""
    return GoalCrossing(goal, steps, None, None if steps is None else 1.0, None)


def result_of(trial, goals, optimizer_steps):
    return TrialResult(**asdict(trial), state="finished", reason=None, goals=tuple(goals), optimizer_steps=optimizer_steps)


def complete(plan, respond, order=None):
    """Run the plan to its end, one result at a time in random order; the results."""
    rng = np.random.default_rng(order)
    results = {}
    while waiting := plan.next_trials(results):
        trial = waiting[rng.integers(len(waiting))]
        assert trial.id not in results
        results[trial.id] = respond(plan, trial)
    return results


def test_the_order_in_which_runs_end_changes_nothing():
    finished = [complete(CARTPOLE, reached, order) for order in range(8)]
    trials = [{t.id: t for t in CARTPOLE.trials(results)} for results in finished]
    assert all(other == trials[0] for other in trials[1:])
    assert all(other == finished[0] for other in finished[1:])


def test_every_size_gets_as_many_rates_and_fresh_seeds_at_the_chosen_one_and_its_neighbours():
    results = complete(CARTPOLE, reached)
    for size in CARTPOLE.batch_sizes:
        mine = [t for t in CARTPOLE.trials(results) if t.batch_size == size]
        assert [t.stage for t in mine].count("coarse") == 5
        assert sorted(t.rate_index for t in mine if t.stage == "coarse") == [-4, -2, 0, 2, 4]
        assert sorted(t.rate_index for t in mine if t.stage == "fine") == [-1, 1]
        final = [t for t in mine if t.stage in ("final", "neighbour")]
        assert {t.seed for t in final} == {1, 2, 3}
        assert {t.seed for t in mine if t not in final} == {0}
        chosen = CARTPOLE.choice(size, results).rate_index
        assert sorted({t.rate_index for t in final}) == [chosen - 1, chosen, chosen + 1]
        assert {t.rate_index for t in final if t.stage == "final"} == {chosen}
        assert {t.rate_index for t in final if t.measures_noise} == ({chosen} if size == CARTPOLE.noise_batch else set())
        assert not CARTPOLE.choice(size, results).on_edge


@pytest.mark.parametrize(("optimum", "tried", "edge"), [(7.0, 8, False), (-6.0, -8, False), (14.0, 10, True)])
def test_the_grid_is_widened_while_the_best_rate_lies_on_its_edge(optimum, tried, edge):
    plan = replace(CARTPOLE, batch_sizes=(256,))
    results = complete(plan, lambda plan, trial: reached(plan, replace(trial, most_optimizer_steps=None), optimum, 0.0))
    coarse = [t.rate_index for t in plan.trials(results) if t.stage == "coarse"]
    assert (max(coarse) if optimum > 0 else min(coarse)) == tried
    assert plan.choice(256, results).on_edge == edge
    if not edge:
        assert plan.choice(256, results).rate_index == optimum


def test_limits_follow_from_named_results_only():
    results = {}
    first = CARTPOLE.next_trials(results)
    assert [(t.batch_size, t.rate_index, t.most_optimizer_steps) for t in first] == [(1024, 0, None)]
    results[first[0].id] = reached(CARTPOLE, first[0])
    steps = results[first[0].id].goals[-1].optimizer_steps
    following = CARTPOLE.next_trials(results)
    siblings = [t for t in following if t.batch_size == 1024]
    assert {t.rate_index for t in siblings} == {-4, -2, 2, 4}
    assert {t.most_optimizer_steps for t in siblings} == {math.ceil(2.5 * steps)}
    smaller = [t for t in following if t.batch_size < 1024]
    assert [(t.batch_size, t.most_optimizer_steps) for t in smaller] == [(256, math.ceil(4 * steps * 4))]
    assert all(first[0].id in t.limit for t in following)


def test_a_failed_run_is_passed_over_and_a_size_without_any_goal_ends_with_its_coarse_runs():
    plan = replace(CARTPOLE, batch_sizes=(64, 256))

    def respond(plan, trial):
        if trial.batch_size == 64:
            return result_of(trial, [goal_at(goal, None) for goal in plan.goals], 9)
        return result_of(trial, [], 0) if trial.rate_index == 0 else reached(plan, trial, spread=0.0)

    results = complete(plan, respond)
    assert [t.stage for t in plan.trials(results) if t.batch_size == 64] == ["coarse"] * 5
    assert plan.choice(64, results).rate_index is None
    assert abs(plan.choice(256, results).rate_index) == 1
    assert sum(t.stage in ("final", "neighbour") for t in plan.trials(results) if t.batch_size == 256) == 9


def test_the_grid_is_centred_as_the_plan_says():
    plan = replace(CARTPOLE, rate_batch=512.0, rate_exponent=0.5)
    rate = plan.config.update.learning_rate
    assert plan.learning_rate(512, 0) == pytest.approx(rate / math.sqrt(2), rel=1e-3)
    assert plan.learning_rate(64, 0) == pytest.approx(rate / 3, rel=1e-3)
    assert plan.learning_rate(64, 2) == pytest.approx(2 * rate / 3, rel=1e-3)


def test_a_lucky_run_on_the_brink_is_not_chosen():
    """Two octaves above the optimum one run happens to be the fastest of all; its neighbours miss the goal."""
    plan = replace(CARTPOLE, batch_sizes=(256,))

    def respond(plan, trial):
        if trial.rate_index == 4 and trial.seed == 0:
            lucky = reached(plan, replace(trial, rate_index=0, most_optimizer_steps=None), spread=0.0)
            return result_of(trial, lucky.goals, lucky.optimizer_steps)
        if trial.rate_index > 2:
            return result_of(trial, reached(plan, replace(trial, most_optimizer_steps=24)).goals, 600)
        return reached(plan, replace(trial, most_optimizer_steps=None), spread=0.1)

    results = complete(plan, respond)
    assert plan.choice(256, results).rate_index in (-2, -1, 0, 1)
    assert {t.rate_index for t in plan.trials(results) if t.stage == "fine"} >= {3, 5}, "the lucky run was looked into"


def test_a_plan_is_plain_data_and_tells_plans_apart():
    stored = CARTPOLE.to_dict()
    assert json.loads(json.dumps(stored)) == stored
    assert stored != replace(CARTPOLE, seeds=2).to_dict()


def test_trial_names_are_stable_and_distinct():
    results = complete(CARTPOLE, reached)
    names = [t.id for t in CARTPOLE.trials(results)]
    assert len(set(names)) == len(names)
    assert "b256-k-2-s0" in names
    assert next(t.seed for t in CARTPOLE.trials(results) if t.id == "b256-k+0-s2") == 2


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("32..32768", (32, 128, 512, 2048, 8192, 32768)), ("64..300x2", (64, 128, 256)), ("512, 128", (128, 512)), ("64", (64,))],
)
def test_batch_sizes_as_people_write_them(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a..b", "512..32", "32..64x1", "0,4", "32-64"])
def test_batch_sizes_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="--batch-sizes"):
        parse_sizes(text)


def sweep_regression(step_size, clones, sizes=tuple(4**i for i in range(7))):
    """Linear regression through the sweep's own plan and trials; the plan and its results."""
    update = replace(CARTPOLE.config.update, learning_rate=step_size)
    plan = replace(
        CARTPOLE,
        config=replace(CARTPOLE.config, update=update),
        batch_sizes=tuple(clones * size for size in sizes),
        goals=(2.0,),
        rates=1,
        rate_batch=float(NOISE_SCALE * clones),
        rate_exponent=1.0,
        seeds=2,
        most_observations=10**9,
        noise_batch=256 * clones,
    )

    def respond(plan, trial):
        blocks = 32 if trial.measures_noise else 0
        return run_trial(
            trial,
            goals=plan.goals,
            most_observations=plan.most_observations,
            make_course=lambda: Regression(trial.batch_size, trial.learning_rate, trial.seed, clones, blocks),
        )

    return plan, complete(plan, respond)


def frontier_of(results):
    final = [r for r in results.values() if r.stage == "final"]
    assert all(r.state == "finished" for r in final)
    steps = [r.goals[0].optimizer_steps for r in final]
    return fit([r.batch_size for r in final], steps, group=[r.seed for r in final])


@pytest.fixture(scope="module")
def small_steps():
    return sweep_regression(0.03, clones=1)


def test_a_known_critical_batch_size_comes_out_of_real_runs(small_steps):
    """S = ln 100 / -ln(1 - (2η - η²)/(1 + 51/B)): fitted over 4⁰ … 4⁶, η = 0.03 gives B_crit 52.6 and S_min 75.6."""
    frontier = frontier_of(small_steps[1])
    assert frontier.b_crit.value == pytest.approx(52.6, rel=0.1)
    assert frontier.s_min.value == pytest.approx(75.6, rel=0.05)


def test_the_noise_measured_on_the_way_predicts_it(small_steps):
    plan, results = small_steps
    noise = [n for r in results.values() if r.batch_size == plan.noise_batch for n in r.noise]
    cumulative = [n.value for n in noise if n.quantity == "cumulative"]
    assert len(cumulative) == 2
    assert np.mean(cumulative) == pytest.approx(NOISE_SCALE, rel=0.15)
    assert [n.gain for n in noise if n.quantity == "cumulative"] == pytest.approx([1.0, 1.0], abs=0.05)


def test_steps_of_the_largest_size_show_a_frontier_that_only_the_step_size_made():
    """η = 1 gives B_crit 217 although the noise scale is 51, with S_min ≈ 1 as the warning sign."""
    frontier = frontier_of(sweep_regression(1.0, clones=1)[1])
    assert frontier.b_crit.value == pytest.approx(217, rel=0.1)
    assert frontier.s_min.value == pytest.approx(1.0, abs=0.3)


def test_cloned_observations_multiply_the_critical_batch_size_and_leave_the_steps(small_steps):
    _, results = sweep_regression(0.03, clones=4)
    plain, cloned = frontier_of(small_steps[1]), frontier_of(results)
    assert cloned.b_crit.value == pytest.approx(4 * plain.b_crit.value, rel=1e-6)
    assert cloned.s_min.value == pytest.approx(plain.s_min.value, rel=1e-6)
    by_size = itertools.groupby(sorted(results.values(), key=lambda r: r.batch_size), key=lambda r: r.batch_size)
    for size, runs in by_size:
        steps = sorted(r.goals[0].optimizer_steps for r in runs)
        same = sorted(r.goals[0].optimizer_steps for r in small_steps[1].values() if r.batch_size == size // 4)
        assert steps == pytest.approx(same, rel=1e-9)


def statistics(scale, blocks=4, size=25):
    """A batch of 100 observations with tr Σ = scale and |G|² = 1, exactly."""
    return BlockStatistics([size] * blocks, [1 + scale / size] * blocks, [1 + scale / (blocks * size)] * blocks)


DRIFT = [statistics(10)] * 20 + [statistics(1000)] * 20
FULL_BATCH_STEPS = 20 / 1.1, 20 / 11  # that 20 updates make at B = 100 and noise scales of 10 and 1,000


def test_the_gain_weighs_stretches_by_full_batch_steps():
    first, last = FULL_BATCH_STEPS
    expected = (math.sqrt(10) * first + math.sqrt(1000) * last) ** 2 / ((first + last) * (10 * first + 1000 * last))
    assert _gain(DRIFT, 100.0, 20) == pytest.approx(expected)


def test_the_cumulative_noise_scale_is_the_mean_over_full_batch_steps_up_to_the_goal():
    """The first updates, the last before the goal, and the mean between; what comes after the goal counts in none."""
    search = GoalSearch([1.0])
    search.crossings[1.0] = Crossing(1.0, Estimate(39.5, (39.0, 40.0)), 9)
    noise = [NoiseRecord("policy", "rollout", step, s) for step, s in enumerate([*DRIFT, *[statistics(10**6)] * 20])]
    found = {n.quantity: n.value for n in _noise_at_goals(search, [100 * step for step in range(61)], noise)}
    first, last = FULL_BATCH_STEPS
    assert found["start"] == pytest.approx(10)
    assert found["goal"] == pytest.approx(1000)
    assert found["cumulative"] == pytest.approx((10 * first + 1000 * last) / (first + last))
