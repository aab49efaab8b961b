"""Faults that a newcomer found, each with the input that showed it."""

import errno
import json
import os
import time

import pytest
from run_records import charts_of, make_run

from rlscale.agents.checks import check_config, divisors_of
from rlscale.agents.cluster import LostWorkerError
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.sweep import run as sweep_run
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.errors import UsageError

LITTLE = ["classic/cartpole", "--environments", "4", "--rollout-length", "8", "--mini-batch", "32", "--optimizer-steps", "1"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("flag", ["--seconds", "--learning-rate", "--reward-noise"])
def test_infinity_is_not_finite_rather_than_not_positive(flag, here, capsys):
    assert main(["train", "classic/cartpole", flag, "inf"]) == 2
    assert f"{flag}: inf is not finite. Give a number, or leave it out" in capsys.readouterr().err


def test_a_record_with_nan_is_shown(here, capsys):
    """What a damaged or foreign record may hold: the page leaves a gap there."""
    make_run(here / "run")
    path = here / "run" / "iterations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3] |= {"return_mean": float("nan"), "sampling_seconds": float("nan")}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", "run"]) == 0
    text = (here / "run" / "report.html").read_text()
    assert "NaN" not in text[text.index("const charts = ") :].splitlines()[0]
    assert len(charts_of(here / "run" / "report.html")) >= 3


def test_report_leaves_out_what_compare_would(here, capsys):
    make_run(here / "good")
    (here / "bad").mkdir()
    assert main(["report", "bad", "good"]) == 0
    said = capsys.readouterr().out
    assert "note: bad holds no run (manifest.json is missing); it was left out" in said
    assert "wrote good/report.html" in said
    assert main(["report", "bad"]) == 2


def test_a_full_disk_leaves_the_page_that_was_there(here, capsys, monkeypatch):
    make_run(here / "run")
    before = b"<p>Another page than the one that finds no room: the same bytes would not tell which is there.</p>"
    (here / "page.html").write_bytes(before)

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of which file, the system does not say

    monkeypatch.setattr(os, "fsync", full)
    assert main(["report", "run", "--out", "page.html"]) == 1
    assert capsys.readouterr().err == "rlscale: no room to write page.html: No space left on device\n"
    assert (here / "page.html").read_bytes() == before
    assert sorted(path.name for path in here.iterdir()) == ["page.html", "run"]


def test_a_folder_in_the_place_of_the_page_is_left_with_nothing_beside_it(here, capsys):
    make_run(here / "run")
    (here / "folder").mkdir()
    assert main(["report", "run", "--out", "folder"]) == 2
    assert "--out: cannot write folder: Is a directory" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["folder", "run"]


def test_what_a_user_names_is_printed_as_typed(here, capsys):
    """Neither markup nor an emoji."""
    assert main(["train", *LITTLE, "--run", "[bold]:smile:[/bold]"]) == 0
    said = capsys.readouterr().out
    assert "record in [bold]:smile:[/bold]" in said
    assert "see it with: rlscale report '[bold]:smile:[/bold]'" in said
    make_run(here / "[red]:smile:mine")
    for words in (["runs", "."], ["compare", "[red]:smile:mine"]):  # in the cells of tables, which may be wrapped
        assert main(words) == 0
        assert "[red]:smile:mine" in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (["train", "classic/cartpole", "--run", "my run"], "go on with it: --resume 'my run'"),
        (["report", "my sweep"], "See it with: rlscale compare 'my sweep'"),
        (["compare", "all of it"], "Name those in it: 'all of it'/*"),
    ],
)
def test_what_is_to_be_typed_is_quoted_where_a_name_has_spaces(here, capsys, words, mend):
    for name in ("my run/manifest.json", "my sweep/sweep.json", "all of it/one/manifest.json"):
        (here / name).parent.mkdir(parents=True)
        (here / name).touch()
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"{mend}\n")


