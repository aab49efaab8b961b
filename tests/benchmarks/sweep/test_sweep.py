"""Sweeps as they run: killed at random moments, failing runs, workers that die, Ray and in process, and bad input."""

import contextlib
import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rlscale.benchmarks.cli import main
from rlscale.benchmarks.sweep import kinds
from rlscale.benchmarks.sweep import run as sweep_module
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.sweep.run import Job, run_job, run_sweeps
from rlscale.errors import UsageError
from rlscale.records.run import read_run
from rlscale.records.sweep import Sweep, read_sweep

ROOT = Path(__file__).parents[3]
QUICK = {
    "tasks": ("classic/cartpole",),
    "batch_sizes": "80,160,320",
    "goals": (30.0, 45.0),
    "rates": 2,
    "seeds": 1,
    "noise_runs": 1,
    "evaluation_episodes": 16,
}
QUICK_WORDS = [
    *("classic/cartpole", "--batch-sizes", "80,160,320", "--goals", "30", "45", "--rates", "2", "--seeds", "1"),
    *("--noise-runs", "1", "--evaluation-episodes", "16"),
]
CLOCKS = ("seconds", "evaluation_seconds")  # what differs between two runs of the same trial


def silent():
    return Console(quiet=True)


def without_clocks(results):
    return {name: replace(r, **dict.fromkeys(CLOCKS, 0.0), jobs=None) for name, r in results.items()}


def rows_without_clocks(folder):
    rows = read_run(folder).rows
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A quick sweep run in this process, without Ray."""
    (folder,) = run_sweeps(SweepOptions(**QUICK, jobs=0, out=str(tmp_path_factory.mktemp("undisturbed"))), [], silent())
    return read_sweep(folder)


def test_a_sweep_leaves_a_result_and_a_run_record_for_every_trial(undisturbed):
    plan = make_plan("classic/cartpole", SweepOptions(**QUICK))
    trials = plan.trials(undisturbed.results)
    assert set(undisturbed.results) == {t.id for t in trials}
    assert plan.next_trials(undisturbed.results) == []
    assert {r.state for r in undisturbed.results.values()} <= {"finished", "hopeless"}
    for trial in trials:
        result, run = undisturbed.results[trial.id], read_run(undisturbed.folder / "trials" / trial.id)
        assert run.rows[-1]["optimizer_steps"] == result.optimizer_steps
        assert run.rows[-1]["observations"] == result.observations
        assert run.manifest["config"]["update"]["learning_rate"] == trial.learning_rate
        assert run.manifest["config"]["update"]["epochs"] == 1
        assert all(row["optimizer_steps"] == i + 1 for i, row in enumerate(run.rows)), "one optimizer step an iteration"
        for goal in result.goals:
            if goal.optimizer_steps is not None:
                assert goal.optimizer_steps < result.optimizer_steps
                assert goal.interval[0] <= goal.optimizer_steps <= goal.interval[1]
                share = goal.observations / (goal.optimizer_steps * trial.batch_size)
                assert 0.8 < share <= 1.0, "observations leave masked steps out"
    assert any(r.noise_windows for r in undisturbed.results.values() if r.measures_noise)
    assert not any(r.noise_windows for r in undisturbed.results.values() if not r.measures_noise)


def test_every_field_of_a_sweep_is_in_the_glossary(undisturbed):
    logged = set(undisturbed.manifest) | set(undisturbed.plan)
    for trial in undisturbed.results.values():
        result = trial.to_json()
        logged |= set(result) | {result["stage"], result["state"]}
        for part in ("goals", "evaluations", "noise", "noise_windows"):
            logged |= {key for entry in result[part] for key in entry}
        logged |= {entry["quantity"] for entry in result["noise"]}
    assert {"noise", "interval", "gain", "cumulative"} <= logged, "the sweep measured nothing"
    defined = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "glossary.md").read_text()))
    assert logged - defined == set()


@pytest.mark.long
@pytest.mark.parametrize(("jobs", "kills"), [(0, 7), (2, 3)])
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(undisturbed, tmp_path, jobs, kills):
    command = [sys.executable, "-m", "rlscale", "sweep", *QUICK_WORDS, "--jobs", str(jobs), "--out", str(tmp_path)]
    lines = tmp_path / "classic-cartpole" / "results.jsonl"
    moments = random.Random(jobs)
    before = b""
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waited = time.monotonic() + 60
        manifest = tmp_path / "classic-cartpole" / "trials"
        while process.poll() is None and time.monotonic() < waited and not any(manifest.glob("*/iterations.jsonl")):
            time.sleep(0.05)
        time.sleep(moments.uniform(0.0, 2.5))
        kill_tree(process)
        after = lines.read_bytes() if lines.exists() else b""
        assert after.startswith(before.rpartition(b"\n")[0]), "a recorded result was changed"
        before = after
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    record = read_sweep(tmp_path / "classic-cartpole")
    assert record.left_out == ()
    whole = [json.loads(line)["id"] for line in lines.read_bytes().splitlines() if not line.endswith(b"\x18")]
    assert len(whole) == len(set(whole)), "a finished run was repeated"
    assert without_clocks(record.results) == without_clocks(undisturbed.results)
    for name in record.results:
        assert rows_without_clocks(record.folder / "trials" / name) == rows_without_clocks(undisturbed.folder / "trials" / name)


def kill_tree(process):
    """SIGKILL to the process and all its descendants, Ray's included."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def test_on_ray_it_gives_the_same_results_as_in_process(own_ray, undisturbed, tmp_path):
    folder = copy_of(undisturbed, tmp_path)
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    cheapest = sorted((r for r in undisturbed.results.values() if r.stage == "grid"), key=lambda r: r.seconds)[:2]
    noise = next(r for r in undisturbed.results.values() if r.stage == "noise")
    anew = {result.id for result in (*cheapest, noise)}  # a trial for either worker, and one that measures every loss
    (folder / "results.jsonl").write_text("".join(line for line in lines if json.loads(line)["id"] not in anew))
    run_sweeps(SweepOptions(**QUICK, jobs=2, out=str(tmp_path)), [], silent())
    assert without_clocks(read_sweep(folder).results) == without_clocks(undisturbed.results)


