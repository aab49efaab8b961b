"""The fleet that `rlscale workers` recommends, and the command that it prints."""

from dataclasses import replace

import pytest
from planted import FIXED, PARALLEL, PONG, known_frontier, readings

from rlscale.agents.checks import check_config
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.workers import recommendation
from rlscale.benchmarks.workers.calibration import Laws, Shape, fit_fleet, fleet_settings
from rlscale.benchmarks.workers.display import say_recommendation
from rlscale.benchmarks.workers.options import WorkersOptions
from rlscale.benchmarks.workers.plan import find_frontier
from rlscale.benchmarks.workers.recommendation import (
    candidates,
    fits,
    flags_that_differ,
    gain_of_twice,
    predict,
    recommend,
    to_measure,
)
from rlscale.benchmarks.workers.run import base_config
from rlscale.envs import find_task
from rlscale.report.words import say_limit
from rlscale.sizing import FleetTime, HandOver, LearnerTime, fit_service, fit_throughput

# Laws of fleets of Pong: workers that hinder each other so that four are the fastest, a slow link, and neither.
COUNTS = [1, 2, 4, 8]
SLOW = [1 + (n - 1) / 16 + n * (n - 1) * 15 / 256 for n in COUNTS]
EVEN = FleetTime(
    fit_service([8, 32], [1, 1], [FIXED + PARALLEL * n for n in (8, 32)]),
    tuple((n, 1.0) for n in COUNTS),
    fit_throughput(COUNTS, COUNTS),
    HandOver(),
    (1.0,),
    7100.0,
    128,
)
PEAK = replace(EVEN, slowdowns=tuple(zip(COUNTS, SLOW, strict=True)))
LINK = replace(EVEN, hand_over=HandOver(byte=2e-8))
FEW = replace(EVEN, slowdowns=EVEN.slowdowns[:2], curve=fit_throughput(COUNTS[:2], COUNTS[:2]))
TASK_OF = {
    "results/minatar-breakout": "minatar/breakout",
    "results/ladder/minatar-breakout-people-3": "minatar/breakout",
    "results/ladder/umbrella-noise-4": "toy/umbrella",
}


def test_the_recommended_fleet():
    """The best predicted rate of whole iterations, or nearly: with free workers all CPUs; with crowded ones fewer."""
    options = WorkersOptions(task=PONG.id)
    learner = LearnerTime(0.1, 0.0, 2e-5, 0.0)
    grid = candidates(PONG, 4)
    for contention, actors in ((0.0, 4), (2.0, 1)):
        law = fit_fleet(readings(contention=contention, message=0.0), 128)
        found = recommend(options, default_config(PONG), PONG, Laws(law, learner, 4000.0), grid)
        every = {s: predict(default_config(PONG), PONG, Laws(law, learner, 4000.0), s) for s in grid}
        best = max(one.end_to_end for one in every.values())
        assert replace(found, command=[], doubled=None) == every[found.shape]
        assert found.end_to_end >= 0.98 * best
        total = found.shape.actors * found.shape.environments
        assert all(one.end_to_end < 0.98 * best for s, one in every.items() if s.actors * s.environments < total)
        assert found.shape.actors * found.shape.threads >= actors
        assert sum(found.shares.values()) == pytest.approx(1)
        batch = total * 128
        assert found.batch_size == batch
        assert found.iteration.seconds == pytest.approx(batch / found.rate.value + learner.seconds(batch))
        assert found.end_to_end == pytest.approx(batch / found.iteration.seconds)
        takes = {name: share * found.iteration.seconds for name, share in found.shares.items()}
        assert takes["emulator"] == pytest.approx(found.shape.environments * 128 / (4000.0 * found.shape.threads))
        assert takes["learner"] == pytest.approx(learner.seconds(batch))
        alone = 128 * (FIXED + found.shape.environments * PARALLEL / found.shape.threads)
        crowd = (1 + contention * (found.shape.actors * found.shape.threads - 1)) / (1 + contention * (found.shape.threads - 1))
        assert takes["emulator"] + takes["inference"] == pytest.approx(alone * crowd, rel=1e-3)
    config = parse_train(found.command[2:])
    check_config(config)
    assert (config.rollout.actors, config.rollout.actor_cpus) == (found.shape.actors, found.shape.threads)
    assert config.rollout.environments == total


def test_where_the_learner_is_the_limit_a_small_fleet_is_recommended_and_said():
    """A hundred times slower learner: four actors would sample four times as fast, and nobody would notice."""
    law = fit_fleet(readings(contention=0.0, message=0.0), 128)
    options, grid = WorkersOptions(task=PONG.id), candidates(PONG, 4)
    slow, fast = (
        recommend(options, default_config(PONG), PONG, Laws(law, LearnerTime(0.0, 0.0, each, 0.0), 4000.0), grid)
        for each in (0.05, 1e-6)
    )
    assert slow.shape == Shape(1, 1, 8)
    first, *_ = say_recommendation(slow)
    assert first.endswith("sampling takes 1% of the time, and twice the CPUs for workers would make it 1% faster")
    assert fast.shape.actors == 4
    assert say_limit(fast.shares, fast.doubled).endswith("and twice the CPUs for workers would make it 98% faster")


