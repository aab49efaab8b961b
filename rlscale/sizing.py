"""How many workers, which batch size, how long and how much money: what follows from measured rates and a task's frontier.

Everything here is arithmetic on figures that were measured elsewhere (`benchmarks.workers`). The law of many workers and its fit
are in `rlscale.throughput`, the frontier in `rlscale.frontier`.

    a worker's step of N environments takes   t = fixed + N (serial + parallel / threads)
    n workers' fragments of T steps take      hand-over + T t · slowdown(n), slowdown(n) = n X(1) / X(n)
    an update of B observations in K blocks   L = fixed + K · block + B · observation
    an iteration at lag 0 takes               broadcast + max(B / X(n), bytes / ingest) + L
    an iteration at lag 1 takes               broadcast + max(B / X(n), bytes / ingest, L)
    a goal takes                              S(B) iterations, and costs that time of all that was hired
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls
from scipy.special import stdtrit

from rlscale.estimate import Estimate
from rlscale.frontier import Frontier
from rlscale.throughput import ThroughputCurve, fit_throughput

__all__ = [
    "Choice",
    "FleetTime",
    "Iteration",
    "LearnerTime",
    "Link",
    "Plan",
    "Price",
    "ServiceTime",
    "ThroughputCurve",
    "fit_learner",
    "fit_service",
    "fit_throughput",
    "iteration",
    "plan",
    "workers_in_balance",
]

Bound = Literal["sampling", "ingest", "learning", "broadcast"]


@dataclass(frozen=True)
class ServiceTime:
    """Seconds that one worker takes for a step of all its environments: t = fixed + N (serial + parallel / threads).

    Attributes:
        fixed: per step, whatever the number of environments.
        serial: per environment and step, whatever the number of threads.
        parallel: per environment and step on one thread, shared by threads; 0 where only one number of threads was measured.
        threads: numbers of threads that were measured.
        residual: largest relative error of the fit at a measured point.
    """

    fixed: float
    serial: float
    parallel: float
    threads: tuple[int, ...]
    residual: float

    def seconds(self, environments: float, threads: int = 1) -> float:
        """Of one step.

        Raises:
            ValueError: a number of threads that cannot be told from those measured.
        """
        if len(self.threads) == 1 and threads != self.threads[0]:
            raise ValueError(f"threads: only {self.threads[0]} was measured")
        return self.fixed + environments * (self.serial + self.parallel / threads)

    def rate(self, environments: float, threads: int = 1) -> float:
        """Observations per second of one worker."""
        return environments / self.seconds(environments, threads)


def fit_service(environments: Any, threads: Any, seconds: Any) -> ServiceTime:
    """Fit a worker's step times, by least squares of relative errors with no part negative.

    Args:
        environments, threads: of each reading.
        seconds: of one step of all environments.

    Raises:
        ValueError: lengths that differ, no reading, or a number that is not positive.
    """
    n, k, t = _readings(environments=environments, threads=threads, seconds=seconds)
    counts = tuple(sorted({int(value) for value in k}))
    columns = [np.ones_like(n), n] + ([n / k] if len(counts) > 1 else [])
    parts = _least_squares(columns, t)
    fitted = np.stack(columns, axis=1) @ parts
    return ServiceTime(
        fixed=float(parts[0]),
        serial=float(parts[1]),
        parallel=float(parts[2]) if len(counts) > 1 else 0.0,
        threads=counts,
        residual=float(np.abs(fitted / t - 1).max()),
    )


@dataclass(frozen=True)
class FleetTime:
    """Seconds in which n workers make an iteration batch of one fragment each.

    Attributes:
        service: of one worker that works alone.
        curve: of n busy threads, measured on workers of one thread each: what n of them take from each other.
        hand_over: seconds per iteration beside the workers' own: parameters out, fragments in.
        rollout_length: steps of a fragment, T.
        scatter: standard deviation of ln(rate) of a reading about this law.
        freedom: degrees of freedom of that.
    """

    service: ServiceTime
    curve: ThroughputCurve
    hand_over: float
    rollout_length: int
    scatter: float = math.nan
    freedom: int = 0

    def seconds(self, workers: int, environments: float, threads: int = 1) -> float:
        """Of one iteration batch: workers x environments x rollout_length observations.

        Raises:
            ValueError: a number of threads, or of busy threads, that cannot be told from those measured.
        """
        slowdown = self._slowdown(workers * threads) / self._slowdown(threads)
        return self.hand_over + self.rollout_length * self.service.seconds(environments, threads) * slowdown

    def rate(self, workers: int, environments: float, threads: int = 1, confidence: float = 0.95) -> Estimate:
        """Observations per second of one more reading, with its interval."""
        value = workers * environments * self.rollout_length / self.seconds(workers, environments, threads)
        if not self.freedom:
            return Estimate(value, None)
        factor = math.exp(float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.scatter)
        return Estimate(value, (value / factor, value * factor))

    def _slowdown(self, threads: int) -> float:
        return threads * _value(self.curve, 1) / _value(self.curve, threads)


@dataclass(frozen=True)
class LearnerTime:
    """Seconds of learning from one iteration batch, all epochs: L = fixed + K · block + B · observation.

    Attributes:
        fixed: per iteration.
        block: per block of environments, whose gradient is accumulated and reduced by itself.
        observation: per observation of the batch.
        residual: largest relative error of the fit at a measured point.
    """

    fixed: float
    block: float
    observation: float
    residual: float

    def seconds(self, batch_size: float, blocks: float = 16) -> float:
        """Of one update."""
        return self.fixed + blocks * self.block + batch_size * self.observation

    def rate(self, batch_size: float, blocks: float = 16) -> float:
        """Observations per second."""
        return batch_size / self.seconds(batch_size, blocks)


def fit_learner(batch_sizes: Any, blocks: Any, seconds: Any) -> LearnerTime:
    """Fit a learner's update times, as `fit_service` does a worker's.

    With one number of blocks in all readings its part cannot be told from the fixed one, which then holds both.

    Args:
        batch_sizes, blocks: of each reading.
        seconds: of the update.

    Raises:
        ValueError: as `fit_service`.
    """
    b, k, t = _readings(batch_sizes=batch_sizes, blocks=blocks, seconds=seconds)
    several = len(set(k.tolist())) > 1
    columns = [np.ones_like(b), b] + ([k] if several else [])
    parts = _least_squares(columns, t)
    fitted = np.stack(columns, axis=1) @ parts
    return LearnerTime(float(parts[0]), float(parts[2]) if several else 0.0, float(parts[1]), float(np.abs(fitted / t - 1).max()))


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
        if _value(curve, workers) >= needed:
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
    """

    cpu_hour: float
    gpu_hour: float = 0.0
    worker_cpus: float = 1.0
    learner_cpus: float = 1.0
    learner_gpus: float = 0.0

    def of_hour(self, workers: float) -> float:
        """An hour of so many workers and the learner."""
        return self.cpu_hour * (workers * self.worker_cpus + self.learner_cpus) + self.gpu_hour * self.learner_gpus


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
    _value(curve, workers)
    return curve.predict(workers)


def _value(curve: ThroughputCurve, workers: int) -> float:
    found = curve.predict(workers)
    if found.value is None:
        raise ValueError(f"{workers} workers: {found.reason}")
    return found.value


def _readings(**columns: Any) -> list[np.ndarray]:
    """As vectors of one length, all positive."""
    arrays = [np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in columns.values()]
    if arrays[0].ndim != 1 or not arrays[0].size or any(a.shape != arrays[0].shape for a in arrays):
        raise ValueError(f"{', '.join(columns)} must have one entry for every reading")
    for name, array in zip(columns, arrays, strict=True):
        if not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{name} must be positive and finite")
    return arrays


def _least_squares(columns: list[np.ndarray], values: np.ndarray) -> np.ndarray:
    """Parts of the sum, none negative, that minimize the squares of relative errors."""
    design = np.stack(columns, axis=1) / values[:, None]
    scale = np.linalg.norm(design, axis=0)
    parts: np.ndarray = nnls(design / scale, np.ones_like(values))[0] / scale
    return parts
