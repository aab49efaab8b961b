"""Faults of the machines a sweep runs on: no room in the cluster, dead workers, a full disk. None of them is a trial's fault."""

import contextlib
import errno
import io
import os
import signal
from dataclasses import replace

import pytest
import ray
import torch
from planted import Planted
from rich.console import Console

from rlscale.agents.cluster import BusyClusterError, LostHeadError
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.sweep import run as sweep_run
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.sweep.run import Fault, Job, LocalPool, RayPool, TrialWorker, run_job, run_sweeps
from rlscale.records import Trial, files, read_sweep
from rlscale.records.run import Run

WORDS = ["classic/cartpole", "--batch-sizes", "80,320,1280", "--goals", "40", "--rates", "1", "--seeds", "1", "--noise-runs", "0"]
OPTIONS = SweepOptions(
    tasks=("classic/cartpole",), batch_sizes="80,320,1280", goals=(40.0,), rates=1, seeds=1, noise_runs=0, jobs=0
)
TASK = Planted()
TRIAL = Trial("run-004", "grid", 320, 0, 0.01, 0, None, None, False, None)


def made_at_once(job: Job):
    return TASK.result(job.trial, job.plan)


def busy():
    return BusyClusterError("--actors", "2 of 2 rollout actors did not start within 120 s", "Use fewer actors")


def test_a_trial_that_finds_no_room_waits_for_some(tmp_path, monkeypatch):
    """More often than a trial is attempted: others may use the cluster for hours."""
    asked = []

    def at_the_sixth_time(job):
        asked.append(job.trial.id)
        if asked.count(job.trial.id) <= 5:
            raise busy()
        return made_at_once(job)

    monkeypatch.setattr(sweep_run, "run_job", at_the_sixth_time)
    monkeypatch.setattr(sweep_run, "BUSY_SECONDS", 0)
    shown = io.StringIO()
    (folder,) = run_sweeps(replace(OPTIONS, out=str(tmp_path)), [], Console(file=shown, width=200))
    results = read_sweep(folder).results
    assert {result.state for result in results.values()} == {"finished"}
    assert len(asked) == 6 * len(results) == 18
    assert shown.getvalue().count("waits for room: 2 of 2 rollout actors did not start within 120 s") == 3


def test_a_trial_that_a_fault_of_the_machines_ended_is_said_to_begin_again(tmp_path, monkeypatch):
    """In a worker of Ray's nobody reads what the run itself says of a full disk."""
    left = [errno.ENOSPC] * 2

    def full_at_first(job):
        if job.trial.id == "b80-k+0-s0" and left:
            raise OSError(left.pop(), "No space left on device")
        return made_at_once(job)

    monkeypatch.setattr(sweep_run, "run_job", full_at_first)
    shown = io.StringIO()
    (folder,) = run_sweeps(replace(OPTIONS, out=str(tmp_path)), [], Console(file=shown, width=200))
    assert {result.state for result in read_sweep(folder).results.values()} == {"finished"}
    assert shown.getvalue().count("b80-k+0-s0 begins again: [Errno 28] No space left on device\n") == 2


class Workers(LocalPool):
    """As `RayPool`, with one worker that comes late."""

    def __init__(self, plans, options):
        super().__init__()
        self.left = 4

    @property
    def free(self):
        return super().free if self.left <= 0 else 0

    def wait(self, seconds):
        self.left -= 1
        return super().wait(0.01)


@pytest.fixture
def cluster(monkeypatch):
    """A cluster that is joined without one; the addresses whose heads were watched."""
    watched = []
    monkeypatch.setattr(sweep_run, "RayPool", Workers)
    monkeypatch.setattr(sweep_run, "disconnect", lambda: None)
    monkeypatch.setattr(sweep_run, "watch_head", lambda address: watched.append(address) or contextlib.nullcontext())
    monkeypatch.setattr(sweep_run, "run_job", made_at_once)
    return watched


