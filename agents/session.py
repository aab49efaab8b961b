"""`Session`: a run under way, advanced an iteration at a time: sample a batch, learn from it, give the record's row.

`rlscale.agents.setup` decides what a session needs and starts it.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from rlscale.errors import UsageError
from rlscale.noise import BlockStatistics, NotFiniteError

from .cluster import spilled_files
from .config import TrainConfig
from .learning import (
    FragmentSlot,
    Learner,
    NoiseWindow,
    RemoteLearners,
    UpdateResult,
    adaptive_batch,
    arrange_slots,
    scaled_rate,
    step_kind,
)
from .memory import MemoryPlan
from .rollout import ActorSearch, Fleet, FragmentSummary, Sampled

__all__ = ["Progress", "Session"]

MOST_EMPTY = 10  # iteration batches without an observation; after a reset the next step is one, so that two are many


@dataclass
class Progress:
    """Counters of a run, all of which are in every checkpoint.

    Attributes:
        iteration: number of the next iteration.
        observations: learned from so far.
        seconds: that the run has taken so far.
        fragments: number in the last batch that was requested.
        turn: the group that makes the next fragment.
        fragment_observations: that a fragment of the last batch taught, on average; 0 before the first. Steps that only reset an
            environment teach none.
    """

    iteration: int = 0
    observations: int = 0
    seconds: float = 0.0
    fragments: int = 0
    turn: int = 0
    fragment_observations: float = 0.0


class _Begun(NamedTuple):
    """What an iteration that is cut short can begin again from.

    Attributes:
        fleet: state of the fleet before the first fragment was taken, as `get_state` of it gives it.
        requested: fragments of each iteration batch that was requested by then.
        optimizer_steps: made by then.
    """

    fleet: dict[str, Any] | None
    requested: list[int]
    optimizer_steps: int


class Session:
    """The learner and the fleet of a run, with what they hand to each other.

    Args:
        config: settings of the run.
        memory: the fragments that its batches are made of.
        learner: one in this process, or several processes behind the same interface.
        fleet: the rollout workers.
        actor_search: told of every iteration; says how many actors the fleet should have, where the run is to find that out.

    Attributes:
        progress: the run's counters.
    """

    def __init__(
        self,
        config: TrainConfig,
        memory: MemoryPlan,
        learner: Learner | RemoteLearners,
        fleet: Fleet,
        actor_search: ActorSearch | None = None,
    ) -> None:
        self.config = config
        self.progress = Progress()
        self._memory, self._learner, self._fleet = memory, learner, fleet
        self._actor_search = actor_search
        self._noise_window = NoiseWindow(config.noise.followed_noise, step_kind(config))
        self._requested: deque[int] = deque()  # fragments of each iteration batch that was requested and not taken yet
        # Raw returns and lengths of episodes that finished in batches without an observation, and so without a row.
        self._unrecorded: list[tuple[np.ndarray, np.ndarray]] = []
        self._latest: dict[int, tuple[int, int]] = {}  # generation and index of each group's fragment that was taken last
        self._spilled = spilled_files() if config.rays else {}  # that lie there now
        self._empty = 0  # iteration batches without an observation since the last one with some
        self._open: list[Fleet | RemoteLearners] = [fleet, *([learner] if isinstance(learner, RemoteLearners) else [])]
        self._begun: _Begun | None = None  # of the iteration under way
        self._losses: list[dict[str, Any]] = []  # in no row yet
        self._lost_actors = 0

    @property
    def optimizer_steps(self) -> int:
        """Made so far."""
        return self._learner.optimizer_steps

    @property
    def lost_actors(self) -> int:
        """Number since the run was started or resumed."""
        self._gather_losses()
        return self._lost_actors

    def weights(self) -> np.ndarray:
        """A copy of the present parameters, (P,) float32."""
        return self._learner.weights()

    def iterate(self) -> tuple[dict[str, Any], UpdateResult] | None:
        """Sample an iteration batch and learn from it; the row for the record, and what the learner measured.

        None when nothing was observed: with one-step fragments every environment may just have been reset. The episodes whose
        end those resets tell are in the next row.

        Raises:
            LostWorkerError: rollout workers were lost again and again, or a learner died or ran out of memory.
            NotFiniteError: the run has diverged. The iteration keeps its number, and has no row.
            UsageError: nothing was observed again and again, as where the task's environments do nothing but reset.
        """
        progress = self.progress
        begin = time.perf_counter()
        if not self._requested:
            self._request()
        if self.config.rollout.lag and len(self._requested) < 2:
            self._request()  # queues up behind the batch that is about to be learned from
        self._begun = self._beginning()
        fragments = self._requested.popleft()
        summaries, result, waited = self._learn(fragments)
        self._begun = None
        seconds = time.perf_counter() - begin
        progress.seconds += seconds
        self._unrecorded += [(f.episode_return, f.episode_length) for f in summaries]
        self._empty = 0 if result is not None else self._empty + 1
        if self._empty == MOST_EMPTY:
            problem = f"{self.config.task} ends on every step, that of its reset included, so that nothing is ever observed"
            raise UsageError("TASK", problem, "Mend the environment: a step that only resets ends no episode")
        if result is None:
            return None
        progress.observations += result.observations
        if not math.isfinite(result.figures["gradient_norm"]):
            raise NotFiniteError(f"gradient_norm of iteration {progress.iteration}: not finite")
        finished, self._unrecorded = self._unrecorded, []
        progress.fragment_observations = result.observations / fragments
        self._noise_window.add(result.noise)
        trial = None if self._actor_search is None else self._actor_search.add(result.observations, seconds)
        row = {
            "iteration": progress.iteration,
            "observations": progress.observations,
            "optimizer_steps": self.optimizer_steps,
            "seconds": progress.seconds,
            "batch_observations": result.observations,
            **_episodes(finished),
            "learning_rate": result.learning_rate,
            **result.figures,
            "explained_variance": result.explained_variance,
            **_lags(summaries, progress.iteration),
            "fragment_ids": _identities(summaries),
            "actors": self._fleet.actors,
            **({} if trial is None else {"actor_trial": asdict(trial)}),
            "losses": self._gather_losses(),
            **self._times(summaries, result, seconds, waited),
            "noise": [record.entry() for record in result.noise],
        }
        self._losses = []
        progress.iteration += 1
        return row, result

    def _beginning(self) -> _Begun:
        return _Begun(self._fleet.get_state(), list(self._requested), self.optimizer_steps)

    def _gather_losses(self) -> list[dict[str, Any]]:
        """The lost actors that are in no row yet, as a row has them."""
        lost = self._fleet.lost_actors()
        self._lost_actors += len(lost)
        self._losses += [{name: value for name, value in asdict(one).items() if name != "noticed"} for one in lost]
        return self._losses

    # --- sample ------------------------------------------------------------------------------------------------------------

    def _request(self) -> None:
        """Have the fleet make the fragments of one more iteration batch by the present policy."""
        memory, progress = self._memory, self.progress
        weights = self._learner.weights()  # first: where a learner is gone, nothing has been requested
        count = memory.batch_fragments
        if self.config.adaptive:
            count = adaptive_batch(
                self.config.rollout.exchange_rate,
                self._noise_window.scale(),
                fragment=progress.fragment_observations or memory.environments * self.config.rollout.rollout_length,
                groups=memory.groups,
                turn=progress.turn,
                before=progress.fragments,
                most=memory.most_batch_fragments,
            )
        self._fleet.request(weights, progress.iteration, count)
        self._requested.append(count)
        progress.fragments = count
        progress.turn = (progress.turn + count) % memory.groups

    def _take(self) -> Sampled:
        """The fleet's next fragment.

        Raises:
            RuntimeError: it has been taken before.
        """
        sampled = self._fleet.take()
        summary = sampled.summary
        identity = summary.generation, summary.index
        if identity <= self._latest.get(summary.group, (-1, -1)):
            raise RuntimeError(f"fragment {identity[1]} of generation {identity[0]} of group {summary.group} came twice")
        self._latest[summary.group] = identity
        return sampled

    # --- learn -------------------------------------------------------------------------------------------------------------

    def _learn(self, count: int) -> tuple[list[FragmentSummary], UpdateResult | None, float]:
        """Give the learner an iteration batch: what was taken, the result, and the seconds spent waiting for fragments.

        When streaming, each fragment is freed as soon as it was learned from, else all of them at the end. There is no result
        when nothing was observed.
        """
        stream, memory = self.config.update.stream, self._memory
        slots: list[FragmentSlot] = []
        summaries: list[FragmentSummary] = []
        waited = 0.0
        for number in range(count):
            begin = time.perf_counter()
            sampled = self._take()
            waited += time.perf_counter() - begin
            summaries.append(sampled.summary)
            if not slots:
                groups = [(sampled.summary.group + i) % memory.groups for i in range(count)]  # they take turns
                learners = self.config.update.learners if stream and not self.config.adaptive else 1
                slots = arrange_slots(groups, memory.environments, learners)
                self._learner.begin(slots, self.progress.iteration)
            # Learners in other processes read the fragment from the object store by its reference.
            here = sampled.reference is None or isinstance(self._learner, Learner)
            self._learner.accept(sampled.fragment if here else sampled.reference, slots[number])
            del sampled
            if stream:
                self._fleet.release(1)
        observations = sum(f.observations for f in summaries)
        result = self._learner.finish(self._rate(observations)) if observations else None
        if not stream:
            self._fleet.release(count)
        return summaries, result, waited

    def _rate(self, observations: int) -> float:
        """Learning rate of this iteration, warm-up apart, given the valid observations of its batch."""
        config = self.config
        steps = 1 if config.update.mini_batch is None else max(config.batch // config.mini_batch, 1)
        rate = scaled_rate(config.update, observations / steps, self._noise_window.scale()) / math.sqrt(config.batch_divisor)
        if config.update.anneal and config.budget.observations is not None:
            rate *= max(0.0, 1.0 - self.progress.observations / config.budget.observations)
        return rate

    # --- row ---------------------------------------------------------------------------------------------------------------

    def _times(self, summaries: list[FragmentSummary], result: UpdateResult, seconds: float, waited: float) -> dict[str, Any]:
        """Where an iteration's time went."""
        of_worker: dict[int, float] = {}
        for f in summaries:
            of_worker[f.actor] = of_worker.get(f.actor, 0.0) + f.seconds
        working = max(of_worker.values()) if self.config.rollout.actors else sum(of_worker.values())
        learning = seconds - waited
        before, self._spilled = self._spilled, spilled_files() if self.config.rays else {}
        spilled = sum(size for path, size in self._spilled.items() if path not in before)
        return {
            "sampling_seconds": working,
            "waiting_seconds": waited,
            "transfer_seconds": max(waited - working, 0.0) if not self.config.overlaps else None,
            "learning_seconds": learning,
            "noise_seconds": result.noise_seconds,
            "observations_per_second": result.observations / seconds,
            "sampling_observations_per_second": result.observations / working,
            "learning_observations_per_second": result.observations / learning,
            "spilled_bytes": spilled,
        }

    # --- checkpoints and the end -------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """All that is needed to go on from here, or from the beginning of the iteration that was cut short.

        `fleet` is None where the environments cannot be saved, where the learner had begun to take that iteration's steps, or
        where a batch was requested in part.

        Raises:
            LostWorkerError: the learners are gone.
        """
        learner = self._learner.get_state()
        begun = self._begun or self._beginning()
        fleet = begun.fleet if learner["optimizer_steps"] == begun.optimizer_steps else None
        if fleet is not None and sum(count for *_, count in fleet["requested"]) != sum(begun.requested):
            fleet = None  # a batch was being requested when the head node was lost: part of it would come beside the next ones
        return {
            "learner": learner,
            "fleet": fleet,
            "asked": begun.requested if fleet is not None else [],
            "progress": vars(self.progress),
            "fragment_environments": self._memory.environments,
            "window": [(s.size, s.square, s.dot, s.block) for s in self._noise_window.statistics],
            "generation": self._fleet.generation,
            "unrecorded": list(self._unrecorded),
            "losses": list(self._gather_losses()),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where `get_state` was called; with fresh environments where its `fleet` is None."""
        self._learner.set_state(state["learner"])
        self.progress = Progress(**state["progress"])
        # In fragments of now: an adaptive batch at most doubles from the last one's observations, however they are cut.
        earlier = state.get("fragment_environments", self._memory.environments)
        self.progress.fragments = -(-self.progress.fragments * earlier // self._memory.environments)
        self.progress.fragment_observations *= self._memory.environments / earlier
        known = [BlockStatistics(*arrays) for arrays in state.get("window", ())]
        self._noise_window = NoiseWindow(self.config.noise.followed_noise, step_kind(self.config), known)
        self._unrecorded = list(state.get("unrecorded", ()))
        self._losses = list(state.get("losses", ()))
        if state["fleet"] is not None:
            self._fleet.set_state(state["fleet"])
            self._requested = deque(state["asked"])
        else:
            self.progress.turn = 0  # fresh environments begin with the first group

    def end_fleet(self) -> None:
        """End the rollout workers alone: after a loss, what the learners know can still be saved, with the environments."""
        self._begun = self._begun or self._beginning()
        self._open.pop(0).close()

    def abandon_processes(self) -> None:
        """Leave the Ray processes to themselves: without the cluster's head node nobody can end them."""
        self._open.clear()

    def close(self) -> None:
        """End the fleet and the learners."""
        while self._open:
            self._open.pop(0).close()


def _lags(summaries: Sequence[FragmentSummary], iteration: int) -> dict[str, Any]:
    """By how many iterations the policies that acted are older than the one that learns: the most, and of every fragment."""
    lags = [iteration - f.policy_version for f in summaries]
    counts = [[lag, lags.count(lag)] for lag in sorted(set(lags))]
    return {"policy_lag": max(lags), "fragments": len(lags), "fragment_lags": counts}


def _identities(summaries: Sequence[FragmentSummary]) -> list[list[int]]:
    """Which fragments these are: [first group, last group, generation, first index, last index], all of that rectangle."""
    indices: dict[tuple[int, int], list[int]] = {}
    for f in summaries:
        indices.setdefault((f.group, f.generation), []).append(f.index)
    found: list[list[int]] = []
    for (group, generation), held in sorted(indices.items()):
        span = [generation, held[0], held[-1]]  # a group's fragments come in order
        if found and found[-1][1] == group - 1 and found[-1][2:] == span:
            found[-1][1] = group
        else:
            found.append([group, group, *span])
    return found


def _episodes(finished: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """What the raw returns and lengths of finished episodes say; null where none has finished."""
    returns = np.concatenate([r for r, _ in finished])
    lengths = np.concatenate([length for _, length in finished])
    any_finished = len(returns) > 0
    return {
        "episodes": len(returns),
        "return_mean": float(returns.mean()) if any_finished else None,
        "return_min": float(returns.min()) if any_finished else None,
        "return_max": float(returns.max()) if any_finished else None,
        "episode_length_mean": float(lengths.mean()) if any_finished else None,
    }
