"""`Session`: the learner and the fleet of one run, advanced an iteration at a time; each gives one row of the record.

When a run ends, what is kept of it and who is shown what is decided by the callers: `agents.train` for a run that a person
started, `benchmarks.trial` for one of a sweep.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agents.config import TrainConfig, config_to_dict
from agents.fleet import Fleet, LocalFleet, RayFleet
from agents.fragments import Fragment
from agents.learner import Learner, UpdateResult
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
from envs import Task
from rlscale.runs import pack_statistics

__all__ = ["Progress", "Session"]


@dataclass
class Progress:
    """Counters of a run; all of them are in every checkpoint."""

    iteration: int = 0
    observations: int = 0
    seconds: float = 0.0


class Session:
    """A run in this process. The fleet is started by `start`, so that a run that cannot begin leaves no actors behind.

    Args:
        config: checked already.
        task: its task.
        generation: how often the run was resumed with fresh environments.

    Raises:
        UsageError: a device or network that cannot be used.
    """

    def __init__(self, config: TrainConfig, task: Task, generation: int = 0) -> None:
        self.config, self.task = config, task
        self.device = resolve_device(config.update.device)
        self.precision = resolve_precision(config.update.precision, config.update.network, self.device)
        self.threads = config.update.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        self.learner = Learner(config, task, self.device, bfloat16=self.precision == "bfloat16")
        self.progress = Progress()
        self.generation = generation
        self.fleet: Fleet | None = None

    @property
    def acts_in_bfloat16(self) -> bool:
        """Whether policies act in bfloat16: where the learner computes in it, and the CPU can too."""
        on_cpu = self.device.type == "cpu" or computes_bfloat16(torch.device("cpu"))
        return self.precision == "bfloat16" and on_cpu

    def start(self) -> None:
        """Make the environments; Ray must be connected if the settings ask for actors.

        Raises:
            UsageError: the actors do not start.
        """
        rollout = self.config.rollout
        settings = WorkerSettings(
            task=self.task,
            environments=rollout.environments // max(rollout.actors, 1),
            rollout_length=rollout.rollout_length,
            network=self.config.update.network,
            width=self.config.update.width,
            bfloat16=self.acts_in_bfloat16,
            threads=rollout.actor_cpus if rollout.actors else self.threads,
            cut_on_life_loss=rollout.cut_on_life_loss,
            random_first_steps=rollout.random_first_steps,
            seed=self.config.seed,
            generation=self.generation,
        )
        self.fleet = RayFleet(settings, rollout.actors) if rollout.actors else LocalFleet(settings)

    def close(self) -> None:
        """End the fleet."""
        if self.fleet is not None:
            self.fleet.close()
            self.fleet = None

    def iterate(self, learning_rate: float) -> tuple[dict[str, Any], UpdateResult] | None:
        """Sample an iteration batch and learn from it; the row for the record, and what the learner measured.

        None when nothing was observed: with one-step fragments every environment may just have been reset.

        Raises:
            LostWorkerError: a rollout worker died.
        """
        assert self.fleet is not None, "start() first"
        progress = self.progress
        begin = time.perf_counter()
        fragments = self.fleet.sample(self.learner.weights(), progress.iteration)
        if all(f.reset.all() for f in fragments):
            progress.seconds += time.perf_counter() - begin
            return None
        sampled = time.perf_counter()
        batch = self.learner.prepare(fragments)
        prepared = time.perf_counter()
        result = self.learner.update(batch, progress.iteration, learning_rate)
        learned = time.perf_counter()
        progress.observations += batch.observations
        progress.seconds += learned - begin
        # Within the wait for the fleet, what is not the slowest worker's own work is transfer.
        remote = self.config.rollout.actors > 0
        working = min(max(f.seconds for f in fragments), sampled - begin) if remote else sampled - begin
        times = {
            "sampling_seconds": working,
            "transfer_seconds": prepared - begin - working,
            "learning_seconds": learned - prepared,
            "noise_seconds": result.noise_seconds,
            "observations_per_second": batch.observations / (learned - begin),
            "sampling_observations_per_second": batch.observations / working,
            "learning_observations_per_second": batch.observations / (learned - prepared),
        }
        row = {
            "iteration": progress.iteration,
            "observations": progress.observations,
            "optimizer_steps": self.learner.optimizer_steps,
            "seconds": progress.seconds,
            "batch_observations": batch.observations,
            **_episodes(fragments),
            "learning_rate": learning_rate,
            **result.figures,
            "explained_variance": batch.explained_variance,
            "policy_lag": progress.iteration - min(f.policy_version for f in fragments),
            **times,
            "noise": [
                {"head": n.head, "kind": n.kind, "optimizer_step": n.optimizer_step, **pack_statistics(n.statistics)}
                for n in result.noise
            ],
        }
        progress.iteration += 1
        return row, result

    def facts(self, command: list[str]) -> dict[str, Any]:
        """What the run is and what it runs on, for its manifest."""
        task = self.task
        return {
            "task": {
                "id": task.id,
                "preprocessing": task.preprocessing,
                "frame_skip": task.frame_skip,
                "goals": list(task.goals),
                "clip_reward": task.clip_reward,
            },
            "config": {**config_to_dict(self.config), "resume": None},
            "seed": self.config.seed,
            "commit": find_commit(),
            "versions": find_versions(),
            "machine": describe_machine(self.device),
            "device": str(self.device),
            "precision": self.precision,
            "threads": self.threads,
            "command": command,
            "parameters": len(self.learner.parameters),
        }


def _episodes(fragments: list[Fragment]) -> dict[str, Any]:
    """Raw returns and lengths of the episodes that finished; null where none did."""
    returns = np.concatenate([f.episode_return for f in fragments])
    lengths = np.concatenate([f.episode_length for f in fragments])
    finished = len(returns) > 0
    return {
        "episodes": len(returns),
        "return_mean": float(returns.mean()) if finished else None,
        "return_min": float(returns.min()) if finished else None,
        "return_max": float(returns.max()) if finished else None,
        "episode_length_mean": float(lengths.mean()) if finished else None,
    }
