"""`rlscale demo`: the words that it types are understood, and the first command that fails ends it. `make demo` runs it."""

import pytest
from run_records import make_run

from rlscale.benchmarks.cli import main
from rlscale.benchmarks.commands import Command
from rlscale.benchmarks.commands.compare import CompareOptions
from rlscale.benchmarks.options import parse, parse_train
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.records import Run


@pytest.fixture
def typed(monkeypatch):
    """What the demo types, without running it."""
    found, run = {}, Command.run

    def note(command, words):
        if command.name == "demo":
            return run(command, words)
        found[command.name] = words
        return 0

    monkeypatch.setattr(Command, "run", note)
    return found


def test_the_demo_types_what_the_commands_understand(typed, capsys):
    assert main(["demo", "--out", "here", "--hours", "0.5"]) == 0
    assert list(typed) == ["sweep", "train", "report", "compare"]
    options = parse(SweepOptions, "sweep", typed["sweep"])
    assert (options.tasks, options.out, options.hours, options.interval_ratio) == (("minatar/breakout",), "here", 0.5, 4)
    make_plan("minatar/breakout", options)
    config = parse_train(typed["train"])
    assert (config.task, config.budget.seconds, config.recording.run) == ("atari/pong", 60, "here/atari-pong")
    assert typed["report"] == ["here/atari-pong"]
    assert parse(CompareOptions, "compare", typed["compare"]).folders == ("here/minatar-breakout", "here/atari-pong")
    assert "== a minute of Atari Pong on two Ray actors: rlscale train atari/pong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "types"),
    [
        ("finished", None),
        ("stopped", ["atari/pong", "--resume", "here/atari-pong", "--seconds", "5"]),
        ("failed", ["atari/pong", "--resume", "here/atari-pong", "--seconds", "5"]),
    ],
)
def test_a_second_demo_goes_on_where_the_first_one_ended(typed, tmp_path, monkeypatch, state, types):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "here" / "atari-pong")
    run = Run.resume(tmp_path / "here" / "atari-pong")
    run.set_state(state)
    run.close()
    stays = state == "stopped"  # as if by another Ctrl-C, which ends the demo
    assert main(["demo", "--out", "here", "--seconds", "5"]) == (130 if stays else 0)
    assert typed.get("train") == types
    assert typed.keys() - {"train"} == ({"sweep"} if stays else {"sweep", "report", "compare"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "-5"], "--seconds: -5.0 is not a positive number. Give one above zero"),
        (["--hours", "inf"], "--hours: inf is not finite"),
        ([], "--out: here/atari-pong holds no run (manifest.json is missing)"),
    ],
)
def test_what_a_demo_cannot_use_is_refused_before_anything_is_run(typed, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "atari-pong").mkdir(parents=True)
    assert main(["demo", "--out", "here", *words]) == 2
    assert capsys.readouterr().err.startswith(f"rlscale: {said}")
    assert not typed


def test_the_first_command_that_fails_ends_it(monkeypatch):
    ran, run = [], Command.run

    def fail(command, words):
        if command.name == "demo":
            return run(command, words)
        ran.append(command.name)
        return 130 if command.name == "train" else 0

    monkeypatch.setattr(Command, "run", fail)
    assert main(["demo"]) == 130
    assert ran == ["sweep", "train"]
