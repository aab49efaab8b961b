"""`rlscale sweep`: run the trials of one or more plans, side by side on Ray or one by one, and record each as it ends.

A sweep that is killed, at whatever moment, goes on with the same command: trials that ended are in the record, interrupted ones
begin again as they were decided.
"""

import contextlib
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rlscale.agents.cluster import BusyClusterError, LostHeadError, LostWorkerError, connect, disconnect, watch_head
from rlscale.agents.cluster.placement import share_of_gpu
from rlscale.agents.cluster.processes import enter_user_folder
from rlscale.agents.cluster.resources import cpus_there, gpus_there
from rlscale.agents.cluster.sigterm import interrupted_by_sigterm
from rlscale.agents.compute import resolve_device
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.cpus import usable_cpus
from rlscale.errors import UsageError
from rlscale.records import Sweep, Trial, TrialResult, folder_name
from rlscale.text import first_line, true_error

from ..console import say
from .display import SweepDisplay
from .options import SweepOptions, make_plan
from .plan import SweepPlan
from .trial import run_trial

__all__ = ["Fault", "Job", "TrialWorker", "run_job", "run_sweeps"]

MOST_ATTEMPTS = 3  # at a trial whose worker died or could not write; one that raised another error is not repeated
BUSY_SECONDS = 10  # between two attempts of a trial for which the cluster has no room
SILENT_SECONDS = 30  # without any worker, until the sweep says that it waits for one


@dataclass(frozen=True)
class Job:
    """A trial of the sweep with that number, and the folder of its record."""

    plan: SweepPlan
    trial: Trial
    folder: Path
    command: tuple[str, ...]
    sweep: int

    @property
    def key(self) -> tuple[int, str]:
        """Tells the trials of all sweeps apart."""
        return self.sweep, self.trial.id


@dataclass(frozen=True)
class Fault:
    """Why an attempt at a trial ended without a result: a fault of the machines, not of the trial.

    Attributes:
        why: in a few words.
        busy: the cluster had no room for the trial's processes. It waits for some, however often, and that is no attempt.
    """

    why: str
    busy: bool = False


def run_sweeps(options: SweepOptions, command: list[str], console: Console) -> list[Path]:
    """Run the sweep of every task that the options name; folders of the finished sweeps.

    Raises:
        UsageError: bad options, a task that cannot be made, a folder that cannot be used.
        KeyboardInterrupt: the user stopped it; all that had ended is recorded.
    """
    if not options.tasks:
        raise UsageError("TASK", "no task was named", "For example: rlscale sweep minatar/breakout")
    sweeps: list[Sweep] = []
    try:
        made = [make_plan(task, options) for task in dict.fromkeys(options.tasks)]
        plans = list({plan.config.task: plan for plan in made}.values())  # a task may have two names
        for plan in plans:
            sweeps.append(_open_sweep(plan, Path(options.out), command))
        for sweep in sweeps:
            for sentence in sweep.left_out:
                say(console, f"note: {sentence}")
        with SweepDisplay(plans, [sweep.results for sweep in sweeps], console) as display:
            _run(plans, sweeps, options, command, display)
        return [sweep.folder for sweep in sweeps]
    finally:
        if options.ray_address is not None:  # joined to count its CPUs
            disconnect()
        for sweep in sweeps:
            sweep.close()


def _open_sweep(plan: SweepPlan, out: Path, command: list[str]) -> Sweep:
    facts = {
        "task": plan.description,
        "commit": find_commit(),
        "versions": find_versions(),
        "machine": describe_machine(resolve_device(plan.config.update.device)),
        "command": command,
    }
    return Sweep.open(out / folder_name(plan.config.task), plan.to_dict(), facts)


