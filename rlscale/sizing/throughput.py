"""The rate of n rollout workers: the universal scalability law, fitted to measured rates with intervals.

What follows for an iteration, a batch size and a purchase is in `rlscale.sizing.cost`; what is measured, in `benchmarks`.

    X(n) = λ n / (1 + σ (n-1) + κ n (n-1))

λ is the rate of one worker, σ the contention for what they share, κ the cost of their coherency, which makes the rate fall again
beyond n = √((1-σ)/κ). Source: N. Gunther, "Guerrilla Capacity Planning", 2007; σ = κ = 0 is proportional growth, κ = 0 the law
of Amdahl. The intervals are this project's own, see `fit_throughput`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.special import stdtrit

from ..estimate import Estimate

__all__ = ["ThroughputCurve", "fit_throughput", "readings"]

_NOISE_FLOOR = 1e-6  # relative; no rate is known better, so that readings without noise still have an interval
_CELLS = 121  # of the search, along each of σ and κ
_LEAST, _MOST = (1e-6, 1e-9), (10.0, 1.0)  # where σ and κ are sought, beside 0


@dataclass(frozen=True)
class _Region:
    """All (σ, κ) that the readings allow, (m,) each, with the range of ln λ at each of them.

    Attributes:
        endless: whether σ, and whether κ, may be as large as one likes: then so may λ, while the rates of more than one worker
            hardly differ from those at the largest σ and κ that were tried.
    """

    contention: np.ndarray
    coherency: np.ndarray
    log_rate: np.ndarray
    half_width: np.ndarray
    endless: tuple[bool, bool]

    def range_of(self, value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> tuple[float, float]:
        """Least and largest of a function of (σ, κ)."""
        found = value(self.contention, self.coherency)
        return float(found.min()), float(found.max())

    def ends(self, parameter: int) -> tuple[float, float]:
        """Least and largest σ (0) or κ (1)."""
        low, high = self.range_of(lambda s, k: (s, k)[parameter])
        return low, math.inf if self.endless[parameter] else high

    def rates(self, workers: float) -> tuple[float, float]:
        """Least and largest X(n)."""
        log = self.log_rate + _log_shape(np.array(float(workers)), self.contention, self.coherency)
        most = math.inf if workers == 1 and any(self.endless) else float(np.exp((log + self.half_width).max()))
        return float(np.exp((log - self.half_width).min())), most


@dataclass(frozen=True)
class ThroughputCurve:
    """A fitted law. An `Estimate` without a value says in its `reason` what to measure.

    Attributes:
        rate: λ, observations per second of one worker.
        contention: σ.
        coherency: κ.
        peak: n with the largest rate. Without a value where the rate rises as far as the readings can tell; its interval
            then begins at the least n at which it may fall.
        residual: rms of ln X about the fit, over all readings.
        workers, observations_per_second: the readings, as given.
        confidence: of all intervals.
    """

    rate: Estimate
    contention: Estimate
    coherency: Estimate
    peak: Estimate
    residual: float
    workers: tuple[float, ...]
    observations_per_second: tuple[float, ...]
    confidence: float
    _best: tuple[float, float, float] = field(repr=False)  # ln λ, σ, κ
    _region: _Region | None = field(repr=False, compare=False)

    def predict(self, workers: float) -> Estimate:
        """X(n), observations per second of so many workers. The interval is of the law, not of one more reading.

        Without a value where a parameter that matters there is not identified: at another count than the only one measured,
        beyond the largest with fewer than four, or at one worker where only larger counts were measured and do not tell.

        Raises:
            ValueError: `workers` is not at least 1.
        """
        if not workers >= 1:
            raise ValueError("workers must be at least 1")
        log_rate, contention, coherency = self._best
        value = math.exp(log_rate + float(_log_shape(np.array(float(workers)), contention, coherency)))
        interval = None if self._region is None else self._region.rates(workers)
        counts = sorted(set(self.workers))
        if workers == 1 and self.rate.value is None:
            return self.rate
        if len(counts) == 1 and workers != counts[0]:
            return Estimate(None, None, f"only {counts[0]:g} workers were measured; measure another count")
        if self.coherency.value is None and workers > counts[-1]:
            most = math.inf if interval is None else interval[1]
            return Estimate(None, (0.0, most), f"{self.coherency.reason}; {counts[-1]:g} workers are the most that were measured")
        return Estimate(value, interval)

    def rate_of(self, workers: float) -> float:
        """The value of `predict`.

        Raises:
            ValueError: there is none; says why.
        """
        found = self.predict(workers)
        if found.value is None:
            raise ValueError(f"{workers:g} workers: {found.reason}")
        return found.value


def fit_throughput(workers: Any, observations_per_second: Any, *, confidence: float = 0.95) -> ThroughputCurve:
    """Fit the law to readings, by least squares of ln X with σ and κ not negative.

    With four or more distinct counts all three parameters are fitted; with two or three κ = 0 is assumed and said to be not
    identified; with one, σ as well. The interval is that of the profile likelihood: every parameter set whose squares exceed
    the least by no more than t² s². Here s² is the variance about the fit, over all readings or over the counts' means,
    whichever is more, so that counts which err each in its own way widen it; t has (readings - parameters) degrees of freedom.
    Without a reading to spare there is no interval. Coverage at 95%, simulated with three readings at each of 4, 5 or 8 counts:
    91 to 100% where readings scatter alone by 2 or 5%, 83 to 94% where every count is also off by 2% of its own.

    Args:
        workers: n of every reading, 1 or more; several readings of one count say how far they scatter.
        observations_per_second: X of every reading.
        confidence: of the intervals.

    Raises:
        ValueError: lengths that differ, no reading, a number that is not positive, or fewer than one worker.
    """
    n, x = readings(workers=workers, observations_per_second=observations_per_second)
    if n.min() < 1:
        raise ValueError("workers must be at least 1")
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")
    gathered = _Readings(n, np.log(x))
    counts = len(gathered.counts)
    parameters = 3 if counts >= 4 else min(counts, 2)
    best = gathered.search(parameters)
    log_rate, q = (float(found) for found in gathered.profile(*best)[:2])
    freedom = n.size - parameters
    region = None
    if freedom:
        variance = (q + gathered.within) / freedom
        if counts > parameters:
            variance = max(variance, q / (counts - parameters))
        allowed = float(stdtrit(freedom, (1 + confidence) / 2)) ** 2 * max(variance, _NOISE_FLOOR**2)
        region = gathered.region(best, parameters, q + allowed)

    contention, coherency = best
    untold = contention > _MOST[0] or coherency > _MOST[1]

    def estimate(value: float, of: Callable[[_Region], tuple[float, float]]) -> Estimate:
        reason = f"{n.min():g} workers and more cannot tell it; measure one alone" if untold else None
        return Estimate(None if untold else value, None if region is None else of(region), reason)

    unknown = f"{counts} worker count{'s' * (counts > 1)} cannot tell it"
    no_contention = Estimate(None, None, f"contention is not identified: {unknown}; measure a second one")
    no_coherency = Estimate(None, None, f"coherency is not identified: {unknown}; measure {4 - counts} more")
    alone = estimate(math.exp(log_rate), lambda r: r.rates(1))
    if parameters == 1 and n[0] != 1:
        alone = Estimate(None, None, f"only {n[0]:g} workers were measured; measure one alone")
    return ThroughputCurve(
        rate=alone,
        contention=estimate(contention, lambda r: r.ends(0)) if parameters > 1 else no_contention,
        coherency=estimate(coherency, lambda r: r.ends(1)) if parameters > 2 else no_coherency,
        peak=_peak(contention, coherency, region) if parameters > 2 else no_coherency,
        residual=math.sqrt((q + gathered.within) / n.size),
        workers=tuple(n.tolist()),
        observations_per_second=tuple(x.tolist()),
        confidence=confidence,
        _best=(log_rate, contention, coherency),
        _region=region,
    )


def readings(**columns: Any) -> list[np.ndarray]:
    """The columns as vectors of one length, all positive."""
    arrays = [np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in columns.values()]
    if arrays[0].ndim != 1 or not arrays[0].size or any(a.shape != arrays[0].shape for a in arrays):
        raise ValueError(f"{', '.join(columns)} must have one entry for every reading")
    for name, array in zip(columns, arrays, strict=True):
        if not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{name} must be positive and finite")
    return arrays


class _Readings:
    """Readings gathered by count, and the squares of their logarithms about a law."""

    def __init__(self, n: np.ndarray, y: np.ndarray) -> None:
        self.counts, which, self.weight = np.unique(n, return_inverse=True, return_counts=True)
        self.mean = np.bincount(which, y) / self.weight
        self.within = float(((y - self.mean[which]) ** 2).sum())

    def profile(self, contention: Any, coherency: Any) -> tuple[np.ndarray, np.ndarray, float]:
        """ln λ that is best for (σ, κ), of any shape; the squares there, within-count ones apart; and their half curvature."""
        shape = _log_shape(self.counts, np.asarray(contention)[..., None], np.asarray(coherency)[..., None])
        apart = self.mean - shape
        total = float(self.weight.sum())
        log_rate = apart @ self.weight / total
        return log_rate, (apart - log_rate[..., None]) ** 2 @ self.weight, total

    def search(self, parameters: int) -> tuple[float, float]:
        """σ and κ of least squares: n/X is linear in (1, σ, κ)/λ, so Gauss-Newton steps are non-negative least squares."""
        n, root = self.counts, np.sqrt(self.weight)
        columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)][:parameters], axis=1)
        columns[:, 1:] /= max(n[-1] - 1, 1.0)  # of like size, for the solver
        seconds, model = n / np.exp(self.mean), n / np.exp(self.mean)
        for _ in range(50):
            parts = nnls(columns / model[:, None] * root[:, None], (1 + np.log(seconds / model)) * root)[0]
            model, before = columns @ parts, model
            if np.abs(model / before - 1).max() < 1e-12:
                break
        share = np.zeros(3)
        share[:parameters] = parts / max(parts[0], 1e-9 * model.max())  # 0 if only large counts were measured
        share[share < _NOISE_FLOOR] = 0.0  # nothing that could be told from zero
        return float(share[1]) / max(n[-1] - 1, 1.0), float(share[2]) / max(n[-1] - 1, 1.0)

    def region(self, best: tuple[float, float], parameters: int, most: float) -> _Region:
        """Every point of ever finer grids whose squares are at most `most`, and the best one."""
        axes = [_axis(i, parameters) for i in (0, 1)]
        points = [np.array([best])]
        endless: tuple[bool, bool] | None = None
        for _ in range(4):
            axes = [np.unique(np.append(axis, value)) for axis, value in zip(axes, best, strict=True)]
            s, k = np.meshgrid(*axes, indexing="ij")
            inside = self.profile(s, k)[1] <= most
            points.append(np.stack([s[inside], k[inside]], axis=-1))
            if endless is None:
                ends = [len(axis) > 1 and bool(inside.take(-1, axis=i).any()) for i, axis in enumerate(axes)]
                endless = (ends[0], ends[1])
            spans = [np.flatnonzero(inside.any(axis=1 - i)) for i in (0, 1)]
            axes = [_between(axis, int(span[0]), int(span[-1])) for axis, span in zip(axes, spans, strict=True)]
        s, k = np.concatenate(points).T
        log_rate, squares, curvature = self.profile(s, k)
        assert endless is not None
        return _Region(s, k, log_rate, np.sqrt(np.maximum(most - squares, 0.0) / curvature), endless)


def _log_shape(n: np.ndarray, contention: Any, coherency: Any) -> np.ndarray:
    """ln X(n)/λ."""
    return np.log(n) - np.log1p(contention * (n - 1) + coherency * n * (n - 1))


def _axis(parameter: int, parameters: int) -> np.ndarray:
    """Where σ (0) or κ (1) is sought first; 0 alone where it is not fitted."""
    if parameters < parameter + 2:
        return np.zeros(1)
    return np.concatenate([[0.0], np.geomspace(_LEAST[parameter], _MOST[parameter], _CELLS)])


def _between(axis: np.ndarray, first: int, last: int) -> np.ndarray:
    """Finer points from before the first to after the last."""
    if len(axis) == 1:
        return axis
    return np.linspace(axis[max(first - 1, 0)], axis[min(last + 1, len(axis) - 1)], _CELLS)


def _peak(contention: float, coherency: float, region: _Region | None) -> Estimate:
    """√((1-σ)/κ), 1 at least."""

    def peak(s: Any, k: Any) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(k > 0, np.sqrt(np.maximum(np.divide(1 - s, k), 1.0)), np.where(np.asarray(s) < 1, np.inf, 1.0))

    value = float(peak(np.array(contention), np.array(coherency)))
    interval = None if region is None else region.range_of(peak)
    if math.isinf(value):
        return Estimate(None, interval, "the rate rises with every worker, as far as the readings can tell")
    return Estimate(value, interval)
