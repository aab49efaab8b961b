"""`RemoteLearners`: several learner processes that share every update, with the interface of one `Learner`.

Each is a Ray actor with a full copy of the parameters and the optimizer. It reads its own environments' blocks straight from the
object store, and torch.distributed takes one sum over all learners for each optimizer step: gloo on CPUs, what torch has for the
accelerator otherwise (NCCL for CUDA).
"""

import contextlib
import os
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from rlscale.envs import Task
from rlscale.noise import BlockStatistics
from rlscale.text import first_line, tell

from ..cluster import keep_together, learner_resources
from ..cluster.processes import LostWorkerError, describe_loss, enter_user_folder, pickle_settings
from ..config import TrainConfig
from ..devices import group_backend, on_cpu, use_device
from ..machine import keep_freed_memory
from ..rollout import Fragment
from .batch import FragmentSlot, arrange_slots
from .blocks import share_of_columns
from .learner import Learner
from .results import UpdateResult

__all__ = ["HUNG_SECONDS", "RemoteLearners", "WaitedInVainError", "learn_batch"]

PATIENCE = timedelta(
    minutes=10
)  # how long a learner waits for the slowest of the others, and the run for one that is asked alone
SILENT_SECONDS = 10  # that a state is waited for before the run says so
HUNG_SECONDS = 60  # that the others are waited for once one has failed: Ray says by then whether one of them is dead
MEETING_SECONDS = 60  # that no learner has met the others, until the run names the ports that may be closed


class WaitedInVainError(RuntimeError):
    """A learner did not get what another one owes to a sum: that one hangs, is dead, or cannot be reached."""


