"""`RunSetup`: all that is decided about a run before its processes start, and `RunSetup.start`, which starts them.

A run that cannot begin (a batch too large for memory, a network that cannot see the task's observations, a cluster that is too
small) is refused here, before a folder or a process of it exists.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rlscale.envs import Task
from rlscale.errors import UsageError

from .checks import check_config
from .cluster import free_places, learner_resources, rollout_resources, store_bytes
from .compute import Compute, resolve_compute
from .config import TrainConfig
from .learning import Learner, RemoteLearners
from .machine import describe_machine, find_commit, find_versions
from .memory import MemoryPlan, count_parameters, memory_plan, store_room
from .rollout import ActorSearch, Fleet, LocalFleet, RayFleet, WorkerSettings
from .session import Session

__all__ = ["RunSetup", "can_begin", "prepare"]


@dataclass(frozen=True)
class RunSetup:
    """A run that is ready to start.

    Attributes:
        config: its settings, which have been checked.
        task: its task.
        compute: the device, precision and threads of its learners.
        memory: the fragments that its batches are made of. On an existing cluster their room is asked for when the run starts.
        parameters: number of the network's parameters.
    """

    config: TrainConfig
    task: Task
    compute: Compute
    memory: MemoryPlan
    parameters: int

    @property
    def cpus(self) -> int:
        """CPUs that the run's Ray actors reserve at first: the fewest that will do with `--actors auto` on a cluster."""
        rollout = self.config.rollout
        actors = 1 if self.config.elastic and rollout.ray_address is not None else self.config.actors
        return actors * rollout.actor_cpus + self.learner_cpus

    @property
    def learner_cpus(self) -> int:
        """How many of them are the learners', which are Ray actors where there are several."""
        return self.remote_learners * self.compute.threads

    @property
    def remote_learners(self) -> int:
        """Learners that are Ray actors; a single one works in this process."""
        learners = self.config.update.learners
        return learners if learners > 1 else 0

    def reservations(self) -> list[dict[str, float]]:
        """What Ray reserves for each process that the run cannot do without, learners first; this process must have joined Ray.

        Raises:
            UsageError: actors are to act on a GPU, and Ray knows of none.
        """
        rollout = self.config.rollout
        reserved = [learner_resources(self.compute.threads, self.compute.device.type)] * self.remote_learners
        if actors := 1 if self.config.elastic else self.config.actors:
            most = self.memory.groups if self.config.elastic else actors
            reserved += [rollout_resources(most, rollout.actor_cpus, self.compute.acting.type)] * actors
        return reserved

    def manifest(self, command: list[str]) -> dict[str, Any]:
        """What the run is and what it runs on, as its record's manifest says it; `command` is what the user typed."""
        task = self.task
        return {
            "task": {
                "id": task.id,
                "preprocessing": task.preprocessing,
                "frame_skip": task.frame_skip,
                "goals": list(task.goals),
                "clip_reward": task.clip_reward,
                "reward_scale": task.reward_scale,
            },
            "config": {**asdict(self.config), "resume": None},
            "seed": self.config.seed,
            "commit": find_commit(),
            "versions": find_versions(),
            "machine": describe_machine(self.compute.device),
            "device": str(self.compute.device),
            "precision": self.compute.precision,
            "threads": self.compute.threads,
            "memory": asdict(self.memory),
            "command": command,
            "parameters": self.parameters,
        }

    def fragments(self) -> MemoryPlan:
        """Those that the batches are made of, in the room that there is; on a cluster this process must have joined it."""
        if not self.config.rays:
            return self.memory
        rollout, update = self.config.rollout, self.config.update
        actors = None if self.config.elastic else self.config.actors
        each = learner_resources(self.compute.threads, self.compute.device.type)
        there = store_bytes(update.learners, actors, rollout.actor_cpus, learner=each, stream=update.stream, lag=rollout.lag)
        return memory_plan(self.config, self.task, store_room(there), self.memory.environments)

    def start(self, generation: int = 0) -> Session:
        """Start the learners, the environments and their workers.

        Args:
            generation: how often the run was resumed with fresh environments.

        Raises:
            UsageError: Ray actors could not start, or the cluster's object store is too small.
            LostWorkerError: one died while it started.
        """
        config, compute = self.config, self.compute
        memory = self.fragments()
        learner: Learner | RemoteLearners = (
            Learner(config, self.task, compute.device, bfloat16=compute.bfloat16)
            if config.update.learners == 1
            else RemoteLearners(config, self.task, compute.device, compute.bfloat16, compute.threads)
        )
        try:
            fleet = self.start_fleet(memory, generation)
        except BaseException:
            if isinstance(learner, RemoteLearners):
                learner.close()
            raise
        search = None
        if config.rollout.actor_price is not None and isinstance(fleet, RayFleet):
            search = ActorSearch(fleet, config.rollout.actor_price, memory.groups, settle=2 if config.overlaps else 1)
        return Session(config, memory, learner, fleet, search)

    def start_fleet(self, memory: MemoryPlan, generation: int) -> Fleet:
        """Start the rollout workers alone; the arguments are as in `start`, and the fragments that batches are made of."""
        config, rollout = self.config, self.config.rollout
        settings = WorkerSettings(
            task=self.task,
            environments=memory.environments,
            rollout_length=rollout.rollout_length,
            network=config.update.network,
            width=config.update.width,
            bfloat16=self.compute.acts_in_bfloat16,
            threads=rollout.actor_cpus if rollout.actors else self.compute.threads * config.update.learners,
            cut_on_life_loss=rollout.cut_on_life_loss,
            random_first_steps=rollout.random_first_steps,
            seed=config.seed,
            generation=generation,
            groups=memory.groups // config.workers,
            workers=config.workers,
            device=self.compute.acting.type if rollout.actors else str(self.compute.acting),
            clones=rollout.clones,
        )
        if not rollout.actors:
            return LocalFleet(settings)
        actors = config.actors
        if config.elastic and rollout.ray_address is not None:
            actors = max(free_places(rollout.actor_cpus), 1)
        if rollout.actor_price is not None:
            actors = 1
        return RayFleet(
            settings,
            memory.most_fragments,
            ahead=2 if config.update.stream else memory.most_fragments,
            actors=min(actors, memory.groups),
            straggler_seconds=rollout.straggler_seconds,
            grows=config.elastic,
        )


def prepare(config: TrainConfig, task: Task, kept: int | None = None) -> RunSetup:
    """Decide what a run of this task needs, and give this process its threads. The settings must have been checked.

    Args:
        config, task: of the run.
        kept: see `memory_plan`.

    Raises:
        UsageError: a device or network that cannot be used, or a batch that does not fit into memory.
    """
    compute = resolve_compute(config)
    compute.prepare_process()
    memory = memory_plan(config, task, kept=kept)
    return RunSetup(config, task, compute, memory, count_parameters(config, task))


def can_begin(config: TrainConfig, task: Task, store: int | None = None) -> bool:
    """Whether a run passes the checks that come before it, memory included; `store` as of `memory_plan`."""
    try:
        check_config(config)
        memory_plan(config, task, store)
    except UsageError:
        return False
    return True
