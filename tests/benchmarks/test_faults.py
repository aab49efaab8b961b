"""Faults that a newcomer found, each with the input that showed it."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import COMMAND
from planted import Planted, write_sweep
from planted import make_plan as planted_plan
from run_records import charts_of, make_run

from rlscale.agents.checks import check_config, divisors_of
from rlscale.agents.cluster import LostWorkerError
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.sweep import run as sweep_run
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.errors import UsageError
from rlscale.records import read_run

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
    assert "--out: folder is a folder. Name a file in it" in capsys.readouterr().err
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


def test_large_numbers_of_environments_are_divided_at_once():
    """Divided one by one, the hundred billion above would keep the test above for hours before it failed."""
    begun = time.monotonic()
    assert divisors_of(400_000_000)[-2:] == [200_000_000, 400_000_000]
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--batch-sizes", "640,80000000000", "--rates", "1"],
            "--batch-sizes: an iteration batch of 80,000,000,000 observations takes",
        ),
        (["--batch-sizes", "5000000000000000000"], "--batch-sizes: a number is too large"),
        (["--rollout-length", "4000000000000000000"], "--rollout-length: 4,000,000,000,000,000,000 is too large"),
        (["--rate-batch", "1e160", "--rate-exponent", "2"], "--rate-batch: with 1e+160 no rate"),
        (["--learning-rate", "1e308"], "--learning-rate: with 1e+308 no rate"),
    ],
)
def test_a_sweep_with_numbers_out_of_all_bounds_is_refused_before_anything_is_made(here, capsys, words, said):
    assert main(["sweep", "toy/catch", *words, "--jobs", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rlscale: {said}")
    assert "--environments" not in line, "a sweep has no such option"
    assert list(here.iterdir()) == []


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


@pytest.mark.long
def test_workers_that_do_not_start_end_a_sweep_in_one_line(here, monkeypatch, capsys, own_ray):
    monkeypatch.setattr(sweep_run, "TrialWorker", _NeverStarts)
    options = SweepOptions(tasks=("classic/cartpole",), jobs=1)
    pool = sweep_run.RayPool([make_plan("classic/cartpole", options)], options)
    try:
        with pytest.raises(LostWorkerError, match="3 workers in a row did not start: "):
            wait_for_ever(pool)
    finally:
        pool.close()


def write_two_runs(folder):
    """Too few for a fit; there are a page and tables of them all the same."""
    write_sweep(folder, Planted(scatter=0.1), plan=planted_plan(batch_sizes=(32, 128), seeds=1), most=2)


@pytest.mark.long
@pytest.mark.parametrize("stops", ["at once", "after a line"])
def test_a_run_goes_on_when_whoever_read_its_lines_has_gone(tmp_path, stops):
    """`| head -1`: rich would have ended the training, and its record would have said that it failed."""
    words = ["train", "toy/blackjack", "--observations", "3000", "--threads", "1", "--no-report", "--run", "run"]
    process = subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if stops == "after a line":
        process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 0, process.stderr.read()
    process.stderr.close()
    run = read_run(tmp_path / "run")
    assert run.state == "finished"
    assert run.rows[-1]["observations"] >= 3000


def test_files_are_written_when_whoever_read_the_tables_has_gone(tmp_path):
    write_two_runs(tmp_path / "sweep")
    words = ["compare", "sweep", "--out", "page.html", "--csv", "table.csv"]
    process = subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(120) == 0
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "table.csv").exists()


def test_closed_standard_output_is_no_terminal(tmp_path):
    write_two_runs(tmp_path / "sweep")
    for words in ("compare sweep --out None", "runs sweep"):
        shell = f"exec {shlex.join(COMMAND)} {words} >&-"
        done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("compare sweep --out sweep/sweep.json", "--out: sweep/sweep.json is part of a record, which is never overwritten"),
        ("compare sweep --csv sweep/results.jsonl", "--csv: sweep/results.jsonl is part of a record"),
        ("compare sweep --parquet sweep/results.jsonl", "--parquet: sweep/results.jsonl is part of a record"),
        ("compare sweep --csv same --out ./same", "--out: same is named twice. Give each its own file"),
        ("compare sweep --out .", "--out: . is a folder"),
        ("report run --out run/manifest.json", "--out: run/manifest.json is part of a record"),
        ("report run --out ..", "--out: .. is a folder"),
        ("sweep minatar/asterix --batch-sizes 40..40960 --rates 100000", "--rates: 100,000 are more than 15. Use fewer"),
        ("sweep minatar/asterix --batch-sizes 40..160 --seeds 1000000000", "--seeds: 1,000,000,000 are more than 1,000"),
        (
            "sweep minatar/asterix --evaluation-episodes 1000000000",
            "--evaluation-episodes: 1,000,000,000 are more",
        ),
        ("play run --episodes 20000000", "--episodes: 20,000,000 are more than 1,000,000. Use fewer"),
        (f"sweep minatar/asterix --batch-sizes 40..{'9' * 400}", "--batch-sizes: a number is too large"),
        (f"train toy/blackjack --observations {'9' * 400}", "--observations: the number is too large"),
        (f"bench --rounds {'9' * 400}", "--rounds: the number is too large"),
        ("train toy/blackjack --environments 1 --rollout-length 1000000000", "--rollout-length: rollouts of 1,000,000,000 steps"),
        ("train toy/blackjack --rollout-length 1000000000", "--rollout-length: rollouts of 1,000,000,000 steps"),
    ],
)
def test_what_would_overwrite_a_record_or_fit_no_machine_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweep", Planted(scatter=0.1))
    make_run(tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rlscale: {said}")
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_page_may_be_a_pipe_or_a_link(tmp_path):
    """As /dev/stdout is, which a file in its place would break for the whole machine."""
    run = make_run(tmp_path / "run")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        assert main(["report", str(run.folder), "--out", str(tmp_path / "pipe")]) == 0
        assert read.result(60).startswith(b"<!")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere" / "page.html")
    assert main(["report", str(run.folder), "--out", str(tmp_path / "link.html")]) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "elsewhere" / "page.html").read_bytes().startswith(b"<!")


def test_a_checkpoint_of_another_task_is_one_line(tmp_path, capsys):
    for task in ("toy/blackjack", "toy/catch"):
        words = ["--observations", "300", "--threads", "1", "--no-report", "--run", str(tmp_path / task[4:])]
        assert main(["train", task, *words]) == 0
    shutil.copy(tmp_path / "catch" / "checkpoint.pt", tmp_path / "blackjack" / "checkpoint.pt")
    capsys.readouterr()
    assert main(["play", str(tmp_path / "blackjack"), "--episodes", "2"]) == 2
    assert capsys.readouterr().err == (
        "rlscale: RUN: its checkpoint is of toy/catch, not of toy/blackjack. Restore it from a copy\n"
    )