def test_a_resumed_run_says_what_it_takes_otherwise(here, capsys):
    assert main(["train", *LITTLE, "--run", "run"]) == 0
    assert "other settings" not in capsys.readouterr().out
    again = ["train", "classic/cartpole", "--resume", "run", "--optimizer-steps", "2"]
    assert main(again) == 0
    assert "other settings" not in capsys.readouterr().out, "the budget is what a resumed run is given anew"
    assert main([*again[:-1], "3", "--learning-rate", "0.5", "--clip", "None"]) == 0
    said = capsys.readouterr().out
    assert "going on with other settings: --learning-rate 0.5, was 0.001; --clip None, was 0.2" in said


@pytest.mark.timed
@pytest.mark.parametrize("environments", ["100000000", "100000000000"])
@pytest.mark.parametrize("actors", ["0", "1"])
def test_a_batch_that_cannot_fit_is_refused_before_anything_is_made(here, capsys, environments, actors):
    """Ten million environments took all memory of the machine, and other people's processes with it; a hundred billion took
    minutes to be divided."""
    words = ["--environments", environments, "--actors", actors, "--optimizer-steps", "1"]
    begun = time.monotonic()
    assert main(["train", "classic/cartpole", *words]) == 2
    assert time.monotonic() - begun < 10
    assert "--environments: an iteration batch of " in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.timed
def test_large_numbers_of_environments_are_divided_at_once():
    """Divided one by one, the hundred billion above would keep the test above for hours before it failed."""
    begun = time.monotonic()
    assert divisors_of(400_000_000)[-2:] == [200_000_000, 400_000_000]
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["train", "classic/cartpole", "--actors", "100000"], "--actors"),
        (["sweep", "classic/cartpole", "--jobs", "100000"], "--jobs"),
        (["bench", "--cpus", "100000"], "--cpus"),
        (["workers", "classic/cartpole", "--cpus", "100000"], "--cpus"),
        (["advise", "classic/cartpole", "--cpus", "100000"], "--cpus"),
        (["train", "toy/catch", "--width", "1000000000000"], "--width"),
        (["train", "toy/catch", "--width", "1000000000000", "--memory", "1GiB"], "--width"),
        (["train", "toy/catch", "--width", "3000000000000000000000"], "--width"),
        (["sweep", "toy/catch", "--width", "1000000000000"], "--width"),
        (["sweep", "toy/catch", "--width", "3000000000000000000000"], "--width"),
        (["sweep", "minatar/breakout", "--width", "1000000000000"], "--width"),
    ],
)
def test_processes_and_networks_that_cannot_fit_are_refused_before_anything_is_made(here, capsys, words, flag):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"rlscale: {flag}: ")
    assert said.err.count("\n") == 1
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--environments", "10"], (10, 32, 320)),  # one mini-batch of ten whole environments
        (["--environments", "40"], (40, 32, 256)),
        (["--rollout-length", "20"], (32, 20, 320)),
        (["--actors", "3"], (33, 32, 352)),
        (["--environments", "2"], (2, 32, 64)),
    ],
)
def test_nobody_hears_of_an_option_that_he_did_not_type(words, expected):
    """`--mini-batch: 256 does not divide the iteration batch of 320` was the answer to `--environments 10`."""
    config = parse_train(["classic/cartpole", *words])
    check_config(config)
    assert (config.rollout.environments, config.rollout.rollout_length, config.update.mini_batch) == expected


def test_what_was_typed_is_not_changed():
    for words, flag in ((["--mini-batch", "100"], "--mini-batch"), (["--environments", "8", "--actors", "3"], "--environments")):
        with pytest.raises(UsageError) as refusal:
            check_config(parse_train(["classic/cartpole", *words]))
        assert refusal.value.field == flag


class _NeverStarts:
    """A trial worker whose process ends as it begins, as where memory has run out."""

    def __init__(self, folder):
        os._exit(1)

    def ready(self):
        return None


def wait_for_ever(pool):
    while True:
        pool.wait(0.5)


def test_workers_that_do_not_start_end_a_sweep_in_one_line(here, monkeypatch, capsys, own_ray):
    monkeypatch.setattr(sweep_run, "TrialWorker", _NeverStarts)
    options = SweepOptions(tasks=("classic/cartpole",), jobs=1)
    pool = sweep_run.RayPool([make_plan("classic/cartpole", options)], options)
    try:
        with pytest.raises(LostWorkerError, match="3 workers in a row did not start: "):
            wait_for_ever(pool)
    finally:
        pool.close()