def test_continuous_actions_are_swept(tmp_path):
    """Two cells of Pendulum: what they measured is there, and on resuming there is nothing left to do."""
    options = SweepOptions(
        tasks=("classic/pendulum",),
        batch_sizes="160,640",
        goals=(-1000.0,),
        rates=1,
        seeds=1,
        noise_runs=0,
        observations=12_000,
        evaluation_episodes=8,
        jobs=0,
        out=str(tmp_path),
    )
    (folder,) = run_sweeps(options, [], silent())
    results = read_sweep(folder).results
    assert [(r.state, r.batch_size) for r in results.values()] == [("budget", 640), ("budget", 160)]
    for result in results.values():
        assert result.observations <= 12_000 + result.batch_size
        assert all(-200 * 16.3 < e.return_mean < 0 for e in result.evaluations)
        assert len(result.evaluations) > 3
    assert make_plan("classic/pendulum", options).next_trials(results) == []


def test_a_finished_sweep_is_left_as_it_is(undisturbed):
    before = (undisturbed.folder / "results.jsonl").read_bytes()
    run_sweeps(SweepOptions(**QUICK, jobs=0, out=str(undisturbed.folder.parent)), [], silent())
    assert (undisturbed.folder / "results.jsonl").read_bytes() == before


@pytest.mark.long
def test_one_runs_failure_does_not_end_the_sweep(undisturbed, tmp_path, monkeypatch):
    plain = kinds.TrainingCourse

    def course(config, **options):
        if config.seed == 1 and config.batch == 160:
            raise RuntimeError("the seed that fails\nwith details")
        return plain(config, **options)

    monkeypatch.setattr(kinds, "TrainingCourse", course)
    folder = copy_of(undisturbed, tmp_path)
    run_sweeps(SweepOptions(**{**QUICK, "seeds": 2}, jobs=0, out=str(tmp_path)), [], silent())
    results = read_sweep(folder).results
    lost = [r for r in results.values() if r.state == "failed"]
    assert {(r.seed, r.batch_size) for r in lost} == {(1, 160)}
    assert {r.reason for r in lost} == {"RuntimeError: the seed that fails"}
    assert all(r.seconds > 0 for r in lost), "a budget of hours must end a sweep whose runs fail"
    assert {r.batch_size for r in results.values() if r.seed == 1 and r.state == "finished"} == {80, 320}
    monkeypatch.setattr(kinds, "TrainingCourse", plain)
    shown = io.StringIO()
    run_sweeps(SweepOptions(**{**QUICK, "seeds": 2}, jobs=0, out=str(tmp_path)), [], Console(file=shown, width=200))
    assert shown.getvalue().count("failed (RuntimeError: the seed that fails); that trial is made again") == len(lost)
    mended = read_sweep(folder)
    assert {name: mended.results[name] for name in undisturbed.results} == dict(undisturbed.results)
    assert {r.seed for r in mended.results.values() if r.stage == "grid"} == {0, 1}
    assert mended.plan["seeds"] == 2
    assert [extension["seeds"] for extension in mended.manifest["extensions"]] == [2]
    assert {r.state for r in mended.results.values()} == {"finished"}
    assert len(mended.results) == len(results)
    assert mended.left_out == ()


