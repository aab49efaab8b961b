"""`RemoteLearners`: several learner processes that share every update, with the interface of one `Learner`.

Each is a Ray actor with a full copy of the parameters and the optimizer. It reads its own environments' blocks straight from the
object store, and per optimizer step one sum over all of them is taken by torch.distributed: gloo on CPUs, NCCL on GPUs. What the
blocks teach is in `rlscale.agents.learning.learner`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from rlscale.envs import Task
from rlscale.noise import BlockStatistics

from ..cluster.placement import keep_together, learner_resources
from ..cluster.processes import LostWorkerError, describe_loss, pickle_settings, stand_in
from ..config import TrainConfig
from ..machine import keep_freed_memory
from ..rollout.fragments import Fragment
from .batch import Place
from .learner import Learner, NoiseRecord, UpdateResult, share_of_columns

__all__ = ["RemoteLearners"]

PATIENCE = timedelta(minutes=10)  # of a learner with the slowest of the others


class RemoteLearners:
    """N learners as Ray actors.

    Args:
        config: of the run; `update.learners` is N.
        task: its task.
        device: where they work; on `cuda` each gets a GPU of its own.
        bfloat16: see `Learner`.
        threads: of each.

    Raises:
        UsageError: the cluster has no room for them.
        LostWorkerError: one died at its start; later calls raise it as well.
    """

    def __init__(self, config: TrainConfig, task: Task, device: torch.device, bfloat16: bool, threads: int) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray, self._config = ray, config
        count = config.update.learners
        each = learner_resources(threads, device.type)
        self._places = keep_together(each, count)
        actor_class = ray.remote(LearnerActor).options(
            num_cpus=each["CPU"], num_gpus=each.get("GPU", 0), scheduling_strategy=PlacementGroupSchedulingStrategy(self._places)
        )
        reference = ray.put(pickle_settings((config, task, device.type, bfloat16, threads), task))
        self._actors = [actor_class.remote(reference, os.getcwd(), rank) for rank in range(count)]
        (address,) = self._get([self._actors[0].address.remote()], "at its start")
        self._get([actor.join.remote(address) for actor in self._actors], "at its start")
        self._accepting: list[Any] = [None] * count
        self._environments = self._iteration = 0
        self._scaled = False
        self.optimizer_steps = 0

    def weights(self) -> np.ndarray:
        """A copy of all parameters, (P,) float32; they are the same in every learner."""
        weights: np.ndarray = self._get([self._actors[0].weights.remote()], "between iterations")[0]
        return weights

    def learn(
        self, fragments: Sequence[Any], places: Sequence[Place], environments: int, iteration: int, learning_rate: float
    ) -> UpdateResult:
        """As of `Learner`, with references to fragments in the object store, or the fragments themselves."""
        references = [self._reference(fragment) for fragment in fragments]
        calls = []
        for rank, actor in enumerate(self._actors):
            mine = [i for i, place in enumerate(places) if self._reads(rank, place, environments)]
            arguments = [places[i] for i in mine], environments, iteration, learning_rate
            calls.append(actor.learn.remote(*arguments, *(references[i] for i in mine)))
        return self._merge(calls, f"in iteration {iteration}")

    def begin(self, places: Sequence[Place], environments: int, iteration: int, learning_rate: float) -> None:
        """As of `Learner`."""
        self._environments, self._iteration = environments, iteration
        for actor in self._actors:
            actor.begin.remote(list(places), environments, iteration, learning_rate)

    def accept(self, fragment: Any, place: Place) -> None:
        """As of `Learner`; returns when every learner that reads it has done with the fragment before, so that few are held."""
        reference = self._reference(fragment)
        if not self._scaled:  # also those that read none of it
            self._scaled = True
            for actor in self._actors:
                actor.scale_by.remote(reference)
        for rank, actor in enumerate(self._actors):
            if self._reads(rank, place, self._environments):
                if self._accepting[rank] is not None:
                    self._get([self._accepting[rank]], f"in iteration {self._iteration}")
                self._accepting[rank] = actor.accept.remote(reference, place)

    def finish(self) -> UpdateResult:
        """As of `Learner`."""
        self._accepting = [None] * len(self._actors)
        return self._merge([actor.finish.remote() for actor in self._actors], f"in iteration {self._iteration}")

    def _reads(self, rank: int, place: Place, environments: int) -> bool:
        mine = share_of_columns(self._config, rank, environments)
        return place.columns.start < mine.stop and mine.start < place.columns.stop

    def _reference(self, fragment: Any) -> Any:
        return self._ray.put(fragment) if isinstance(fragment, Fragment) else fragment

    def _merge(self, calls: list[Any], when: str) -> UpdateResult:
        """One result of all: figures are the same in each, statistics are of each one's own blocks."""
        results: list[UpdateResult] = self._get(calls, when)
        merged = results[0]
        merged.noise_seconds = max(result.noise_seconds for result in results)
        noise = []
        for records in zip(*(result.noise for result in results), strict=True):
            parts = [record.statistics for record in records]
            joined = [np.concatenate([getattr(part, name) for part in parts]) for name in ("size", "square", "dot", "block")]
            if (joined[0] > 0).sum() > 1:
                first = records[0]
                noise.append(NoiseRecord(first.head, first.kind, first.optimizer_step, BlockStatistics(*joined)))
        merged.noise = noise
        self.optimizer_steps = merged.optimizer_steps
        return merged

    def get_state(self) -> dict[str, Any]:
        """State for a checkpoint, from the first learner that answers: as it was before an iteration that was cut short.

        Raises:
            LostWorkerError: none answers.
        """
        for actor in self._actors:
            with contextlib.suppress(LostWorkerError):
                state: dict[str, Any] = self._get([actor.get_state.remote()], "between iterations")[0]
                return state
        raise LostWorkerError("all learners died: nothing can be saved")

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where `get_state` was called."""
        reference = self._ray.put(state)
        self._get([actor.set_state.remote(reference) for actor in self._actors], "at its start")
        self.optimizer_steps = state["optimizer_steps"]

    def close(self) -> None:
        """End the processes."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._places)

    def _get(self, calls: list[Any], when: str) -> list[Any]:
        """Results of all calls. Whoever waits for a dead learner fails as well: report the one that died."""
        results, failed = [], None
        for rank, call in enumerate(calls):
            try:
                results.append(self._ray.get(call))
            except self._ray.exceptions.RayError as error:
                if (loss := describe_loss(error, when)) is not None:
                    raise LostWorkerError(f"learner {rank} {loss}") from error
                failed = failed or error
        if failed is not None:
            raise failed
        return results


