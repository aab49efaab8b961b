"""The whole command on a task whose critical batch size and noise scale are known exactly: twenty sweeps, seeds named beforehand.

The task is linear regression in 50 dimensions without label noise: the noise scale is 51 at every step. With the rate
ε = η/(1 + 51/B), η = 0.03, the goal takes S = ln 100 / -ln(1 - (2η - η²)/(1 + 51/B)) steps, which the frontier fits with
B_crit = 52.6 and S_min = 75.6 over B = 1 … 4,096. Everything is the command's own but the trainer: options, plan, trials, goals,
record, surface, prediction.
"""

import pytest
from regressions import NOISE_SCALE, planted_course
from rich.console import Console

from rlscale.analysis.comparison import compare
from rlscale.benchmarks.sweep import kinds
from rlscale.benchmarks.sweep.options import SweepOptions
from rlscale.benchmarks.sweep.run import run_sweeps
from rlscale.records import read_sweep

SEEDS = range(100, 2100, 100)  # of twenty sweeps; their runs' seeds do not overlap


def sweep(folder, seed):
    options = SweepOptions(
        tasks=("classic/cartpole",),
        batch_sizes="1..1024",
        rates=1,
        seeds=2,
        noise_runs=3,
        pilot_batch=256,
        goals=(2.0,),
        learning_rate=0.03,
        rate_batch=float(NOISE_SCALE),
        rate_exponent=1.0,
        rollout_length=1,
        seed=seed,
        jobs=0,
        out=str(folder),
    )
    (written,) = run_sweeps(options, [], Console(quiet=True))
    (row,) = compare([read_sweep(written)], []).rows
    return row


@pytest.mark.long
def test_intervals_of_b_crit_and_of_the_noise_hold_in_eighteen_of_twenty_sweeps(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "TrainingCourse", planted_course)
    critical, noise = [], []
    for seed in SEEDS:
        row = sweep(tmp_path / str(seed), seed)
        critical.append(row.measured.interval)
        noise.append(row.predicted("joint", "cumulative").interval)
    assert sum(low <= 52.6 <= high for low, high in critical) >= 18, critical
    assert sum(low <= NOISE_SCALE <= high for low, high in noise) >= 18, noise
    assert all(high / low < 3 for low, high in critical), "the intervals say something"
    assert all(high / low < 3 for low, high in noise), "the intervals say something"


def test_one_sweep_of_a_known_task_through_the_whole_command(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "TrainingCourse", planted_course)
    row = sweep(tmp_path, 0)
    assert row.measured.value == pytest.approx(52.6, rel=0.3)
    assert row.s_min.value == pytest.approx(75.6, rel=0.2)
    assert row.predicted("joint", "cumulative").value == pytest.approx(NOISE_SCALE, rel=0.2)
    assert row.predicted("policy", "cumulative").value == pytest.approx(NOISE_SCALE, rel=0.2)