@pytest.mark.long
def test_a_run_whose_worker_dies_is_tried_again(own_ray, tmp_path, monkeypatch):
    deaths = tmp_path / "deaths"
    deaths.mkdir()

    class MortalWorker(sweep_module.TrialWorker):
        """Dies in its first attempt at the run of the largest size's centre, and every time at another."""

        def run(self, job: Job):
            if job.trial.id == "b320-k+0-s0" and not (deaths / "once").exists():
                (deaths / "once").touch()
                os._exit(1)
            if job.trial.id == "b320-k-2-s0":
                os._exit(1)
            return run_job(job)

    monkeypatch.setattr(sweep_module, "TrialWorker", MortalWorker)
    (folder,) = run_sweeps(SweepOptions(**QUICK, jobs=2, out=str(tmp_path / "sweeps")), [], silent())
    results = read_sweep(folder).results
    assert results["b320-k+0-s0"].state == "finished"
    assert results["b320-k-2-s0"].state == "failed"
    assert "3 times" in results["b320-k-2-s0"].reason


@pytest.mark.long
def test_atari_runs_sample_with_rollout_actors(own_ray, tmp_path):
    options = SweepOptions(
        tasks=("atari/pong@42",),
        batch_sizes="260",
        goals=(-20.9,),
        rates=1,
        seeds=1,
        random_first_steps=0,
        observations=2000,
        evaluation_episodes=2,
        network="small_cnn",
        jobs=1,
        out=str(tmp_path),
    )
    (folder,) = run_sweeps(options, [], silent())
    record = read_sweep(folder)
    assert record.plan["config"]["rollout"]["actors"] == 1
    states = {r.state: r.reason for r in record.results.values()}
    assert set(states) <= {"finished", "budget", "hopeless"}, states
    assert read_run(folder / "trials" / "b260-k+0-s0").rows[0]["transfer_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ([], "TASK"),
        (["classic/cartpol"], "TASK"),
        (["classic/cartpole", "--batch-sizes", "101"], "--batch-sizes"),
        (["classic/cartpole", "--goals", "200", "100"], "--goals"),
        (["gym/MountainCar-v0"], "--goals"),
        (["classic/cartpole", "--rates", "0"], "--rates"),
        (["classic/cartpole", "--interval-ratio", "1"], "--interval-ratio"),
        (["classic/cartpole", "--rollout-length", "0"], "--rollout-length"),
        (["classic/cartpole", "--rate-exponent", "1e9"], "--rate-exponent"),
        (["classic/cartpole", "--seeds", "5"], "--seeds"),
        (["classic/cartpole", "--rates", "3"], "--rates"),
        (["classic/cartpole", "--batch-sizes", "80,320", "--interval-ratio", "4"], "--interval-ratio"),
        (["classic/cartpole", "--hours", "0"], "--hours"),
        (["classic/cartpole", "--batch-sizes", "80,320", "--hours", "1"], "--hours"),
        (["classic/cartpole", "--batch-sizes", "80,330", "--mini-batches", "4"], "--batch-sizes"),
        (["classic/cartpole", "--evaluation-episodes", "1"], "--evaluation-episodes"),
        (["classic/cartpole", "--optimizer", "rmsprop", "--beta2", "0.9"], "--beta2"),
        (["classic/cartpole", "--quick", "--batch-sizes", "80,320"], "--quick"),
        (["classic/cartpole", "--quick", "--epochs", "3"], "--quick"),
        (["classic/cartpole", "--quick", "--mini-batches", "4"], "--quick"),
        (["classic/cartpole", "--quick", "--noise-runs", "2"], "--noise-runs"),
        (["supervised/digits", "--quick"], "--quick"),
        (["classic/cartpole", "--network", "nature_cnn"], "--network"),
        (["classic/cartpole", "--out", "/proc/nothing"], "--out"),
    ],
)
def test_bad_input_gets_one_line(words, field, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *words]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"rlscale: {field}: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "sweeps").exists()


