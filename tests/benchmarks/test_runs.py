"""`rlscale runs`: every run and sweep once, with what it found; what cannot be read is said."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, make_plan, write_sweep
from run_records import make_run

from rlscale.analysis import compare
from rlscale.analysis.predictions import ADVISED, PLAIN, Prediction
from rlscale.analysis.summary import recent_return
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.commands import watch
from rlscale.estimate import Estimate
from rlscale.records import read_run, read_sweep
from rlscale.report.words import say_prediction

PUBLISHED = Path(__file__).parents[2] / "results"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line_of(said, name):
    (line,) = [line for line in said.splitlines() if name in line]
    return " ".join(line.split())


def test_every_run_and_sweep_is_listed_once(here, capsys):
    make_run(here / "runs" / "one")
    make_run(here / "runs" / "group" / "two")
    sweep = write_sweep(here / "sweeps" / "breakout", Planted(scatter=0.1), "minatar/breakout")
    make_run(here / "sweeps" / "breakout" / "trials" / "run-001")
    assert main(["runs"]) == 0
    said = capsys.readouterr().out
    assert "run-001" not in said, "the runs of a sweep are its own"
    run = read_run(here / "runs" / "one")
    one = line_of(said, "runs/one")
    assert one.split()[1:3] == [run.manifest["task"]["id"], run.state]
    assert f"{run.rows[-1]['observations']:,}" in one
    assert f"{recent_return(run):.4g}" in one
    row = compare([sweep], []).rows[-1]
    listed = line_of(said, "sweeps/breakout")
    assert f"{len(sweep.results)} runs" in listed
    assert row.measured.say() in listed
    assert line_of(said, "runs/group/two")


def test_what_cannot_be_read_is_said_beside_the_others(here, capsys):
    make_run(here / "runs" / "good")
    make_run(here / "runs" / "old")
    path = here / "runs" / "old" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    assert main(["runs", "runs"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "runs/good" in said
    assert "cannot be read" in said


@pytest.mark.parametrize(
    ("name", "odd", "fault"),
    [
        ("run/manifest.json", lambda _: {"schema": 1}, "manifest.json is damaged: state is missing"),
        (
            "run/iterations.jsonl",
            lambda _: {"iteration": 0},
            "line 1 of run/iterations.jsonl is damaged: observations is missing",
        ),
        ("sweep/sweep.json", lambda _: {"schema": 1}, "sweep.json is damaged: task is missing"),
        ("sweep/sweep.json", lambda whole: whole | {"task": {"id": None}}, "sweep.json is damaged: task.id cannot be null"),
        ("sweep/sweep.json", lambda whole: whole | {"plan": whole["plan"] | {"goals": None}}, "plan.goals is no list"),
        ("sweep/ladder.json", lambda _: [], "ladder.json is damaged"),
    ],
)
def test_one_odd_record_takes_no_listing_down(here, capsys, name, odd, fault):
    make_run(here / "good")
    make_run(here / "run", iterations=2)
    write_sweep(here / "sweep", Planted(scatter=0.1), most=1)
    path, folder = here / name, name.partition("/")[0]
    whole = json.loads(path.read_text()) if path.name == "sweep.json" else None
    path.write_text(json.dumps(odd(whole)) + "\n")
    assert main(["compare", "good", folder, "--out", "None"]) == 0
    assert f"{fault}; it was left out" in capsys.readouterr().out
    assert main(["compare", folder]) == 2
    assert fault in capsys.readouterr().err
    assert main(["runs", "."]) == 0
    said = capsys.readouterr().out
    assert "good" in said
    assert "cannot be read: " in said
    if folder == "run":
        assert main(["report", "good", folder]) == 0
        assert f"{fault}; it was left out" in capsys.readouterr().out
        assert main(["train", "atari/pong", "--resume", folder]) == 2
        assert main(["branch", folder]) == 2
        assert watch._Pages([here / folder], here / "page.html").text()


def test_a_folder_whose_name_is_not_utf_8_is_shown_from_within(here, capsys, monkeypatch):
    folder = here / os.fsdecode(b"caf\xe9")
    make_run(folder)
    assert main(["runs", "."]) == 0
    assert "caf?" in capsys.readouterr().out
    monkeypatch.chdir(folder)
    assert main(["report", "."]) == 0
    assert "caf?" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_folder_that_is_private_is_said_to_be(here, capsys, monkeypatch):
    """As of another user's; root, who may run these tests, could read it."""
    make_run(here / "all" / "good")
    (here / "all" / "private").mkdir()

    def refuse(error, see):
        def seen(path, *more, **named):
            if Path(path).name == "private" or Path(path).parent.name == "private":
                raise PermissionError(error, os.strerror(error), str(path))
            return see(path, *more, **named)

        return seen

    for place, name in ((Path, "iterdir"), (Path, "exists"), (Path, "read_text"), (Path, "mkdir")):
        monkeypatch.setattr(place, name, refuse(errno.EACCES, getattr(place, name)))
    assert main(["compare", "all/private", "all/good", "--out", "None"]) == 0
    assert "all/private cannot be read: Permission denied; it was left out" in capsys.readouterr().out
    assert main(["runs", "all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot be read: cannot read" in said
    assert "all/good" in said
    assert main(["train", "toy/catch", "--run", "all/private/x"]) == 2
    assert "--run: cannot write all/private/x: Permission denied" in capsys.readouterr().err


def test_a_sweep_lists_the_noise_scale_that_its_page_shows(here, capsys):
    """A supervised task has one loss; of a sweep without noise runs nothing is known, which is not that nothing is resolved."""
    write_sweep(here / "sweeps" / "silent", Planted(scatter=0.1), plan=make_plan(noise_runs=0))
    digits = PUBLISHED / "supervised" / "digits"
    assert main(["runs", "sweeps", str(digits)]) == 0
    said = capsys.readouterr().out
    assert "not measured" in line_of(said, "sweeps/silent")
    row = compare([read_sweep(digits)], []).rows[-1]
    assert row.predicted(*row.predictor).value is not None, "the case would show it"
    assert say_prediction(row, *row.predictor) in line_of(said, "goal 0.95")


def test_a_noise_scale_of_another_loss_than_the_policys_is_named_as_such(here, capsys, monkeypatch):
    """A quick sweep predicts by the joint loss's, under a column that is headed the policy's."""
    write_sweep(here / "sweeps" / "quick", Planted(scatter=0.1), plan=make_plan(batch_sizes=None, pilot_batch=640, quick=True))
    joint = Prediction(*ADVISED, Estimate(318.0, (137.0, 791.0)), 3, 3, None)

    def with_joint(sweeps, runs):
        found = compare(sweeps, runs)
        (of_sweep,) = found.sweeps
        rows = tuple(replace(row, predictions=(*row.predictions, joint)) for row in of_sweep.rows)
        return replace(found, sweeps=(replace(of_sweep, rows=rows),), rows=rows)

    monkeypatch.setattr("rlscale.benchmarks.commands.runs.compare", with_joint)
    assert main(["runs", "sweeps"]) == 0
    assert "318 [137, 791]; of the joint loss, ratio of sums" in line_of(capsys.readouterr().out, "sweeps/quick")


def test_a_sweep_without_b_crit_lists_its_noise_scale(here, capsys):
    sweep = write_sweep(here / "sweeps" / "narrow", Planted(b_crit=1e9, s_min=1e-3, scatter=0.1))
    row = compare([sweep], []).rows[-1]
    assert (row.measured.value, row.predicted(*row.predictor).value) != (None, None)
    assert row.measured.value is None
    assert main(["runs", "sweeps"]) == 0
    listed = line_of(capsys.readouterr().out, "sweeps/narrow")
    assert "not identifiable" in listed
    assert say_prediction(row, *PLAIN) in listed


def test_a_folder_is_never_broken_over_lines(here, capsys):
    name = "runs/own_environment-make-20261126-220603"
    make_run(here / name)
    path = here / name / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "failed", "reason": "it could not " * 20}))
    assert main(["runs"]) == 0
    assert name in capsys.readouterr().out


def test_bad_input_is_one_line(here, capsys):
    assert main(["runs"]) == 2
    assert "there is no run and no sweep in runs and sweeps" in capsys.readouterr().err
    assert main(["runs", "nowhere"]) == 2
    assert "FOLDER: nowhere does not exist" in capsys.readouterr().err


def test_a_rung_that_has_not_ended_is_listed_without_its_figures(here, capsys):
    """Nobody shall decide by a figure when a rung ends."""
    write_sweep(here / "rung", Planted(scatter=0.1))
    for state, shown in (("begun", False), ("given up", False), ("finished", True)):
        (here / "rung" / "ladder.json").write_text(json.dumps({"role": "task", "state": state}))
        assert main(["runs", "."]) == 0
        said = capsys.readouterr().out
        assert (f"runs, {state}" in said) is not shown
        assert ("goal 200" in said) is shown
