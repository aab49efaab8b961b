"""`train`: one whole run that a person started, with its record, checkpoints, stop and resume.

Read on in `rlscale.agents.setup` (what a run needs) and `rlscale.agents.session` (one iteration).
"""

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.noise import NotFiniteError
from rlscale.records import Run, read_run
from rlscale.records.events import TensorBoard, WeightsAndBiases
from rlscale.returns import RecentReturn
from rlscale.text import first_line, format_return, tell, true_error

from .checkpoints import kept_environments, load_checkpoint, why_afresh, write_state
from .checks import check_config
from .cluster import connect, disconnect, head_address, require_room, watch_head
from .cluster.head_node import LostHeadError, answers
from .cluster.processes import LostWorkerError, kind_of_loss
from .cluster.sigterm import interrupted_by_sigterm
from .config import TrainConfig, config_from_dict
from .idle_options import check_adaptive, check_idle_options
from .learning import NoiseRecord
from .metrics import RayMetrics
from .session import Session
from .setup import RunSetup, prepare
from .stopping import StopRequests

__all__ = ["Outcome", "train"]

Follow = Callable[[dict[str, Any], list[NoiseRecord]], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        state: `finished` or `stopped`.
        folder: of its record.
        observations, optimizer_steps: that the whole run has made.
        lost_actors: number of rollout actors that were lost since the run was started or resumed.
        reached_goal: whether the goal ended it.
    """

    state: str
    folder: Path
    observations: int
    optimizer_steps: int
    lost_actors: int = 0
    reached_goal: bool = False


@interrupted_by_sigterm()
def train(
    config: TrainConfig,
    folder: Path | str,
    *,
    command: list[str],
    on_start: Callable[[], None] = lambda: None,
    on_iteration: Follow = lambda row, noise: None,
) -> Outcome:
    """Train as configured and write the record.

    With `config.resume` the run in that folder goes on from its last checkpoint. Ctrl-C (SIGINT), SIGTERM and the end of the
    seconds end it within two seconds, after the running iteration if it is as short, with a checkpoint and a closed record.

    Args:
        config: checked here.
        folder: of a new run; ignored when resuming.
        command: what the user typed, for the record.
        on_start: called once the settings are accepted and the record's folder is there.
        on_iteration: called with each row as it is recorded, and the noise measured in it.

    Raises:
        UsageError: settings, task, cluster, folder or checkpoint that cannot be used.
        KeyboardInterrupt: stopped before the environments were made.
        LostWorkerError: a process of the run was lost.

    After any of them a new run that had not begun leaves no folder behind. After the first two a resumed one that had not begun
    leaves its record as it was.
    """
    if config.resume is None:
        check_config(config)
        check_idle_options(config)
    task = find_task(config.task)
    run: Run | None = None
    checkpoint: dict[str, Any] | None = None
    try:
        if config.resume is not None:
            run = Run.resume(Path(config.resume))
            checkpoint = load_checkpoint(run, config, task)
            before = config_from_dict(checkpoint["config"])
            if not (before.adaptive and before.shuffles_transitions):  # as earlier versions allowed
                check_adaptive(config)
        setup = prepare(config, task, None if checkpoint is None else kept_environments(checkpoint, config))
        manifest = setup.manifest(command)
        run = run or Run.create(Path(folder), {**manifest, "segments": []})
        if config.rays:
            connect(config.rollout.ray_address, setup.cpus, setup.memory.store_bytes, learner_cpus=setup.learner_cpus)
            require_room(setup.reservations(), setup.remote_learners)
            manifest["memory"] = asdict(setup.fragments())  # on a cluster, where the store's room is known only now
        recent = _recent_return(run, checkpoint)
        with _following(setup, run, recent, on_iteration) as follow, watch_head(config.rollout.ray_address):
            on_start()
            return _run(setup, run, manifest, checkpoint, recent, follow)
    except BaseException:
        if run is not None and config.resume is None and run.manifest["state"] == "running" and not run.manifest["segments"]:
            run.discard()  # it has neither begun nor been closed
        raise
    finally:
        if run is not None:
            run.close()
        if config.rays:
            disconnect()


@contextlib.contextmanager
def _following(setup: RunSetup, run: Run, recent: RecentReturn, on_iteration: Follow) -> Iterator[Follow]:
    """What is to be called with each row as it is recorded: the caller's function, and what writes for dashboards."""
    events = _events(setup.config, run)
    metrics = RayMetrics(run.folder.resolve().name, setup.task.id) if setup.config.rays else None

    def follow(row: dict[str, Any], noise: list[NoiseRecord]) -> None:
        on_iteration(row, noise)
        shown = {**row, "return_mean": recent.mean}  # as in the display and the report
        if metrics is not None:
            metrics.write(shown, noise)
        for writer in events:
            writer.write(shown)

    failed = True
    try:
        yield follow
        failed = False
    finally:
        for writer in events:
            writer.close(failed)


def _events(config: TrainConfig, run: Run) -> list[TensorBoard | WeightsAndBiases]:
    found: list[TensorBoard | WeightsAndBiases] = []
    if config.recording.tensorboard:
        found.append(TensorBoard(run.folder, lambda: run.give_up_waiting()))  # which the run gets later
    return [*found, WeightsAndBiases(run.folder, run.manifest)] if config.recording.track else found


def _recent_return(run: Run, checkpoint: dict[str, Any] | None) -> RecentReturn:
    """What the run has returned of late: nothing yet, or what it had at the checkpoint that it goes on from."""
    recent = RecentReturn()
    if checkpoint is not None:
        for row in read_run(run.folder).rows:
            if row["iteration"] < checkpoint["progress"]["iteration"]:  # later ones are made again
                recent.add(row["episodes"], row["return_mean"])
    return recent


def _run(
    setup: RunSetup, run: Run, manifest: dict[str, Any], checkpoint: dict[str, Any] | None, recent: RecentReturn, follow: Follow
) -> Outcome:
    """From the first fragment to the closed record; the run goes on from the checkpoint, if any, and keeps `recent` up to date.

    Raises:
        KeyboardInterrupt: before the run had begun.
        LostWorkerError: a process of the run was lost; where it has begun, it can be gone on from.
    """
    head = head_address() if setup.config.rollout.ray_address is not None else None  # of an existing cluster
    session: Session | None = None
    stop, begun = StopRequests(), False  # before, a session is not what a checkpoint may hold
    try:
        with stop:
            run.give_up_waiting = lambda: stop.due
            afresh = None if checkpoint is None else why_afresh(checkpoint, setup.config, setup.fragments())
            if checkpoint is not None and afresh is not None:
                checkpoint["fleet"] = None
                tell(f"rlscale: the environments begin afresh: {afresh}")
            session = setup.start(0 if checkpoint is None else checkpoint["generation"] + (afresh is not None))
            if checkpoint is not None:
                session.set_state(checkpoint)
            else:
                _save(run, session)  # from now on the run can be gone on from, however soon it ends
            begun = True
            environments = "new" if checkpoint is None else "as they were" if afresh is None else "seeded afresh"
            run.begin_segment(manifest, session.progress.iteration, environments)
            _loop(session, run, stop, follow, head is not None, recent)
            stopped = stop.asked and not _finished(session, 0.0, recent)
            _save(run, session)
        reached = recent.reached(setup.config.budget.goal)
        reason = (
            "stopped by the user" if stopped else f"mean return {format_return(recent.mean or 0.0)} reached" if reached else None
        )
        return _close(run, session, "stopped" if stopped else "finished", reason, reached)
    except KeyboardInterrupt:
        if session is None or not begun:  # nothing has begun that could be gone on from
            raise
        return _end_within_iteration(run, session, stop)
    except BaseException as error:
        if (lost := _lost_process(error, head)) is None:
            if session is not None or not isinstance(error, UsageError):  # else refused before anything has begun
                run.set_state("failed", f"{type(true_error(error)).__name__}: {first_line(error)}")
            raise
        if session is not None:
            _rescue(run, session, lost, begun)
        if session is not None or checkpoint is not None:  # else there is nothing to go on from, and its name is free again
            run.set_state("failed", f"{type(lost).__name__}: {lost}")
        raise lost from error
    finally:
        if session is not None:
            session.close()


def _close(run: Run, session: Session, state: str, reason: str | None, reached_goal: bool = False) -> Outcome:
    run.set_state(state, reason)
    return Outcome(state, run.folder, session.progress.observations, session.optimizer_steps, session.lost_actors, reached_goal)


def _end_within_iteration(run: Run, session: Session, stop: StopRequests) -> Outcome:
    """The run was interrupted; where it waited, it can be gone on from as it was before that iteration."""
    state, why = "stopped", "interrupted"
    if stop.interrupted:
        with contextlib.suppress(Exception):  # environments of a user's own, interrupted in a step, may not even close
            session.end_fleet()
        _save(run, session)
        state, why = ("stopped", "stopped by the user") if stop.asked else ("finished", "the time was over")
    return _close(run, session, state, f"{why} within an iteration")


def _rescue(run: Run, session: Session, lost: LostWorkerError, begun: bool) -> None:
    """This process and the learned parameters are still here: only the iteration that was under way is lost.

    Ctrl-C ends the wait for learners that do not answer; the checkpoint before stays.
    """
    if begun:
        with contextlib.suppress(LostWorkerError, OSError, UsageError, KeyboardInterrupt):
            if not isinstance(lost, LostHeadError):
                session.end_fleet()
            _save(run, session)
    if isinstance(lost, LostHeadError):
        session.abandon_processes()


def _lost_process(error: BaseException, head: str | None) -> LostWorkerError | None:
    """The lost process that the error means, if any: a dead head node first shows as a dead actor or a broken connection.

    Nor can the run go on where this process itself finds no room in the object store for what it sends to others.
    """
    if head is not None:
        from ray.exceptions import RayError

        if isinstance(error, LostWorkerError | RayError | ConnectionError) and not answers(head):
            return error if isinstance(error, LostHeadError) else LostHeadError()
    if type(error).__module__ == "ray.exceptions" and isinstance(error, Exception) and kind_of_loss(error) == "no room":
        return LostWorkerError(f"the run found no room in the object store: {first_line(error)}")
    return error if isinstance(error, LostWorkerError) else None


def _loop(session: Session, run: Run, stop: StopRequests, follow: Follow, on_cluster: bool, recent: RecentReturn) -> None:
    """Iterate until the budget is spent or a stop is requested.

    On an existing cluster Ray may end this process at any moment, so checkpoints there are as frequent as a twentieth of the
    time allows.

    Raises:
        UsageError: the run has diverged. Gradients that are not finite get no further.
    """
    config = session.config
    started = last_checkpoint = time.perf_counter()
    checkpoint_seconds = 0.0 if on_cluster else config.recording.checkpoint_seconds
    before = session.progress.seconds
    next_snapshot = _next_snapshot(config, max(run.snapshot_steps(session.optimizer_steps), default=0))
    if config.budget.seconds is not None:
        stop.end_after(config.budget.seconds)
    while not stop.asked and not _finished(session, time.perf_counter() - started, recent):
        try:
            iterated = session.iterate()
        except NotFiniteError as error:
            raise _diverged(session.progress.iteration, "gradients") from error
        except torch.OutOfMemoryError as error:  # of an accelerator in this process: the update may be made in part
            problem = f"the accelerator ran out of memory in iteration {session.progress.iteration} ({first_line(error)})"
            mend = "Use a smaller one, fewer --blocks, or --stream; --resume goes on from the last checkpoint"
            raise UsageError("--chunk", problem, mend) from error
        if iterated is None:
            continue
        row, result = iterated
        recent.add(row["episodes"], row["return_mean"])
        run.append(row)
        follow(row, result.noise)
        if next_snapshot is not None and session.optimizer_steps >= next_snapshot:
            run.save_snapshot(session.optimizer_steps, _npy(session.weights()))
            next_snapshot = _next_snapshot(config, session.optimizer_steps)
        if (begin := time.perf_counter()) - last_checkpoint >= checkpoint_seconds:
            _save(run, session)
            last_checkpoint = time.perf_counter()
            if on_cluster:
                checkpoint_seconds = min(config.recording.checkpoint_seconds, 20 * (last_checkpoint - begin))
        session.progress.seconds = before + time.perf_counter() - started  # what recording took is part of the run


def _diverged(iteration: int, numbers: str) -> UsageError:
    problem = f"the run diverged in iteration {iteration}: its {numbers} are not finite any more"
    return UsageError("--learning-rate", problem, "Use a lower one")


def _finished(session: Session, session_seconds: float, recent: RecentReturn) -> bool:
    b = session.config.budget
    return (
        (b.observations is not None and session.progress.observations >= b.observations)
        or (b.optimizer_steps is not None and session.optimizer_steps >= b.optimizer_steps)
        or (b.seconds is not None and session_seconds >= b.seconds)
        or recent.reached(b.goal)
    )


def _next_snapshot(config: TrainConfig, optimizer_steps: int) -> int | None:
    growth = config.recording.snapshot_growth
    return max(optimizer_steps + 1, int(optimizer_steps * growth)) if growth else None


def _save(run: Run, session: Session) -> None:
    """Write the checkpoint.

    Raises:
        UsageError: the run has diverged. The checkpoint before stays.
    """
    state = session.get_state()
    if not state["learner"]["parameters"].isfinite().all():
        raise _diverged(session.progress.iteration - 1, "parameters")
    write_state(run, session.config, state)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