def test_a_task_that_is_named_twice_in_two_ways_is_swept_once(tmp_path, monkeypatch):
    """84 pixels are those of the usual name; its folder would be held by the sweep before it."""
    monkeypatch.setattr(sweep_module, "_run", lambda plans, *_: None)
    names = ("atari/pong", "atari/pong@84", "classic/cartpole", "atari/pong")
    folders = run_sweeps(SweepOptions(tasks=names, jobs=0, out=str(tmp_path)), [], silent())
    assert [folder.name for folder in folders] == ["atari-pong", "classic-cartpole"]


def test_another_plan_does_not_touch_a_sweep_and_says_what_differs(undisturbed, capfd):
    before = (undisturbed.folder / "results.jsonl").read_bytes()
    assert main(["sweep", *QUICK_WORDS, "--gae-lambda", "0.5", "--out", str(undisturbed.folder.parent)]) == 2
    error = capfd.readouterr().err
    assert "another plan (--gae-lambda)" in error
    assert error.count("\n") == 1
    assert (undisturbed.folder / "results.jsonl").read_bytes() == before


def test_a_sweep_is_extended_by_the_same_command_that_asks_for_more(undisturbed, tmp_path):
    """Another size: what was made stays, what is new is made, and sweep.json says what was asked for when."""
    folder = copy_of(undisturbed, tmp_path)
    more = {**QUICK, "batch_sizes": "80,160,320,640"}
    command = ["rlscale", "sweep", "classic/cartpole", "--batch-sizes", "80,160,320,640"]
    run_sweeps(SweepOptions(**more, jobs=0, out=str(tmp_path)), command, silent())
    record = read_sweep(folder)
    assert {name: record.results[name] for name in undisturbed.results} == dict(undisturbed.results)
    assert {r.batch_size for r in record.results.values()} == {80, 160, 320, 640}
    (extension,) = record.manifest["extensions"]
    assert extension["command"] == command
    assert extension["batch_sizes"] == record.plan["batch_sizes"] == [80, 160, 320, 640]
    with pytest.raises(UsageError, match=rf"another plan \(--batch-sizes\). Go on with '{re.escape(shlex.join(command))}'"):
        run_sweeps(
            SweepOptions(**{**QUICK, "batch_sizes": None, "rates": 4, "seeds": 2}, jobs=0, out=str(tmp_path)), [], silent()
        )
    with pytest.raises(UsageError, match=r"another plan \(--batch-sizes\)"):  # the others' runs would count all the same
        run_sweeps(SweepOptions(**{**more, "batch_sizes": "80,160"}, jobs=0, out=str(tmp_path)), [], silent())


def test_a_sweep_goes_on_with_as_many_jobs_as_there_are_now(undisturbed, tmp_path):
    folder = copy_of(undisturbed, tmp_path)
    plan = replace(make_plan("classic/cartpole", SweepOptions(**QUICK)), jobs=3)
    Sweep.open(folder, plan.to_dict(), {"command": ["rlscale", "sweep"]}).close()
    record = read_sweep(folder)
    assert record.plan["jobs"] == 3
    assert [extension["jobs"] for extension in record.manifest["extensions"]] == [3]


SEQUENTIAL = [
    *(
        "classic/cartpole",
        "--goals",
        "20",
        "35",
        "--pilot-batch",
        "80",
        "--interval-ratio",
        "30",
        "--total-observations",
        "150000",
    ),
    *("--noise-runs", "1", "--evaluation-episodes", "16", "--observations", "60000"),
]


