"""Time to a stated return: where a goal counts as reached, and real runs of both libraries."""

import subprocess
import sys

import pytest

from rlscale.benchmarks.measurements.learning import time_to_score
from rlscale.benchmarks.measurements.learning.time_to_score import CASES, Case, crossings, table, thinned

CURVE = [(1.0, 100, None), (2.0, 200, -20.0), (4.0, 300, -17.5), (5.0, 400, -18.5), (9.0, 500, 18.0)]


def test_a_goal_is_reached_at_the_first_iteration_whose_mean_is_not_below_it() -> None:
    assert crossings(CURVE, (-18.0, 18.0, 18.5)) == {
        "-18": {"seconds": 4.0, "observations": 300},
        "18": {"seconds": 9.0, "observations": 500},
        "18.5": None,
    }


def test_a_thinned_curve_keeps_its_ends() -> None:
    curve = [(float(i), i, None) for i in range(1001)]
    kept = thinned(curve)
    assert kept[0] == curve[0]
    assert kept[-1] == curve[-1]
    assert 200 <= len(kept) <= 252
    assert thinned(CURVE) == CURVE


def test_the_table_counts_the_runs_that_missed_a_goal_and_what_the_machine_samples_meanwhile() -> None:
    runs = [
        {"case": "pong", "settings": "", "sampling": rate, "goals": {"18": at}}
        for rate, at in (
            (2000.0, {"seconds": 600.0, "observations": 1_000_000}),
            (1000.0, {"seconds": 1200.0, "observations": 2_000_000}),
            (1000.0, None),
        )
    ]
    columns, rows = table(runs)
    row = dict(zip(columns, rows[0], strict=True))
    assert row["reached"] == "2 of 3"
    assert row["minutes"] == "15.00 [10.00, 20.00]"
    assert row["observations, millions"] == "1.50 [1.00, 2.00]"
    assert row["the machine samples meanwhile, millions"] == "1.20 [1.20, 1.20]"


@pytest.mark.parametrize("system", ["rlscale", time_to_score.PEER])
def test_a_real_run_ends_at_its_goal(system: str) -> None:
    case = Case("classic/cartpole", (20.0, 80.0), 1, 100_000, system=system)
    curve = time_to_score.ours(case, 0) if system == "rlscale" else time_to_score.with_stable_baselines3(case, 0)
    reached = crossings(curve, case.goals)
    assert reached["20"] is not None
    assert reached["80"] is not None
    assert reached["20"]["observations"] < reached["80"]["observations"] == curve[-1][1] < case.observations
    assert 0 < reached["20"]["seconds"] < reached["80"]["seconds"] == curve[-1][0]


def test_an_unknown_case_is_refused_in_one_line() -> None:
    words = [sys.executable, "-m", time_to_score.__name__, "--cases", "tetris"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'tetris'" in done.stderr
    assert "pong" in done.stderr


def test_every_case_names_a_task_and_rising_goals() -> None:
    from rlscale.envs import find_task

    for case in CASES.values():
        assert find_task(case.task).id == case.task
        assert list(case.goals) == sorted(case.goals)
