"""The plan of a sweep: which runs follow from which results, and a problem with a known critical batch size run through it."""

import itertools
import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import ray
from planted import Planted
from planted import make_plan as planted_plan
from regressions import NOISE_SCALE, Regression

from rlscale.agents.checks import check_config
from rlscale.agents.learning.results import NoiseRecord
from rlscale.benchmarks.options import parse_sizes
from rlscale.benchmarks.sweep import run as sweep_module
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.sweep.trial import _gain, _noise_at_goals, _noise_windows, run_trial
from rlscale.crossing import Crossing, Evaluated, GoalSearch
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.frontier import fit
from rlscale.noise import BlockStatistics
from rlscale.records import Sweep
from rlscale.records.trial import NoiseSums

GRID = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), batch_sizes="80..1280", goals=(100.0, 200.0)))
GRID_OF_SIX = replace(GRID, batch_sizes=(80, 160, 320, 640, 1280, 5120))
SEQUENTIAL = planted_plan(batch_sizes=None, pilot_batch=640)


def complete(plan, respond, order=0, limit=10_000):
    """Run the plan to its end, up to `jobs` runs side by side, which end one at a time, drawn by `order`; the results."""
    plan = replace(plan)  # which remembers nothing of other results
    rng = np.random.default_rng(order)
    results, begun = {}, {}
    while (waiting := plan.next_trials(results, begun)) and len(results) < limit:
        running = [trial for trial in waiting if trial.id in begun]
        running += [trial for trial in waiting if trial.id not in begun][: plan.jobs - len(running)]
        begun |= {trial.id: trial for trial in running}
        trial = running[rng.integers(len(running))]
        assert trial.id not in results
        results[trial.id] = respond(plan, trial)
    return results


def planted(seed=0, scatter=0.3, **truth):
    """Answers as a task with B_crit 1,440 and S_min 150 would; the same answer to the same trial, whenever it is asked."""

    def respond(plan, trial):
        own = int.from_bytes(trial.id.encode(), "big") % 2**31
        return Planted(scatter=scatter, seed=[seed, own], **truth).result(trial, plan)

    return respond


# --- a grid ---------------------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_size_rate_and_seed_and_then_the_noise_runs():
    results = complete(GRID, planted())
    grid = [r for r in results.values() if r.stage == "grid"]
    assert sorted((r.batch_size, r.rate_index, r.seed) for r in grid) == list(
        itertools.product((80, 320, 1280), (-4, -2, 0, 2), (0, 1))
    )
    assert {r.learning_rate for r in grid if r.batch_size == 320 and r.rate_index == 2} == {GRID.learning_rate(320, 2)}
    assert {(r.batch_size, r.rate_index) for r in grid if r.measures_noise} == {(320, 0)}, "the size nearest the pilot's"
    noise = [r for r in results.values() if r.stage == "noise"]
    assert len(noise) == 8
    assert len({r.seed for r in noise} | {0, 1}) == 10, "fresh seeds"


def test_the_noise_runs_are_made_at_the_noise_scale_and_the_best_rate():
    """The joint noise scale is 0.3 times B_crit: 432 observations; the best rate is an octave above the grid's centre."""
    results = complete(GRID_OF_SIX, planted(scatter=0.02, best_rate=2.0))
    noise = [r for r in results.values() if r.stage == "noise"]
    assert {r.batch_size for r in noise} == {320}
    assert noise[0].learning_rate == pytest.approx(GRID_OF_SIX.learning_rate(320, 2), rel=0.1)
    assert noise[0].most_optimizer_steps == pytest.approx(4 * 150 * (1 + 1440 / 320), rel=0.1)
    config = GRID_OF_SIX.config_of(noise[0]).noise
    assert (config.joint_noise_period, config.policy_noise_period, config.value_noise_period) == (1, 1, 1)


