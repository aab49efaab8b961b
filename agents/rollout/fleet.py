"""The fleet of rollout workers: in this process, or as Ray actors. Same interface, same seed, same fragments.

Fragments are asked for ahead and taken one by one, always in the order of the groups that make them, whoever is ready first; so
a run without faults does not depend on the clock. Ray actors that die, hang, or come later: their groups of environments are made
afresh elsewhere (`assignment` keeps the books) and asked again for what was outstanding. What a worker does is in
`rlscale.agents.rollout.worker`; how a Ray cluster is reached, in `rlscale.agents.cluster.connect`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..cluster.processes import LostWorkerError, describe_loss, kind_of_loss
from .actors import MOST_STRIKES, START_SECONDS, RolloutActors
from .assignment import Homes
from .fragments import Fragment, FragmentFacts
from .worker import RolloutWorker, WorkerSettings

__all__ = ["Fleet", "LocalFleet", "Loss", "RayFleet", "Sampled"]

UNKNOWN_SECONDS = 600  # for the first fragment of all, whose length nobody knows yet
LEAST_STRAGGLER_SECONDS = 30
STRAGGLER_FACTOR = 5  # times what the slowest fragment so far took
LOOK_SECONDS = 5  # between two looks for free CPUs


class Sampled(NamedTuple):
    """A fragment that was taken: what is said of it, itself, and for other processes its reference in Ray's object store."""

    facts: FragmentFacts
    fragment: Fragment
    reference: Any = None


@dataclass
class Loss:
    """A rollout actor that was lost.

    Attributes:
        what: `died`, `hung`, `node lost`, `out of memory`, or `no room` in the object store.
        actor: its number.
        groups: that it held, and that were made afresh elsewhere.
        fragments: that were asked for again.
        replaced_by: the new actor that got its groups; None where those that were left took them.
        noticed: when, on this process's monotonic clock.
        recovery_seconds: from then until the first of those fragments was here; None as long as none is.
    """

    what: str
    actor: int
    groups: list[int]
    fragments: int
    replaced_by: int | None
    noticed: float
    recovery_seconds: float | None = None


class Fleet(Protocol):
    """Workers whose groups of environments take turns: fragment i of a run is made by group i modulo their number.

    Attributes:
        actors: Ray actors that work now; 0 where this process samples.
        generation: the highest that any group of this fleet was made with.
    """

    @property
    def actors(self) -> int: ...

    @property
    def generation(self) -> int: ...

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        """Ask for the next so many fragments, made with these parameters, (P,) float32; they queue up behind earlier ones."""
        ...

    def take(self) -> Sampled:
        """The next fragment; waits for it, and if it must be, for those who replace whoever was to make it.

        Raises:
            LostWorkerError: workers are lost again and again, or none is left and there is no room for another.
        """
        ...

    def release(self, fragments: int) -> None:
        """So many of the taken fragments are not held any more; others may be made in their place."""
        ...

    def losses(self) -> list[Loss]:
        """Actors that were lost since this was last called."""
        ...

    def get_state(self) -> dict[str, Any] | None:
        """State of every worker and what was asked for, or None when it cannot be saved."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called."""
        ...

    def close(self) -> None: ...


