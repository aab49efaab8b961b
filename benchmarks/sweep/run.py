"""`rlscale sweep`: run the trials of one or more plans on whatever Ray offers, and record each as it ends.

What is run is decided by `plan`, one run is `trial`, the record is `sweep`. A sweep that is
killed, at whatever moment, goes on with the same command: finished runs are in the record, interrupted ones begin again.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from rlscale.agents.cluster.connect import connect, disconnect
from rlscale.agents.cluster.processes import LostWorkerError
from rlscale.agents.compute import resolve_device
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.sweep import Sweep

from .display import SweepDisplay
from .options import SweepOptions, make_plan
from .plan import Plan
from .trial import TrainingCourse, Trial, run_trial

__all__ = ["Job", "run_sweeps"]

MOST_ATTEMPTS = 3  # of a run whose worker died or could not write; a run that raised another error is not repeated
_ORDER = {"coarse": 0, "fine": 1, "final": 2, "neighbour": 3}


@dataclass(frozen=True)
class Job:
    """A trial of one of the sweeps, and where its record goes."""

    plan: Plan
    trial: Trial
    folder: Path
    command: tuple[str, ...]
    sweep: int
    attempt: int = 1


@dataclass(frozen=True)
class _Ended:
    """A job that ended: with a result, or because its worker died."""

    job: Job
    result: dict[str, Any] | None
    reason: str = ""


class _Pool(Protocol):
    """Where jobs run."""

    @property
    def free(self) -> int: ...

    def submit(self, job: Job) -> None: ...

    def wait(self, seconds: float) -> list[_Ended]:
        """Jobs that have ended; returns after so many seconds at the latest if none has."""
        ...

    def close(self) -> None: ...


def run_sweeps(options: SweepOptions, command: list[str], console: Console) -> list[Path]:
    """Run the sweep of every task that the options name; folders of the finished sweeps.

    Raises:
        UsageError: bad options, a task that cannot be made, a folder that cannot be used.
        KeyboardInterrupt: the user stopped it; all that had ended is recorded.
    """
    if not options.tasks:
        raise UsageError("TASK", "no task was named", "For example: rlscale sweep minatar/breakout")
    plans = [make_plan(task, options) for task in dict.fromkeys(options.tasks)]
    sweeps: list[Sweep] = []
    try:
        for plan in plans:
            sweeps.append(_open(plan, Path(options.out), command))
        for sweep in sweeps:
            for sentence in sweep.left_out:
                console.print(f"note: {sentence}; that run is made again", highlight=False, soft_wrap=True)
        with SweepDisplay(plans, [sweep.results for sweep in sweeps], console) as display:
            _run(plans, sweeps, options, command, display)
        return [sweep.folder for sweep in sweeps]
    finally:
        for sweep in sweeps:
            sweep.close()


def _open(plan: Plan, out: Path, command: list[str]) -> Sweep:
    task = find_task(plan.config.task)
    name = task.id.replace("/", "-").replace(":", "-").replace("@", "-")
    facts = {
        "task": {"id": task.id, "preprocessing": task.preprocessing, "frame_skip": task.frame_skip, "goals": list(plan.goals)},
        "commit": find_commit(),
        "versions": find_versions(),
        "machine": describe_machine(resolve_device(plan.config.update.device)),
        "command": command,
    }
    return Sweep.open(out / name, plan.to_dict(), facts)


def _run(
    plans: Sequence[Plan], sweeps: Sequence[Sweep], options: SweepOptions, command: list[str], display: SweepDisplay
) -> None:
    """Until every plan is through. Only this function records results."""
    running: dict[tuple[int, str], Job] = {}
    again: deque[Job] = deque()
    pool: _Pool | None = None
    try:
        while True:
            ready = [
                Job(plan, trial, sweep.folder / "trials" / trial.id, tuple(command), number)
                for number, (plan, sweep) in enumerate(zip(plans, sweeps, strict=True))
                for trial in plan.next_trials(sweep.results)
                if (number, trial.id) not in running
            ]
            # Centres first, because the others wait for them; then the expensive ones, which would make a long tail.
            ready.sort(key=lambda job: (job.sweep, _ORDER[job.trial.stage], job.trial.rate_index != 0, -job.trial.batch_size))
            if not ready and not running:
                return
            if pool is None:
                pool = _LocalPool() if options.jobs == 0 else _RayPool(plans, options)
            for job in (*again, *ready)[: pool.free]:
                if job in again:
                    again.remove(job)
                running[job.sweep, job.trial.id] = job
                pool.submit(job)
                display.started(job.sweep, job.trial)
            for ended in pool.wait(0.5):
                job = ended.job
                if ended.result is None and job.attempt < MOST_ATTEMPTS:
                    again.append(replace(job, attempt=job.attempt + 1))
                    continue
                result = ended.result or failed(job.trial, f"its worker failed {MOST_ATTEMPTS} times: {ended.reason}")
                sweeps[job.sweep].append(result)
                del running[job.sweep, job.trial.id]
                display.ended(job.sweep, result)
    finally:
        if pool is not None:
            pool.close()


def failed(trial: Trial, reason: str) -> dict[str, Any]:
    """The result of a run that raised an error, or whose worker died."""
    return {
        **asdict(trial),
        "state": "failed",
        "reason": reason,
        "optimizer_steps": 0,
        "observations": 0,
        "goals": [],
        "evaluations": [],
        "evaluation_steps": 0,
        "evaluation_seconds": 0.0,
        "evaluation_unfinished": 0,
        "noise": [],
        "noise_windows": [],
        "seconds": 0.0,
        "commit": find_commit(),
    }


def run_job(job: Job) -> dict[str, Any]:
    """Run the trial, its record in `job.folder`; what an interrupted attempt left there is removed first."""
    shutil.rmtree(job.folder, ignore_errors=True)
    try:
        result = run_trial(
            job.trial,
            goals=job.plan.goals,
            most_observations=job.plan.most_observations,
            make_course=lambda: TrainingCourse(
                job.plan.config_of(job.trial), episodes=job.plan.episodes, folder=job.folder, command=list(job.command)
            ),
        )
        return {**result, "commit": find_commit()}
    except (LostWorkerError, OSError):
        raise  # a fault of the machine, not of the run: it is tried again
    except Exception as error:  # one run's failure is a result of the sweep, not its end
        lines = str(error).strip().splitlines()
        return failed(job.trial, f"{type(error).__name__}: {lines[0] if lines else ''}")


class _LocalPool:
    """One job at a time in this process, without Ray."""

    def __init__(self) -> None:
        self._job: Job | None = None

    @property
    def free(self) -> int:
        return 0 if self._job else 1

    def submit(self, job: Job) -> None:
        self._job = job

    def wait(self, seconds: float) -> list[_Ended]:
        job, self._job = self._job, None
        if job is None:
            return []
        try:
            return [_Ended(job, run_job(job))]
        except OSError as error:
            return [_Ended(job, None, str(error))]

    def close(self) -> None:
        pass


class _RayPool:
    """Jobs in long-lived Ray actors, so that a run of five seconds does not pay for an import of ten."""

    def __init__(self, plans: Sequence[Plan], options: SweepOptions) -> None:
        rollout = plans[0].config.rollout
        actors = max(plan.config.actors for plan in plans)
        # A run with rollout actors learns while they wait, and they sample while it waits: one share of CPUs serves both.
        cpus = max(1, actors * rollout.actor_cpus)
        here = len(os.sched_getaffinity(0))
        connect(options.ray_address, cpus if options.ray_address else max(here, (options.jobs or 1) * cpus))
        import ray

        self._ray = ray
        available = int(ray.cluster_resources().get("CPU", 1))
        jobs = options.jobs or max(1, available // cpus)
        if jobs * cpus > available:
            raise UsageError("--jobs", f"{jobs} runs need {jobs * cpus} CPUs, the cluster has {available}", "Use fewer")
        self._worker = ray.remote(_TrialWorker).options(num_cpus=0 if actors else 1)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Job]] = {}
        self._starting: dict[Any, Any] = {}
        for _ in range(jobs):
            self._start()

    def _start(self) -> None:
        """A worker more; it counts as free once it stands, which on a busy cluster may take long."""
        worker = self._worker.remote(os.getcwd())
        self._starting[worker.ready.remote()] = worker

    @property
    def free(self) -> int:
        return len(self._idle)

    def submit(self, job: Job) -> None:
        worker = self._idle.pop()
        absolute = replace(job, folder=job.folder.resolve())
        self._busy[worker.run.remote(absolute)] = (worker, job)

    def wait(self, seconds: float) -> list[_Ended]:
        done, _ = self._ray.wait([*self._busy, *self._starting], num_returns=1, timeout=seconds)
        ended = []
        for reference in done:
            if reference in self._starting:
                worker = self._starting.pop(reference)
                self._ray.get(reference)
                self._idle.append(worker)
                continue
            worker, job = self._busy.pop(reference)
            try:
                ended.append(_Ended(job, self._ray.get(reference)))
                self._idle.append(worker)
            except self._ray.exceptions.RayError as error:
                ended.append(_Ended(job, None, str(error).strip().splitlines()[0]))
                self._ray.kill(worker)
                self._start()
        return ended

    def close(self) -> None:
        for worker in (*self._idle, *self._starting.values(), *(worker for worker, _ in self._busy.values())):
            self._ray.kill(worker)
        disconnect()


class _TrialWorker:
    """A Ray actor that runs one job after another.

    Args:
        folder: the user's own, from which a user's environment may import; put last on the path.
    """

    def __init__(self, folder: str) -> None:
        sys.path.append(folder)
        if os.path.isdir(folder):
            os.chdir(folder)

    def ready(self) -> bool:
        """Returns once the worker stands."""
        return True

    def run(self, job: Job) -> dict[str, Any]:
        return run_job(job)
