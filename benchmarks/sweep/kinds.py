"""The two kinds of sweep: `TrainingPlan` of reinforcement learning, `SupervisedPlan` of examples.

They say how a trial is set up and begun, and nothing else: `plan` decides which trials follow, and `trial` runs them, whatever
they are made of. `rlscale.benchmarks.sweep.options.make_plan` chooses the kind by the name of the task, the only place that does.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlscale.agents.config import TrainConfig
from rlscale.agents.supervised import SupervisedConfig
from rlscale.envs import find_task
from rlscale.envs.supervised import SupervisedTask, find_supervised
from rlscale.records import Trial

from .plan import SweepPlan
from .supervised import SupervisedCourse
from .trial import Course, TrainingCourse

__all__ = ["SupervisedPlan", "TrainingPlan"]

BLOCKS = 32  # of a noise measurement in a supervised run


@dataclass(frozen=True)
class TrainingPlan(SweepPlan):
    """A sweep of a task with environments. B is environments x rollout length."""

    config: TrainConfig

    @property
    def least_batch(self) -> int:
        return self.mini_batches * self.config.rollout.rollout_length * self.config.rollout.clones

    @property
    def inner_steps(self) -> int:
        return self.config.update.epochs * self.mini_batches

    @property
    def rollout_cpus(self) -> int:
        return self.config.actors * self.config.rollout.actor_cpus

    @property
    def description(self) -> dict[str, Any]:
        task = find_task(self.config.task)
        return {"id": task.id, "preprocessing": task.preprocessing, "frame_skip": task.frame_skip, "goals": list(self.goals)}

    def config_of(self, trial: Trial) -> TrainConfig:
        """Settings of one trial's run.

        Noise runs measure the policy, value and joint losses, other runs that measure noise the joint loss alone.
        """
        config, joint, heads = self.config, int(trial.measures_noise), int(trial.stage == "noise")
        environments = trial.batch_size // config.rollout.rollout_length
        # As many actors as were asked for, or as the environments, clones together, can be dealt to.
        actors = max(n for n in range(config.actors + 1) if n == 0 or environments % (n * config.rollout.clones) == 0)
        mini_batch = None if self.mini_batches == 1 else trial.batch_size // self.mini_batches
        age = config.update.proximal_average  # in optimizer steps of the pilot's batch size
        if age is not None:
            age *= self.pilot_batch / trial.batch_size
        return replace(
            config,
            seed=trial.seed,
            rollout=replace(config.rollout, environments=environments, actors=actors),
            update=replace(config.update, learning_rate=trial.learning_rate, mini_batch=mini_batch, proximal_average=age),
            noise=replace(
                config.noise,
                joint_noise_period=joint if self.mini_batches == 1 else 0,
                iteration_noise_period=joint if self.mini_batches > 1 else 0,
                policy_noise_period=heads,
                value_noise_period=heads,
                entropy_noise_period=0,
            ),
        )

    def begin(self, trial: Trial, folder: Path, command: list[str]) -> Course:
        return TrainingCourse(self.config_of(trial), episodes=self.episodes, folder=folder, command=command)


@dataclass(frozen=True)
class SupervisedPlan(SweepPlan):
    """A sweep of a task with examples. B is examples x the observations of one, which is 1 but for texts."""

    config: SupervisedConfig

    @property
    def task(self) -> SupervisedTask:
        """The task."""
        found = find_supervised(self.config.task)
        assert found is not None
        return found

    @property
    def least_batch(self) -> int:
        return self.task.length

    @property
    def inner_steps(self) -> int:
        return 1

    @property
    def rollout_cpus(self) -> int:
        return 0

    @property
    def description(self) -> dict[str, Any]:
        facts = {"id": self.task.id, "preprocessing": self.task.preprocessing, "length": self.task.length}
        return {**facts, "frame_skip": 1, "goals": list(self.goals)}

    def config_of(self, trial: Trial) -> SupervisedConfig:
        """Settings of one trial's run."""
        return replace(
            self.config,
            seed=trial.seed,
            batch_size=trial.batch_size,
            blocks=BLOCKS if trial.measures_noise else 0,
            update=replace(self.config.update, learning_rate=trial.learning_rate),
        )

    def begin(self, trial: Trial, folder: Path, command: list[str]) -> Course:
        return SupervisedCourse(self.config_of(trial), self.task, folder=folder, command=command)