@pytest.mark.parametrize(("size", "budget"), [(5120, 3_500_000), (1280, 2_500_000), (1280, 1_350_000), (640, 1_100_000), (80, 1)])
def test_the_noise_runs_have_room_to_reach_the_goal(size, budget):
    """2048's rung: at the noise scale the goal took the whole budget, and seven of eight noise runs did not come to it. Here a
    run at B takes 150 (B + 1,440) observations; a third of the budget must do, but at the smallest size."""
    results = complete(GRID_OF_SIX, planted(scatter=0.02, best_rate=2.0, predicted=10.0))
    runs = {name: result for name, result in results.items() if result.stage != "noise"}
    noise = replace(GRID_OF_SIX, most_observations=budget).next_trials(runs)
    assert [(trial.stage, trial.batch_size) for trial in noise] == [("noise", size)] * 8


@pytest.mark.parametrize(("clones", "mini_batches", "least"), [(1, 1, 40), (4, 1, 160), (1, 4, 40)])
def test_the_noise_runs_have_environments_between_which_noise_shows(clones, mini_batches, least):
    """The joint noise scale is 3 observations, less than the five steps of one environment; eight make blocks enough."""
    config = replace(GRID.config, rollout=replace(GRID.config.rollout, clones=clones))
    plan = replace(GRID, config=config, mini_batches=mini_batches, batch_sizes=(20, 40, 80, 160, 320), pilot_batch=40)
    results = complete(plan, planted(b_crit=10, scatter=0.02))
    assert {r.batch_size for r in results.values() if r.stage == "noise"} == {least}
    noise = plan.config_of(results["noise-1"])
    assert noise.noise.step_blocks(least, noise.rollout.environments // clones, equal=False) == 8


def test_actors_share_environments_with_all_clones_of_each():
    plan = make_plan("minatar/breakout", SweepOptions(tasks=("minatar/breakout",), clones=4, actors=4, jobs=1))
    trial = plan.next_trials({})[0]
    for size, actors in ((20, 1), (40, 2), (60, 3), (80, 4), (100, 1)):
        config = plan.config_of(replace(trial, batch_size=size))
        check_config(config)
        assert config.actors == actors


def test_the_rates_are_centred_as_the_plan_says():
    plan = replace(GRID, rate_batch=512.0, rate_exponent=0.5)
    rate = plan.config.update.learning_rate
    assert plan.learning_rate(512) == pytest.approx(rate / math.sqrt(2), rel=1e-3)
    assert plan.learning_rate(64) == pytest.approx(rate / 3, rel=1e-3)
    assert plan.learning_rate(64, 2) == pytest.approx(2 * rate / 3, rel=1e-3)


@pytest.mark.parametrize("more", [{"seeds": 3}, {"rates": 6}, {"batch_sizes": (80, 320, 1280, 5120)}, {"noise_runs": 10}])
def test_a_grid_that_is_extended_keeps_its_runs(more):
    results = complete(GRID, planted())
    larger = replace(GRID, **more)
    again = complete(larger, planted())
    added = {trial.id for trial in larger.next_trials(results)}
    assert added
    assert not added & set(results)
    assert set(again) == set(results) | added


def test_a_grid_that_is_extended_to_a_later_goal_measures_the_noise_up_to_it():
    """The third seed is the first to reach 200. The noise runs so far end at 100, and their noise scale there is 2."""

    def respond(plan, trial):
        result = planted()(plan, trial)
        scale = 3.0 if trial.last_goal == 200.0 else 2.0
        if trial.last_goal == 100.0 or (trial.stage == "grid" and trial.seed < 2):
            missed = replace(result.goals[1], optimizer_steps=None, interval=None, observations=None, not_before=1000)
            result = replace(result, goals=(result.goals[0], missed))
        if trial.stage == "noise":
            sums = NoiseSums("joint", "plain", (scale,) * 40, (1.0,) * 40, (5,) * 40)
            result = replace(result, noise_sums=(sums,))
        return result

    first = complete(GRID, respond)
    assert {(r.id, r.last_goal) for r in first.values() if r.stage == "noise"} == {(f"noise-{k}", 100.0) for k in range(1, 9)}
    assert GRID.predicted(first).value == pytest.approx(2.0)

    larger = replace(GRID, seeds=3)
    grid = {trial.id: respond(larger, trial) for trial in larger.next_trials(first)}
    assert larger.predicted(first | grid).value is None
    more = larger.next_trials(first | grid)
    assert [(t.id, t.last_goal) for t in more] == [(f"noise-{k}", 200.0) for k in range(9, 17)]
    assert len({r.seed for r in (*first.values(), *more) if r.stage == "noise"}) == 16

    halfway = first | grid | {trial.id: respond(larger, trial) for trial in more[:3]}
    assert larger.next_trials(halfway) == more[3:], "they stay as they were decided"
    assert larger.predicted(halfway).value == pytest.approx(3.0)


# --- a sequential sweep ---------------------------------------------------------------------------------------------------------


def decisions(results):
    return {name: (r.stage, r.batch_size, r.learning_rate, r.seed, r.most_optimizer_steps) for name, r in results.items()}


def test_with_one_job_the_same_sweep_makes_the_same_runs():
    plan = replace(SEQUENTIAL, jobs=1, interval_ratio=3.0)
    finished = [decisions(complete(plan, planted(), order)) for order in range(2)]
    assert finished[0] == finished[1]
    stages = [stage for stage, *_ in dict(sorted(finished[0].items())).values()]
    assert stages.count("pilot") == 3
    assert set(stages) == {"pilot", "span", "sharpen", "noise"}


def test_a_run_that_takes_long_holds_up_no_other_job():
    """Run 5 does not end; the two other jobs go on, and each of their runs is what a new plan decides from the same results."""
    plan, results, begun = replace(SEQUENTIAL, jobs=3), {}, {}
    for _ in range(25):
        waiting = plan.next_trials(results, begun)
        new = [trial for trial in waiting if trial.id not in begun]
        assert replace(plan).next_trials(results, begun) == waiting
        begun |= {trial.id: trial for trial in new}
        ready = next(trial for trial in waiting if trial.id != "run-005")
        results[ready.id] = planted()(plan, ready)
    assert set(begun) - set(results) >= {"run-005"}
    assert {f"run-{k + 1:03d}" for k in range(25)} <= set(begun)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_as_many_runs_are_decided_on_as_there_are_jobs(jobs):
    """The pilot's first run is alone, and nothing follows the pilot before all of it has ended."""
    plan, results, begun = replace(SEQUENTIAL, jobs=jobs), {}, {}
    for number in range(20):
        waiting = plan.next_trials(results, begun)
        begun |= {trial.id: trial for trial in waiting}
        room = {0: 1, 1: min(2, jobs), 2: 1}.get(number, jobs)
        assert [t.id for t in waiting] == [f"run-{k + 1:03d}" for k in range(number, number + room)]
        results[waiting[0].id] = planted()(plan, waiting[0])


def test_a_run_that_has_begun_stays_as_it_was_decided():
    """Those that were interrupted are made again by a new plan object, whatever has ended meanwhile."""
    plan, results, begun = replace(SEQUENTIAL, jobs=3), {}, {}
    while len(results) < 12:
        waiting = plan.next_trials(results, begun)
        begun |= {trial.id: trial for trial in waiting}
        results[waiting[0].id] = planted()(plan, waiting[0])
    waiting = plan.next_trials(results, begun)
    begun |= {trial.id: trial for trial in waiting}
    results[waiting[-1].id] = planted()(plan, waiting[-1])
    interrupted = [trial for name, trial in begun.items() if name not in results]
    assert len(interrupted) == 2
    first = replace(plan).next_trials(results, begun)
    assert first[:2] == interrupted
    assert replace(plan).next_trials(results)[:2] != interrupted, "decided anew they would be others"


def test_it_ends_when_the_interval_is_sharp_enough_and_holds_the_truth():
    covered = 0
    for seed in range(3):
        results = complete(SEQUENTIAL, planted(seed))
        known = SEQUENTIAL.known({name: r for name, r in results.items() if r.stage != "noise"})
        low, high = known.interval()
        assert high - low <= math.log(2)
        assert len({r.batch_size for r in results.values() if r.reached}) >= 5
        covered += low <= math.log(1440) <= high
        (size,) = {r.batch_size for r in results.values() if r.stage == "noise"}
        measured = SEQUENTIAL.noise_scale(results)
        assert 432 / 3 < measured < 432 * 3, "0.3 times B_crit, with an error of a third"
        assert abs(math.log2(size / measured)) <= 0.5
    assert covered == 3


def test_a_smaller_ratio_goes_on_from_what_is_there():
    results = complete(replace(SEQUENTIAL, interval_ratio=6.0), planted(3))
    sharper = replace(SEQUENTIAL, interval_ratio=3.0)
    more = dict(results)
    while waiting := sharper.next_trials(more):
        more[waiting[0].id] = planted(3)(sharper, waiting[0])
    assert len(more) > len(results)
    assert {name: more[name] for name in results} == results
    known = sharper.known({name: r for name, r in more.items() if r.stage != "noise"})
    low, high = known.interval()
    assert high - low <= math.log(3)


@pytest.mark.parametrize("budget", [{"total_observations": 20_000_000}, {"hours": 20 * 20 / 3600 / 2}])
def test_it_ends_when_a_budget_is_spent(budget):
    plan = replace(SEQUENTIAL, interval_ratio=1.01, **budget)
    results = complete(plan, planted())
    runs = [r for r in results.values() if r.stage != "noise"]
    before = {r.id: r for r in runs[: -plan.jobs - 1]}
    assert not plan.is_spent(dict(list(before.items())[:-1]))
    assert plan.is_spent({r.id: r for r in runs})
    assert sum(r.stage == "noise" for r in results.values()) == plan.noise_runs


def test_three_times_the_width_that_is_wanted_takes_twice_the_hours_again_and_then_the_noise_runs():
    results = complete(SEQUENTIAL, planted(), limit=30)
    assert [r.seconds for r in results.values()] == [20.0] * 30
    spent = 30 * 20 / 3600 / 2  # two side by side
    assert SEQUENTIAL.hours_to_go(results, 2.0**3) == pytest.approx(2 * spent + 3 * spent / 30)
    assert replace(SEQUENTIAL, interval_ratio=4.0).hours_to_go(results, 4.0**1.5) == pytest.approx(0.5 * spent + 3 * spent / 30)
    assert [SEQUENTIAL.hours_to_go(results, factor) for factor in (1.9, 2.0, 20.1, math.inf)] == [None] * 4
    measured = [replace(results["run-030"], id=f"noise-{k}", stage="noise") for k in (1, 2, 3)]
    for ended in (1, 3):
        noise = {run.id: run for run in measured[:ended]}
        assert SEQUENTIAL.hours_to_go(results | noise, 8.0) is None, "nothing is sharpened any more"
        extended = noise | results  # it was quick, or there was a narrower interval to come to
        left = 2 * spent + (3 - ended) * spent / 30
        assert SEQUENTIAL.hours_to_go(extended, 2.0**3) == pytest.approx(left), "they are not made again"
    assert replace(SEQUENTIAL, hours=spent).hours_to_go(results, 8.0) is None, "its budget is spent"
    wider = replace(SEQUENTIAL, hours=1.5 * spent)
    assert wider.hours_left(extended) == pytest.approx(0.5 * spent), "noise runs take nothing of it"
    assert wider.hours_to_go(extended, 8.0) is not None
    fewer = replace(SEQUENTIAL, noise_runs=1)
    assert fewer.hours_to_go(extended, 2.0**3) == pytest.approx(2 * spent), "three were made before, when three were wanted"


def test_evaluations_count_in_a_budget_of_observations():
    (result,) = [Planted().result(trial, SEQUENTIAL) for trial in SEQUENTIAL.next_trials({})]
    result = replace(result, observations=60_000, evaluation_steps=40_000)
    for budget, spent in ((100_001, False), (100_000, True)):
        plan = replace(SEQUENTIAL, total_observations=budget, hours=None)
        assert plan.is_spent({result.id: result}) == spent


def test_hours_of_a_session_are_counted_by_its_own_jobs():
    """An hour with sixteen jobs stays an hour where four go on; earlier records do not say how many there were."""
    (result,) = [Planted().result(trial, SEQUENTIAL) for trial in SEQUENTIAL.next_trials({})]
    for jobs, hours in ((16, 1.0), (None, 4.0)):
        results = {result.id: replace(result, seconds=16 * 3600.0, jobs=jobs)}
        for budget, spent in ((hours + 0.01, False), (hours, True)):
            plan = replace(SEQUENTIAL, total_observations=None, hours=budget, jobs=4)
            assert plan.is_spent(results) == spent


@pytest.mark.parametrize(("epochs", "mini_batches"), [(1, 1), (3, 4)])
def test_a_run_is_told_how_many_optimizer_steps_an_iteration_has(epochs, mini_batches, tmp_path, monkeypatch):
    plan = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), epochs=epochs, mini_batches=mini_batches))
    monkeypatch.setattr(sweep_module, "run_trial", lambda trial, **told: told["inner_steps"])
    (trial, *_) = plan.next_trials({})
    assert sweep_module.run_job(sweep_module.Job(plan, trial, tmp_path, (), 0)) == epochs * mini_batches


