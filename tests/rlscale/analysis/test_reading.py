"""What one run's noise says: planted signals, and what would resolve a weak one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from run_records import add_joint, make_run

from rlscale.analysis.reading import _signal, published, read_noise
from rlscale.analysis.summary import noise_over_run
from rlscale.errors import UsageError
from rlscale.noise import noise_scale


def test_a_strong_signal_is_read_with_its_trend(tmp_path):
    run = make_run(tmp_path / "run", signal=0.8)
    found = read_noise(run)
    whole = noise_over_run(run, "policy", "rollout").noise_scale
    assert found.policy == found.suggestion == whole
    assert found.policy.interval[0] < 16 / 0.64 < found.policy.interval[1], "blocks of 16 with a variance of 1 in every part"
    assert found.missing is None
    assert found.visible
    assert found.observations == 40 * 128
    assert found.first_return < found.last_return


def test_what_would_resolve_a_weak_signal(tmp_path):
    """The error of |G|² falls with the root of the observations, so a signal of z errors needs (2 / z)² times as many."""
    run = make_run(tmp_path / "run", signal=0.12, iterations=60)
    found = read_noise(run)
    squares = np.array([noise_scale(s).grad_sq for _, s in run.noise("policy", "rollout")])
    means = squares.reshape(10, 6).mean(axis=1)
    z = means.mean() / (means.std(ddof=1) / math.sqrt(10))
    assert found.policy.value is None
    assert 0.5 < z < 2
    assert found.missing == pytest.approx(60 * 128 * max((2 / z) ** 2 - 1, 0.25), abs=1)


def test_of_a_run_that_measures_seldom_only_what_is_measured_counts(tmp_path):
    """Eight measurements first, then one in four iterations: those four apart count, and the next come with every iteration."""
    run = make_run(tmp_path / "run", signal=0.11, iterations=240)
    for row in run.rows:
        if row["iteration"] > 8 and row["iteration"] % 4:
            row["noise"] = []
    found = read_noise(run)
    squares = np.array([noise_scale(s).grad_sq for row, s in run.noise("policy", "rollout") if row["iteration"] % 4 == 0])
    means = squares.reshape(10, 6).mean(axis=1)
    z = means.mean() / (means.std(ddof=1) / math.sqrt(10))
    assert 0.5 < z < 2
    assert found.spacing == 4
    assert found.missing == pytest.approx(128 * 60 * max((2 / z) ** 2 - 1, 0.25), abs=1)


@pytest.mark.parametrize(("measured", "visible"), [(7, False), (8, True)])
def test_of_few_measurements_no_signal_is_seen(tmp_path, measured, visible):
    """The scatter between two or three groups says nothing of the error."""
    run = make_run(tmp_path / "run", signal=0.22, iterations=8)
    for row in run.rows[measured:]:
        row["noise"] = []
    found = read_noise(run)
    if found.policy.value is None:
        assert found.visible == visible
    else:
        pytest.fail("the case must be one that is not resolved")


def test_the_error_of_a_signal_is_that_of_four_groups_or_more():
    """Eight figures in pairs, whose means are 2, 4, 6 and 8: their mean is 5, its error the root of (20/3) / 4."""
    pairs = [1.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0, 9.0]
    assert _signal(pairs) == pytest.approx(5 / math.sqrt(20 / 3 / 4))
    assert _signal(pairs[:7]) == 0.0


def test_a_run_that_has_learned_its_task_resolves_no_more(tmp_path):
    """What it would go on to measure is left out as what it did measure."""
    run = plateau(tmp_path / "run", [*range(1, 31), *([30.0, 29.5] * 45)], signal=0.18)
    found = read_noise(run)
    assert found.idle > 0
    assert found.policy.value is None
    assert found.visible
    assert found.missing is None


def test_of_a_signal_that_cannot_be_seen_nothing_is_said(tmp_path):
    found = read_noise(make_run(tmp_path / "run", signal=0.0))
    assert found.policy.value is None
    assert found.missing is None
    assert not found.visible


def test_a_run_without_noise_is_refused(tmp_path):
    run = make_run(tmp_path / "run")
    for row in run.rows:
        row["noise"] = []
    with pytest.raises(UsageError, match=r"holds no noise of the policy's loss yet"):
        read_noise(run)


def test_the_joint_loss_is_read_as_a_ratio_of_sums(tmp_path):
    """Ten early gradients nine times as large, of a signal twice as strong: in the sums they are almost all there is."""
    run = add_joint(make_run(tmp_path / "run", signal=0.4))
    found = read_noise(run)
    joint = [noise_scale(s) for _, s in run.noise("joint", "rollout")]
    sums = sum(one.trace_cov for one in joint) / sum(one.grad_sq for one in joint)
    assert found.suggestion.value == pytest.approx(sums)
    assert found.suggestion.interval[0] < 16 / 0.64 < found.suggestion.interval[1]
    assert noise_over_run(run, "joint", "rollout").b_simple > 1.5 * sums, "the average over full-batch steps"


def test_what_is_published_is_there():
    known = published()
    assert set(known) == {"measured_over_predicted", "unresolved", "with_epochs", "unresolved_with_epochs", "sweep_cost"}
    assert 0 < known["sweep_cost"][0] < known["sweep_cost"][1]


def plateau(folder, returns, signal=0.8):
    """A run with a signal, with these returns of 100 episodes each, one for every iteration."""
    run = make_run(folder, signal=signal, iterations=len(returns))
    for row, value in zip(run.rows, returns, strict=True):
        row.update(episodes=100, return_mean=value)
    return run


def test_what_follows_the_end_of_learning_is_left_out(tmp_path):
    """From 0 to 10 in ten iterations, then about 10: nine tenths of the rise are made in the tenth iteration."""
    run = plateau(tmp_path / "run", [*range(1, 11), *([10.0, 9.5] * 25)])
    without = read_noise(replace(run, rows=run.rows[:10]))
    for row in run.rows[10:]:  # no gradient any more: it must not matter
        row["noise"] = []
    found = read_noise(run)
    assert (found.observations, found.idle) == (10 * 128, 50 * 128)
    assert found.suggestion == without.suggestion
    assert found.last_return == 10


@pytest.mark.parametrize(
    "returns",
    [
        pytest.param(np.linspace(0, 1, 60), id="still-rising"),
        pytest.param([0.0, *([1.0, 0.2, 0.7] * 20)][:60], id="wavers"),
        pytest.param([5.0] * 60, id="never-rose"),
        pytest.param(np.linspace(1, 0, 60), id="falls"),
        pytest.param([-21.0, *([-20.5] * 59)], id="below the task's first goal, -19"),
    ],
)
def test_a_run_that_still_learns_or_never_did_is_read_whole(tmp_path, returns):
    found = read_noise(plateau(tmp_path / "run", [float(value) for value in returns]))
    assert (found.observations, found.idle) == (60 * 128, 0)


def test_a_run_that_ends_at_its_tasks_first_goal_has_learned(tmp_path):
    """The first goal is -19."""
    found = read_noise(plateau(tmp_path / "run", [*map(float, np.linspace(-21, -19, 10)), *([-19.0] * 50)]))
    assert found.idle > 0


def test_a_run_that_hardly_measured_its_noise_while_it_learned_is_read_whole(tmp_path):
    """Four measurements before the end of learning: too few to read."""
    run = plateau(tmp_path / "run", [*range(1, 11), *([10.0, 9.5] * 25)])
    for row in run.rows[4:10]:
        row["noise"] = []
    found = read_noise(run)
    assert (found.observations, found.idle) == (60 * 128, 0)
    assert found.policy.value is not None
