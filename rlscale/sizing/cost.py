"""How many workers, which batch size, how long and how much money: what follows from measured rates and a task's frontier.

Everything here is arithmetic on figures that were measured elsewhere (`run`). The law of many workers is in
`throughput`, those of one worker and of a learner in `service`, the frontier in `rlscale.frontier`. Their fits
can be imported from here as well: with them this module is all that a plan needs.

    an iteration at lag 0 takes               broadcast + max(B / X(n), bytes / ingest) + L
    an iteration at lag 1 takes               broadcast + max(B / X(n), bytes / ingest, L)
    a goal takes                              S(B) iterations, and costs that time of all that was hired
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..estimate import Estimate
from ..frontier import Frontier
from .service import (
    FleetTime,
    HandOver,
    LearnerTime,
    ServiceTime,
    fit_hand_over,
    fit_learner,
    fit_service,
    hand_over_seconds,
)
from .throughput import ThroughputCurve, fit_throughput

__all__ = [
    "Choice",
    "FleetTime",
    "HandOver",
    "Iteration",
    "LearnerTime",
    "Link",
    "Plan",
    "Price",
    "ServiceTime",
    "ThroughputCurve",
    "fit_hand_over",
    "fit_learner",
    "fit_service",
    "fit_throughput",
    "hand_over_seconds",
    "iteration",
    "plan",
    "workers_in_balance",
]

Bound = Literal["sampling", "ingest", "learning", "broadcast"]


@dataclass(frozen=True)
class Link:
    """What lies between workers and learner.

    Attributes:
        observation_bytes: of one observation in a fragment.
        ingest: bytes per second at which the learner's machine takes fragments in; inf where they lie in its own memory.
        broadcast: seconds from new parameters to the first step of every worker that acts by them.
    """

    observation_bytes: float = 0.0
    ingest: float = math.inf
    broadcast: float = 0.0


@dataclass(frozen=True)
class Iteration:
    """One iteration, predicted.

    Attributes:
        seconds: from one batch to the next.
        sampling_seconds: to make a batch, at the workers' rate or at what the link takes in.
        learning_seconds: to learn from it.
        bound: what takes most of the time: `sampling`, `ingest`, `learning` or `broadcast`.
        workers_idle, learner_idle: shares of the time in which they wait.
        staleness: optimizer steps between the policy that acted and the one that learns, at the first step of the update.
    """

    seconds: float
    sampling_seconds: float
    learning_seconds: float
    bound: Bound
    workers_idle: float
    learner_idle: float
    staleness: int


def iteration(
    batch_size: float,
    sampling_rate: float,
    learning_seconds: float,
    link: Link | None = None,
    *,
    lag: int = 0,
    optimizer_steps: int = 1,
) -> Iteration:
    """The time of one iteration.

    With lag 1 the workers and the learner have processors of their own: where they share cores, what one gains the other loses.

    Args:
        batch_size: B, observations of the iteration batch.
        sampling_rate: X(n), observations per second of all workers.
        learning_seconds: L.
        link: between them; None for one that costs nothing.
        lag: 0, or 1 for sampling one batch while learning from the one before.
        optimizer_steps: of one update.

    Raises:
        ValueError: a number that is not positive, or another lag.
    """
    if not (batch_size > 0 and sampling_rate > 0 and learning_seconds > 0):
        raise ValueError("batch_size, sampling_rate and learning_seconds must be positive")
    if lag not in (0, 1):
        raise ValueError("lag must be 0 or 1")
    link = link or Link()
    making, taking = batch_size / sampling_rate, batch_size * link.observation_bytes / link.ingest
    sampling = max(making, taking)
    seconds = link.broadcast + (sampling + learning_seconds if lag == 0 else max(sampling, learning_seconds))
    parts: dict[Bound, float] = {
        "sampling": making,
        "ingest": taking,
        "learning": learning_seconds,
        "broadcast": link.broadcast,
    }
    return Iteration(
        seconds=seconds,
        sampling_seconds=sampling,
        learning_seconds=learning_seconds,
        bound=max(parts, key=lambda name: parts[name]),
        workers_idle=1 - making / seconds,
        learner_idle=1 - learning_seconds / seconds,
        staleness=lag * optimizer_steps,
    )


def workers_in_balance(curve: ThroughputCurve, batch_size: float, learning_seconds: float, most: int) -> int | None:
    """Fewest workers that make a batch in the time in which one is learned from; None if `most` of them do not.

    Raises:
        ValueError: a count up to `most` at which the curve is not identified.
    """
    needed = batch_size / learning_seconds
    for workers in range(1, most + 1):
        if curve.rate_of(workers) >= needed:
            return workers
    return None


@dataclass(frozen=True)
class Price:
    """What an hour costs, in any currency, and what is hired.

    Attributes:
        cpu_hour: of one CPU.
        gpu_hour: of one GPU.
        worker_cpus: CPUs of each worker.
        learner_cpus, learner_gpus: of the learner, whatever the number of workers.
        taking_turns: workers and learner use the same CPUs, so that only the larger number of them is hired.
    """

    cpu_hour: float
    gpu_hour: float = 0.0
    worker_cpus: float = 1.0
    learner_cpus: float = 1.0
    learner_gpus: float = 0.0
    taking_turns: bool = False

    def of_hour(self, workers: float) -> float:
        """An hour of so many workers and the learner."""
        cpus = workers * self.worker_cpus, self.learner_cpus
        return self.cpu_hour * (max(cpus) if self.taking_turns else sum(cpus)) + self.gpu_hour * self.learner_gpus


@dataclass(frozen=True)
class Choice:
    """One batch size on so many workers, to the frontier's goal.

    Attributes:
        batch_size: B, observations per optimizer step.
        workers: n.
        optimizer_steps: S(B).
        observations: E(B) = S · B.
        seconds: wall time to the goal.
        interval: of `seconds`, from the interval of the sampling rate alone; None where that has none. How far the frontier
            itself is uncertain stands beside it in the report of the sweep.
        cost: to the goal, in the price's currency.
        iteration: of which S are made.
    """

    batch_size: float
    workers: int
    optimizer_steps: float
    observations: float
    seconds: float
    interval: tuple[float, float] | None
    cost: float
    iteration: Iteration


@dataclass(frozen=True)
class Plan:
    """All choices, and the questions one asks of them.

    Attributes:
        choices: every batch size with every number of workers.
    """

    choices: tuple[Choice, ...]

    @property
    def pareto(self) -> tuple[Choice, ...]:
        """Those that no other beats in both wall time and cost, fastest first."""
        front: list[Choice] = []
        for choice in sorted(self.choices, key=lambda c: (c.seconds, c.cost)):
            if not front or choice.cost < front[-1].cost:
                front.append(choice)
        return tuple(front)

    def cheapest(self, deadline: float = math.inf) -> Choice | None:
        """The cheapest that ends within so many seconds; None if none does, and `fastest()` is then the nearest."""
        return min((c for c in self.choices if c.seconds <= deadline), key=lambda c: (c.cost, c.seconds), default=None)

    def fastest(self, budget: float = math.inf) -> Choice | None:
        """The fastest that costs at most so much; None if none does, and `cheapest()` is then the nearest."""
        return min((c for c in self.choices if c.cost <= budget), key=lambda c: (c.seconds, c.cost), default=None)


def plan(
    frontier: Frontier,
    curve: ThroughputCurve | FleetTime,
    learner: LearnerTime,
    price: Price,
    *,
    batch_sizes: Sequence[float],
    workers: Sequence[int],
    link: Link | None = None,
    lag: int = 0,
    blocks: int = 16,
) -> Plan:
    """Wall time and cost to the frontier's goal, for every batch size on every number of workers.

    One iteration makes one optimizer step of one batch, as in the runs of a sweep.

    Args:
        frontier: of the task, identified.
        curve: rate of n workers, whatever the batch; or the time of a fleet whose workers share a batch, so that each has
            B / (n · rollout_length) environments. Counts that leave a worker less than one are passed over.
        learner: its update times.
        price: of an hour.
        batch_sizes: to choose from; those of the sweep, or between them.
        workers: counts to choose from, at which the curve is identified.
        link, lag: see `iteration`.
        blocks: of an update.

    Raises:
        ValueError: nothing to choose from, a frontier or a curve that is not identified there, or a price that is negative.
    """
    if not len(batch_sizes) or not len(workers):
        raise ValueError("batch_sizes and workers must each name one or more")
    if min(price.cpu_hour, price.gpu_hour) < 0:
        raise ValueError("price must not be negative")
    choices = []
    for count in workers:
        for size in batch_sizes:
            if isinstance(curve, FleetTime) and size < count * curve.rollout_length:
                continue
            found = _rate(curve, count, size)
            assert found.value is not None
            learning = learner.seconds(size, blocks)
            steps = float(frontier.optimizer_steps(size))
            one = iteration(size, found.value, learning, link, lag=lag)
            ends = None
            if found.interval is not None:
                slow, fast = (iteration(size, end, learning, link, lag=lag).seconds for end in found.interval)
                ends = steps * fast, steps * slow
            seconds = steps * one.seconds
            cost = price.of_hour(count) * seconds / 3600
            choices.append(Choice(size, count, steps, steps * size, seconds, ends, cost, one))
    if not choices:
        raise ValueError("batch_sizes are all too small for these workers: a worker needs rollout_length observations at least")
    return Plan(tuple(choices))


def _rate(curve: ThroughputCurve | FleetTime, workers: int, batch_size: float) -> Estimate:
    """Observations per second of so many workers that share a batch."""
    if isinstance(curve, FleetTime):
        return curve.rate(workers, batch_size / (workers * curve.rollout_length))
    curve.rate_of(workers)
    return curve.predict(workers)
