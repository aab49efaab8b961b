"""The whole command on a task whose critical batch size and noise scale are known exactly: twenty grids, and twenty sweeps that
decide run by run, seeds named beforehand.

The task is linear regression in 50 dimensions without label noise: the noise scale is 51 at every step. With the rate
ε = η/(1 + 51/B), η = 0.03, the goal takes S = ln 100 / -ln(1 - (2η - η²)/(1 + 51/B)) steps, which the frontier fits with
B_crit = 52.6 and S_min = 75.6 over B = 1 … 4,096. A grid is given these rates. A sweep that decides run by run looks for the best
one, which would reach the goal in one step; so there other rates, a power of B, have the effect of these, and are the best.
Everything is the command's own but the trainer: options, plan, trials, goals, record, surface, prediction.
"""

import numpy as np
import pytest
from regressions import DIMENSIONS, NOISE_SCALE, mean_gradients, planted_course, tuned_course
from rich.console import Console
from scipy.stats import ks_2samp

from rlscale.analysis.comparison import compare
from rlscale.benchmarks.sweep import kinds
from rlscale.benchmarks.sweep.options import SweepOptions
from rlscale.benchmarks.sweep.run import run_sweeps
from rlscale.records import read_sweep

SEEDS = range(100, 2100, 100)  # of twenty sweeps; their runs' seeds do not overlap
B_CRIT, S_MIN = 52.6, 75.6
COMMON = {"tasks": ("classic/cartpole",), "noise_runs": 3, "pilot_batch": 256, "goals": (2.0,), "rollout_length": 1, "jobs": 0}
GRID = {"batch_sizes": "1..1024", "rates": 1, "seeds": 2, "learning_rate": 0.03, "rate_exponent": 1.0}
# Half the best rate at the pilot's size, and another power of B.
RUN_BY_RUN = {"learning_rate": 0.005, "rate_exponent": 0.7, "observations": 2_000_000, "interval_ratio": 1.2}


def sweep(folder, seed, **design):
    options = SweepOptions(**COMMON, **design, rate_batch=float(NOISE_SCALE), seed=seed, out=str(folder))
    (written,) = run_sweeps(options, [], Console(quiet=True))
    record = read_sweep(written)
    (row,) = compare([record], []).rows
    return row, list(record.results.values())


@pytest.mark.long
@pytest.mark.parametrize(("course", "design"), [(planted_course, GRID), (tuned_course, RUN_BY_RUN)], ids=["grid", "run by run"])
def test_intervals_of_b_crit_and_of_the_noise_hold_in_eighteen_of_twenty_sweeps(tmp_path, monkeypatch, course, design):
    monkeypatch.setattr(kinds, "TrainingCourse", course)
    critical, noise = [], []
    for seed in SEEDS:
        row, _ = sweep(tmp_path / str(seed), seed, **design)
        critical.append(row.measured.interval)
        noise.append(row.predicted("joint", "cumulative").interval)
    assert sum(low <= B_CRIT <= high for low, high in critical) >= 18, critical
    assert sum(low <= NOISE_SCALE <= high for low, high in noise) >= 18, noise
    assert all(high / low < 3 for low, high in critical), "the intervals say something"
    assert all(high / low < 3 for low, high in noise), "the intervals say something"


@pytest.mark.parametrize("observations", [1, 3, 32])
def test_the_task_s_gradients_are_those_of_its_observations(observations):
    """Drawn by their law or made from observations, they have one distribution: along δ, across it, and in length."""
    rng = np.random.default_rng(0)
    delta = rng.standard_normal((1, DIMENSIONS))
    by_law = mean_gradients(rng, np.repeat(delta, 2000, axis=0), 2 * observations, 2).reshape(-1, DIMENSIONS)
    x = rng.standard_normal((4000, observations, DIMENSIONS))
    made = (x * (x @ delta[0])[:, :, None]).mean(axis=1)
    across = np.eye(DIMENSIONS)[0] - delta[0] * delta[0, 0] / (delta @ delta.T)
    for view in (lambda g: g @ delta[0], lambda g: g @ across[0], lambda g: (g**2).sum(axis=1)):
        assert ks_2samp(view(by_law), view(made)).pvalue > 0.001
    square = (delta**2).sum()
    assert by_law.var(axis=0).sum() * observations == pytest.approx(NOISE_SCALE * square, rel=0.05)
    assert by_law.mean(axis=0) == pytest.approx(delta[0], abs=0.1 * np.sqrt(square))


def test_one_grid_of_a_known_task_through_the_whole_command(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "TrainingCourse", planted_course)
    row, _ = sweep(tmp_path, 0, **GRID)
    assert row.measured.value == pytest.approx(B_CRIT, rel=0.3)
    assert row.s_min.value == pytest.approx(S_MIN, rel=0.2)
    assert row.predicted("joint", "cumulative").value == pytest.approx(NOISE_SCALE, rel=0.2)
    assert row.predicted("policy", "cumulative").value == pytest.approx(NOISE_SCALE, rel=0.2)


def test_one_sweep_that_decides_run_by_run_through_the_whole_command(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "TrainingCourse", tuned_course)
    row, runs = sweep(tmp_path, 0, **RUN_BY_RUN)
    assert [run.stage for run in runs[:3]] == ["pilot"] * 3
    assert {run.stage for run in runs[3:-3]} == {"span", "sharpen"}
    assert [run.stage for run in runs[-3:]] == ["noise"] * 3
    assert len({run.batch_size for run in runs}) >= 5
    low, high = row.measured.interval
    assert high <= 1.2 * low, "it ends when the interval is as sharp as it was asked to be"
    assert row.measured.value == pytest.approx(B_CRIT, rel=0.3)
    assert row.s_min.value == pytest.approx(S_MIN, rel=0.2)
    assert row.predicted("joint", "cumulative").value == pytest.approx(NOISE_SCALE, rel=0.2)