class LocalFleet:
    """Workers in this process, one after another: for debugging, tests and many small runs side by side.

    A fragment is made when it is taken.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._workers = [RolloutWorker(settings, actor) for actor in range(settings.workers)]
        self._wanted: deque[tuple[np.ndarray, int, int]] = deque()  # parameters, version, fragments still to be made
        self._acting: list[int | None] = [None] * settings.workers  # which version each worker acts by
        self._next = 0
        self.actors, self.generation = 0, settings.generation

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        self._wanted.append((weights, policy_version, fragments))

    def take(self) -> Sampled:
        weights, version, left = self._wanted.popleft()
        if left > 1:
            self._wanted.appendleft((weights, version, left - 1))
        group, actor = self._next, self._next % self._settings.workers
        self._next = (self._next + 1) % (self._settings.workers * self._settings.groups)
        worker = self._workers[actor]
        if self._acting[actor] != version:
            worker.set_weights(weights)
            self._acting[actor] = version
        fragment = worker.sample(version, group)
        return Sampled(fragment.facts, fragment)

    def release(self, fragments: int) -> None:
        pass

    def losses(self) -> list[Loss]:
        return []

    def get_state(self) -> dict[str, Any] | None:
        states = [worker.get_state() for worker in self._workers]
        if any(state is None for state in states):
            return None
        return {"workers": states, "wanted": list(self._wanted), "next_group": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        for worker, worker_state in zip(self._workers, state["workers"], strict=True):
            worker.set_state(worker_state)
        self._wanted, self._next = deque(state["wanted"]), state["next_group"]
        self._acting = [None] * len(self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


@dataclass
class _Asked:
    """A fragment that was asked for and not taken yet.

    Attributes:
        group, version: which group makes it, by which policy.
        weights: reference to that policy's parameters.
        actor: number of the actor that was asked.
        facts, fragment: references to what it answers.
        at: when it was asked, on this process's monotonic clock.
        loss: the loss because of which it was asked for again.
    """

    group: int
    version: int
    weights: Any
    actor: int
    facts: Any
    fragment: Any
    at: float
    loss: Loss | None


class RayFleet:
    """Workers as Ray actors, reserved one CPU a thread.

    Actors that are lost are replaced. Each number is given to one actor only.

    Args:
        settings: `workers` is the number of actors, `threads` the number of CPUs that Ray reserves for each.
        most_fragments: most that may be under way or held at once; actors wait beyond it.
        actors: to begin with, where that is not `workers`.
        straggler_seconds: an actor that has finished no fragment for so long is given up; None: 30, or five times what the
            slowest fragment so far took if that is more.
        grows: start more actors whenever the cluster has CPUs for them, up to one a group.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        most_fragments: int,
        *,
        actors: int | None = None,
        straggler_seconds: float | None = None,
        grows: bool = False,
    ) -> None:
        import ray

        self._ray = ray
        self._groups = settings.workers * settings.groups
        self._homes = Homes(self._groups, settings.workers if actors is None else actors, settings.generation)
        held = self._homes.held()
        self._actors = RolloutActors(settings, held, fewest=1 if grows else len(held))
        self._straggler_seconds, self._grows = straggler_seconds, grows
        self._most = most_fragments
        self._wanted: deque[tuple[Any, int]] = deque()
        self._asked: deque[_Asked] = deque()  # in the order in which they are taken, finished or not
        self._held = 0
        self._next = 0
        self._afresh: set[int] = set()  # groups whose environments may still have to be made
        self._slowest = 0.0
        self._finished: dict[int, int] = {}  # fragments that an actor had ready when the present wait last ran out
        self._strikes: dict[int, int] = {}  # by group: losses of those who were to make its next fragment
        self._losses: list[Loss] = []
        self._looked = time.monotonic()
        for number in set(range(len(held))) - set(self._actors.standing):  # somebody else was quicker to take its CPUs
            moved = self._homes.held_by(number)
            self._homes.share_out(moved, self._actors.standing)
            self._make_afresh(moved)

    @property
    def actors(self) -> int:
        return len(self._actors.standing)

    @property
    def generation(self) -> int:
        return max(self._homes.generation)

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        if self._grows or self._actors.coming:
            self._grow()
        reference = self._ray.put(weights)
        self._wanted.extend([(reference, policy_version)] * fragments)
        self._submit()

    def _submit(self) -> None:
        """Let actors begin on what is wanted, as far as there is room for the fragments."""
        while self._wanted and len(self._asked) + self._held < self._most:
            reference, version = self._wanted.popleft()
            self._asked.append(self._ask(self._next, reference, version))
            self._next = (self._next + 1) % self._groups

    def _ask(self, group: int, weights: Any, version: int, loss: Loss | None = None) -> _Asked:
        number = self._homes.home[group]
        sample = self._actors.standing[number].sample.options(num_returns=2)
        facts, fragment = sample.remote(weights, version, group, self._homes.generation[group])
        return _Asked(group, version, weights, number, facts, fragment, time.monotonic(), loss)

    def take(self) -> Sampled:
        if not self._asked:
            raise RuntimeError("no fragment was asked for, or all of the room is held")
        while True:
            first = self._asked[0]
            try:
                # The fragment itself as well: once it is on this machine, the loss of another cannot take it away.
                facts, fragment = self._ray.get([first.facts, first.fragment], timeout=self._bound(first))
                break
            except self._ray.exceptions.GetTimeoutError:
                self._replace(self._find_hung())
            except self._ray.exceptions.RayError as error:
                if kind_of_loss(error) is None:
                    raise
                self._replace(self._find_dead(first.actor, error))
        self._asked.popleft()
        self._held += 1
        self._slowest = max(self._slowest, facts.seconds)
        self._afresh.discard(first.group)
        self._strikes.pop(first.group, None)
        self._finished.clear()
        if first.loss is not None and first.loss.recovery_seconds is None:
            first.loss.recovery_seconds = time.monotonic() - first.loss.noticed
        return Sampled(facts, fragment, first.fragment)

    def release(self, fragments: int) -> None:
        self._held -= fragments
        self._submit()

    def losses(self) -> list[Loss]:
        told, self._losses = self._losses, []
        return told

    # --- who is lost -------------------------------------------------------------------------------------------------------

    def _bound(self, asked: _Asked) -> float:
        """Seconds within which this fragment, or another of its actor, must come."""
        making = START_SECONDS if asked.group in self._afresh else 0
        if self._straggler_seconds is not None:
            return making + self._straggler_seconds
        known = max(LEAST_STRAGGLER_SECONDS, STRAGGLER_FACTOR * self._slowest) if self._slowest else UNKNOWN_SECONDS
        return making + known

    def _find_hung(self) -> dict[int, tuple[str, str]]:
        """After a wait in vain: the actors that finished nothing as long as it lasted; what befell each, in a word and a line."""
        first, now = self._asked[0], time.monotonic()
        if not self._ray.wait([first.facts, first.fragment], num_returns=2, timeout=0)[1]:
            return {}  # it came at the last moment
        answers = [asked.facts for asked in self._asked]
        ready = set(self._ray.wait(answers, num_returns=len(answers), timeout=0, fetch_local=False)[0]) - {first.facts}
        hung = {}
        for number in dict.fromkeys(asked.actor for asked in self._asked):
            outstanding = [asked for asked in self._asked if asked.actor == number]
            unfinished = [asked for asked in outstanding if asked.facts not in ready]
            finished = len(outstanding) - len(unfinished)
            # What was finished before this wait was taken, or was there when the wait before it ran out.
            idle = not finished or self._finished.get(number) == finished
            self._finished[number] = finished
            if unfinished and idle:
                bound = max(self._bound(asked) for asked in unfinished)
                if now - min(asked.at for asked in unfinished) > bound - 0.1:
                    hung[number] = "hung", f"made no fragment for {bound:.0f} s"
        return hung

    def _find_dead(self, number: int, error: Exception) -> dict[int, tuple[str, str]]:
        """The actor that this error tells of, and whoever else is known to be dead; what befell each, in a word and a line."""
        found = {number: error}
        answers = {asked.facts: asked.actor for asked in self._asked if asked.actor != number}
        if answers:
            for answer in self._ray.wait(list(answers), num_returns=len(answers), timeout=0, fetch_local=False)[0]:
                try:
                    self._ray.get(answer)
                except self._ray.exceptions.RayError as other:
                    if kind_of_loss(other) is not None:
                        found.setdefault(answers[answer], other)
        nodes = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        dead = {actor: ("node lost", "died with its node") for actor, node in self._actors.where.items() if node not in nodes}
        for actor, what in found.items():
            kind = kind_of_loss(what) or "died"
            by_node = kind == "died" and (actor in dead or "node has died" in str(what))
            dead[actor] = "node lost" if by_node else kind, describe_loss(what, "while it sampled") or kind
        return dead

    # --- who takes over ----------------------------------------------------------------------------------------------------

    def _replace(self, lost: dict[int, tuple[str, str]]) -> None:
        """End the lost actors, find others for their groups, and ask again for every fragment that was outstanding there.

        Raises:
            LostWorkerError: it keeps happening, or nobody is left.
        """
        if not lost:
            return
        noticed = time.monotonic()
        loss_of: dict[int, Loss] = {}  # by group
        losses = []
        for number, (what, why) in lost.items():
            outstanding = [asked for asked in self._asked if asked.actor == number]
            groups = sorted({*self._homes.held_by(number), *(asked.group for asked in outstanding)} - set(loss_of))
            losses.append(Loss(what, number, groups, 0, None, noticed))
            loss_of |= dict.fromkeys(groups, losses[-1])
            self._actors.end(number)
            self._count_strike(outstanding, why)
        self._losses += losses
        newcomers = self._actors.replace(len(lost), " and ".join(dict.fromkeys(why for _, why in lost.values())))
        for loss in losses:
            loss.replaced_by = newcomers.pop(0) if newcomers else None
            homeless = self._homes.held_by(loss.actor)
            self._homes.share_out(homeless, self._actors.standing if loss.replaced_by is None else [loss.replaced_by])
            for group in set(loss.groups) - set(homeless):  # had moved away, but for fragments that were still to come
                self._homes.move(group, self._homes.home[group])
        self._make_afresh(loss_of)
        for place, asked in enumerate(self._asked):
            if (again := loss_of.get(asked.group)) is not None:
                again.fragments += 1
                self._asked[place] = self._ask(asked.group, asked.weights, asked.version, again)

    def _count_strike(self, outstanding: list[_Asked], why: str) -> None:
        """Note on which fragment the actor worked when it was lost; several in a row over the same one are no accident."""
        if outstanding:
            group = min(outstanding, key=lambda asked: asked.at).group
            self._strikes[group] = self._strikes.get(group, 0) + 1
            if self._strikes[group] >= MOST_STRIKES:
                raise LostWorkerError(f"a rollout worker {why} ({MOST_STRIKES} in a row were lost over the same fragment)")

    def _make_afresh(self, groups: Iterable[int]) -> None:
        """Have these groups' environments made where they are at home now, ahead of the first fragment."""
        for group in groups:
            self._afresh.add(group)
            actor = self._actors.standing[self._homes.home[group]]
            actor.prepare.remote({group: self._homes.generation[group]})

    def _grow(self) -> None:
        """Take in actors that have come to stand, each with its share of the groups; summon more if there are CPUs for them."""
        now = time.monotonic()
        if self._grows and not self._actors.coming and now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._actors.summon_where_free(self._groups - self.actors)
        if not self._actors.coming:
            return
        for newcomer in self._actors.welcome(self._actors.coming, 0):
            moved = self._homes.make_room(newcomer, self._actors.standing)
            self._make_afresh(group for group, _ in moved)
            for group, before in moved:
                self._actors.standing[before].drop.remote(group)  # behind what it was asked for

    def get_state(self) -> dict[str, Any] | None:
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("Ray actors are not saved")

    def close(self) -> None:
        self._actors.close()
