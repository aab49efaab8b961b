"""The training loop of one run, top to bottom: task, fleet, fragments, update, record.

What is shown to a person while it runs is the caller's business (`on_iteration`); what a record looks like is in
`rlscale.runs`.
"""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.cluster import connect, disconnect
from agents.config import TrainConfig, check_config, config_from_dict, config_to_dict
from agents.fleet import Fleet, LocalFleet, RayFleet
from agents.fragments import Fragment
from agents.learner import Learner, NoiseRecord, UpdateResult
from agents.machine import (
    computes_bfloat16,
    describe_machine,
    find_commit,
    find_versions,
    keep_freed_memory,
    resolve_device,
    resolve_precision,
)
from agents.worker import WorkerSettings
from envs import find_task
from rlscale.errors import UsageError
from rlscale.events import EventWriter
from rlscale.runs import Run, pack_statistics

__all__ = ["Outcome", "train"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `finished` or `stopped`, and where its record is."""

    state: str
    folder: Path
    observations: int
    optimizer_steps: int


@dataclass
class _Progress:
    """Counters of the run; all of them are in every checkpoint."""

    iteration: int = 0
    observations: int = 0
    seconds: float = 0.0


def train(
    config: TrainConfig,
    folder: Path,
    *,
    command: list[str],
    on_iteration: Callable[[dict[str, Any], list[NoiseRecord]], None] = lambda row, noise: None,
) -> Outcome:
    """Train as configured and write the record.

    With `config.resume` the run in that folder goes on from its last checkpoint. Ctrl-C (SIGINT) and SIGTERM end it after
    the running iteration, with a checkpoint and a closed record.

    Args:
        config: checked here.
        folder: of a new run; ignored when resuming.
        command: what the user typed, for the record.
        on_iteration: called with each row as it is recorded, and the noise measured in it.

    Raises:
        UsageError: settings, task, cluster, folder or checkpoint that cannot be used; a new run leaves no folder behind.
    """
    check_config(config)
    task = find_task(config.task)
    device = resolve_device(config.update.device)
    precision = resolve_precision(config.update.precision, config.update.network, device)
    threads = config.update.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    keep_freed_memory()
    run: Run | None = None
    checkpoint: dict[str, Any] | None = None
    try:
        if config.resume is not None:
            run = Run.resume(Path(config.resume))
            checkpoint = _load(run, config)
        learner = Learner(config, task, device, bfloat16=precision == "bfloat16")
        events = EventWriter() if config.recording.tensorboard else None
        facts = {
            "task": {
                "id": task.id,
                "preprocessing": task.preprocessing,
                "frame_skip": task.frame_skip,
                "goals": list(task.goals),
                "clip_reward": task.clip_reward,
            },
            "config": config_to_dict(replace(config, resume=None)),
            "seed": config.seed,
            "commit": find_commit(),
            "versions": find_versions(),
            "machine": describe_machine(device),
            "device": str(device),
            "precision": precision,
            "threads": threads,
            "command": command,
            "parameters": len(learner.parameters),
        }
        if run is None:
            run = Run.create(folder, {**facts, "segments": []})
        if config.rollout.actors:
            try:
                connect(config.rollout.ray_address, config.rollout.actors * config.rollout.actor_cpus)
            except BaseException:
                if checkpoint is None:
                    run.discard()
                raise
        workers = WorkerSettings(
            task=task,
            environments=config.rollout.environments // max(config.rollout.actors, 1),
            rollout_length=config.rollout.rollout_length,
            network=config.update.network,
            bfloat16=precision == "bfloat16" and (device.type == "cpu" or computes_bfloat16(torch.device("cpu"))),
            threads=config.rollout.actor_cpus if config.rollout.actors else threads,
            cut_on_life_loss=config.rollout.cut_on_life_loss,
            random_first_steps=config.rollout.random_first_steps,
            seed=config.seed,
            generation=0 if checkpoint is None else checkpoint["generation"] + (checkpoint["fleet"] is None),
        )

        def follow(row: dict[str, Any], noise: list[NoiseRecord]) -> None:
            on_iteration(row, noise)
            if events is not None:
                events.write(row, run.folder)

        try:
            return _run(config, run, facts, learner, workers, checkpoint, follow)
        finally:
            if events is not None:
                events.close()
    finally:
        if run is not None:
            run.close()
        if config.rollout.actors:
            disconnect()


def _run(
    config: TrainConfig,
    run: Run,
    facts: dict[str, Any],
    learner: Learner,
    workers: WorkerSettings,
    checkpoint: dict[str, Any] | None,
    on_iteration: Callable[[dict[str, Any], list[NoiseRecord]], None],
) -> Outcome:
    """From the first fragment to the closed record."""
    progress = _Progress()
    fleet: Fleet | None = None
    try:
        with _stop_requests() as stop:
            fleet = RayFleet(workers, config.rollout.actors) if config.rollout.actors else LocalFleet(workers)
            environments = "new"
            if checkpoint is not None:
                learner.set_state(checkpoint["learner"])
                progress = _Progress(**checkpoint["progress"])
                environments = "as they were" if checkpoint["fleet"] is not None else "seeded afresh"
                if checkpoint["fleet"] is not None:
                    fleet.set_state(checkpoint["fleet"])
            segment = {**facts, "first_iteration": progress.iteration, "environments": environments}
            del segment["task"]
            run.set_state("running", **facts, segments=[*run.manifest["segments"], segment])
            _loop(config, run, learner, fleet, workers.generation, progress, stop, on_iteration)
            state = "stopped" if stop.is_set() and not _finished(config, learner, progress, 0.0) else "finished"
            _save(run, learner, fleet, progress, workers.generation)
        run.set_state(state, "stopped by the user" if state == "stopped" else None)
        return Outcome(state, run.folder, progress.observations, learner.optimizer_steps)
    except KeyboardInterrupt:
        run.set_state("stopped", "interrupted within an iteration")
        return Outcome("stopped", run.folder, progress.observations, learner.optimizer_steps)
    except BaseException as error:
        run.set_state("failed", f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
        raise
    finally:
        if fleet is not None:
            fleet.close()


def _loop(
    config: TrainConfig,
    run: Run,
    learner: Learner,
    fleet: Fleet,
    generation: int,
    progress: _Progress,
    stop: threading.Event,
    on_iteration: Callable[[dict[str, Any], list[NoiseRecord]], None],
) -> None:
    """Iterations until the budget is spent or a stop is asked for."""
    started = time.perf_counter() - progress.seconds
    session_started = last_checkpoint = time.perf_counter()
    next_snapshot = _next_snapshot(config, max(run.snapshot_steps(learner.optimizer_steps), default=0))
    while not stop.is_set() and not _finished(config, learner, progress, time.perf_counter() - session_started):
        begin = time.perf_counter()
        fragments = fleet.sample(learner.weights(), progress.iteration)
        if all(f.reset.all() for f in fragments):
            continue  # possible with one-step fragments: every environment was reset, and nothing was observed
        sampled = time.perf_counter()
        batch = learner.prepare(fragments)
        prepared = time.perf_counter()
        learning_rate = _learning_rate(config, progress)
        result = learner.update(batch, progress.iteration, learning_rate)
        learned = time.perf_counter()
        progress.observations += batch.observations
        progress.seconds = learned - started
        # Within the wait for the fleet, what is not the slowest worker's own work is transfer.
        working = min(max(f.seconds for f in fragments), sampled - begin) if config.rollout.actors else sampled - begin
        times = {
            "sampling_seconds": working,
            "transfer_seconds": prepared - begin - working,
            "learning_seconds": learned - prepared,
            "noise_seconds": result.noise_seconds,
            "observations_per_second": batch.observations / (learned - begin),
            "sampling_observations_per_second": batch.observations / working,
            "learning_observations_per_second": batch.observations / (learned - prepared),
        }
        row = _row(progress, learner, fragments, batch.observations, batch.explained_variance, learning_rate, result, times)
        run.append(row)
        progress.iteration += 1
        on_iteration(row, result.noise)
        if next_snapshot is not None and learner.optimizer_steps >= next_snapshot:
            run.save_snapshot(learner.optimizer_steps, _npy(learner.weights()))
            next_snapshot = _next_snapshot(config, learner.optimizer_steps)
        if time.perf_counter() - last_checkpoint >= config.recording.checkpoint_seconds:
            _save(run, learner, fleet, progress, generation)
            last_checkpoint = time.perf_counter()


def _finished(config: TrainConfig, learner: Learner, progress: _Progress, session_seconds: float) -> bool:
    b = config.budget
    return (
        (b.observations is not None and progress.observations >= b.observations)
        or (b.optimizer_steps is not None and learner.optimizer_steps >= b.optimizer_steps)
        or (b.seconds is not None and session_seconds >= b.seconds)
    )


def _learning_rate(config: TrainConfig, progress: _Progress) -> float:
    rate = config.update.learning_rate
    if config.update.anneal and config.budget.observations is not None:
        rate *= max(0.0, 1.0 - progress.observations / config.budget.observations)
    return rate


def _next_snapshot(config: TrainConfig, optimizer_steps: int) -> int | None:
    growth = config.recording.snapshot_growth
    return max(optimizer_steps + 1, int(optimizer_steps * growth)) if growth else None


def _row(
    progress: _Progress,
    learner: Learner,
    fragments: list[Fragment],
    observations: int,
    explained_variance: float,
    learning_rate: float,
    result: UpdateResult,
    times: dict[str, float],
) -> dict[str, Any]:
    """One line of the record; docs/glossary.md defines every field."""
    returns = np.concatenate([f.episode_return for f in fragments])
    lengths = np.concatenate([f.episode_length for f in fragments])
    finished = len(returns) > 0
    return {
        "iteration": progress.iteration,
        "observations": progress.observations,
        "optimizer_steps": learner.optimizer_steps,
        "seconds": progress.seconds,
        "batch_observations": observations,
        "episodes": len(returns),
        "return_mean": float(returns.mean()) if finished else None,
        "return_min": float(returns.min()) if finished else None,
        "return_max": float(returns.max()) if finished else None,
        "episode_length_mean": float(lengths.mean()) if finished else None,
        "learning_rate": learning_rate,
        **result.figures,
        "explained_variance": explained_variance,
        "policy_lag": progress.iteration - min(f.policy_version for f in fragments),
        **times,
        "noise": [
            {"head": n.head, "kind": n.kind, "optimizer_step": n.optimizer_step, **pack_statistics(n.statistics)}
            for n in result.noise
        ],
    }


def _save(run: Run, learner: Learner, fleet: Fleet, progress: _Progress, generation: int) -> None:
    payload = io.BytesIO()
    torch.save(
        {
            "task": run.manifest["task"]["id"],
            "learner": learner.get_state(),
            "fleet": fleet.get_state(),
            "progress": vars(progress),
            "generation": generation,
        },
        payload,
    )
    run.save_checkpoint(payload.getvalue())


def _load(run: Run, config: TrainConfig) -> dict[str, Any]:
    """The run's checkpoint, checked against what is asked for now.

    Raises:
        UsageError: another task, settings that a run cannot change, no checkpoint, or a damaged one.
    """
    recorded = run.manifest["task"]["id"]
    if recorded != config.task:
        raise UsageError(
            "--resume",
            f"the run in {run.folder} is of task {recorded}, not {config.task}",
            f"Use: rlscale train {recorded} --resume {run.folder}",
        )
    before = config_from_dict(run.manifest["config"])
    fixed: dict[str, Callable[[TrainConfig], object]] = {
        "--environments": lambda c: c.rollout.environments,
        "--rollout-length": lambda c: c.rollout.rollout_length,
        "--algorithm": lambda c: c.update.algorithm,
        "--network": lambda c: c.update.network,
        "--optimizer": lambda c: c.update.optimizer,
        "--seed": lambda c: c.seed,
    }
    for flag, setting in fixed.items():
        if setting(before) != setting(config):
            raise UsageError(
                flag, f"a resumed run keeps {setting(before)}, not {setting(config)}", "Leave it out, or start a new run"
            )
    stored: dict[str, Any] = torch.load(io.BytesIO(run.load_checkpoint()), map_location="cpu", weights_only=False)
    if before.rollout.actors != config.rollout.actors:
        stored["fleet"] = None  # other workers: their environments start afresh
    return stored


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second SIGINT interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