def _run(
    plans: Sequence[SweepPlan], sweeps: Sequence[Sweep], options: SweepOptions, command: list[str], display: SweepDisplay
) -> None:
    """Run trials until every plan is through. Only this function records results."""
    running: set[tuple[int, str]] = set()
    attempts: Counter[tuple[int, str]] = Counter()
    begun: dict[tuple[int, str], float] = {}
    resting: dict[tuple[int, str], float] = {}  # until when a trial that found no room is not tried again
    pool: LocalPool | RayPool | None = None
    held = contextlib.ExitStack()
    heard = 0.0  # when a worker was last there
    try:
        while True:
            jobs = [
                Job(plan, trial, sweep.folder / "trials" / trial.id, tuple(command), number)
                for number, (plan, sweep) in enumerate(zip(plans, sweeps, strict=True))
                for trial in plan.next_trials(sweep.results, sweep.begun)
            ]
            if not jobs:
                return
            ready = [job for job in jobs if job.key not in running and time.monotonic() >= resting.get(job.key, 0.0)]
            if pool is None:
                pool = LocalPool() if options.jobs == 0 else RayPool(plans, options)
                held.enter_context(interrupted_by_sigterm())  # after Ray, which sets a handler of its own
                held.enter_context(watch_head(options.ray_address))
                heard = time.monotonic()
            for job in ready[: pool.free]:
                running.add(job.key)
                attempts[job.key] += 1
                begun.setdefault(job.key, time.perf_counter())
                sweeps[job.sweep].begin(job.trial)
                pool.submit(job)
                display.started(job.sweep, job.trial)
            for job, outcome in pool.wait(0.5):
                running.remove(job.key)
                if isinstance(outcome, Fault):
                    if outcome.busy:
                        attempts[job.key] -= 1
                        display.waits(job.sweep, job.trial, outcome.why)
                        resting[job.key] = time.monotonic() + BUSY_SECONDS
                        continue  # the plan names the trial again
                    if attempts[job.key] < MOST_ATTEMPTS:
                        display.begins_again(job.sweep, job.trial, outcome.why)
                        continue
                    reason = f"its worker failed {MOST_ATTEMPTS} times: {outcome.why}"
                    outcome = _failed(job.trial, reason, time.perf_counter() - begun[job.key])
                outcome = replace(outcome, jobs=plans[job.sweep].jobs)
                sweeps[job.sweep].append(outcome)
                display.ended(job.sweep, outcome)
            if running or pool.free:
                heard = time.monotonic()
            elif options.ray_address is not None and time.monotonic() - heard > SILENT_SECONDS:
                display.say("waits for room: no worker has started in the cluster ('ray status' shows what is used)")
                heard = math.inf  # said once
    except LostHeadError:
        pool = None  # without the head nobody can end its workers
        raise
    finally:
        held.close()
        if pool is not None:
            pool.close()


def _failed(trial: Trial, reason: str, seconds: float) -> TrialResult:
    """The result of a trial that raised an error, or whose worker died, after so many seconds."""
    return TrialResult(**asdict(trial), state="failed", reason=reason, seconds=seconds, commit=find_commit())


def run_job(job: Job) -> TrialResult:
    """Run the trial, its record in `job.folder`; what an interrupted attempt left there is removed first."""
    shutil.rmtree(job.folder, ignore_errors=True)
    started = time.perf_counter()
    try:
        return run_trial(
            job.trial,
            goals=job.plan.goals,
            most_observations=job.plan.most_observations,
            make_course=lambda: job.plan.begin(job.trial, job.folder, list(job.command)),
            inner_steps=job.plan.inner_steps,
            episodes=job.plan.episodes,
        )
    except (BusyClusterError, LostWorkerError, OSError, torch.OutOfMemoryError):
        raise  # a fault of the machines, not of the trial: it is tried again
    except Exception as error:  # one trial's failure is a result of the sweep, not its end
        return _failed(job.trial, f"{type(true_error(error)).__name__}: {first_line(error)}", time.perf_counter() - started)


class LocalPool:
    """One job at a time in this process, without Ray."""

    def __init__(self) -> None:
        self._job: Job | None = None

    @property
    def free(self) -> int:
        """Jobs that it can take now."""
        return 0 if self._job else 1

    def submit(self, job: Job) -> None:
        self._job = job

    def wait(self, seconds: float) -> list[tuple[Job, TrialResult | Fault]]:
        """Jobs that have ended, each with its result or why it has none; after so many seconds, with none if none has ended."""
        job, self._job = self._job, None
        if job is None:
            time.sleep(seconds)
            return []
        try:
            return [(job, run_job(job))]
        except BusyClusterError as error:
            return [(job, Fault(error.problem, busy=True))]
        except (OSError, torch.OutOfMemoryError) as error:
            return [(job, Fault(first_line(error)))]

    def close(self) -> None:
        pass


