"""The simulated cluster: iterations by hand, and recommendations near the optimum in clusters that no law was fitted to."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlscale.benchmarks.measurements.cluster_simulation import (
    OBSERVATION_BYTES,
    PARAMETER_BYTES,
    Cluster,
    StepTimes,
    draw_cluster,
    read_step_times,
    run_draw,
    simulate,
)
from rlscale.sizing import Price

RECORD = Path(__file__).parents[3] / "results" / "workers-pong.json"
TIMES = StepTimes(np.array([8.0, 64.0]), np.array([0.01, 0.066]), np.array([1.0]))  # 2 ms + 1 ms an environment
PLAIN = Cluster(
    speeds=np.ones(64),
    straggling=0.0,
    straggle_factor=1.0,
    per_node=4,
    crowding=0.0,
    bandwidth=1e30,
    message=0.05,
    learner=1e-3,
    learner_fixed=0.2,
    batch_size=3200,
    rollout_length=100,
    lag=0,
    price=Price(1.0),
)


def run(cluster, workers=4, environments=8, **options):
    return simulate(cluster, TIMES, np.random.default_rng(0), workers, environments, 100, 5, **options)


def test_iterations_by_hand():
    """Four workers take a second each; handing over takes 4 × 0.05 s; learning from 3,200 observations 3.4 s."""
    seconds, services = run(PLAIN)
    assert seconds == pytest.approx([1 + 0.2 + 3.4] * 5)
    assert services == [pytest.approx((1.0,) * 4)] * 5
    seconds, _ = run(PLAIN, lag=1)
    assert seconds[0] == pytest.approx(4.6)
    assert seconds[1:] == pytest.approx([3.4] * 4)  # the learner never rests
    seconds, _ = run(replace(PLAIN, learner=0.0), lag=1)
    assert seconds[1:] == pytest.approx([1.2] * 4)  # the workers never do, but for the parameters' way
    assert run(PLAIN, learn=False)[0] == pytest.approx([1.2] * 5)


def test_what_slows_a_cluster():
    slow = replace(PLAIN, speeds=np.array([1.0, 1.0, 2.0, 1.0]))
    assert run(slow, learn=False)[0] == pytest.approx([2.05] * 5)  # the others are handed over meanwhile
    assert run(replace(PLAIN, crowding=0.3), learn=False)[0] == pytest.approx([1.3 + 0.2] * 5)
    assert run(replace(PLAIN, straggling=1.0, straggle_factor=3.0), learn=False)[0] == pytest.approx([3.2] * 5)
    # Two nodes: parameters reach the second one later; fragments of 100 × 8 observations queue for the link.
    narrow = replace(PLAIN, bandwidth=1e8, message=0.0)
    fragment, parameters = 800 * OBSERVATION_BYTES / 1e8, PARAMETER_BYTES / 1e8
    assert fragment < parameters  # so the second node's fragments begin to queue when the last but one of the first is through
    assert run(narrow, workers=4, learn=False)[0] == pytest.approx([parameters + 1 + 4 * fragment] * 5)
    assert run(narrow, workers=5, learn=False)[0] == pytest.approx([parameters + 1 + 5 * fragment] * 5)
    assert TIMES.of(8) == pytest.approx(0.01)
    assert TIMES.of(22) == pytest.approx(0.024)


def test_draws_span_what_is_claimed():
    clusters = [draw_cluster(np.random.default_rng(seed)) for seed in range(200)]
    sizes = [len(cluster.speeds) for cluster in clusters]
    assert 4 <= min(sizes) <= 8
    assert 512 <= max(sizes) <= 1024
    assert {cluster.lag for cluster in clusters} == {0, 1}
    for cluster in clusters:
        environments = [cluster.batch_size / (n * cluster.rollout_length) for n in cluster.counts]
        assert 8 <= min(environments) <= max(environments) <= 128
        assert len(cluster.counts) >= 2
        assert cluster.counts[-1] <= len(cluster.speeds)
        assert len(set(cluster.counts)) == len(cluster.counts)


def test_recommendations_come_near_the_optimum():
    """Twelve clusters, none of a size that takes long; the whole hundred is in results/."""
    times = read_step_times(RECORD)
    assert len(times.environments) >= 3
    draws, seed = [], 1000
    while len(draws) < 12:
        if len(draw_cluster(np.random.default_rng([seed, 0xC1])).speeds) <= 200:
            draws.append(run_draw(times, seed))
        seed += 1
    assert sum(draw["above_optimum"] <= 0.05 for draw in draws) >= 11
    assert any(draw["best"] not in (1, draw["workers"]) for draw in draws)  # the optimum is not always at an end
    for draw in draws:
        assert draw["above_optimum"] >= 0
        assert draw["costs"][str(draw["best"])] == min(draw["costs"].values())
