"""The noise scale of one batch or of a window of updates, with its interval; the formulas stand in the folder's `__init__`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..estimate import Estimate
from .blocks import BlockStatistics

__all__ = [
    "POOL_WINDOW",
    "NoiseEstimate",
    "degrees_of",
    "estimate",
    "fieller",
    "leave_one_out",
    "noise_scale",
    "pool",
    "ratio",
    "resolve",
    "usable",
]

POOL_WINDOW = 20
"""Updates that are pooled where a momentary noise scale is shown or followed."""


@dataclass(frozen=True)
class NoiseEstimate:
    """A simple noise scale and the figures behind it.

    Attributes:
        trace_cov: tr Σ per observation (mean over updates when pooled).
        grad_sq: unbiased |G|²; negative when noise drowns it, and then `b_simple` is None.
        b_simple: tr Σ / |G|² in observations; None when not resolved, see `reason`.
        interval: 95% interval of B_simple; the upper end may be `inf`.
        blocks: number of blocks that hold observations (distinct ones when pooled).
        observations: number of valid observations.
        updates: number of batches.
        top_tenth_share: share of the noise Σ n_k |g_k - ĝ|² that the noisiest tenth of the blocks carries. Far above 0.1
            means heavy tails: then trust the interval less and use more blocks.
        reason: why `b_simple` is None; None when it is resolved.
    """

    trace_cov: float
    grad_sq: float
    b_simple: float | None
    interval: tuple[float, float]
    blocks: int
    observations: float
    updates: int = 1
    top_tenth_share: float = math.nan
    reason: str | None = None

    @property
    def noise_scale(self) -> Estimate:
        """B_simple as the project-wide `Estimate`."""
        return Estimate(self.b_simple, self.interval, self.reason)


def noise_scale(statistics: BlockStatistics) -> NoiseEstimate:
    """Noise scale of one batch from its blocks, with a delete-one-block jackknife and Fieller's interval.

    Raises:
        ValueError: fewer than two blocks hold observations.
    """
    return pool([statistics])


estimate = noise_scale  # its former name


def pool(statistics: Sequence[BlockStatistics]) -> NoiseEstimate:
    """Noise scale over a window of updates: the sum of the numerators divided by the sum of the denominators.

    The interval leaves out one block number at a time, from every update of the window at once, because the noise of an
    environment persists across successive updates.

    Raises:
        ValueError: the list is empty, or in some update fewer than two blocks hold observations.
    """
    trace, grad = leave_one_out(statistics)
    return resolve(trace.sum(0), grad.sum(0), trace, grad, statistics, degrees_of(statistics))


def _trace_and_grad(count: Any, n: Any, n_sq: Any, n_square: Any, nn_square: Any, mean_sq: Any) -> tuple[Any, Any]:
    """tr Σ and |G|² from K, Σn, Σn², Σn|g|², Σn²|g|² (sums over the blocks) and |ĝ|²."""
    return (n_square - n * mean_sq) / (count - 1), (n**2 * mean_sq - nn_square) / (n**2 - n_sq)


def leave_one_out(statistics: Sequence[BlockStatistics]) -> tuple[np.ndarray, np.ndarray]:
    """tr Σ and |G|² of every update, each (updates, 1 + J): from all blocks, then without each of the J block numbers."""
    if not isinstance(statistics, Sequence) or not all(isinstance(one, BlockStatistics) for one in statistics):
        raise ValueError("statistics: give what block_statistics returns, to `pool` a list of it")
    if not statistics:
        raise ValueError("statistics: at least one update is needed")
    names = np.unique(np.concatenate([s.block[s.size > 0] for s in statistics]))
    traces, grads = [], []
    for s in statistics:
        kept = s.size > 0
        n_k, square, dot = s.size[kept], s.square[kept], s.dot[kept]
        count = len(n_k)
        if count < 2:
            raise ValueError("statistics: every update needs at least two blocks with observations")
        n = n_k.sum()
        mean_sq = (n_k * dot).sum() / n
        sums = np.array([count, n, (n_k**2).sum(), (n_k * square).sum(), (n_k**2 * square).sum(), mean_sq])
        whole = np.array(_trace_and_grad(*sums))
        replicates = np.repeat(whole[:, None], len(names) + 1, axis=1)
        if count > 2:
            reduced = sums[:, None] - np.array([np.ones(count), n_k, n_k**2, n_k * square, n_k**2 * square, np.zeros(count)])
            reduced[5] = (n**2 * mean_sq - 2 * n * n_k * dot + n_k**2 * square) / (n - n_k) ** 2
            # The jackknife's factor is (K - 1) / K of this update, but `resolve` applies that of all J block numbers.
            own = math.sqrt((count - 1) / count * len(names) / (len(names) - 1))
            where = 1 + np.searchsorted(names, s.block[kept])
            replicates[:, where] += own * (np.array(_trace_and_grad(*reduced)) - whole[:, None])
        traces.append(replicates[0])
        grads.append(replicates[1])
    return np.array(traces), np.array(grads)


def degrees_of(statistics: Sequence[BlockStatistics]) -> float:
    """Degrees of freedom of an interval that leaves out one block number at a time: their effective number, less one.

    Where every update holds the same blocks that is their number. Elsewhere the noise is mostly that of the blocks that make up
    the updates of few blocks: in the sum over updates a block has a variance as one over the square of the number of blocks that
    share its update (Satterthwaite 1946).
    """
    blocks = [s.block[s.size > 0] for s in statistics]
    _, number = np.unique(np.concatenate(blocks), return_inverse=True)
    variance = np.bincount(number, np.concatenate([np.full(len(held), len(held) ** -2.0) for held in blocks]))
    return float(variance.sum() ** 2 / (variance**2).sum()) - 1


def resolve(
    numerator: np.ndarray,
    denominator: np.ndarray,
    trace: np.ndarray,
    grad: np.ndarray,
    statistics: Sequence[BlockStatistics],
    degrees: float,
) -> NoiseEstimate:
    """Ratio and interval of a numerator and a denominator, each (1 + J,): from the whole sample, then without each of J parts.

    The parts are blocks, or whole runs; `trace` and `grad` are as `leave_one_out` returns them, `degrees` as for `ratio`.
    """
    trace_cov, grad_sq = float(trace[:, 0].mean()), float(grad[:, 0].mean())
    observations = float(sum(s.size.sum() for s in statistics))
    common = (trace.shape[1] - 1, observations, len(statistics), _top_tenth_share(statistics))

    def unresolved(low: float, reason: str) -> NoiseEstimate:
        return NoiseEstimate(trace_cov, grad_sq, None, (low, math.inf), *common, reason)

    if min(int((s.size > 0).sum()) for s in statistics) < 3:
        return unresolved(0.0, "an interval needs at least three blocks in every update")
    if not (np.isfinite(numerator).all() and np.isfinite(denominator).all()):
        return unresolved(0.0, "|G|² + tr Σ / B is not positive in some window: use longer windows")
    found = ratio(numerator, denominator, degrees)
    return NoiseEstimate(trace_cov, grad_sq, found.value, found.interval or (0.0, math.inf), *common, found.reason)


def ratio(numerator: np.ndarray, denominator: np.ndarray, degrees: float) -> Estimate:
    """tr Σ / |G|², or a ratio like it, from the whole sample and from each of the samples without one of J parts, both (1 + J,).

    Args:
        numerator, denominator: finite.
        degrees: of freedom of Student's t for the interval: J - 1 where the parts count alike.

    Returns:
        The ratio with its 95% interval. Not resolved where the denominator does not stand out from zero, so that the interval has
        no upper end, nor where the numerator is not above zero: no noise scale is zero or negative.
    """
    a, b, parts, t = float(numerator[0]), float(denominator[0]), len(numerator) - 1, float(stdtrit(degrees, 0.975))
    covariance = (parts - 1) * np.cov(numerator[1:], denominator[1:], ddof=0)
    low, high = fieller(a, b, covariance, t)
    if math.isfinite(high) and (numerator > 0).all() and (denominator > 0).all():
        # With few effective dimensions tr Σ is skewed like a χ², and Fieller's set is too short at its upper end. The jackknife
        # of the log ratio is right there, and not longer than Fieller's set where that is right. So take the hull of both.
        spread = t * math.sqrt((parts - 1) * float(np.var(np.log(numerator[1:] / denominator[1:]))))
        low, high = min(low, a / b * math.exp(-spread)), max(high, a / b * math.exp(spread))
    if math.isinf(high):
        return Estimate(None, (low, high), "|G|² does not stand out from the noise")
    if numerator[0] <= 0:
        return Estimate(None, (low, high), "tr Σ is not above zero")
    return Estimate(float(numerator[0] / denominator[0]), (low, high))


def fieller(a: float, b: float, covariance: np.ndarray, t: float) -> tuple[float, float]:
    """All ratios ρ ≥ 0 for which a - ρb is within t standard errors of zero (Fieller 1954).

    Args:
        a, b: numerator and denominator; b may be negative.
        covariance: (2, 2) covariance of the two.
        t: quantile of Student's distribution.

    Returns:
        The lowest and the highest such ratio; the highest is inf where b does not stand out above zero, and the lowest is zero
        where it stands out below. Both are zero where b stands out above zero and every such ratio is negative.
    """
    vaa, vab, vbb = float(covariance[0, 0]), float(covariance[0, 1]), float(covariance[1, 1])
    quadratic, linear, constant = b * b - t * t * vbb, a * b - t * t * vab, a * a - t * t * vaa
    discriminant = linear * linear - quadratic * constant
    if b > 0 and quadratic > 0:
        root = math.sqrt(max(discriminant, 0.0))  # never negative here but for rounding
        return max((linear - root) / quadratic, 0.0), max((linear + root) / quadratic, 0.0)
    if quadratic >= 0 or discriminant < 0 or constant <= 0:
        return 0.0, math.inf
    # The set is unbounded: it excludes the ratios between the two roots, and zero is one of those.
    roots = sorted(((linear - math.sqrt(discriminant)) / quadratic, (linear + math.sqrt(discriminant)) / quadratic))
    return max(roots[1], 0.0), math.inf


def _top_tenth_share(statistics: Sequence[BlockStatistics]) -> float:
    """Share of Σ n_k |g_k - ĝ|², summed over the updates by block number, in the noisiest tenth of the blocks."""
    noise = [(s.size * (s.square - 2 * s.dot + (s.size * s.dot).sum() / s.size.sum()))[s.size > 0] for s in statistics]
    _, number = np.unique(np.concatenate([s.block[s.size > 0] for s in statistics]), return_inverse=True)
    values = np.sort(np.maximum(np.bincount(number, np.concatenate(noise)), 0.0))[::-1]
    total = values.sum()
    return float(values[: max(1, round(len(values) / 10))].sum() / total) if total > 0 else math.nan


def usable(measured: Sequence[BlockStatistics]) -> list[BlockStatistics]:
    """Those of three blocks, which an interval needs of every update; where there is none, those of two, which say so."""
    three, two = ([s for s in measured if (s.size > 0).sum() >= fewest] for fewest in (3, 2))
    return three or two
