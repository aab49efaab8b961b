"""A run that is watched by the process that was started, where it ends before its record begins."""

import json
import subprocess
import sys

import pytest
from run_records import make_run

from rlscale.benchmarks.commands.guard import run_guarded
from rlscale.records import read_run


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


def write_running(folder):
    """The record of a run whose process is gone and that could not be closed."""
    make_run(folder, iterations=1)
    manifest = json.loads((folder / "manifest.json").read_text())
    gone = subprocess.Popen(["true"])
    gone.wait()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "state": "running", "process": gone.pid}))


@pytest.mark.parametrize(("code", "said"), [(130, ""), (1, "Ray has ended the run's process")])
def test_an_interrupted_run_is_not_said_to_have_been_ended_by_ray(tmp_path, monkeypatch, capfd, code, said):
    """Its record may say that it runs still, where nothing more could be written."""
    write_running(tmp_path / "run")
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", f"import sys; sys.exit({code})"])
    assert run_guarded(tmp_path / "run", "rlscale train --resume run") == (130 if code == 130 else 2)
    assert capfd.readouterr().err.startswith(f"rlscale: {said}" if said else "")
    assert read_run(tmp_path / "run").state == ("interrupted" if code == 130 else "failed")


@pytest.mark.parametrize(("ends", "code", "state"), [("sys.exit(1)", 1, "interrupted"), ("os._exit(1)", 2, "failed")])
def test_a_run_that_ends_by_itself_on_a_full_disk_is_not_said_to_have_been_ended_by_ray(
    tmp_path, monkeypatch, capfd, ends, code, state
):
    write_running(tmp_path / "run")
    words = f"import os, sys; from rlscale.benchmarks.commands.guard import mark_own_end; mark_own_end(); {ends}"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", words])
    assert run_guarded(tmp_path / "run", "rlscale train --resume run") == code
    assert ("Ray has ended" in capfd.readouterr().err) == (code == 2)
    assert read_run(tmp_path / "run").state == state


def test_a_resumed_run_that_is_killed_before_it_goes_on_is_told_of(tmp_path, monkeypatch, capfd):
    """The record is still that of the session before."""
    make_run(tmp_path / "run", iterations=1)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert run_guarded(tmp_path / "run", "rlscale train --resume run") == 1
    said = "rlscale: the run's process was killed by signal 9. Go on with: rlscale train --resume run\n"
    assert capfd.readouterr().err == said
