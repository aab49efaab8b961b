"""How long the parts of an iteration take: a worker's step, a fleet's batch, the hand-over, a learner's update; and their fits.

a worker's step of N environments takes   t = fixed + N (serial + parallel / threads)
n workers' fragments of T steps take      T t · slowdown(n) each on average, slowdown(n) = n X(1) / X(n), and scatter
handing them over takes                   H = fixed + n · worker + bytes · byte in all, one after another
an update of B observations in K blocks   L = fixed + K · block + B · observation
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.special import stdtrit

from ..estimate import Estimate
from .throughput import ThroughputCurve, readings

__all__ = [
    "FleetTime",
    "HandOver",
    "LearnerTime",
    "ServiceTime",
    "fit_hand_over",
    "fit_learner",
    "fit_service",
    "hand_over_seconds",
]

_DRAWS = 1 << 18  # fragment times that a prediction draws, always the same ones; stragglers are rare, and decide


@dataclass(frozen=True)
class ServiceTime:
    """Seconds that one worker takes for a step of all its environments: t = fixed + N (serial + parallel / threads).

    Attributes:
        fixed: seconds per step, whatever the number of environments.
        serial: seconds per environment and step, whatever the number of threads.
        parallel: seconds per environment and step on one thread, which the threads share; 0 where only one number of threads was
            measured.
        threads: numbers of threads that were measured.
        residual: largest relative error of the fit at a measured point.
    """

    fixed: float
    serial: float
    parallel: float
    threads: tuple[int, ...]
    residual: float

    def seconds(self, environments: float, threads: int = 1) -> float:
        """Seconds of one step.

        Raises:
            ValueError: only one number of threads was measured, and not this one.
        """
        if len(self.threads) == 1 and threads != self.threads[0]:
            raise ValueError(f"threads: only {self.threads[0]} was measured")
        return self.fixed + environments * (self.serial + self.parallel / threads)


def fit_service(environments: Any, threads: Any, seconds: Any) -> ServiceTime:
    """Fit a worker's step times, by least squares of relative errors with no part negative.

    Args:
        environments, threads: (N,) of each reading.
        seconds: (N,) seconds of one step of all environments.

    Raises:
        ValueError: the lengths differ, there is no reading, a number is not positive, or there are readings of one number of
            environments alone, which cannot tell what another one would take.
    """
    n, k, t = readings(environments=environments, threads=threads, seconds=seconds)
    _refuse_one(n, "environments")
    counts = tuple(sorted({int(value) for value in k}))
    fixed, serial, parallel, residual = _fit_three(n, n / k if len(counts) > 1 else None, t)
    return ServiceTime(fixed, serial, parallel, counts, residual)


@dataclass(frozen=True)
class HandOver:
    """Seconds that it takes to send parameters to the workers and to bring their fragments in, one after another.

    Attributes:
        fixed: seconds whatever the fleet.
        worker: seconds per worker.
        byte: seconds per byte of fragments; the learner's machine takes in 1 / byte bytes in a second.
    """

    fixed: float = 0.0
    worker: float = 0.0
    byte: float = 0.0

    def seconds(self, workers: int, fragment_bytes: float) -> float:
        """Seconds for so many workers and so many bytes in all."""
        return self.fixed + workers * self.worker + fragment_bytes * self.byte


def fit_hand_over(workers: Any, fragment_bytes: Any, seconds: Any, of: Any) -> HandOver:
    """Fit the hand-over between workers and learner, by least squares relative to whole iterations, with no part negative.

    Args:
        workers, fragment_bytes: (N,) of each reading.
        seconds: (N,) seconds that the hand-over took, see `hand_over_seconds`; below zero where clocks disagree.
        of: (N,) seconds of the whole iteration, which errors are relative to.

    Raises:
        ValueError: the lengths differ, there is no reading, or a number other than `seconds` is not positive.
    """
    n, size, whole = readings(workers=workers, fragment_bytes=fragment_bytes, of=of)
    took = np.asarray(seconds, dtype=np.float64)
    if took.shape != n.shape or not np.isfinite(took).all():
        raise ValueError("seconds must be finite, one for every reading")
    return HandOver(*_least_squares([np.ones_like(n), n, size], took, whole).tolist())


def hand_over_seconds(seconds: float, fragments: Any) -> float:
    """Seconds that the hand-over took in all, from those of the whole iteration and of every fragment; see `FleetTime`."""
    ends = np.sort(np.asarray(fragments, dtype=np.float64))
    n = len(ends)
    return n * float(((seconds - ends) / np.arange(n, 0, -1)).min())


@dataclass(frozen=True)
class FleetTime:
    """Seconds until n workers have made an iteration batch of one fragment each and all fragments are with the learner.

    Each worker takes a time of its own, drawn from those that were measured, and finished fragments queue. The batch is complete
    at the largest of (end of the k-th fragment) + (fragments from it on) · H/n. So the batch waits for a straggler, and meanwhile
    the other fragments are handed over.

    Attributes:
        service: step times of one worker that works alone, in the median.
        slowdowns: numbers of busy threads, from 1 on, ascending, and how much longer a step takes beside so many: measured, in
            the median, on workers of one thread each. Between them the logarithm is interpolated in ln n, because no law for a
            whole cluster says what the threads of one machine take from each other.
        curve: law fitted to the same readings; beyond the largest count slowdowns grow as it says.
        hand_over: time between the workers and the learner.
        spread: measured times of single fragments, each relative to the median of its fleet.
        observation_bytes: bytes of one observation in a fragment.
        rollout_length: T, steps of a fragment.
        scatter: standard deviation of ln(rate) of a reading about this law.
        freedom: degrees of freedom of `scatter`.
    """

    service: ServiceTime
    slowdowns: tuple[tuple[int, float], ...]
    curve: ThroughputCurve
    hand_over: HandOver
    spread: tuple[float, ...]
    observation_bytes: float
    rollout_length: int
    scatter: float = math.nan
    freedom: float = 0

    def seconds(self, workers: int, environments: float, threads: int = 1) -> float:
        """Seconds of one iteration batch: workers x environments x rollout_length observations.

        Raises:
            ValueError: a number of threads, or of busy threads, lies outside those that the readings identify.
        """
        drawn = np.random.default_rng(0).choice(self.spread, size=(max(_DRAWS // workers, 256), workers))
        ends = np.sort(drawn, axis=1) * self.working_seconds(workers, environments, threads)
        size = workers * environments * self.rollout_length * self.observation_bytes
        queued = np.arange(workers, 0, -1) * (self.hand_over.seconds(workers, size) / workers)
        return float((ends + queued).max(axis=1).mean())

    def working_seconds(self, workers: int, environments: float, threads: int = 1) -> float:
        """Median time of one fragment.

        Raises:
            ValueError: as `seconds`.
        """
        slowdown = self._slowdown(workers * threads) / self._slowdown(threads)
        return self.rollout_length * self.service.seconds(environments, threads) * slowdown

    def slowest_seconds(self, workers: int, environments: float, threads: int = 1) -> float:
        """Mean time of the slowest of the workers' fragments, whatever the hand-over takes after it.

        Raises:
            ValueError: as `seconds`.
        """
        below = np.linspace(0.0, 1.0, len(self.spread) + 1) ** workers  # chance that all are among the k fastest
        return float(np.diff(below) @ np.sort(self.spread)) * self.working_seconds(workers, environments, threads)

    def rate(self, workers: int, environments: float, threads: int = 1, confidence: float = 0.95) -> Estimate:
        """Observations per second of one more reading, with its interval."""
        value = workers * environments * self.rollout_length / self.seconds(workers, environments, threads)
        if not self.freedom:
            return Estimate(value, None)
        factor = math.exp(float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.scatter)
        return Estimate(value, (value / factor, value * factor))

    def _slowdown(self, threads: int) -> float:
        counts, factors = (np.array(column, dtype=np.float64) for column in zip(*self.slowdowns, strict=True))
        inside = float(np.exp(np.interp(math.log(threads), np.log(counts), np.log(factors))))
        most = float(counts[-1])
        if threads <= most:
            return inside
        return inside * (threads / self.curve.rate_of(threads)) / (most / self.curve.rate_of(most))


@dataclass(frozen=True)
class LearnerTime:
    """Seconds of learning from one iteration batch, all epochs: L = fixed + K · block + B · observation.

    Attributes:
        fixed: seconds per iteration.
        block: seconds per block of environments, whose gradient is accumulated and reduced by itself.
        observation: seconds per observation of the batch.
        residual: largest relative error of the fit at a measured point.
    """

    fixed: float
    block: float
    observation: float
    residual: float

    def seconds(self, batch_size: float, blocks: float = 16) -> float:
        """Seconds of one update."""
        return self.fixed + blocks * self.block + batch_size * self.observation


def fit_learner(batch_sizes: Any, blocks: Any, seconds: Any) -> LearnerTime:
    """Fit a learner's update times, as `fit_service` does a worker's.

    Where all readings have the same number of blocks, `fixed` holds the time of the blocks as well.

    Args:
        batch_sizes, blocks: (N,) of each reading.
        seconds: (N,) seconds of the update.

    Raises:
        ValueError: as `fit_service`, of batch sizes.
    """
    b, k, t = readings(batch_sizes=batch_sizes, blocks=blocks, seconds=seconds)
    _refuse_one(b, "batch_sizes")
    fixed, observation, block, residual = _fit_three(b, k if np.ptp(k) else None, t)
    return LearnerTime(fixed, block, observation, residual)


def _refuse_one(measured: np.ndarray, name: str) -> None:
    if not np.ptp(measured):
        raise ValueError(f"{name}: measure two or more; of {measured[0]:g} alone no other can be predicted")


def _fit_three(first: np.ndarray, second: np.ndarray | None, seconds: np.ndarray) -> tuple[float, float, float, float]:
    """The parts of seconds = fixed + a · first + b · second, and the largest relative error; b is 0 without `second`."""
    columns = [np.ones_like(first), first] + ([] if second is None else [second])
    parts = _least_squares(columns, seconds, seconds)
    residual = float(np.abs(np.stack(columns, axis=1) @ parts / seconds - 1).max())
    fixed, a, b = [*parts.tolist(), 0.0][:3]
    return fixed, a, b, residual


def _least_squares(columns: list[np.ndarray], values: np.ndarray, relative_to: np.ndarray) -> np.ndarray:
    """The parts of a sum, none negative, that minimize the squares of the errors relative to `relative_to`."""
    design = np.stack(columns, axis=1) / relative_to[:, None]
    scale = np.linalg.norm(design, axis=0)
    return nnls(design / scale, values / relative_to)[0] / scale
