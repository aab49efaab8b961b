"""A run that is watched by the process that was started, where it ends before its record begins."""

import sys

import pytest
from run_records import make_run

from rlscale.benchmarks.commands.guard import run_guarded


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("os.kill(os.getpid(), 9)", 1, "rlscale: the run's process was killed by signal 9 before its record began\n"),
        ("sys.exit(2)", 2, ""),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_what_ends_before_its_record_begins_is_told_of(tmp_path, monkeypatch, capfd, ends, code, said):
    """Out of memory while it imports, say. What it said itself is not said again."""
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", f"import os, sys; {ends}"])
    assert run_guarded(tmp_path / "run", "rlscale train") == code
    assert capfd.readouterr().err == said


def test_a_resumed_run_that_is_killed_before_it_goes_on_is_told_of(tmp_path, monkeypatch, capfd):
    """The record is still that of the session before."""
    make_run(tmp_path / "run", iterations=1)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert run_guarded(tmp_path / "run", "rlscale train --resume run") == 1
    said = "rlscale: the run's process was killed by signal 9. Go on with: rlscale train --resume run\n"
    assert capfd.readouterr().err == said