class LearnerActor:
    """What a Ray actor runs: one `Learner` of several.

    Args:
        settings: pickled config, task, kind of device, bfloat16 and threads.
        folder: the user's own, see `rlscale.agents.rollout.fleet.stand_in`.
        rank: which learner this is.
    """

    def __init__(self, settings: bytes, folder: str, rank: int) -> None:
        stand_in(folder)
        config, task, device, bfloat16, threads = pickle.loads(settings)
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._rank, self._count = rank, config.update.learners
        self._device = torch.device(device)
        self._learner = Learner(config, task, self._device, bfloat16, rank, self._add)
        self._before: dict[str, Any] | None = None  # while an iteration is being learned: the state to go back to

    def address(self) -> str:
        """Where the others can meet this process."""
        from ray.util import get_node_ip_address

        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, address: str) -> None:
        """Meet the other learners."""
        torch.distributed.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            init_method=address,
            rank=self._rank,
            world_size=self._count,
            timeout=PATIENCE,
        )

    def _add(self, total: torch.Tensor) -> None:
        torch.distributed.all_reduce(total)

    def weights(self) -> np.ndarray:
        return self._learner.weights()

    def learn(
        self, places: list[Place], environments: int, iteration: int, learning_rate: float, *fragments: Fragment
    ) -> UpdateResult:
        self._before = self._learner.get_state()
        result = self._learner.learn(fragments, places, environments, iteration, learning_rate)
        self._before = None
        return result

    def begin(self, places: list[Place], environments: int, iteration: int, learning_rate: float) -> None:
        self._before = self._learner.get_state()
        self._learner.begin(places, environments, iteration, learning_rate)

    def scale_by(self, fragment: Fragment) -> None:
        self._learner.scale_by(fragment)

    def accept(self, fragment: Fragment, place: Place) -> None:
        self._learner.accept(fragment, place)

    def finish(self) -> UpdateResult:
        result = self._learner.finish()
        self._before = None
        return result

    def get_state(self) -> dict[str, Any]:
        return self._learner.get_state() if self._before is None else self._before

    def set_state(self, state: dict[str, Any]) -> None:
        self._learner.set_state(state)