def test_a_sweep_says_once_that_no_worker_has_found_room(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_run, "SILENT_SECONDS", 0)
    shown = io.StringIO()
    on_cluster = replace(OPTIONS, out=str(tmp_path), jobs=1, ray_address="head:6379")
    (folder,) = run_sweeps(on_cluster, [], Console(file=shown, width=200))
    assert len(read_sweep(folder).results) == 3
    assert shown.getvalue().count("waits for room: no worker has started in the cluster") == 1


def test_a_sweep_whose_head_dies_ends_with_the_command_that_goes_on(cluster, tmp_path, monkeypatch, capfd):
    closed = []

    def lost(self, seconds):
        raise LostHeadError

    monkeypatch.setattr(Workers, "wait", lost)
    monkeypatch.setattr(Workers, "close", closed.append)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *WORDS, "--jobs", "1", "--ray-address", "head:6379", "--out", "here"]) == 2
    assert cluster == ["head:6379"]
    assert closed == [], "nobody can end its workers"
    said = capfd.readouterr().err
    assert said.startswith("rlscale: the head of the Ray cluster does not answer any more. What had ended is recorded in here;")
    assert "go on with: rlscale sweep " in said


def test_no_room_is_no_result_of_a_trial(tmp_path, monkeypatch):
    def no_course(*_):
        raise busy()

    plan = make_plan("classic/cartpole", OPTIONS)
    monkeypatch.setattr(type(plan), "begin", no_course)
    with pytest.raises(BusyClusterError):
        run_job(Job(plan, TRIAL, tmp_path / "trial", (), 0))


def wait_until(pool, idle):
    ended = []
    while pool.free < idle:
        ended += pool.wait(0.5)
    return ended


@pytest.mark.parametrize(
    ("device", "jobs", "gpus", "each"),
    [
        ("cuda", 2, 4.0, 1.0),
        ("cuda", 16, 4.0, 0.25),
        ("cuda", 5, 4.0, 0.5),
        ("cuda", 3, 1.0, 0.3333),
        ("cuda", 3, 0.0, 0.0),
        ("cuda:1", 3, 4.0, 0.0),
        ("cpu", 3, 4.0, 0.0),
    ],
)
def test_runs_on_gpus_are_spread_over_those_that_ray_knows(monkeypatch, device, jobs, gpus, each):
    plan = make_plan("classic/cartpole", OPTIONS)
    plan = replace(plan, config=replace(plan.config, update=replace(plan.config.update, device=device)))
    monkeypatch.setattr(sweep_run, "resolve_device", torch.device)
    assert sweep_run._gpus_of_each([plan], jobs, gpus) == each


def test_a_trial_whose_accelerator_is_full_is_a_fault_and_not_a_result(monkeypatch, tmp_path):
    def full(*args, **more):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(sweep_run, "run_trial", full)
    job = Job(make_plan("classic/cartpole", OPTIONS), TRIAL, tmp_path / "trial", (), 0)
    pool = LocalPool()
    pool.submit(job)
    assert pool.wait(0.1) == [(job, Fault("CUDA out of memory. Tried to allocate 2.00 GiB"))]


