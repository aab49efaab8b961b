"""What measured rates and a task's frontier say about an iteration and about a run: its wall time and its cost.

With B observations in an iteration batch, X(n) observations per second of n workers, and L seconds of learning:

    an iteration at lag 0 takes               B / X(n) + L
    an iteration at lag 1 takes               max(B / X(n), L)
    a run to the goal takes                   S(B) iterations, and costs that time of everything that was hired
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

from ..frontier import Frontier
from .service import FleetTime, LearnerTime
from .throughput import ThroughputCurve

__all__ = ["Choice", "CostPlan", "Iteration", "Price", "iteration", "plan"]


@dataclass(frozen=True)
class Iteration:
    """The predicted times of one iteration.

    Attributes:
        seconds: from one batch to the next.
        sampling_seconds: to make a batch, at the workers' rate.
        learning_seconds: to learn from it.
        bound: what takes most of the time, `sampling` or `learning`.
        workers_idle, learner_idle: shares of the time in which they wait.
        staleness: iterations between the policy that acted and the one that learns from it.
    """

    seconds: float
    sampling_seconds: float
    learning_seconds: float
    bound: Literal["sampling", "learning"]
    workers_idle: float
    learner_idle: float
    staleness: int


def iteration(batch_size: float, sampling_rate: float, learning_seconds: float, *, lag: int = 0) -> Iteration:
    """The times of one iteration.

    At lag 1 the workers and the learner have processors of their own. Where they share cores, what one gains the other loses.

    Args:
        batch_size: B, observations of the iteration batch.
        sampling_rate: X(n), observations per second of all workers together.
        learning_seconds: L, seconds of one update.
        lag: 0, or 1 for sampling one batch while learning from the one before.

    Raises:
        ValueError: a number is not positive, or `lag` is neither 0 nor 1.
    """
    if not (batch_size > 0 and sampling_rate > 0 and learning_seconds > 0):
        raise ValueError("batch_size, sampling_rate and learning_seconds must be positive")
    if lag not in (0, 1):
        raise ValueError("lag must be 0 or 1")
    sampling = batch_size / sampling_rate
    seconds = sampling + learning_seconds if lag == 0 else max(sampling, learning_seconds)
    return Iteration(
        seconds=seconds,
        sampling_seconds=sampling,
        learning_seconds=learning_seconds,
        bound="sampling" if sampling >= learning_seconds else "learning",
        workers_idle=1 - sampling / seconds,
        learner_idle=1 - learning_seconds / seconds,
        staleness=lag,
    )


@dataclass(frozen=True)
class Price:
    """What is hired, and what an hour of it costs, in any currency.

    Attributes:
        cpu_hour: price of one CPU for an hour.
        gpu_hour: price of one GPU for an hour.
        worker_cpus: CPUs of each worker.
        learner_cpus, learner_gpus: those of the learner, whatever the number of workers.
        acting_gpus: further ones that workers act on, of which each takes one at most.
        beside: part of the workers that is on the learner's machine and takes turns with it on its CPUs, of which only the larger
            number is hired there: 1 on a single machine, 0 where the learner has CPUs of its own.
        most_cpus: that there are to hire, the learner's included; nodes of different sizes do not have equally many workers, and
            `beside` alone would count more.

    Raises:
        ValueError: a price, or what is hired, is negative or not a number, or `beside` is no part.
    """

    cpu_hour: float
    gpu_hour: float = 0.0
    worker_cpus: float = 1.0
    learner_cpus: float = 1.0
    learner_gpus: float = 0.0
    acting_gpus: float = 0.0
    beside: float = 0.0
    most_cpus: float = math.inf

    def __post_init__(self) -> None:
        if not all(value >= 0 for value in asdict(self).values()) or not self.beside <= 1:
            raise ValueError("price must not be negative, nor what is hired, and beside is at most 1")

    def of_hour(self, workers: float) -> float:
        """The price of an hour of so many workers and the learner."""
        beside = self.beside * workers * self.worker_cpus
        cpus = workers * self.worker_cpus - beside + max(beside, self.learner_cpus)
        gpus = self.learner_gpus + min(self.acting_gpus, workers)
        return self.cpu_hour * min(cpus, self.most_cpus) + self.gpu_hour * gpus


@dataclass(frozen=True)
class Choice:
    """A run to the frontier's goal with one batch size on one number of workers.

    Attributes:
        batch_size: B, steps of all environments per iteration.
        workers: n.
        optimizer_steps: S(B), which counts iterations where these have several optimizer steps.
        observations: E = S times the observations of a batch.
        seconds: wall time to the goal.
        interval: interval of `seconds` for one run that reaches the goal, from those of the sampling rate, of S_min and of E_min,
            from the errors of the learner's fit and from the scatter of runs, taken as independent; None where one has none.
        cost: cost to the goal, in the price's currency.
        iteration: the times of one of the S iterations.
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
class CostPlan:
    """Wall time and cost of every batch size on every number of workers.

    Attributes:
        choices: one for every batch size and number of workers.
    """

    choices: tuple[Choice, ...]

    @property
    def pareto(self) -> tuple[Choice, ...]:
        """The choices that no other one beats in both wall time and cost, fastest first."""
        front: list[Choice] = []
        for choice in sorted(self.choices, key=lambda c: (c.seconds, c.cost)):
            if not front or choice.cost < front[-1].cost:
                front.append(choice)
        return tuple(front)

    def cheapest(self, deadline: float = math.inf) -> Choice | None:
        """The cheapest choice that ends within `deadline` seconds; None if none does, and then `fastest()` comes nearest."""
        return min((c for c in self.choices if c.seconds <= deadline), key=lambda c: (c.cost, c.seconds), default=None)

    def fastest(self, budget: float = math.inf) -> Choice | None:
        """The fastest choice that costs at most `budget`; None if none does, and then `cheapest()` comes nearest."""
        return min((c for c in self.choices if c.cost <= budget), key=lambda c: (c.seconds, c.cost), default=None)


