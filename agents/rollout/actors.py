"""`RolloutActors`, which starts, replaces and ends the Ray actors of a fleet, and `RolloutActor`, what each of them runs."""

import os
import pickle
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlscale.text import first_line, tell

from ..cluster import BusyClusterError
from ..cluster.placement import SPREAD, rollout_resources
from ..cluster.processes import LostWorkerError, describe_loss, enter_user_folder, pickle_settings
from ..cluster.resources import cpus_there, free_places
from .fragments import Fragment, FragmentSummary
from .worker import RolloutWorker, WorkerSettings

__all__ = ["START_SECONDS", "RolloutActors"]

START_SECONDS = 120  # for actors to start
REPLACE_SECONDS = 30  # for a replacement to start, before its groups go to the actors that are left
LAST_SECONDS = 300  # the same when no actor is left
MOST_FAILED_STARTS = 3  # losses in a row at the start


class RolloutActors:
    """Ray actors under numbers, each of which is given to one actor only.

    Args:
        settings: of the workers; `threads` CPUs are reserved for each.
        groups: for each actor to begin with, the generation of each of its groups, by the group's number.
        fewest: how many of them must start now; the others may come later.
        most: actors that there may come to be, which share the GPUs.

    Attributes:
        working: handles of the actors that have started, by number.
        node_of: the node that each of them is on.
        starting: number of actors that Ray was asked for and that have not started yet.
        making_seconds: that the slowest of those to begin with took to make its environments.

    Raises:
        BusyClusterError: too few started.
        LostWorkerError: one died at its start.
    """

    def __init__(self, settings: WorkerSettings, groups: Sequence[dict[int, int]], fewest: int, most: int) -> None:
        import ray

        self._ray, self._settings = ray, settings
        actors = len(groups)
        each = rollout_resources(most, settings.threads, settings.device)
        self._actor_class = ray.remote(RolloutActor).options(
            num_cpus=each["CPU"], num_gpus=each.get("GPU", 0), scheduling_strategy=SPREAD
        )
        self._reference = ray.put(pickle_settings(settings, settings.task))
        self.working: dict[int, Any] = {}
        self.node_of: dict[int, str] = {}
        self._starting: dict[int, tuple[Any, Any]] = {}  # handle, and the answer of its `begin`
        self._given = 0
        self._failed_starts, self._why = 0, ""
        for _ in groups:
            self.start()
        making = {number: actor.prepare.remote(groups[number]) for number, (actor, _) in self._starting.items()}
        starting = [answer for _, answer in self._starting.values()]
        ready, late = ray.wait(starting, num_returns=actors, timeout=START_SECONDS)
        if len(ready) < fewest:
            self.close()
            raise BusyClusterError(
                "--actors",
                f"{len(late)} of {actors} rollout actors did not start within {START_SECONDS} s; the cluster may be busy",
                "Use fewer actors, or wait until CPUs are free ('ray status' shows them)",
            )
        started = [number for number, (_, answer) in self._starting.items() if answer not in late]
        if ray.wait([making[number] for number in started], num_returns=len(started), timeout=START_SECONDS)[1]:
            # Thousands of environments that take random first steps are no fault, however long they take.
            environments = len(groups[0]) * settings.stepped
            said = f"rollout workers have been making their environments, {environments:,} each, for {START_SECONDS} s"
            tell(f"rlscale: {said}. The run begins when all are made")
        self.making_seconds = 0.0
        self._first_states: dict[int, dict[str, Any] | None] = {}
        for number in started:
            actor, answer = self._starting.pop(number)
            self.working[number] = actor
            try:
                self.node_of[number] = ray.get(answer)
                seconds, states = ray.get(making[number])
                self.making_seconds = max(self.making_seconds, seconds)
                self._first_states |= states
            except ray.exceptions.RayError as error:
                self.close()
                if (loss := describe_loss(error, "at its start")) is None:
                    raise
                raise LostWorkerError(f"a rollout worker {loss}") from error

    @property
    def starting(self) -> int:
        return len(self._starting)

    def take_first_states(self) -> dict[int, dict[str, Any] | None]:
        """Of the groups of those to begin with, by number, as `RolloutWorker.state_of` gives them; they are not kept here."""
        states, self._first_states = self._first_states, {}
        return states

    def start(self) -> None:
        """Have Ray start another actor as soon as it has room."""
        number, self._given = self._given, self._given + 1
        actor = self._actor_class.remote(self._reference, os.getcwd(), number)
        self._starting[number] = actor, actor.begin.remote()

    def forget(self, number: int, groups: Sequence[int]) -> None:
        """Groups that an actor which has not started yet was to have are another's now."""
        actor, _ = self._starting[number]
        for group in groups:
            actor.drop.remote(group)  # behind `prepare`, which makes them

    def start_where_free(self, most: int) -> None:
        """Start as many actors as free CPUs allow, unless actors keep failing at their start."""
        if self._failed_starts >= MOST_FAILED_STARTS:
            return
        for _ in range(min(free_places(self._settings.threads), most)):
            self.start()

    def wait_for(self, most: int, seconds: float) -> list[int]:
        """Wait so long for so many of the actors that are starting; the numbers of those that have started."""
        answers = {answer: number for number, (_, answer) in self._starting.items()}
        ready, _ = self._ray.wait(list(answers), num_returns=min(most, len(answers)), timeout=seconds)
        newcomers = []
        for answer in ready:
            number = answers[answer]
            actor, _ = self._starting.pop(number)
            try:
                self.node_of[number] = self._ray.get(answer)
            except self._ray.exceptions.RayError as error:
                self._failed_starts += 1
                self._why = describe_loss(error, "at its start") or f"failed at its start: {first_line(error)}"
                if self._failed_starts < MOST_FAILED_STARTS:
                    self.start()
                elif self.working:
                    left = f"The run goes on with {len(self.working)}"
                    tell(f"rlscale: the next rollout worker {self._why}. {left}")
                continue
            self._failed_starts = 0
            self.working[number] = actor
            newcomers.append(number)
        return newcomers

    def replace(self, lost: int, why: str) -> list[int]:
        """Start as many actors as were lost and wait a while for them; the numbers of those that have started, perhaps fewer.

        Those that find no room come when there is some. If no actor is left at all, the wait is longer.

        Raises:
            LostWorkerError: no actor is left, and none has started; `why` says what happened to the last one.
        """
        for _ in range(lost):
            self.start()
        # More actors than the cluster has CPUs for cannot start now, and are not waited for.
        room = cpus_there() // self._settings.threads - len(self.working)
        expected = min(lost, room)
        newcomers: list[int] = []
        deadline = time.monotonic() + REPLACE_SECONDS
        while len(newcomers) < expected and self._starting and (left := deadline - time.monotonic()) > 0:
            newcomers += self.wait_for(expected - len(newcomers), left)
        if self.working:
            return newcomers
        if self._starting:
            patience = f"Waiting {LAST_SECONDS} s for room for another; the run goes on then"
            tell(f"rlscale: all rollout workers are lost. {patience}")
        deadline = time.monotonic() + LAST_SECONDS
        while self._starting and (left := deadline - time.monotonic()) > 0:
            if newcomers := self.wait_for(1, left):
                return newcomers
        none = f"there was no room for another within {LAST_SECONDS} s" if self._starting else f"the next one {self._why}"
        raise LostWorkerError(f"a rollout worker {why}; none is left, and {none}")

    def end(self, number: int) -> None:
        """End an actor, or what may be left of a lost one; Ray kills one that does not react within seconds."""
        del self.node_of[number]
        self._ray.kill(self.working.pop(number))

    def close(self) -> None:
        """End them all."""
        for actor in [*self.working.values(), *(actor for actor, _ in self._starting.values())]:
            self._ray.kill(actor)


