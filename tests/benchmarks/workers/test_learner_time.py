"""How long learning takes, measured in batches that the run's own mini-batch need not divide."""

from dataclasses import replace

import pytest

from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.benchmarks.workers import calibration
from rlscale.benchmarks.workers.calibration import measure_learner, sample_fragments
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