@pytest.mark.parametrize(
    ("law", "learner", "shape", "limit"),
    [  # at the peak of the rate; bytes as the learner's link takes them; sampling as long as learning; beyond what is known
        (PEAK, 1e-9, (4, 32), "acting is the limit, sampling takes 100% of the time, and {twice} no faster"),
        (
            LINK,
            1e-9,
            (4, 32),
            "the transfer to the learner is the limit, sampling takes 100% of the time, and {twice} 33% faster",
        ),
        (EVEN, 1.04, (4, 32), "the learner is the limit, sampling takes 49% of the time, and {twice} 32% faster"),
        (
            FEW,
            1.04,
            (2, 32),
            "the learner is the limit, sampling takes 49% of the time, and more CPUs for workers save at most that",
        ),
    ],
)
def test_what_more_workers_give_is_asked_of_the_law(law, learner, shape, limit):
    """The learner takes so many times as long an observation as sampling does. Twice the workers have CPUs of their own."""
    sampling = 1 / law.rate(*shape).value
    config, laws = default_config(PONG), Laws(law, LearnerTime(0.0, 0.0, learner * sampling, 0.0), 1e9)
    alone = predict(config, PONG, laws, Shape(shape[0], 1, shape[1]))
    found = replace(alone, doubled=gain_of_twice(law, alone))
    assert say_limit(found.shares, found.doubled) == limit.format(twice="twice the CPUs for workers would make it")
    if found.doubled is not None:
        twice = predict(config, PONG, laws, Shape(2 * shape[0], 1, shape[1]))
        assert found.doubled == pytest.approx(twice.end_to_end / found.end_to_end), "no part of this learner is fixed"


def test_waiting_for_the_slowest_is_told_from_the_transfer():
    """Of two workers' fragments three in four hold one that takes twice as long; then eight bytes of ten seconds come in."""
    law = replace(EVEN, spread=(1.0, 2.0), observation_bytes=1.0, hand_over=HandOver(byte=1e-3))
    found = predict(default_config(PONG), PONG, Laws(law, LearnerTime(0, 0, 1e-9, 0), 1e9), Shape(2, 1, 32))
    takes = {name: share * found.iteration.seconds for name, share in found.shares.items()}
    working = law.working_seconds(2, 32)
    assert takes["waiting"] == pytest.approx(0.75 * working)
    assert takes["transfer"] == pytest.approx(law.seconds(2, 32) - 1.75 * working)
    assert takes["transfer"] > 0


@pytest.mark.parametrize(
    "folder", [None, "results/minatar-breakout", "results/ladder/minatar-breakout-people-3", "results/ladder/umbrella-noise-4"]
)
def test_the_printed_command_is_the_run_that_was_predicted(folder):
    """With a sweep, learner and fleet are predicted as its runs learn and act; the task's own defaults are others."""
    known = known_frontier() if folder is None else find_frontier(folder, None, find_task(TASK_OF[folder]))
    task = find_task(known.config.task)
    options = WorkersOptions(task=task.id)
    config = base_config(options, task, known)
    law = fit_fleet(readings(), config.rollout.rollout_length)
    laws = Laws(law, LearnerTime(0.01, 0.0, 1e-5, 0.0), 4000.0)
    found = recommend(options, config, task, laws, candidates(task, 4), known)
    run = parse_train(found.command[2:])
    check_config(run)
    mini_batch = None if known.mini_batches == 1 else found.batch_size // known.mini_batches
    nearest = min(known.rates, key=lambda size: max(size / found.batch_size, found.batch_size / size))
    assert run.update == replace(
        config.update, mini_batch=mini_batch, learning_rate=pytest.approx(known.rates[nearest], rel=1e-3)
    )
    assert run.noise == config.noise
    assert run.batch == found.batch_size
    assert run.rollout == replace(
        config.rollout,
        actors=found.shape.actors,
        actor_cpus=found.shape.threads,
        environments=found.shape.actors * found.shape.environments,
    )


@pytest.mark.parametrize(
    ("learning", "known", "limit"),
    [
        (0.9, False, "sampling is the limit, the learner is busy 90% of the time, and more {cpus} save at most the other 10%"),
        (0.9, True, "sampling is the limit, the learner is busy 90% of the time, and twice the {cpus} would make it 11% faster"),
        (4.0, True, "the learner is the limit, sampling is busy 25% of the time, and twice the {cpus} would make it no faster"),
    ],
)
def test_with_a_lag_sampling_and_learning_are_side_by_side(learning, known, limit):
    """At lag 1 an iteration lasts as long as the longer of the two, so their shares of it add up to more than all of it."""
    law, shape = fit_fleet(readings(message=0.0), 128), Shape(4, 1, 32)
    sampling = law.seconds(4, 32)
    learner = LearnerTime(learning * sampling, 0.0, 0.0, 0.0)
    config = base_config(WorkersOptions(task=PONG.id, lag=1), PONG, None)
    found = predict(config, PONG, Laws(law, learner, 4000.0), shape)
    seconds = max(1.0, learning) * sampling
    assert found.iteration.seconds == pytest.approx(seconds)
    takes = {name: share * seconds for name, share in found.shares.items()}
    assert takes["learner"] == pytest.approx(learning * sampling)
    assert sum(takes.values()) - takes["learner"] == pytest.approx(sampling)
    found = replace(found, doubled=gain_of_twice(law, found) if known else None)
    first, _, shares, _ = say_recommendation(found)
    assert first == f"Use {shape}: {limit.format(cpus='CPUs for workers')}"
    busy = f"{100 * sampling / seconds:.0f}%", f"{100 * learning * sampling / seconds:.0f}%"
    assert shares.startswith(f"sampling is busy {busy[0]} of the time (emulator ")
    assert shares.endswith(f"), the learner {busy[1]}, side by side")