class RemoteLearners:
    """N learners as Ray actors.

    Args:
        config: the run's settings; `update.learners` is N.
        task: the run's task.
        device: where the learners work; of accelerators each gets one of its own.
        bfloat16: see `Learner`.
        threads: CPU threads of each learner.

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
        self._placement = keep_together(each, count)
        actor_class = ray.remote(LearnerActor).options(
            num_cpus=each["CPU"],
            num_gpus=each.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement),
        )
        reference = ray.put(pickle_settings((config, task, device.type, bfloat16, threads), task))
        self._hung: set[int] = set()  # ranks that are not asked any more
        self._actors = [actor_class.remote(reference, os.getcwd(), rank) for rank in range(count)]
        self.meet()
        self._keeps = group_backend(device) != "gloo"  # gloo tells a learner at once that another is gone, NCCL does not
        self._kept: list[Any] = []  # states before this iteration, in the object store
        self._accepting: dict[int, list[Any]] = {}  # by rank: its calls of `accept` in this iteration
        self._learning = False  # an iteration has begun, and its update is not known to be made
        self._environments = self._iteration = 0
        self._scaled = False
        self.optimizer_steps = 0

    def meet(self) -> None:
        """Have the learners connect to each other; a stop may interrupt it, since nothing has begun."""
        (address,) = self._get({0: self._actors[0].address.remote()}, "at its start")
        joining = {rank: actor.join.remote(address) for rank, actor in enumerate(self._actors)}
        if not self._ray.wait(list(joining.values()), timeout=MEETING_SECONDS)[0]:
            ports = "they connect to each other at free ports, which must be open between their machines"
            tell(f"rlscale: the learners have not met at {address} for {MEETING_SECONDS} s: {ports}")
        self._get(joining, "at its start")

    def weights(self) -> np.ndarray:
        """A copy of all parameters, (P,) float32; they are the same in every learner."""
        return self._get({0: self._actors[0].weights.remote()}, "between iterations")[0]

    def begin(self, slots: Sequence[FragmentSlot], iteration: int) -> None:
        """See `Learner.begin`."""
        self._environments, self._iteration = max(slot.columns.stop for slot in slots), iteration
        self._accepting, self._learning = {}, True
        if self._keeps:
            self._kept = [actor.get_state.remote() for actor in (self._actors[0], self._actors[-1])]
        for actor in self._actors:
            actor.begin.remote(list(slots), iteration)

    def accept(self, fragment: Any, slot: FragmentSlot) -> None:
        """See `Learner.accept`; takes a fragment, or a reference to one in the object store.

        When streaming it returns as soon as every learner that reads the fragment is done with its previous one, so that few
        fragments are held.
        """
        reference = self._ray.put(fragment) if isinstance(fragment, Fragment) else fragment
        stream = self._config.update.stream
        for rank, actor in enumerate(self._actors):
            mine = share_of_columns(self._config, rank, self._environments)
            reads = slot.columns.start < mine.stop and mine.start < slot.columns.stop
            if reads or (stream and not self._scaled):  # the first one of the run sets the scale of all learners' advantages
                calls = self._accepting.setdefault(rank, [])
                if stream and calls:
                    self._get({rank: calls[-1]}, f"in iteration {self._iteration}")
                calls.append(actor.accept.remote(reference, slot))
        self._scaled = True

    def finish(self, learning_rate: float) -> UpdateResult:
        """See `Learner.finish`. Figures are the same in every learner; noise statistics are joined from each one's blocks."""
        sent = {rank: len(calls) for rank, calls in self._accepting.items()}
        calls = {rank: actor.finish.remote(learning_rate, sent.get(rank, 0)) for rank, actor in enumerate(self._actors)}
        # How long learning takes is the user's business, and a learner that hangs is noticed by those that wait for its sums.
        results: list[UpdateResult] = self._get(calls, f"in iteration {self._iteration}", None)
        noise = []
        for records in zip(*(result.noise for result in results), strict=True):
            plain = _join([record.statistics for record in records])
            adam = [record.adam for record in records if record.adam is not None]  # of all learners, or of none
            if (plain.size > 0).sum() > 1:
                noise.append(replace(records[0], statistics=plain, adam=_join(adam) if adam else None))
        self._learning = False
        self.optimizer_steps = results[0].optimizer_steps
        return replace(results[0], noise=noise, noise_seconds=max(result.noise_seconds for result in results))

    def get_state(self) -> dict[str, Any]:
        """The state before an iteration that was cut short, or else the present one, from the first learner that answers.

        On accelerators whose sums a learner waits for without end, the first is in the object store, by the first and by the last
        learner: those that wait for a dead one answer nothing.

        Raises:
            LostWorkerError: none answers.
        """
        for state in self._kept if self._learning else ():
            with contextlib.suppress(LostWorkerError):
                return self._get({0: state}, "between iterations", HUNG_SECONDS)[0]
        living = [rank for rank in range(len(self._actors)) if rank not in self._hung]
        # In an iteration that was cut short all but one may wait for a sum, and nobody knows which one answers.
        for ranks in [living] if self._learning else [[rank] for rank in living]:
            calls = {self._actors[rank].get_state.remote(before=self._learning): rank for rank in ranks}
            while calls:
                ready, _ = self._ray.wait(list(calls), timeout=SILENT_SECONDS)
                if not ready:
                    tell(f"rlscale: waiting up to {PATIENCE.seconds // 60} minutes for a learner to give the state that is saved")
                    ready, _ = self._ray.wait(list(calls), timeout=PATIENCE.total_seconds())
                if not ready:
                    self._hung.update(calls.values())
                    break
                rank = calls.pop(ready[0])
                with contextlib.suppress(LostWorkerError):
                    return self._get({rank: ready[0]}, "between iterations")[0]
        raise LostWorkerError("all learners died or hang: nothing can be saved")

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from where `get_state` was called."""
        reference = self._ray.put(state)
        self._get({rank: actor.set_state.remote(reference) for rank, actor in enumerate(self._actors)}, "at its start")
        self._learning = False
        self.optimizer_steps = state["optimizer_steps"]

    def close(self) -> None:
        """End the processes."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._placement)

    def _get(self, calls: Mapping[int, Any], when: str, seconds: float | None = PATIENCE.total_seconds()) -> list[Any]:
        """Results of the calls, which are given by rank. Learners that wait for a dead one fail as well: report the dead one.

        Args:
            calls: to be waited for.
            when: for the error.
            seconds: without an answer, after which a learner counts as hung. None waits until another one has waited in vain, or
                has its result: then no sum is left for which it could be waited.

        Raises:
            LostWorkerError: a learner died, ran out of memory, hangs or does not reach the others.
        """
        results: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        ranks = {call: rank for rank, call in calls.items()}
        while ranks:
            patience = PATIENCE.total_seconds() if results and seconds is None else seconds
            ready, _ = self._ray.wait(list(ranks), timeout=HUNG_SECONDS if failed else patience)
            if not ready:
                break
            rank = ranks.pop(ready[0])
            try:
                results[rank] = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                if (loss := describe_loss(error, when)) is not None:
                    raise LostWorkerError(f"learner {rank} {loss}") from error
                failed[rank] = error
        for rank, mistake in failed.items():
            if isinstance(mistake, LostWorkerError):  # of what, the learner itself knows
                raise LostWorkerError(f"learner {rank} {getattr(mistake, 'cause', mistake)} {when}") from mistake
            if not isinstance(mistake, WaitedInVainError):
                raise mistake
        if ranks:
            self._hung.update(ranks.values())
            raise LostWorkerError(f"learner {min(ranks.values())} hung {when}") from next(iter(failed.values()), None)
        for rank, vain in failed.items():
            raise LostWorkerError(f"learner {rank} waited in vain for the others {when}: {vain.args[0]}") from vain
        return [results[rank] for rank in calls]