def plan(
    frontier: Frontier,
    curve: ThroughputCurve | FleetTime,
    learner: LearnerTime,
    price: Price,
    *,
    batch_sizes: Sequence[float],
    workers: Sequence[int],
    lag: int = 0,
    blocks: int = 16,
    valid: Mapping[Any, float] = MappingProxyType({}),
) -> CostPlan:
    """Wall time and cost to the frontier's goal, for every batch size on every number of workers.

    One iteration makes one optimizer step of one batch, as in the runs of a sweep.

    Args:
        frontier: the task's frontier, identified.
        curve: the rate of n workers, whatever the batch; or the time of a fleet whose workers share a batch, so that each has
            B / (n · rollout_length) environments. Numbers of workers that leave a worker less than one are passed over.
        learner: update times of the learner.
        price: price of an hour.
        batch_sizes: batch sizes to choose from; those of the sweep, or sizes between them.
        workers: numbers of workers to choose from, at which the curve is identified.
        lag: see `iteration`.
        blocks: number of blocks of an update.
        valid: the observations among the steps of a batch size, where a task spends steps on resets, which teach nothing: the
            frontier counts observations, and a machine's time counts steps. A size that is not named has no such steps.

    Raises:
        ValueError: there is nothing to choose from, a batch size or number of workers is not positive, the frontier or the
            curve is not identified there.
    """
    if not len(batch_sizes) or not len(workers):
        raise ValueError("batch_sizes and workers must each name one or more")
    if not min(batch_sizes) > 0 or not min(workers) >= 1:
        raise ValueError("batch_sizes must be positive, and workers at least 1")
    choices = []
    for count in workers:
        for size in batch_sizes:
            if isinstance(curve, FleetTime) and size < count * curve.rollout_length:
                continue
            rate = (
                curve.rate(count, size / (count * curve.rollout_length)) if isinstance(curve, FleetTime) else curve.predict(count)
            )
            if rate.value is None:
                raise ValueError(f"{count:g} workers: {rate.reason}")
            learning = learner.seconds(size, blocks)
            one = iteration(size, rate.value, learning, lag=lag)
            seen = valid.get(size, size)
            steps = float(frontier.optimizer_steps(seen))
            seconds = steps * one.seconds
            interval = _interval(
                seconds,
                _steps_interval(frontier, seen),
                None if rate.interval is None else _factors(one, size, *((end, learning) for end in rate.interval)),
                _factors(one, size, *((rate.value, learning * math.exp(off)) for off in (-learner.residual, learner.residual))),
                (math.exp(-frontier.run_half_width), math.exp(frontier.run_half_width)),
            )
            cost = price.of_hour(count) * seconds / 3600
            choices.append(Choice(size, count, steps, steps * seen, seconds, interval, cost, one))
    if not choices:
        raise ValueError("batch_sizes are all too small for these workers: a worker needs rollout_length observations at least")
    return CostPlan(tuple(choices))


def _factors(usual: Iteration, batch_size: float, *ends: tuple[float, float]) -> tuple[float, float]:
    """Factors on an iteration's time at both ends: of its sampling rate, or of its learning time."""
    found = [iteration(batch_size, rate, learning, lag=usual.staleness).seconds / usual.seconds for rate, learning in ends]
    return min(found), max(found)


def _steps_interval(frontier: Frontier, batch_size: float) -> tuple[float, float] | None:
    """Factors on S(B) = S_min + E_min / B.

    The large batches say S_min and the small ones E_min, so the two are nearly independent.
    """
    parts = [(frontier.s_min, 1.0), (frontier.e_min, batch_size)]
    steps, below, above = 0.0, 0.0, 0.0
    for estimate, divisor in parts:
        if estimate.value is None or estimate.interval is None or not math.isfinite(estimate.interval[1]):
            return None
        steps += estimate.value / divisor
        below = math.hypot(below, (estimate.value - estimate.interval[0]) / divisor)
        above = math.hypot(above, (estimate.interval[1] - estimate.value) / divisor)
    return max(1 - below / steps, 1e-3), 1 + above / steps


def _interval(value: float, *factors: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval of a product from those of its factors: squares of half-widths add in log space."""
    known = [pair for pair in factors if pair is not None]
    if len(known) < len(factors):
        return None
    below = math.hypot(*(math.log(low) for low, _ in known))
    above = math.hypot(*(math.log(high) for _, high in known))
    return value * math.exp(-below), value * math.exp(above)
