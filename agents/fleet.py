"""The fleet of rollout workers: in this process, or as Ray actors. Same interface, same seed, same fragments.

What a worker does is in `agents.worker`; how a Ray cluster is reached is in `agents.cluster`.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, Protocol

import numpy as np

from agents.fragments import Fragment
from agents.worker import RolloutWorker, WorkerSettings
from rlscale.errors import UsageError

__all__ = ["Fleet", "LocalFleet", "LostWorkerError", "RayFleet"]


class Fleet(Protocol):
    """Workers that sample together, one fragment each per iteration, in the order of their index."""

    def sample(self, weights: np.ndarray, policy_version: int) -> list[Fragment]:
        """Every worker's next fragment, made with these parameters, (P,) float32.

        Raises:
            LostWorkerError: a worker died.
        """
        ...

    def get_state(self) -> list[dict[str, Any]] | None:
        """State of every worker, or None when it cannot be saved."""
        ...

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Go on exactly from where `get_state` was called."""
        ...

    def close(self) -> None: ...


START_SECONDS = 120


class LostWorkerError(RuntimeError):
    """A rollout worker died; its fragment is lost, and with it the iteration."""


class LocalFleet:
    """Workers in this process, one after another: for debugging, tests and many small runs side by side."""

    def __init__(self, settings: WorkerSettings, workers: int = 1) -> None:
        self._workers = [RolloutWorker(settings, actor) for actor in range(workers)]

    def sample(self, weights: np.ndarray, policy_version: int) -> list[Fragment]:
        fragments = []
        for worker in self._workers:
            worker.set_weights(weights)
            fragments.append(worker.sample(policy_version))
        return fragments

    def get_state(self) -> list[dict[str, Any]] | None:
        states = [worker.get_state() for worker in self._workers]
        return None if any(state is None for state in states) else [state for state in states if state is not None]

    def set_state(self, state: list[dict[str, Any]]) -> None:
        for worker, worker_state in zip(self._workers, state, strict=True):
            worker.set_state(worker_state)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class RayFleet:
    """Workers as Ray actors, sampling side by side. Ray must be connected (`agents.cluster.connect`).

    Weights go out through the object store once per iteration and fragments come back through it; frames are read where
    they lie, without a copy.

    Args:
        settings: `threads` is also the number of CPUs that Ray reserves for an actor.
        actors: how many.
    """

    def __init__(self, settings: WorkerSettings, actors: int) -> None:
        import ray

        self._ray = ray
        actor_class = ray.remote(RolloutActor).options(num_cpus=settings.threads)
        reference = ray.put(_pickle(settings))
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
        self._get(starting, "at its start")

    def sample(self, weights: np.ndarray, policy_version: int) -> list[Fragment]:
        reference = self._ray.put(weights)
        requests = [actor.sample.remote(reference, policy_version) for actor in self._actors]
        fragments: list[Fragment] = self._get(requests, f"in iteration {policy_version}")
        return fragments

    def _get(self, references: list[Any], when: str) -> Any:
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayActorError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise LostWorkerError(f"a rollout worker died {when}: {lines[0] if lines else 'no reason given'}") from error

    def get_state(self) -> list[dict[str, Any]] | None:
        return None

    def set_state(self, state: list[dict[str, Any]]) -> None:
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
        sys.path.append(folder)
        if os.path.isdir(folder):
            os.chdir(folder)  # Ray starts its processes in our own root, see agents.cluster
        self._worker = RolloutWorker(pickle.loads(settings), actor)

    def ready(self) -> bool:
        """Returns once the environments stand."""
        return True

    def sample(self, weights: np.ndarray, policy_version: int) -> Fragment:
        self._worker.set_weights(weights)
        return self._worker.sample(policy_version)


def _pickle(settings: WorkerSettings) -> bytes:
    """The settings, with a user's own environment pickled by value so that no node needs its module."""
    from ray import cloudpickle

    module = sys.modules.get(getattr(settings.task.make, "__module__", ""))
    if module is None or not getattr(module, "__file__", None):
        return cloudpickle.dumps(settings)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(settings)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
