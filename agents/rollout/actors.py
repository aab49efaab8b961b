"""`RolloutActors`: the Ray actors of a fleet: started, summoned when others are lost, welcomed when they stand, ended.

Which of them makes which fragment, and who is lost, is decided in `fleet`; what they do is in `worker`.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlscale.errors import UsageError

from ..cluster.connect import free_cpus
from ..cluster.placement import SPREAD, rollout_resources
from ..cluster.processes import LostWorkerError, describe_loss, first_line, pickle_settings, stand_in
from .fragments import Fragment, FragmentFacts
from .worker import RolloutWorker, WorkerSettings

__all__ = ["MOST_STRIKES", "START_SECONDS", "RolloutActors"]

START_SECONDS = 120  # for actors to start, and for environments to be made
REPLACE_SECONDS = 30  # for a replacement to start, before its groups go to the actors that are left
LAST_SECONDS = 300  # when none is left
MOST_STRIKES = 3  # losses in a row, of those who start or who work on one and the same fragment


class RolloutActors:
    """Actors under numbers that are given once. What a fleet holds them for is its own business.

    Args:
        settings: of the workers; `threads` CPUs are reserved for each.
        held: for each actor to begin with, the generations of its groups, by number.
        fewest: how many of them must start now; the others may come later.

    Attributes:
        standing: handles of the actors that work, by number.
        where: the node that each of them is on.
        coming: how many are summoned and not there yet.

    Raises:
        UsageError: too few started.
        LostWorkerError: one died at its start.
    """

    def __init__(self, settings: WorkerSettings, held: Sequence[dict[int, int]], fewest: int) -> None:
        import ray

        self._ray, self._settings = ray, settings
        actors = len(held)
        each = rollout_resources(actors, settings.threads, settings.device)
        self._actor_class = ray.remote(RolloutActor).options(
            num_cpus=each["CPU"], num_gpus=each.get("GPU", 0), scheduling_strategy=SPREAD
        )
        self._reference = ray.put(pickle_settings(settings, settings.task))
        self.standing: dict[int, Any] = {}
        self.where: dict[int, str] = {}
        self._coming: dict[int, tuple[Any, Any]] = {}  # handle, and what it answers once it stands
        self._begun = 0
        self._failed_starts, self._why = 0, ""
        for groups in held:
            self.summon(groups)
        starting = [answer for _, answer in self._coming.values()]
        ready, late = ray.wait(starting, num_returns=actors, timeout=START_SECONDS)
        if len(ready) < fewest:
            self.close()
            raise UsageError(
                "--actors",
                f"{len(late)} of {actors} did not start within {START_SECONDS} s; the cluster may be busy",
                "Use fewer actors, or wait until CPUs are free ('ray status' shows them)",
            )
        for number, (actor, answer) in list(self._coming.items()):
            if answer in late:
                continue
            try:
                self.where[number] = ray.get(answer)
            except ray.exceptions.RayError as error:
                if (loss := describe_loss(error, "at its start")) is None:
                    raise
                raise LostWorkerError(f"a rollout worker {loss}") from error
            self.standing[number] = actor
            del self._coming[number]

    @property
    def coming(self) -> int:
        return len(self._coming)

    def summon(self, groups: dict[int, int] | None = None) -> None:
        """Have Ray start another actor as soon as it has room."""
        number, self._begun = self._begun, self._begun + 1
        actor = self._actor_class.remote(self._reference, os.getcwd(), number)
        self._coming[number] = actor, actor.prepare.remote(groups or {})

    def summon_where_free(self, most: int) -> None:
        """Summon as many as there are CPUs for that nobody uses; not where actors keep failing at their start."""
        if self._failed_starts >= MOST_STRIKES:
            return
        for _ in range(min(free_cpus() // self._settings.threads, most)):
            self.summon()

    def welcome(self, most: int, seconds: float) -> list[int]:
        """Wait so long for so many of the actors that were summoned; the numbers of those that stand now."""
        answers = {answer: number for number, (_, answer) in self._coming.items()}
        ready, _ = self._ray.wait(list(answers), num_returns=min(most, len(answers)), timeout=seconds)
        newcomers = []
        for answer in ready:
            number = answers[answer]
            actor, _ = self._coming.pop(number)
            try:
                self.where[number] = self._ray.get(answer)
            except self._ray.exceptions.RayError as error:
                self._failed_starts += 1
                self._why = describe_loss(error, "at its start") or f"failed at its start: {first_line(error)}"
                if self._failed_starts < MOST_STRIKES:
                    self.summon()
                elif self.standing:
                    left = f"The run goes on with {len(self.standing)}"
                    print(f"rlscale: the next rollout worker {self._why}. {left}", file=sys.stderr, flush=True)
                continue
            self._failed_starts = 0
            self.standing[number] = actor
            newcomers.append(number)
        return newcomers

    def replace(self, lost: int, why: str) -> list[int]:
        """Summon so many new ones and wait for them, a while; numbers of those that stand, perhaps fewer.

        Those that find no room come when there is some. If nobody is left at all, the wait is a longer one.

        Raises:
            LostWorkerError: nobody is left, and nobody came; `why` says what befell the last.
        """
        for _ in range(lost):
            self.summon()
        # More than the cluster has CPUs for cannot come now, and need not be waited for.
        room = int(self._ray.cluster_resources().get("CPU", 0)) // self._settings.threads - len(self.standing)
        expected = min(lost, room)
        newcomers: list[int] = []
        deadline = time.monotonic() + REPLACE_SECONDS
        while len(newcomers) < expected and self._coming and (left := deadline - time.monotonic()) > 0:
            newcomers += self.welcome(expected - len(newcomers), left)
        if self.standing:
            return newcomers
        if self._coming:
            patience = f"Waiting {LAST_SECONDS} s for room for another; the run goes on then"
            print(f"rlscale: all rollout workers are lost. {patience}", file=sys.stderr, flush=True)
        deadline = time.monotonic() + LAST_SECONDS
        while self._coming and (left := deadline - time.monotonic()) > 0:
            if newcomers := self.welcome(1, left):
                return newcomers
        none = f"there was no room for another within {LAST_SECONDS} s" if self._coming else f"the next one {self._why}"
        raise LostWorkerError(f"a rollout worker {why}; none is left, and {none}")

    def end(self, number: int) -> None:
        """End what may be left of a lost actor; one that does not listen Ray kills within seconds."""
        del self.where[number]
        self._ray.kill(self.standing.pop(number))

    def close(self) -> None:
        """End them all."""
        for actor in [*self.standing.values(), *(actor for actor, _ in self._coming.values())]:
            self._ray.kill(actor)


class RolloutActor:
    """What a Ray actor runs: a `RolloutWorker` that takes its weights with each request.

    Args:
        settings: pickled `WorkerSettings`.
        folder: the user's own, from which a user's environment may import; put last on the path.
        actor: number of the actor.
    """

    def __init__(self, settings: bytes, folder: str, actor: int) -> None:
        stand_in(folder)
        self._worker = RolloutWorker(pickle.loads(settings), actor, {})
        self._acting: int | None = None

    def prepare(self, groups: dict[int, int]) -> str:
        """Make the environments of these groups, {number: generation}; the node that this is on."""
        import ray

        for number, generation in groups.items():
            self._worker.make_group(number, generation)
        return ray.get_runtime_context().get_node_id()

    def drop(self, group: int) -> None:
        """The group has moved elsewhere."""
        self._worker.drop_group(group)

    def sample(self, weights: np.ndarray, policy_version: int, group: int, generation: int) -> tuple[FragmentFacts, Fragment]:
        """The group's next fragment; its facts travel by themselves."""
        self._worker.make_group(group, generation)  # it is there, unless `prepare` failed
        if policy_version != self._acting:
            self._worker.set_weights(weights)
            self._acting = policy_version
        fragment = self._worker.sample(policy_version, group)
        return fragment.facts, fragment