def test_the_pilots_first_run_limits_the_others():
    plan = replace(SEQUENTIAL)
    first = plan.next_trials({})
    assert [(t.id, t.stage, t.batch_size, t.most_optimizer_steps) for t in first] == [("run-001", "pilot", 512, None)]
    assert first[0].learning_rate == SEQUENTIAL.learning_rate(512)
    result = planted()(plan, first[0])
    others = plan.next_trials({"run-001": result})
    assert [t.learning_rate / first[0].learning_rate for t in others] == pytest.approx([4, 1 / 4], rel=1e-2)
    assert {t.most_optimizer_steps for t in others} == {math.ceil(4 * result.goals[-1].optimizer_steps)}


def test_the_pilots_other_rates_may_reach_a_goal_that_the_first_missed():
    """The first rate comes to the first goal alone: four times its steps there would give the others up on the way."""
    plan = replace(SEQUENTIAL)
    (first, *_) = plan.next_trials({})
    result = planted()(plan, first)
    assert len(result.goals) > 1
    missed = tuple(replace(g, optimizer_steps=None, interval=None, observations=None, not_before=99) for g in result.goals[1:])
    others = plan.next_trials({"run-001": replace(result, state="budget", goals=(result.goals[0], *missed))})
    assert [t.most_optimizer_steps for t in others] == [None, None]


