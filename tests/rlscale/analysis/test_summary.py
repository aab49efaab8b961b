"""What is read off a single run's record."""

from pathlib import Path

import numpy as np
import pytest
from statistics_by_hand import exact_statistics

from rlscale.analysis.summary import mean_batch, noise_of_sums, noise_over_run, noise_windows
from rlscale.noise import BlockStatistics, run_average
from rlscale.records.noise import pack_statistics
from rlscale.records.run import RunRecord


def statistics(signal, seed, blocks=8):
    g = np.random.default_rng(seed).normal(size=(blocks, 40)) + signal
    return BlockStatistics([16] * blocks, (g * g).sum(1), g @ g.mean(0))


def record(measured, last, batch_size=None):
    """A run of one step of 128 observations an iteration, with the noise measured in those iterations."""
    rows = [
        {
            "iteration": i,
            "observations": 128 * (i + 1),
            "optimizer_steps": i + 1,
            "batch_observations": 128,
            "noise": [{"head": "policy", "kind": "rollout", "optimizer_step": i, **pack_statistics(measured[i])}]
            if i in measured
            else [],
        }
        for i in range(last + 1)
    ]
    return RunRecord(Path("run"), {"config": {"rollout": {"batch_size": batch_size}}}, rows)


@pytest.mark.parametrize("first", [0, 3])
def test_a_dense_beginning_counts_no_more_than_the_rest(first):
    """A run measures often at first, where the signal is strong; its average is that of measurements eight iterations apart."""
    regular = [first + 8 * n for n in range(12)]
    dense = [first + n for n in (1, 2, 3, 4, 5, 6, 7, 10, 12, 14)]
    measured = {i: statistics(0.1 if i > first + 8 else 1.0, i) for i in (*regular, *dense)}
    found = noise_over_run(record(measured, regular[-1]), "policy", "rollout")
    expected = run_average([measured[i] for i in regular], 128.0)
    assert found.noise_scale.value == pytest.approx(expected.noise_scale.value)
    assert found.updates == len(regular)
    crowded = run_average([measured[i] for i in sorted(measured)], 128.0)
    assert abs(np.log(crowded.noise_scale.value / expected.noise_scale.value)) > 0.2, "the case would show it"


def test_the_steps_of_an_adaptive_run_are_as_full_as_their_own_batches():
    """A hundred at B = 𝓑 = 128 and a hundred at B = 𝓑 = 8,192 are half a full-batch step each: the mean of 𝓑 is 4,160."""
    run = record({i: exact_statistics(128.0 if i < 100 else 8192.0, 1.0, 32) for i in range(200)}, 199, "adaptive")
    for row in run.rows:
        row["batch_observations"] = 128 if row["iteration"] < 100 else 8192
    run.rows[-1]["observations"] = 100 * (128 + 8192)
    assert noise_over_run(run, "policy", "rollout").noise_scale.value == pytest.approx(4160)
    for row in run.rows:
        row["optimizer_steps"] *= 4  # of four epochs; each step is then a fifth of a full-batch step, and 𝓑 weighs as before
    assert noise_over_run(run, "policy", "rollout").noise_scale.value == pytest.approx(4160)
    for row in run.rows:
        row["optimizer_steps"] //= 4
    run.manifest["config"]["rollout"]["batch_size"] = None
    assert noise_over_run(run, "policy", "rollout").noise_scale.value < 2500, (
        "with one batch for all the early steps count too much"
    )


def test_a_job_that_was_restored_keeps_its_measurements():
    """RLlib counts the updates anew, so that every fourth one is another from then on; both halves of the run count."""
    before, after = range(0, 50, 4), range(51, 100, 4)
    measured = {i: statistics(1.0 if i < 50 else 0.1, i) for i in (*before, *after)}
    found = noise_over_run(record(measured, 99), "policy", "rollout")
    expected = run_average([measured[i] for i in (*before, *after) if i != 48], 128.0)  # three iterations before the next one
    assert found.updates == len(measured) - 1
    assert found.noise_scale.value == pytest.approx(expected.noise_scale.value)


@pytest.mark.parametrize("steps_counted", [False, True])
def test_observations_and_steps_before_the_record_are_not_its_own(steps_counted):
    """RLlib goes on counting them from a checkpoint; the steps only where the checkpoint was made with the measurement."""
    whole = record({}, 9)
    for row in whole.rows:
        row["observations"] += 2_000_000
        row["optimizer_steps"] += 50 if steps_counted else 0
    assert mean_batch(whole) == 128.0
    assert mean_batch(record({}, 9)) == mean_batch(record({}, 0)) == 128.0


def test_what_was_not_measured_has_no_average():
    assert noise_over_run(record({}, 3), "policy", "rollout") is None


def test_a_measurement_of_two_blocks_says_nothing_and_hides_nothing():
    """An interval needs three blocks of every update, so one that has only two is left out of its run."""
    few = record({i: statistics(1.0, i, blocks=2 if i == 5 else 8) for i in range(12)}, 11)
    without = run_average([statistics(1.0, i) for i in range(12) if i != 5], 128.0)
    assert noise_over_run(few, "policy", "rollout").b_simple == pytest.approx(without.b_simple)
    assert noise_of_sums(few, "policy", "rollout").noise_scale.value is not None
    assert all(window.noise.noise_scale.value is not None for window in noise_windows(few, "policy", "rollout"))


def test_measurements_of_two_blocks_alone_say_why_there_is_no_noise_scale():
    few = record({i: statistics(1.0, i, blocks=2) for i in range(12)}, 11)
    reasons = [noise_over_run(few, "policy", "rollout").reason, noise_windows(few, "policy", "rollout")[0].noise.reason]
    assert reasons == ["an interval needs at least three blocks in every update"] * 2
