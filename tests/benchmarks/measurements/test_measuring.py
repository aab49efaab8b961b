"""What the benchmarks' tables print of many readings."""

from pathlib import Path

import pytest

from rlscale.benchmarks.measurements import goal_detection, scaling, sweep_designs
from rlscale.benchmarks.measurements.learning import adaptive, beside, quick
from rlscale.benchmarks.measurements.measuring import median_and_spread, print_table


def test_the_median_and_the_middle_half():
    assert median_and_spread([5.0, 1.0, 2.0, 4.0, 3.0]) == "3 [2, 4]"
    assert median_and_spread([0.12345]) == "0.123 [0.123, 0.123]"


def test_large_numbers_are_written_out():
    assert median_and_spread([1234.5, 999.4, 20000.0]) == "1,234 [1,117, 10,617]"


def test_brackets_are_printed(capsys):
    """They are the middle half or an interval, which rich would take for a style."""
    print_table("rates [Pong]", ["median [middle half]"], [["1 [nan, nan]"], ["2 [bold]"]])
    said = capsys.readouterr().out
    assert all(words in said for words in ("rates [Pong]", "median [middle half]", "1 [nan, nan]", "2 [bold]"))


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (lambda out: quick.main(("blackjack", "nosuch"), out=out), "RUNGS: there is no 'nosuch'. There are: "),
        (lambda out: adaptive.main("nosuch", out=out), "RUNG: there is no 'nosuch'. There are: "),
        (lambda out: goal_detection.main(tasks=("nosuch",), out=out), "--tasks: there is no 'nosuch'. There are: "),
        (lambda out: scaling.main(rounds=0, out=out), "--rounds: 0 leaves nothing to measure. Use 1 or more"),
        (lambda out: beside.main(beside.Options("shapes", seeds=0, out=out)), "--seeds: 0 leaves nothing to measure."),
    ],
)
def test_what_there_is_not_is_said_before_anything_is_measured(measure, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(SystemExit) as end:
        measure(tmp_path / "record.json")
    printed = capsys.readouterr().err
    assert (end.value.code, printed.count("\n")) == (2, 1)
    assert printed.startswith(said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("asked", [{"designs": ("grid", "search")}, {"cells": ("sd 9",)}])
def test_a_name_that_there_is_not_ends_the_script_in_one_line(asked, tmp_path, capsys):
    """Before anything is measured."""
    ((name, values),) = asked.items()
    with pytest.raises(SystemExit) as end:
        sweep_designs.main(**asked, out=tmp_path / "record.json")
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith(f"--{name}: there is no {values[-1]!r}. There are: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