class RolloutActor:
    """What a Ray actor runs: a `RolloutWorker` that takes its weights with each request.

    Args:
        settings: pickled `WorkerSettings`.
        folder: the user's own, from which a user's environment may import.
        actor: number of the actor.
    """

    def __init__(self, settings: bytes, folder: str, actor: int) -> None:
        enter_user_folder(folder)
        self._worker = RolloutWorker(pickle.loads(settings), actor, {})

    def begin(self) -> str:
        """It has started; returns the id of this node."""
        import ray

        return ray.get_runtime_context().get_node_id()

    def prepare(self, groups: dict[int, int]) -> tuple[float, dict[int, dict[str, Any] | None]]:
        """Make the environments of these groups, {number: generation}; returns the seconds that it took, and their states."""
        began = time.monotonic()
        for number, generation in groups.items():
            self._worker.make_group(number, generation)
        return time.monotonic() - began, {number: self._worker.state_of(number) for number in groups}

    def drop(self, group: int) -> None:
        """The group has moved elsewhere."""
        self._worker.drop_group(group)

    def sample(
        self, weights: np.ndarray, policy_version: int, group: int, generation: int, start: dict[str, Any] | None
    ) -> tuple[FragmentSummary, Fragment, dict[str, Any] | None]:
        """The group's next fragment, with its summary and the group's state after it, which travel separately.

        Args:
            weights, policy_version: that act.
            group, generation: see `RolloutWorker`.
            start: the group's state before the fragment, where it was another's until now.
        """
        if start is None:
            self._worker.make_group(group, generation)  # it is there, unless `prepare` failed
        else:
            self._worker.take_over_group(group, generation, start)
        self._worker.use_policy(weights, policy_version)
        fragment = self._worker.sample(policy_version, group)
        return fragment.summary, fragment, self._worker.state_of(group)