@pytest.mark.long
def test_dead_workers_cost_a_trial_one_attempt(own_ray, monkeypatch, tmp_path):
    """A node that goes takes all its workers along, idle ones included, and a trial has three attempts."""
    no_room = busy()

    class Worker(TrialWorker):
        """Says which process it is, without a trial; the trial with another seed finds no room."""

        def run(self, job):
            if job.trial.seed:
                raise no_room
            return os.getpid()

    monkeypatch.setattr(sweep_run, "TrialWorker", Worker)
    plan = make_plan("classic/cartpole", OPTIONS)
    job = Job(plan, TRIAL, tmp_path / "trial", (), 0)
    full = Job(plan, Trial("run-005", "grid", 320, 0, 0.01, 1, None, None, False, None), tmp_path / "full", (), 0)
    pool = RayPool([plan], SweepOptions(tasks=("classic/cartpole",), jobs=2))
    try:
        wait_until(pool, 2)
        pids = set()
        for _ in range(2):
            pool.submit(job)
        for _, pid in wait_until(pool, 2):
            pids.add(pid)
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        pool.submit(job)
        ((of, fault),) = pool.wait(60)
        assert of is job
        assert isinstance(fault, Fault)
        assert not fault.busy
        assert pool.free == 0, "the others are asked whether they live before they are given a job"
        assert wait_until(pool, 2) == [], "their deaths are no attempts"
        for _ in range(2):
            pool.submit(job)
        new = {pid for _, pid in wait_until(pool, 2)}
        assert len(new) == 2
        assert not new & pids
        pool.submit(full)
        assert wait_until(pool, 2) == [(full, Fault("2 of 2 rollout actors did not start within 120 s", busy=True))]
        pool.submit(job)
        ((_, same),) = wait_until(pool, 2)
        assert same in new, "a worker whose trial found no room is as good as before"
    finally:
        pool.close()
    assert not ray.is_initialized()


@pytest.fixture
def filled(monkeypatch):
    """The disk is full at every other write to a sweep's own files, and takes part of a line before it says so."""
    real, taken = os.write, []

    class Nearly:
        def __init__(self, file):
            self._file = file
            self.name = file.name

        def write(self, left):
            taken.append(len(left))
            if len(taken) % 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self._file.fileno(), left[: max(len(left) // 2, 1)])

    append = files.append_when_there_is_room
    for module in ("rlscale.records.sweep", "rlscale.records.run"):
        monkeypatch.setattr(f"{module}.append_when_there_is_room", lambda file, *rest: append(Nearly(file), *rest))
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)


def test_a_full_disk_is_waited_for_in_a_sweep(filled, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sweep_run, "run_job", made_at_once)
    (folder,) = run_sweeps(replace(OPTIONS, out=str(tmp_path)), [], Console(quiet=True))
    record = read_sweep(folder)
    assert record.left_out == ()
    assert len(record.results) == 3
    assert "no room to write" in capfd.readouterr().err


def test_a_disk_that_stays_full_ends_a_sweep_with_the_command_that_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def full(file, left, *_):
        raise OSError(errno.ENOSPC, "No space left on device", "results.jsonl")

    monkeypatch.setattr(sweep_run, "run_job", made_at_once)
    monkeypatch.setattr("rlscale.records.sweep.append_when_there_is_room", full)
    assert main(["sweep", *WORDS, "--jobs", "0", "--out", "here"]) == 1
    said = capfd.readouterr().err
    assert said.startswith(
        "rlscale: no room to write results.jsonl: No space left on device. What had ended is recorded in here;"
    )
    assert said.endswith(f"go on with: rlscale sweep {' '.join(WORDS)} --jobs 0 --out here\n")
    assert said.count("\n") == 1


def test_the_state_of_a_run_waits_for_room_and_a_second_time_does_not(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", {})
    left = [errno.ENOSPC] * 3
    fsync = os.fsync

    def nearly_full(descriptor):
        if left:
            raise OSError(left.pop(), "No space left on device")
        fsync(descriptor)

    waited = []
    monkeypatch.setattr(os, "fsync", nearly_full)
    monkeypatch.setattr(files.time, "sleep", waited.append)
    run.set_state("finished")
    assert (len(waited), run.manifest["state"]) == (3, "finished")
    left, waited[:] = [errno.ENOSPC] * 5, []
    monkeypatch.setattr(files, "ROOM_SECONDS", -1)
    with pytest.raises(OSError, match="No space left"):
        run.save_checkpoint(b"parameters")
    assert len(waited) == 1
    with pytest.raises(OSError, match="No space left"):
        run.set_state("failed", "the disk is full")
    assert len(waited) == 1, "ten minutes more would be waited only to say that it failed"
    run.close()