def test_the_learner_s_rate_is_that_of_the_iteration_above_it():
    """In as many blocks as its environments allow: here 8 of 10 ms, so that 1,024 observations take 80 ms."""
    law = fit_fleet(readings(contention=0.0, message=0.0), 128)
    laws = Laws(law, LearnerTime(0.0, 0.01, 0.0, 0.0), 4000.0)
    found = predict(default_config(PONG), PONG, laws, Shape(1, 1, 8))
    assert say_recommendation(found)[-1].endswith("learner 12,800 observations per second")


@pytest.mark.parametrize(("task", "share"), [("classic/cartpole", 4 / 7), ("atari/pong", 1 / 4)])
def test_only_some_environments_step_on_threads(task, share):
    """A fleet of four threads: a millisecond of emulation an observation and three of inference, which the threads share."""
    task, seconds = find_task(task), 0.001 if task == "classic/cartpole" else 0.00025
    law = replace(EVEN, service=fit_service([8, 32], [4, 4], [n * (seconds + 0.003 / 4) for n in (8, 32)]))
    found = predict(default_config(task), task, Laws(law, LearnerTime(0, 0, 1e-9, 0), 1000.0), Shape(1, 4, 32))
    assert found.shares["emulator"] == pytest.approx(share, rel=1e-3)


def test_no_beta2_is_typed_for_an_optimizer_that_has_none():
    """Sweeps store one for every optimizer; `rlscale train` refuses it."""
    usual = default_config(PONG).update
    assert flags_that_differ(replace(usual, optimizer="rmsprop", beta2=0.99), usual) == ["--optimizer", "rmsprop"]
    assert flags_that_differ(replace(usual, beta2=0.99), usual) == ["--beta2", "0.99"]


def test_fleets_of_a_sweep_with_clones_step_one_environment_for_all_clones_of_it():
    config = default_config(PONG)
    config = replace(config, rollout=replace(config.rollout, clones=3))
    for shape in (*to_measure(PONG, 4, clones=3), *candidates(PONG, 4, clones=3)):
        settings = fleet_settings(config, PONG, resolve_compute(config), shape, 8)
        assert settings.stepped * 3 == settings.environments == shape.environments
    law, shape, learner = fit_fleet(readings(), 128), Shape(1, 1, 12), LearnerTime(0.0, 0.0, 1e-5, 0.0)
    cloned, plain = (
        predict(chosen, PONG, Laws(law, learner, 4e4), shape).shares["emulator"] for chosen in (config, default_config(PONG))
    )
    assert cloned == pytest.approx(plain / 3)


def test_with_more_clones_than_an_actor_has_environments_two_sizes_are_measured_all_the_same():
    clones = PONG.cost.most
    assert {shape.environments for shape in to_measure(PONG, 2, clones=clones)} == {clones, 2 * clones}


def test_a_fleet_whose_run_is_refused_is_not_recommended():
    """A batch of two environments and their clones shows no noise between environments."""
    known = known_frontier()
    clones = replace(known, config=replace(known.config, rollout=replace(known.config.rollout, clones=4)))
    options = WorkersOptions(task=known.config.task)
    stored = replace(known.config, update=replace(known.config.update, optimizer="rmsprop", beta2=0.99))
    assert fits(options, stored, find_task(known.config.task), Shape(1, 1, 8), known), "sweeps have a β₂ for every optimizer"
    assert [fits(options, clones.config, find_task(known.config.task), Shape(1, 1, n), clones) for n in (8, 12)] == [False, True]


def test_on_a_cluster_a_fleet_must_fit_into_the_object_stores(monkeypatch):
    """Stores of 19.2 GiB, of which fragments fill three quarters: 512 times 64 environments of 128 steps take 28.3 GiB."""
    asked = []
    monkeypatch.setattr(recommendation, "store_bytes", lambda *given, **more: asked.append((given, more)) or int(19.2 * 2**30))
    options = WorkersOptions(task=PONG.id, ray_address="auto")
    assert [fits(options, base_config(options, PONG, None), PONG, Shape(512, 1, each)) for each in (32, 64)] == [True, False]
    assert asked == [((1, 512, 1), {"stream": False, "lag": 0})] * 2
