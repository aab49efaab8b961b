"""What the benchmarks' tables print of many readings."""

import pytest

from rlscale.benchmarks.measurements import sweep_designs
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