def kill_three_times(command, folder):
    """The sweep that ends in the fourth try; lines of begun.jsonl as each kill left them."""
    lines, moments, begun = folder / "classic-cartpole" / "results.jsonl", random.Random(3), []
    for wanted in (1, 4, 7):
        process = subprocess.Popen([*command, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waited = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < waited:
            if lines.exists() and lines.read_bytes().count(b"\n") >= wanted:
                break
            time.sleep(0.05)
        time.sleep(moments.uniform(0.0, 2.0))
        kill_tree(process)
        whole = [line for line in (lines.parent / "begun.jsonl").read_text().splitlines() if line.endswith("}")]
        begun.append(whole)
    assert subprocess.run([*command, folder], capture_output=True, timeout=600, check=False).returncode == 0
    return read_sweep(lines.parent), begun


@pytest.mark.long
def test_a_sequential_sweep_that_is_killed_makes_the_same_runs(tmp_path):
    command = [sys.executable, "-m", "rlscale", "sweep", *SEQUENTIAL, "--jobs", "1", "--out"]
    assert subprocess.run([*command, tmp_path / "whole"], capture_output=True, timeout=600, check=False).returncode == 0
    whole = read_sweep(tmp_path / "whole" / "classic-cartpole")
    assert {"pilot", "span", "noise"} <= {r.stage for r in whole.results.values()}
    killed, _ = kill_three_times(command, tmp_path / "killed")
    assert without_clocks(killed.results) == without_clocks(whole.results)


@pytest.mark.long
def test_runs_side_by_side_that_are_killed_begin_again_as_they_were_decided(tmp_path):
    command = [sys.executable, "-m", "rlscale", "sweep", *SEQUENTIAL, "--jobs", "2", "--out"]
    record, begun = kill_three_times(command, tmp_path / "killed")
    assert {"pilot", "span", "noise"} <= {r.stage for r in record.results.values()}
    for lines in begun:
        for trial in map(json.loads, lines):
            ended = asdict(record.results[trial["id"]])
            assert trial == {name: ended[name] for name in trial}


def test_trials_that_began_are_on_record(undisturbed, tmp_path):
    """Every trial that began has its line, once; the third line here was cut short."""
    folder = copy_of(undisturbed, tmp_path)
    lines = (undisturbed.folder / "begun.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(undisturbed.results)
    (folder / "begun.jsonl").write_text("\n".join(lines[:2]) + '\n{"id": "b80')
    plan = make_plan("classic/cartpole", SweepOptions(**QUICK, jobs=0))
    sweep = Sweep.open(folder, plan.to_dict(), {})
    sweep.begin(next(iter(undisturbed.results.values())))
    sweep.close()
    again = Sweep.open(folder, plan.to_dict(), {})
    again.close()
    assert [asdict(trial) for trial in again.begun.values()] == [json.loads(line) for line in lines[:2]]
    assert (folder / "begun.jsonl").read_text().count("\n") == 3, "a run that begins again has its line already"


def test_two_writers_are_kept_apart(undisturbed, capfd):
    plan = make_plan("classic/cartpole", SweepOptions(**QUICK, jobs=0))
    held = Sweep.open(undisturbed.folder, plan.to_dict(), {})
    try:
        assert main(["sweep", *QUICK_WORDS, "--out", str(undisturbed.folder.parent)]) == 2
    finally:
        held.close()
    assert "being written by this process already" in capfd.readouterr().err


def copy_of(record, folder):
    """A sweep's folder without its runs, to be damaged."""
    target = folder / "classic-cartpole"
    target.mkdir()
    for name in ("sweep.json", "results.jsonl"):
        (target / name).write_bytes((record.folder / name).read_bytes())
    return target


def test_damaged_lines_are_left_out_and_named(undisturbed, tmp_path):
    folder = copy_of(undisturbed, tmp_path)
    lines = (folder / "results.jsonl").read_text().splitlines()
    damaged = [lines[0], "{not json", lines[1], lines[1], json.dumps({"id": "b64-k+0-s9"}), '{"id": 3'[:5] + "\x18"]
    (folder / "results.jsonl").write_text("\n".join(damaged) + "\n" + lines[2][:40])
    record = read_sweep(folder)
    assert list(record.results) == [json.loads(line)["id"] for line in lines[:2]]
    assert len(record.left_out) == 3
    assert "line 2" in record.left_out[0]
    assert "repeats" in record.left_out[1]
    assert "lacks" in record.left_out[2]


def test_a_sweep_goes_on_after_a_torn_line(undisturbed, tmp_path):
    folder = copy_of(undisturbed, tmp_path)
    content = (folder / "results.jsonl").read_bytes()
    (folder / "results.jsonl").write_bytes(content[:-100])
    run_sweeps(SweepOptions(**QUICK, jobs=0, out=str(tmp_path)), [], silent())
    record = read_sweep(Path(folder))
    assert record.left_out == ()
    assert without_clocks(record.results) == without_clocks(undisturbed.results)


@pytest.mark.long
@pytest.mark.parametrize("jobs", ["0", "1"])
def test_a_scheduler_s_sigterm_stops_a_sweep_as_ctrl_c_does(tmp_path, jobs):
    """With and without Ray, which sets a handler of its own."""
    command = [
        sys.executable,
        "-m",
        "rlscale",
        "sweep",
        "toy/catch",
        "--jobs",
        jobs,
        "--goals",
        "0.9",
        "--interval-ratio",
        "1.01",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        results = tmp_path / "sweeps" / "toy-catch" / "results.jsonl"
        while not (results.exists() and results.read_text()):
            assert process.poll() is None
            time.sleep(0.2)
        process.terminate()
        said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "stopped; what had ended is recorded in sweeps" in said
    assert "go on with:  rlscale sweep toy/catch" in said
