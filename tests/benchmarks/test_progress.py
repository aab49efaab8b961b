"""What is shown while something goes on: the time left only once it is known."""

import io

import pytest
from rich.console import Console

from rlscale.agents.config import Budget
from rlscale.benchmarks import steps as steps_module
from rlscale.benchmarks.commands import train_display
from rlscale.benchmarks.commands.train_display import TrainingDisplay
from rlscale.benchmarks.steps import Steps


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when it is told to."""
    now = [100.0]
    for module in (train_display, steps_module):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def row(iteration, observations, steps):
    return {
        "iteration": iteration,
        "seconds": 60.0 + 10.0 * iteration,
        "observations": observations,
        "batch_observations": 100,
        "optimizer_steps": steps,
        "observations_per_second": 1.0,
        "episodes": 0,
        "return_mean": None,
        "losses": [],
        "spilled_bytes": 0,
    }


def lines_of(budget, rows, clock):
    """The last line after each row; a row comes every ten seconds, the first after a minute of making environments."""
    clock[0] += 50
    shown = io.StringIO()
    display = TrainingDisplay("task", budget, Console(file=shown, width=200))
    for each in rows:
        clock[0] += 10
        display.update(each, [])
    return shown.getvalue().splitlines()


def test_what_a_step_is_called_is_no_markup():
    shown = io.StringIO()
    with Steps(Console(file=shown, force_terminal=True, width=80, color_system=None), 2) as steps:
        steps.begin("[bold]mine[/bold]")
        steps._progress.refresh()
    assert "[bold]mine[/bold]" in shown.getvalue()


def test_measurements_side_by_side_count_once_they_have_ended(clock):
    """Two at a time, ten seconds each: when the fifth of eight begins beside one, three have ended in twenty seconds."""
    shown = io.StringIO()
    with Steps(Console(file=shown, width=80), 8, alike=3) as steps:
        for at, what, beside in ((0, "a", 0), (0, "b", 1), (10, "c", 1), (10, "d", 1), (20, "e", 1)):
            clock[0] = 100.0 + at
            steps.begin(what, beside)
    assert shown.getvalue().split("\n")[:5] == ["a", "b", "c", "d", "e  0:33 left"]


def test_no_time_left_before_the_pace_is_known(clock):
    lines = lines_of(Budget(observations=1000), [row(0, 100, 1), row(1, 200, 2), row(2, 300, 3)], clock)
    assert "left" not in lines[0]
    assert lines[1].endswith("1:20 left")  # 800 more at 10 a second, whatever the first minute took
    assert lines[2].endswith("1:10 left")


def test_the_end_that_comes_first_counts_and_seconds_are_known_at_once(clock):
    (line, *_) = lines_of(Budget(observations=1000, seconds=90.0), [row(0, 100, 1)], clock)
    assert line.endswith("0:30 left")
    *_, last = lines_of(Budget(observations=None, optimizer_steps=3), [row(0, 100, 1), row(1, 200, 3)], clock)
    assert last.endswith("0:00 left")


def test_a_series_of_measurements_says_the_time_left_after_its_first_round(clock):
    shown = io.StringIO()
    with Steps(Console(file=shown, width=200), total=6, alike=2) as steps:
        for number in range(4):
            steps.begin(f"measurement {number}")
            clock[0] += 30
    lines = [line.rstrip() for line in shown.getvalue().splitlines() if line.strip()]
    assert lines == ["measurement 0", "measurement 1", "measurement 2  2:00 left", "measurement 3  1:30 left"]
