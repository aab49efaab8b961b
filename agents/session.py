"""`Session`: the learners and the fleet of one run, advanced an iteration at a time; each gives one row of the record.

When a run ends, what is kept of it and who is shown what is decided by the callers: `train` for a run that a person
started, `rlscale.benchmarks.sweep.trial` for one of a sweep.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from rlscale.envs import Task
from rlscale.noise import BlockStatistics
from rlscale.records.run import pack_statistics
from rlscale.text import parse_bytes

from .cluster.connect import free_cpus, spilled_bytes, store_bytes
from .cluster.placement import learner_resources, rollout_resources
from .config import TrainConfig, config_to_dict
from .learning.batch import FragmentSlot, arrange_slots
from .learning.learner import Learner
from .learning.remote_learners import RemoteLearners
from .learning.results import UpdateResult
from .learning.schedule import NoiseWindow, adaptive_batch, scaled_rate
from .machine import (
    computes_bfloat16,
    describe_machine,
    find_commit,
    find_versions,
    keep_freed_memory,
    resolve_device,
    resolve_precision,
)
from .memory import STORE_SHARE, plan_memory
from .networks import make_network
from .rollout.fleet import Fleet, LocalFleet, Loss, RayFleet, Sampled
from .rollout.fragments import FragmentFacts
from .rollout.worker import WorkerSettings

__all__ = ["Progress", "Session"]


@dataclass
class Progress:
    """Counters of a run; all of them are in every checkpoint."""

    iteration: int = 0
    observations: int = 0
    seconds: float = 0.0
    fragments: int = 0  # of the last batch that was asked for
    turn: int = 0  # which group is next


class Session:
    """A run in this process. Its processes are started by `start`, so that a run that cannot begin leaves none behind.

    Args:
        config: checked already.
        task: its task.
        generation: how often the run was resumed with fresh environments.

    Raises:
        UsageError: a device or network that cannot be used, or a batch that does not fit into memory.
    """

    def __init__(self, config: TrainConfig, task: Task, generation: int = 0) -> None:
        self.config, self.task = config, task
        self.device = resolve_device(config.update.device)
        resolve_device(config.rollout.actor_device, "--actor-device")
        self.precision = resolve_precision(config.update.precision, config.update.network, self.device)
        self.threads = config.update.threads or _learner_threads(config, len(os.sched_getaffinity(0)))
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        # On an existing cluster fragments lie in its object store, which is asked once the run has joined it.
        self.plan = plan_memory(config, task, None if config.rollout.ray_address is None else 1 << 62)
        self.learner: Learner | RemoteLearners | None = None
        self.parameters = 0
        if config.update.learners == 1:
            self.learner = Learner(config, task, self.device, bfloat16=self.precision == "bfloat16")
            self.parameters = len(self.learner.parameters)
        else:
            network = make_network(task, config.update.network, config.seed, config.update.width)
            self.parameters = sum(p.numel() for p in network.parameters())
        self.progress = Progress()
        self.window = NoiseWindow()
        self.generation = generation
        self.fleet: Fleet | None = None
        self._asked: deque[int] = deque()  # fragments of each iteration batch that was asked for and not taken yet
        self._latest: dict[int, tuple[int, int]] = {}  # generation and index of each group's fragment that was taken last
        self._spilled = 0

    @property
    def acts_in_bfloat16(self) -> bool:
        """Whether policies act in bfloat16: where the learner computes in it, and the acting device can too."""
        acting = resolve_device(self.config.rollout.actor_device, "--actor-device")
        return self.precision == "bfloat16" and (self.device.type == acting.type == "cpu" or computes_bfloat16(acting))

    @property
    def cpus(self) -> int:
        """CPUs that the run's Ray actors reserve first; with `--actors auto` on an existing cluster the fewest that will do."""
        rollout, learners = self.config.rollout, self.config.update.learners
        actors = 1 if self.config.elastic and rollout.ray_address is not None else self.config.actors
        return actors * rollout.actor_cpus + (learners * self.threads if learners > 1 else 0)

    def reservations(self) -> list[dict[str, float]]:
        """What Ray reserves for each process that the run cannot do without; it must be connected.

        Raises:
            UsageError: actors are to act on a GPU, and Ray knows of none.
        """
        rollout, learners = self.config.rollout, self.config.update.learners
        places = [learner_resources(self.threads, self.device.type)] * (learners if learners > 1 else 0)
        if actors := 1 if self.config.elastic else self.config.actors:
            places += [rollout_resources(actors, rollout.actor_cpus, rollout.actor_device)] * actors
        return places

    def start(self) -> None:
        """Make the learners, and the environments and their workers.

        Raises:
            UsageError: Ray actors could not start, or the cluster's object store is too small.
            LostWorkerError: one died while it started.
        """
        rollout, learners = self.config.rollout, self.config.update.learners
        if self.config.rays:
            self.plan = plan_memory(self.config, self.task, budget=self._store_budget())
            self._spilled = spilled_bytes()
        if self.learner is None:
            bfloat16 = self.precision == "bfloat16"
            self.learner = RemoteLearners(self.config, self.task, self.device, bfloat16, self.threads)
        settings = WorkerSettings(
            task=self.task,
            environments=self.plan.environments,
            rollout_length=rollout.rollout_length,
            network=self.config.update.network,
            width=self.config.update.width,
            bfloat16=self.acts_in_bfloat16,
            threads=rollout.actor_cpus if rollout.actors else self.threads * learners,
            cut_on_life_loss=rollout.cut_on_life_loss,
            random_first_steps=rollout.random_first_steps,
            seed=self.config.seed,
            generation=self.generation,
            groups=self.plan.groups // self.config.workers,
            workers=self.config.workers,
            device=rollout.actor_device,
        )
        if not rollout.actors:
            self.fleet = LocalFleet(settings)
            return
        actors = self.config.actors
        if self.config.elastic and rollout.ray_address is not None:
            actors = max(free_cpus() // rollout.actor_cpus, 1)
        self.fleet = RayFleet(
            settings,
            self.plan.most_fragments,
            actors=min(actors, self.plan.groups),
            straggler_seconds=rollout.straggler_seconds,
            grows=self.config.elastic,
        )

    def _store_budget(self) -> int | None:
        """What the object store of an existing Ray can hold, or `--memory` if that is less."""
        asked = parse_bytes(self.config.rollout.memory, "--memory") if self.config.rollout.memory is not None else None
        there = int(STORE_SHARE * store_bytes(self.config.update.learners)) - (16 << 20)  # for the parameters
        return there if asked is None else min(asked, there)

    def close(self) -> None:
        """End the fleet and the learners."""
        self.give_up_fleet()
        if isinstance(self.learner, RemoteLearners):
            self.learner.close()

    def give_up_fleet(self) -> None:
        """End the fleet alone, after a loss: what the learners know can still be saved."""
        if self.fleet is not None:
            self.generation = self.fleet.generation
            self.fleet.close()
            self.fleet = None

    def leave_processes(self) -> None:
        """Forget the fleet and several learners, when nobody is there any more who could end them."""
        self.fleet = None
        if isinstance(self.learner, RemoteLearners):
            self.learner = None

    @property
    def optimizer_steps(self) -> int:
        """Made so far."""
        return 0 if self.learner is None else self.learner.optimizer_steps

    def weights(self) -> np.ndarray:
        """A copy of the present parameters, (P,) float32."""
        assert self.learner is not None, "start() first"
        return self.learner.weights()

    def get_state(self) -> dict[str, Any]:
        """All that is needed to go on from here; `fleet` is None where the environments cannot be saved.

        Raises:
            LostWorkerError: the learners are gone.
        """
        assert self.learner is not None, "start() first"
        fleet = None if self.fleet is None else self.fleet.get_state()
        return {
            "learner": self.learner.get_state(),
            "fleet": fleet,
            "asked": list(self._asked) if fleet is not None else [],
            "progress": vars(self.progress),
            "window": [(s.size, s.square, s.dot, s.block) for s in self.window.statistics],
            "generation": self.generation if self.fleet is None else self.fleet.generation,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where `get_state` was called; with fresh environments where its `fleet` is None."""
        assert self.learner is not None, "start() first"
        assert self.fleet is not None, "start() first"
        self.learner.set_state(state["learner"])
        self.progress = Progress(**state["progress"])
        self.window = NoiseWindow([BlockStatistics(*arrays) for arrays in state.get("window", ())])
        if state["fleet"] is not None:
            self.fleet.set_state(state["fleet"])
            self._asked = deque(state["asked"])
        else:
            self.progress.turn = 0  # fresh environments begin with the first group

    def _ask(self) -> None:
        """Ask the fleet for the fragments of one more iteration batch, by the present policy."""
        assert self.fleet is not None
        assert self.learner is not None
        plan, progress = self.plan, self.progress
        count = plan.batch_fragments
        if self.config.adaptive:
            count = adaptive_batch(
                self.config.rollout.exchange_rate,
                self.window.scale(),
                fragment=plan.environments * self.config.rollout.rollout_length,
                groups=plan.groups,
                turn=progress.turn,
                before=progress.fragments,
                most=plan.most_batch_fragments,
            )
        progress.fragments = count
        progress.turn = (progress.turn + count) % plan.groups
        self.fleet.request(self.learner.weights(), progress.iteration, count)
        self._asked.append(count)

    def iterate(self) -> tuple[dict[str, Any], UpdateResult] | None:
        """Sample an iteration batch and learn from it; the row for the record, and what the learner measured.

        None when nothing was observed: with one-step fragments every environment may just have been reset.

        Raises:
            LostWorkerError: a rollout worker or a learner died, or ran out of memory.
        """
        assert self.fleet is not None, "start() first"
        assert self.learner is not None, "start() first"
        progress = self.progress
        begin = time.perf_counter()
        if not self._asked:
            self._ask()
        if self.config.rollout.lag and len(self._asked) < 2:
            self._ask()  # queues up behind the batch that is about to be learned from
        count = self._asked.popleft()
        facts, result, waited = self._learn(count)
        ended = time.perf_counter()
        progress.seconds += ended - begin
        if result is None:
            return None
        progress.observations += result.observations
        self.window.add(result.noise)
        row = {
            "iteration": progress.iteration,
            "observations": progress.observations,
            "optimizer_steps": self.learner.optimizer_steps,
            "seconds": progress.seconds,
            "batch_observations": result.observations,
            **_episodes(facts),
            "learning_rate": result.learning_rate,
            **result.figures,
            "explained_variance": result.explained_variance,
            **_lags(facts, progress.iteration),
            "fragment_ids": _identities(facts),
            "actors": self.fleet.actors,
            "losses": [_loss(loss) for loss in self.fleet.losses()],
            **self._times(facts, result, ended - begin, waited),
            "noise": [
                {"head": n.head, "kind": n.kind, "optimizer_step": n.optimizer_step, **pack_statistics(n.statistics)}
                for n in result.noise
            ],
        }
        progress.iteration += 1
        return row, result

    def _take(self) -> Sampled:
        """The fleet's next fragment, which has not been taken before."""
        assert self.fleet is not None
        sampled = self.fleet.take()
        facts = sampled.facts
        identity = facts.generation, facts.index
        if identity <= self._latest.get(facts.group, (-1, -1)):
            raise RuntimeError(f"fragment {identity[1]} of generation {identity[0]} of group {facts.group} came twice")
        self._latest[facts.group] = identity
        return sampled

    def _for_learner(self, sampled: Sampled) -> Any:
        """What the learner is given: the fragment as it lies in this process, or its reference for other processes."""
        return sampled.fragment if sampled.reference is None or isinstance(self.learner, Learner) else sampled.reference

    def _learn(self, count: int) -> tuple[list[FragmentFacts], UpdateResult | None, float]:
        """Give the learner an iteration batch: what was taken, the result, and the seconds spent waiting for fragments.

        When streaming, each fragment is freed as soon as it was learned from, else all of them at the end. There is no result
        when nothing was observed.
        """
        assert self.fleet is not None
        assert self.learner is not None
        stream, plan = self.config.update.stream, self.plan
        slots: list[FragmentSlot] = []
        facts: list[FragmentFacts] = []
        waited = 0.0
        for number in range(count):
            begin = time.perf_counter()
            sampled = self._take()
            waited += time.perf_counter() - begin
            facts.append(sampled.facts)
            if not slots:
                groups = [(sampled.facts.group + i) % plan.groups for i in range(count)]  # they take turns
                slots = arrange_slots(groups, plan.environments)
                self.learner.begin(slots, self.progress.iteration)
            self.learner.accept(self._for_learner(sampled), slots[number])
            del sampled
            if stream:
                self.fleet.release(1)
        observations = sum(f.observations for f in facts)
        if stream:
            # The rate of a streamed batch follows its nominal size, masked steps included.
            nominal = count * plan.environments * self.config.rollout.rollout_length
            return facts, self.learner.finish(self._rate(nominal)), waited
        result = self.learner.finish(self._rate(observations)) if observations else None
        self.fleet.release(count)
        return facts, result, waited

    def _rate(self, observations: int) -> float:
        """Learning rate of this iteration, warm-up apart, given the valid observations of its batch."""
        config = self.config
        steps = 1 if config.update.mini_batch is None else max(config.batch // config.mini_batch, 1)
        rate = scaled_rate(config.update, observations / steps, self.window.scale())
        if config.update.anneal and config.budget.observations is not None:
            rate *= max(0.0, 1.0 - self.progress.observations / config.budget.observations)
        return rate

    def _times(self, facts: list[FragmentFacts], result: UpdateResult, seconds: float, waited: float) -> dict[str, Any]:
        """Where an iteration's time went."""
        of_worker: dict[int, float] = {}
        for f in facts:
            of_worker[f.actor] = of_worker.get(f.actor, 0.0) + f.seconds
        working = max(of_worker.values()) if self.config.rollout.actors else sum(of_worker.values())
        learning = seconds - waited
        spilled = spilled_bytes() if self.config.rays else 0
        spilled, self._spilled = max(spilled - self._spilled, 0), max(spilled, self._spilled)
        return {
            "sampling_seconds": working,
            "waiting_seconds": waited,
            "transfer_seconds": max(waited - working, 0.0) if not _overlaps(self.config) else None,
            "learning_seconds": learning,
            "noise_seconds": result.noise_seconds,
            "observations_per_second": result.observations / seconds,
            "sampling_observations_per_second": result.observations / working,
            "learning_observations_per_second": result.observations / learning,
            "spilled_bytes": spilled,
        }

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
            "memory": asdict(self.plan),
            "command": command,
            "parameters": self.parameters,
        }


def _overlaps(config: TrainConfig) -> bool:
    """Whether actors work while the learner does."""
    return bool(config.rollout.actors) and (config.update.stream or config.rollout.lag > 0)


def _learner_threads(config: TrainConfig, cores: int) -> int:
    """Of each learner: cores of actors that work meanwhile are left out, for all threads wait for the slowest."""
    busy = config.actors * config.rollout.actor_cpus if _overlaps(config) and config.rollout.ray_address is None else 0
    return max((cores - busy) // config.update.learners, 1)


def _lags(facts: list[FragmentFacts], iteration: int) -> dict[str, Any]:
    """By how many iterations the policies that acted are older than the one that learns: the most, and of every fragment."""
    lags = [iteration - f.policy_version for f in facts]
    return {"policy_lag": max(lags), "fragments": len(facts), "fragment_lags": [[n, lags.count(n)] for n in sorted(set(lags))]}


def _identities(facts: Sequence[FragmentFacts]) -> list[list[int]]:
    """Which fragments these are: [first group, last group, generation, first index, last index], all of that rectangle."""
    held: dict[tuple[int, int], list[int]] = {}
    for f in facts:
        held.setdefault((f.group, f.generation), []).append(f.index)
    found: list[list[int]] = []
    for (group, generation), indices in sorted(held.items()):
        span = [generation, indices[0], indices[-1]]  # a group's fragments come in order
        if found and found[-1][1] == group - 1 and found[-1][2:] == span:
            found[-1][1] = group
        else:
            found.append([group, group, *span])
    return found


def _loss(loss: Loss) -> dict[str, Any]:
    """As the record tells it."""
    told = asdict(loss)
    del told["noticed"]
    return told


def _episodes(fragments: list[FragmentFacts]) -> dict[str, Any]:
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
