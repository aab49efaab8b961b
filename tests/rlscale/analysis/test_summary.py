"""What is read off a single run's record."""

from pathlib import Path

import numpy as np
import pytest

from rlscale.analysis.summary import noise_over_run
from rlscale.noise import BlockStatistics, run_average
from rlscale.records.run import RunRecord, pack_statistics


def statistics(signal, seed):
    g = np.random.default_rng(seed).normal(size=(8, 40)) + signal
    return BlockStatistics([16] * 8, (g * g).sum(1), g @ g.mean(0))


def record(measured, last):
    """A run of one step of 128 observations an iteration, with the noise measured in those iterations."""
    rows = [
        {
            "iteration": i,
            "observations": 128 * (i + 1),
            "optimizer_steps": i + 1,
            "noise": [{"head": "policy", "kind": "rollout", "optimizer_step": i, **pack_statistics(measured[i])}]
            if i in measured
            else [],
        }
        for i in range(last + 1)
    ]
    return RunRecord(Path("run"), {}, rows)


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


def test_what_was_not_measured_has_no_average():
    assert noise_over_run(record({}, 3), "policy", "rollout") is None
