"""The fleet of rollout workers: in this process, or as Ray actors. Same interface, same seed, same fragments.

Fragments are asked for ahead and taken one by one, always in the order of the groups that make them, whoever is ready first; so
a run does not depend on the clock. What a worker does is in `agents.worker`; how a Ray cluster is reached, in `agents.cluster`.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np

from agents.fragments import Fragment, FragmentFacts
from agents.placement import SPREAD, rollout_resources
from agents.remote import LostWorkerError, describe_loss, pickle_settings, stand_in
from agents.worker import RolloutWorker, WorkerSettings
from rlscale.errors import UsageError

__all__ = ["Fleet", "LocalFleet", "RayFleet", "Sampled"]

START_SECONDS = 120


class Sampled(NamedTuple):
    """A fragment that was taken: what is said of it, and itself or a reference to it in Ray's object store."""

    facts: FragmentFacts
    fragment: Any


class Fleet(Protocol):
    """Workers whose groups of environments take turns: fragment i of a run is made by group i modulo their number."""

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        """Ask for the next so many fragments, made with these parameters, (P,) float32; they queue up behind earlier ones."""
        ...

    def take(self) -> Sampled:
        """The next fragment; waits for it.

        Raises:
            LostWorkerError: its worker died, or ran out of memory.
        """
        ...

    def release(self, fragments: int) -> None:
        """So many of the taken fragments are not held any more; others may be made in their place."""
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

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        self._wanted.append((weights, policy_version, fragments))

    def take(self) -> Sampled:
        weights, version, left = self._wanted.popleft()
        if left > 1:
            self._wanted.appendleft((weights, version, left - 1))
        group, actor = divmod(self._next, self._settings.workers)
        self._next = (self._next + 1) % (self._settings.workers * self._settings.groups)
        worker = self._workers[actor]
        if self._acting[actor] != version:
            worker.set_weights(weights)
            self._acting[actor] = version
        fragment = worker.sample(version, group)
        return Sampled(fragment.facts, fragment)

    def release(self, fragments: int) -> None:
        pass

    def get_state(self) -> dict[str, Any] | None:
        states = [worker.get_state() for worker in self._workers]
        if any(state is None for state in states):
            return None
        return {"workers": states, "wanted": list(self._wanted), "next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        for worker, worker_state in zip(self._workers, state["workers"], strict=True):
            worker.set_state(worker_state)
        self._wanted, self._next = deque(state["wanted"]), state["next"]
        self._acting = [None] * len(self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class RayFleet:
    """Workers as Ray actors, reserved one CPU a thread.

    Args:
        settings: `workers` is the number of actors, `threads` the number of CPUs that Ray reserves for each.
        most_fragments: most that may be under way or held at once; actors wait beyond it.
    """

    def __init__(self, settings: WorkerSettings, most_fragments: int) -> None:
        import ray

        self._ray, self._settings = ray, settings
        actors = settings.workers
        each = rollout_resources(actors, settings.threads, settings.device)
        actor_class = ray.remote(RolloutActor).options(
            num_cpus=each["CPU"], num_gpus=each.get("GPU", 0), scheduling_strategy=SPREAD
        )
        reference = ray.put(pickle_settings(settings, settings.task))
        self._actors = [actor_class.remote(reference, os.getcwd(), actor) for actor in range(actors)]
        starting = [actor.ready.remote() for actor in self._actors]
        _, late = ray.wait(starting, num_returns=actors, timeout=START_SECONDS)
        if late:
            self.close()
            raise UsageError(
                "--actors",
                f"{len(late)} of {actors} did not start within {START_SECONDS} s; the cluster may be busy",
                "Use fewer actors, or wait until CPUs are free ('ray status' shows them)",
            )
        self._most = most_fragments
        self._wanted: deque[tuple[Any, int]] = deque()
        self._made: deque[tuple[Any, Any]] = deque()  # references to facts and fragment, in order, finished or not
        self._held = 0
        self._next = 0
        self._get(starting, "at its start")

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        reference = self._ray.put(weights)
        self._wanted.extend([(reference, policy_version)] * fragments)
        self._submit()

    def _submit(self) -> None:
        """Let actors begin on what is wanted, as far as there is room for the fragments."""
        while self._wanted and len(self._made) + self._held < self._most:
            reference, version = self._wanted.popleft()
            group, actor = divmod(self._next, self._settings.workers)
            self._next = (self._next + 1) % (self._settings.workers * self._settings.groups)
            sample = self._actors[actor].sample.options(num_returns=2)
            facts, fragment = sample.remote(reference, version, group)
            self._made.append((facts, fragment))

    def take(self) -> Sampled:
        if not self._made:
            raise RuntimeError("no fragment was asked for, or all of the room is held")
        facts, fragment = self._made.popleft()
        self._held += 1
        return Sampled(self._get(facts, "while it sampled"), fragment)

    def release(self, fragments: int) -> None:
        self._held -= fragments
        self._submit()

    def _get(self, references: Any, when: str) -> Any:
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayError as error:
            if (loss := describe_loss(error, when)) is None:
                raise
            raise LostWorkerError(f"a rollout worker {loss}") from error

    def get_state(self) -> dict[str, Any] | None:
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("Ray actors are not saved")

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


class RolloutActor:
    """What a Ray actor runs: a `RolloutWorker` that takes its weights with each request.

    Args:
        settings: pickled `WorkerSettings`.
        folder: the user's own, from which a user's environment may import; put last on the path.
        actor: index of the worker.
    """

    def __init__(self, settings: bytes, folder: str, actor: int) -> None:
        stand_in(folder)
        self._worker = RolloutWorker(pickle.loads(settings), actor)
        self._acting: int | None = None

    def ready(self) -> bool:
        """Returns once the environments stand."""
        return True

    def sample(self, weights: np.ndarray, policy_version: int, group: int) -> tuple[FragmentFacts, Fragment]:
        """The group's next fragment; its facts travel by themselves."""
        if policy_version != self._acting:
            self._worker.set_weights(weights)
            self._acting = policy_version
        fragment = self._worker.sample(policy_version, group)
        return fragment.facts, fragment