class RayPool:
    """Jobs in long-lived Ray actors, so that a trial of five seconds does not pay for an import of ten.

    It does what `LocalPool` says of its methods.
    """

    def __init__(self, plans: Sequence[SweepPlan], options: SweepOptions) -> None:
        beside = max(plan.rollout_cpus for plan in plans)
        # A trial with rollout actors learns while they wait, and they sample while it waits: one share of CPUs serves both.
        cpus = max(1, beside)
        here = usable_cpus()
        connect(options.ray_address, cpus if options.ray_address else max(here, (options.jobs or 1) * cpus))
        import ray

        self._ray = ray
        available = cpus_there()
        jobs = options.jobs or max(1, available // cpus)
        if jobs * cpus > available:
            raise UsageError("--jobs", f"{jobs} runs need {jobs * cpus} CPUs, the cluster has {available}", "Use fewer")
        gpus = _gpus_of_each(plans, jobs, gpus_there())
        self._worker = ray.remote(TrialWorker).options(num_cpus=0 if beside else 1, num_gpus=gpus)
        self._failed_starts = 0  # in a row
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Job | None]] = {}  # by the call that is awaited; no job: whether it is there
        self._known: set[Any] = set()  # workers that have answered
        for _ in range(jobs):
            self._start()

    def _start(self) -> None:
        """Start a worker; it becomes idle once it is there, which on a busy cluster may take long."""
        self._ask(self._worker.remote(os.getcwd()))

    def _ask(self, worker: Any) -> None:
        """Have a worker say that it is there, before it is given a job."""
        self._busy[worker.ready.remote()] = (worker, None)

    @property
    def free(self) -> int:
        return len(self._idle)

    def submit(self, job: Job) -> None:
        worker = self._idle.pop()
        absolute = replace(job, folder=job.folder.resolve())
        self._busy[worker.run.remote(absolute)] = (worker, job)

    def wait(self, seconds: float) -> list[tuple[Job, TrialResult | Fault]]:
        if not self._busy:
            time.sleep(seconds)
            return []
        done, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=seconds)
        ended: list[tuple[Job, TrialResult | Fault]] = []
        for call in done:
            worker, job = self._busy.pop(call)
            try:
                outcome = self._ray.get(call)
                self._idle.append(worker)
                self._known.add(worker)
                self._failed_starts = 0
            except self._ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)  # what the trial raised in its worker, which is then as good as before
                if isinstance(cause, BusyClusterError):
                    outcome = Fault(cause.problem, busy=True)
                    self._idle.append(worker)
                else:
                    outcome = Fault(first_line(error))
                    self._replace(worker, outcome.why)
            if job is not None:
                ended.append((job, outcome))
        return ended

    def _replace(self, worker: Any, why: str) -> None:
        """Start another worker for one that is lost.

        What ended it, as a node that went, may have ended idle ones too. So these are asked, or their deaths would count as
        attempts at trials that never began.

        Raises:
            LostWorkerError: workers do not start, again and again.
        """
        if worker not in self._known:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise LostWorkerError(f"{MOST_ATTEMPTS} workers in a row did not start: {why}")
        self._known.discard(worker)
        self._ray.kill(worker)
        self._start()
        idle, self._idle = self._idle, []
        for other in idle:
            self._ask(other)

    def close(self) -> None:
        for worker in (*self._idle, *(worker for worker, _ in self._busy.values())):
            self._ray.kill(worker)
        disconnect()


def _gpus_of_each(plans: Sequence[SweepPlan], jobs: int, gpus: float) -> float:
    """What Ray reserves for each job, which spreads them over the GPUs that it knows; nothing of a device that has a number."""
    devices = {plan.config.update.device for plan in plans}
    shared = any(":" not in device and resolve_device(device).type != "cpu" for device in devices)
    return share_of_gpu(gpus, jobs) if shared and gpus else 0.0


class TrialWorker:
    """A Ray actor that runs one job after another.

    Args:
        folder: the user's own, from which a user's environment may import; put last on the path.
    """

    def __init__(self, folder: str) -> None:
        enter_user_folder(folder)

    def ready(self) -> bool:
        """Returns once the worker has started."""
        return True

    def run(self, job: Job) -> TrialResult:
        return run_job(job)