@pytest.mark.parametrize(("actors", "jobs"), [(None, 8), (0, 8), (1, 8), (3, 2), (16, 1)])
def test_by_default_as_many_runs_are_side_by_side_as_there_are_cpus_for(actors, jobs, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert make_plan("atari/pong", SweepOptions(tasks=("atari/pong",), actors=actors)).jobs == jobs


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_an_atari_sweep_goes_on_without_ray_and_with_it_again(device, monkeypatch, tmp_path):
    """Its runs sample in an actor where there is Ray, and else by themselves, on a GPU with as many threads as there are."""
    monkeypatch.setattr("rlscale.benchmarks.sweep.options.memory_plan", lambda config, task: None)
    for jobs in (1, 0, 2):
        plan = make_plan("atari/pong", SweepOptions(tasks=(), jobs=jobs, device=device))
        assert plan.config.rollout.actors == min(jobs, 1)
        Sweep.open(tmp_path / "s", plan.to_dict(), {"task": plan.description, "command": []}).close()


def test_of_a_cluster_its_own_cpus_count(monkeypatch):
    """Where this process has joined one already; tests of clusters join real ones."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 5.0})
    options = SweepOptions(tasks=("classic/cartpole",), ray_address="auto")
    assert make_plan("classic/cartpole", options).jobs == 5
    assert make_plan("classic/cartpole", replace(options, actors=2)).jobs == 2


def test_the_last_goal_that_the_pilot_reached_is_sharpened():
    """The third goal takes 150 steps at least, and no run is allowed so many."""
    plan = replace(SEQUENTIAL, most_observations=100_000, interval_ratio=4.0)
    results = complete(plan, planted(b_crit=700, scatter=0.1), limit=40)
    assert plan.target(results) == 100.0
    assert {r.last_goal for r in results.values() if r.stage != "pilot"} == {100.0}


def test_nothing_follows_a_pilot_that_reached_nothing():
    plan = replace(SEQUENTIAL, most_observations=2_000)
    results = complete(plan, planted())
    assert sorted(results) == ["run-001", "run-002", "run-003"]


def test_failed_runs_are_passed_over():
    def respond(plan, trial):
        result = planted()(plan, trial)
        lost = trial.id in ("run-002", "run-007", "run-011", "noise-2")
        return replace(result, state="failed", reason="boom", goals=(), noise=(), noise_windows=()) if lost else result

    plan = replace(SEQUENTIAL, interval_ratio=4.0)
    results = complete(plan, respond)
    assert plan.known(results).b_crit == pytest.approx(1440, rel=0.5)


def test_sizes_are_whole_environments_that_divide_into_mini_batches():
    assert SEQUENTIAL.sizes[:3] == (16, 32, 64)
    assert replace(SEQUENTIAL, mini_batches=4).sizes[:3] == (64, 128, 256)
    assert replace(SEQUENTIAL, mini_batches=3).sizes[:3] == (48, 96, 192)
    assert SEQUENTIAL.sizes[-1] == 16 * 2**15 == replace(SEQUENTIAL, mini_batches=4).sizes[-1]


def test_with_an_inner_loop_the_number_of_mini_batches_stays():
    plan = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), epochs=3, mini_batches=4))
    assert plan.config.update.warm_up == 10 * 12
    for trial in plan.next_trials({}):
        config = plan.config_of(trial)
        assert config.batch == trial.batch_size
        assert config.mini_batch * 4 == trial.batch_size
        assert config.update.epochs == 3


def test_batch_sizes_differ_in_the_batch_alone():
    """No clip, a warm-up, a short memory, and environments out of phase, whatever the size."""
    plan = make_plan("minatar/breakout", SweepOptions(tasks=("minatar/breakout",)))
    update = plan.config.update
    assert (update.max_grad_norm, update.warm_up, update.beta2, update.advantage_scale) == (None, 10, 0.99, "running")
    assert plan.config.rollout.rollout_length == 5
    assert plan.config.rollout.random_first_steps == 100
    assert make_plan("atari/pong", SweepOptions(tasks=("atari/pong",))).config.rollout.random_first_steps == 500


def test_an_averaged_policy_reaches_as_far_back_in_observations_at_every_size():
    options = SweepOptions(tasks=("minatar/breakout",), epochs=3, mini_batches=4, pilot_batch=2560, proximal_average=8.0)
    plan = make_plan("minatar/breakout", options)
    pilot, *_ = plan.next_trials({})
    assert plan.config_of(pilot).update.proximal_average == 8.0
    smaller, larger = (replace(pilot, batch_size=size) for size in (640, 40_960))
    assert [plan.config_of(trial).update.proximal_average for trial in (smaller, larger)] == [32.0, 0.5]
    without = make_plan("minatar/breakout", replace(options, proximal_average=None))
    assert without.config_of(smaller).update.proximal_average is None
    with pytest.raises(UsageError, match="--proximal-average"):
        make_plan("minatar/breakout", replace(options, proximal_average=0.0))


# --- both -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [GRID, SEQUENTIAL])
def test_a_plan_is_plain_data_and_tells_plans_apart(plan):
    plan.next_trials({})
    stored = plan.to_dict()
    assert json.loads(json.dumps(stored)) == stored
    assert stored == replace(plan).to_dict()
    assert stored != replace(plan, goals=(1.0,)).to_dict()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("32..32768", (32, 128, 512, 2048, 8192, 32768)), ("64..300x2", (64, 128, 256)), ("512, 128", (128, 512)), ("64", (64,))],
)
def test_batch_sizes_as_people_write_them(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a..b", "512..32", "32..64x1", "0,4", "32-64", "5000000000000000000", f"4,{10**30}"])
def test_batch_sizes_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="--batch-sizes"):
        parse_sizes(text)


def sweep_regression(step_size, clones, sizes=tuple(4**i for i in range(6))):
    """Linear regression through the sweep's own plan and trials; the plan and its results."""
    update = replace(GRID.config.update, learning_rate=step_size)
    plan = replace(
        GRID,
        config=replace(GRID.config, update=update),
        batch_sizes=tuple(clones * size for size in sizes),
        goals=(2.0,),
        rates=1,
        rate_batch=float(NOISE_SCALE * clones),
        rate_exponent=1.0,
        seeds=2,
        most_observations=10**9,
        pilot_batch=256 * clones,
        noise_runs=0,
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
    assert all(r.state == "finished" for r in results.values())
    runs = list(results.values())
    return fit([r.batch_size for r in runs], [r.goals[0].optimizer_steps for r in runs], group=[r.seed for r in runs])


@pytest.fixture(scope="module")
def small_steps():
    return sweep_regression(0.03, clones=1)


def test_a_known_critical_batch_size_comes_out_of_real_runs(small_steps):
    """S = ln 100 / -ln(1 - (2η - η²)/(1 + 51/B)): fitted over 4⁰ … 4⁵, η = 0.03 gives B_crit 52.6 and S_min 75.6."""
    frontier = frontier_of(small_steps[1])
    assert frontier.b_crit.value == pytest.approx(52.6, rel=0.1)
    assert frontier.s_min.value == pytest.approx(75.6, rel=0.05)


def test_the_noise_measured_on_the_way_predicts_it(small_steps):
    _, results = small_steps
    noise = [n for r in results.values() if r.batch_size == 256 for n in r.noise]
    cumulative = [n.value for n in noise if n.quantity == "cumulative" and n.head == "joint"]
    assert len(cumulative) == 2
    assert np.mean(cumulative) == pytest.approx(NOISE_SCALE, rel=0.15)
    assert {round(n.gain, 1) for n in noise if n.quantity == "cumulative"} == {1.0}


def test_steps_so_large_that_the_goal_is_reached_at_once_reach_it_after_ten_at_the_latest():
    """η = 1 has S_min ≈ 1: below ten steps nothing is told apart, and the interval says so."""
    _, results = sweep_regression(1.0, clones=1)
    early = [r.goals[0] for r in results.values() if r.batch_size >= 256]
    assert {(round(g.optimizer_steps, 6), g.interval[0]) for g in early} == {(10.0, 0.0)}


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


def test_a_window_before_the_first_evaluation_stands_beside_that_one():
    """The line through the first two evaluations would be at -7.7 there."""
    search = GoalSearch([9.0])
    for steps, return_mean in ((7, 1.0), (8, 2.0)):
        search.take(Evaluated(steps, return_mean, 0.1, 64))
    noise = [NoiseRecord("policy", "rollout", step, s) for step, s in enumerate(DRIFT[:5])]
    (window,) = _noise_windows(search, [100 * step for step in range(9)], noise)
    assert (window.optimizer_steps, window.mean_return) == (2.0, pytest.approx(1.0))


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


def test_all_seeds_count_from_the_one_that_was_typed():
    """So that a sweep with another --seed, more than its runs away, has no run in common."""
    made = []
    for seed in (0, 5000):
        options = SweepOptions(tasks=("classic/cartpole",), goals=(60.0,), seed=seed, interval_ratio=8.0, noise_runs=2)
        sequential = make_plan("classic/cartpole", options)
        grid = make_plan("classic/cartpole", replace(options, interval_ratio=2.0, batch_sizes="160,640,2560", seeds=2))
        of = []
        for plan in (sequential, grid):
            planted, results = Planted(), {}
            while trials := plan.next_trials(results):
                results |= {trial.id: planted.result(trial, plan) for trial in trials}
            of.append([result.seed - seed for result in results.values()])
            assert len({result.stage for result in results.values()}) > 1, "noise runs are among them"
        made.append(of)
    assert made[0] == made[1]
    assert min(made[0][0]) == min(made[0][1]) == 0