class LearnerActor(Learner):
    """What a Ray actor runs: one `Learner` of several.

    Args:
        settings: pickled config, task, kind of device, bfloat16 and threads.
        folder: the folder that the user works in, see `rlscale.agents.cluster.processes.enter_user_folder`.
        rank: which learner this is.
    """

    def __init__(self, settings: bytes, folder: str, rank: int) -> None:
        enter_user_folder(folder)
        config, task, device, bfloat16, threads = pickle.loads(settings)
        torch.set_num_threads(threads)
        keep_freed_memory()
        super().__init__(config, task, torch.device(device), bfloat16, rank, self._add_over_learners)
        self._sums_on = self._device
        self._before: dict[str, Any] | None = None  # at the latest `begin`: the state to go back to
        self._accepted = 0  # fragments of this iteration
        self._failure: Exception | None = None  # of this iteration, before `finish`, which nobody may have seen

    def address(self) -> str:
        """Where the other learners can meet this process."""
        from ray.util import get_node_ip_address

        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, address: str) -> None:
        """Meet the other learners."""
        use_device(self._device)
        backend = group_backend(self._device)
        if backend == "gloo":
            self._sums_on = torch.device("cpu")  # the memory that it adds up in
        torch.distributed.init_process_group(
            backend,
            init_method=address,
            rank=self._rank,
            world_size=self._config.update.learners,
            timeout=PATIENCE,
        )

    def begin(self, slots: Sequence[FragmentSlot], iteration: int) -> None:
        self._failure, self._before, self._accepted = None, None, 0
        with self._remembering():
            self._before = self._copy_state()
            super().begin(slots, iteration)

    def accept(self, fragment: Fragment, slot: FragmentSlot) -> None:
        with self._remembering():
            super().accept(fragment, slot)
            self._accepted += 1

    def finish(self, learning_rate: float, sent: int) -> UpdateResult:  # type: ignore[override]
        """See `Learner.finish`.

        Args:
            learning_rate: likewise.
            sent: fragments that this learner was to accept. Ray does not call `accept` with one that it cannot fetch.

        Raises:
            LostWorkerError: not all of them came.
        """
        if self._failure is not None:
            raise self._failure  # an update without that fragment would be made of an earlier one's gradients
        if self._accepted < sent:
            missing = sent - self._accepted
            raise LostWorkerError(f"could not fetch {missing} of the {sent} fragments that it reads from the object store")
        return super().finish(learning_rate)

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        """Keep a failure for `finish`: the run does not wait for every call before it."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    def _add_over_learners(self, total: torch.Tensor) -> None:
        there = total.to(self._sums_on)
        try:
            torch.distributed.all_reduce(there)
        except RuntimeError as error:
            raise WaitedInVainError(first_line(error)) from error
        if there is not total:
            total.copy_(there)

    def get_state(self, before: bool = False) -> dict[str, Any]:
        """The present state, or that before the latest iteration, which not every learner may have finished."""
        return on_cpu(self._before) if before and self._before is not None else super().get_state()


def _join(parts: Sequence[BlockStatistics]) -> BlockStatistics:
    """The statistics of all learners' blocks."""
    return BlockStatistics(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("size", "square", "dot", "block"))
    )


def learn_batch(
    learner: Learner | RemoteLearners,
    fragments: Sequence[Any],
    iteration: int,
    learning_rate: float,
    slots: Sequence[FragmentSlot] | None = None,
) -> UpdateResult:
    """Learn from a whole batch whose fragments are all at hand.

    Args:
        learner: one, or several.
        fragments: in the order in which they were made.
        iteration: see `Learner.begin`.
        learning_rate: see `Learner.finish`.
        slots: of the fragments; None derives them from the groups that made them.
    """
    slots = slots or arrange_slots([fragment.group for fragment in fragments], fragments[0].environments)
    learner.begin(slots, iteration)
    for fragment, slot in zip(fragments, slots, strict=True):
        learner.accept(fragment, slot)
    return learner.finish(learning_rate)
