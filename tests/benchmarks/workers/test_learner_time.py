"""How long learning takes, measured in batches that the run's own mini-batch need not divide."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlscale.agents.cluster import BusyClusterError
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.benchmarks.console import plain_console
from rlscale.benchmarks.workers import calibration, measuring
from rlscale.benchmarks.workers.calibration import Shape, fit_updates, measure_fleet, measure_learner, sample_fragments
from rlscale.benchmarks.workers.kept import KeptFleets
from rlscale.benchmarks.workers.measuring import Measuring
from rlscale.envs import find_task

TASK = find_task("classic/cartpole")


@pytest.fixture(scope="module")
def fragments():
    """16 environments of 32 steps, 512 observations."""
    config = default_config(TASK)
    return sample_fragments(config, TASK, resolve_compute(config), 16, 1)


@pytest.mark.parametrize(
    ("settings", "mini_batches", "steps"),
    [
        pytest.param({"mini_batch": 96}, None, 4, id="128 is nearer than 64"),
        pytest.param({"mini_batch": 90}, None, 8, id="64 is nearer than 128"),
        pytest.param({"mini_batch": 1000}, None, 1, id="the whole batch at most"),
        pytest.param({"mini_batch": 20, "shuffle": "environments"}, None, 16, id="whole environments"),
        pytest.param({"mini_batch": None}, None, 1, id="the whole batch"),
        pytest.param({}, 3, 4, id="a sweep's number of mini-batches"),
    ],
)
def test_the_nearest_mini_batch_that_divides_the_batch_is_timed(fragments, monkeypatch, settings, mini_batches, steps):
    config = default_config(TASK)
    config = replace(config, update=replace(config.update, epochs=1, **settings))
    learned, learn = [], calibration.learn_batch
    monkeypatch.setattr(calibration, "learn_batch", lambda *given: learned.append(learn(*given)))
    measure_learner(config, TASK, resolve_compute(config), fragments, None, mini_batches)
    assert [result.optimizer_steps for result in learned] == [steps, 2 * steps, 3 * steps]


def test_a_sweep_of_many_clones_is_timed_in_whole_groups_of_them(monkeypatch):
    """Forty clones, where small updates are timed with 32 environments, and the sweep's smallest batch has 40."""
    config = default_config(TASK)
    update = replace(config.update, epochs=1, mini_batch=None)
    config = replace(config, rollout=replace(config.rollout, environments=80, clones=40), update=update)
    monkeypatch.setattr(measuring, "measure_emulator", lambda *_: 1e4)
    kept, compute = KeptFleets(None, {}), resolve_compute(config)
    learning = Measuring(config, TASK, compute, 3.0, plain_console(), kept, smallest=40 * 32).measure([]).learning
    assert [reading["batch_size"] for reading in learning[-2:]] == [40 * 32, 40 * 32]


@pytest.mark.parametrize("off", list(itertools.product((0.95, 1.05), repeat=3)))
def test_an_update_from_a_small_batch_is_not_extrapolated_from_large_ones(monkeypatch, off):
    """Readings of large batches err by 5%, which is more than a whole update from the plan's smallest batch takes."""

    def truth(batch, blocks):
        return 0.01 + 0.001 * blocks + 3e-5 * batch

    errors = iter(off)

    def measured(config, task, compute, fragments, blocks, *_):
        batch = sum(environments * steps for environments, steps in fragments)
        seconds = truth(batch, blocks) * (next(errors) if batch >= 8192 else 1.0)
        return {"batch_size": batch, "blocks": blocks, "seconds": [seconds]}

    task = find_task("minatar/breakout")
    config = default_config(task)
    config = replace(config, update=replace(config.update, mini_batch=None))
    monkeypatch.setattr(measuring, "sample_fragments", lambda *given: [(given[3], (*given, 32)[5])] * given[4])
    monkeypatch.setattr(measuring, "measure_learner", measured)
    monkeypatch.setattr(measuring, "measure_emulator", lambda *_: 1.0)
    kept, compute = KeptFleets(None, {}), resolve_compute(config)
    learning = Measuring(config, task, compute, 3.0, plain_console(), kept, smallest=32).measure([]).learning
    assert (32, 2) in {(reading["batch_size"], reading["blocks"]) for reading in learning}, "two environments of 16 steps"
    law = fit_updates(learning)
    for batch, blocks in ((32, 2), (128, 8), (512, 8), (2048, 8)):
        assert law.seconds(batch, blocks) == pytest.approx(truth(batch, blocks), rel=0.05)


@pytest.mark.parametrize(("steps", "measured"), [(5, 5), (128, 32)])
def test_fleets_are_measured_in_fragments_no_longer_than_the_run_s(monkeypatch, steps, measured):
    """What comes once a fragment would hardly be seen in longer ones."""
    asked = []

    class Fleet:
        def __init__(self, settings, _, ahead):
            asked.append(settings.rollout_length)

        def take(self):
            return SimpleNamespace(summary=SimpleNamespace(seconds=0.1, observations=1), fragment=None)

        def request(self, *_):
            pass

        release = close = request

        def lost_actors(self):
            return []

    monkeypatch.setattr(calibration, "RayFleet", Fleet)
    monkeypatch.setattr(calibration, "_touch", lambda _: 1)
    config = default_config(TASK)
    config = replace(config, rollout=replace(config.rollout, rollout_length=steps))
    reading = measure_fleet(config, TASK, resolve_compute(config), Shape(1, 1, 8), 0.0)
    assert asked == [measured]
    assert reading.rollout_length == measured


def test_a_fleet_that_does_not_start_names_the_option_that_is_there(monkeypatch):
    """`rlscale workers`, `bench` and `advise` have no --actors."""

    def busy(*_, **__):
        raise BusyClusterError(
            "--actors", "1 of 2 rollout actors did not start within 120 s; the cluster may be busy", "Use fewer actors"
        )

    monkeypatch.setattr(calibration, "RayFleet", busy)
    config = default_config(TASK)
    with pytest.raises(BusyClusterError, match=r"^--cpus: 1 of 2 rollout actors did not start .* Give fewer, or wait"):
        measure_fleet(config, TASK, resolve_compute(config), Shape(2, 1, 8), 0.0)
