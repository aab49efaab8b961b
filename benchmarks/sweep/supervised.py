"""`SupervisedCourse`: what a trial advances where a task is learned from examples."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlscale.agents.compute import resolve_device
from rlscale.agents.job_record import job_facts
from rlscale.agents.learning import NoiseRecord
from rlscale.agents.machine import describe_machine
from rlscale.agents.rollout import Evaluation
from rlscale.agents.supervised import SupervisedConfig, SupervisedEvaluator, SupervisedLearner, make_network
from rlscale.envs.supervised import SupervisedTask
from rlscale.records import Run

from .trial import Advance

__all__ = ["SupervisedCourse"]


class SupervisedCourse:
    """Learning from examples, with a run record in `folder`. There are no episodes: goals are looked for on held-out examples.

    Args:
        config: of the run.
        task: its task.
        folder: of the record; must not exist.
        command: what the user typed.
    """

    def __init__(self, config: SupervisedConfig, task: SupervisedTask, *, folder: Path, command: list[str]) -> None:
        learned, held_out = task.load(config.data)
        device = resolve_device(config.update.device)
        if device.type == "cpu":
            torch.set_num_threads(1)
        network, twin = (make_network(task, learned, config.seed) for _ in range(2))
        self._learner = SupervisedLearner(config, network, learned, task.length, device)
        self._evaluator = SupervisedEvaluator(twin, held_out, task.length, device)
        self._observations, self._seconds = 0, 0.0
        facts = job_facts(
            task=task.id,
            preprocessing=task.preprocessing,
            config=asdict(config),
            seed=config.seed,
            command=command,
            machine=describe_machine(device),
            device=str(device),
            threads=torch.get_num_threads(),
            parameters=len(self._learner.weights()),
        )
        facts["task"]["goals"] = list(task.goals)
        self._run = Run.create(folder, {**facts, "segments": []})

    def advance(self) -> Advance:
        started, number = time.perf_counter(), self._learner.optimizer_steps
        step = self._learner.step()
        self._observations += step.observations
        noise = [] if step.statistics is None else [NoiseRecord("joint", "rollout", number, step.statistics)]
        ended = time.perf_counter()
        self._seconds += ended - started
        row: dict[str, Any] = {
            "iteration": number,
            "observations": self._observations,
            "optimizer_steps": number + 1,
            "seconds": self._seconds,
            "batch_observations": step.observations,
            "episodes": 0,
            **dict.fromkeys(("return_mean", "return_min", "return_max", "episode_length_mean")),
            "learning_rate": step.learning_rate,
            "joint_loss": step.loss,
            "gradient_norm": step.gradient_norm,
            "sampling_seconds": 0.0,
            "transfer_seconds": 0.0,
            "learning_seconds": ended - started,
            "noise_seconds": step.noise_seconds,
            "noise": [record.entry() for record in noise],
        }
        self._run.append(row)
        return Advance(self._observations, noise)

    def weights(self) -> np.ndarray:
        return self._learner.weights()

    def evaluate(self, weights: np.ndarray, optimizer_steps: int) -> Evaluation:
        started = time.perf_counter()
        scores = self._evaluator.evaluate(weights)
        return Evaluation(scores, self._evaluator.observations, 0, time.perf_counter() - started)

    def close(self, state: str, reason: str | None) -> None:
        self._run.set_state(state, reason)
        self._run.close()
