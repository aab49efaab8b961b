"""The likelihood of runs around the frontier, some of which missed their goal, and how far an interval may reach.

Everything here is in natural logarithms: x = ln B, y = ln S, a = ln S_min, c = ln B_crit, and f = ln(1 + e^α(c - x)) is the bend,
with α = 1 but for the free exponent. `hyperbola.fit` says what the objective means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erfcx, expit, log_ndtr, stdtrit

from .runs import Point, group_names, logarithms, number_groups

__all__ = ["Best", "Likelihood", "find_minimum", "find_reach", "find_rises"]

_NOISE_FLOOR = 1e-6  # relative; no S is known better, so that runs without noise still have an interval
_BEYOND = 16.0  # how far, in ln B, B_crit is sought outside the sizes; there e⁻¹⁶ bends S by less than the noise floor


class Likelihood:
    """Runs as arrays in natural logarithms, and the profile of their likelihood.

    The objective is Q = Σ w (y - a - f)² over the runs that reached the goal - 2σ² Σ w ln Φ((a + f - y)/σ) over the others,
    whose y is the limit. It is -2σ² times a log-likelihood in which every batch size counts once: w is 1 / (runs of that size).
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.missed, self.x, self.y = logarithms(points)
        self.group = number_groups(group_names(points))
        self.sizes, self.size, self.count = np.unique(self.x, return_inverse=True, return_counts=True)
        self.sigma = 1.0
        # Up to a constant, Q depends on the runs of one size that reached the goal only through their mean.
        reached = np.bincount(self.size, ~self.missed)
        self.counts = reached > 0  # sizes at which some run reached the goal
        self.mean_x, self.mean_w = self.sizes[self.counts], (reached / self.count)[self.counts]
        self.mean_y = np.bincount(self.size, np.where(self.missed, 0.0, self.y))[self.counts] / reached[self.counts]
        self.limit_x, self.limit_y, self.limit_w = (v[self.missed] for v in (self.x, self.y, 1 / self.count[self.size]))

    def profile(self, c: np.ndarray, alpha: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For every c and α, which broadcast: the least Q over a, the a where it is, and half the curvature of Q in a there."""
        c, alpha = c[..., None], np.asarray(alpha)[..., None]
        apart = self.mean_y - _bend(alpha * (c - self.mean_x))
        total = float(self.mean_w.sum())
        free = a = apart @ self.mean_w / total
        if not self.missed.any():
            return (apart - a[..., None]) ** 2 @ self.mean_w, a, np.full(a.shape, total)
        limit = self.limit_y - _bend(alpha * (c - self.limit_x))
        for _ in range(50):  # Newton; the gradient is increasing and concave in a, so it climbs to the root and never past it
            t = (limit - a[..., None]) / self.sigma
            hazard = _hazard(t)
            curvature = total + np.clip(hazard * (hazard - t), 0.0, 1.0) @ self.limit_w
            step = (total * (free - a) + self.sigma * (hazard @ self.limit_w)) / curvature
            a = a + step
            if np.abs(step).max() < 1e-9 * self.sigma:
                break
        log_missed = log_ndtr((a[..., None] - limit) / self.sigma) @ self.limit_w
        return (apart - a[..., None]) ** 2 @ self.mean_w - 2 * self.sigma**2 * log_missed, a, curvature

    def edges(self, alpha: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """The range in which ln B_crit is sought; beyond it the runs show only one branch."""
        beyond = _BEYOND * np.maximum(1.0, 1.0 / np.asarray(alpha))
        return self.sizes[0] - beyond, self.sizes[-1] + beyond

    def best(self, alpha: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """For every α the ln B_crit with the least Q, and that Q. Q may have several minima, hence a grid first."""
        alpha = np.asarray(alpha)
        low, high = self.edges(alpha)
        return find_minimum(lambda c: self.profile(c, alpha[..., None])[0], low, high, 2 + int(4 * float((high - low).min())))

    def settle(self, free: int, search: Callable[[], tuple[float, float]]) -> Best:
        """Fit `free` parameters and σ, in turn until σ no longer changes; `search` finds the best c and α at the present σ."""
        missed = int(self.missed.sum())
        for _ in range(30):
            c, alpha = search()
            before = self.sigma
            for _ in range(50):
                a = float(self.profile(np.array([c]), alpha)[1][0])
                r = self.y - a - _bend(alpha * (c - self.x))
                squares = float(r[~self.missed] @ r[~self.missed])
                rms = math.sqrt(squares / (len(r) - missed))
                # The residual of a run that missed its goal exceeds its r: take the mean and variance of what it may be.
                t = np.where(self.missed, r, 0.0) / self.sigma
                hazard = _hazard(t)
                left = np.where(self.missed, self.sigma**2 * np.clip(1 + hazard * (t - hazard), 0.0, 1.0), 0.0)
                r = np.where(self.missed, self.sigma * hazard, r)
                # Its mean square is σ²(1 + ht). Solve for σ² at these ht where that converges, else take one EM step.
                surplus = float((hazard * t).sum())
                freedom = len(r) - missed - free - surplus
                if freedom < 0.5:
                    squares, freedom = squares + self.sigma**2 * (missed + surplus), len(r)
                last, self.sigma = self.sigma, max(math.sqrt(squares / freedom), _NOISE_FLOOR)
                if not missed or abs(self.sigma / last - 1) < 1e-4:
                    break
            if not missed or abs(self.sigma / before - 1) < 1e-3:
                break
        q = float(self.profile(np.array([c]), alpha)[0][0])  # at the σ that all intervals use
        mean = np.bincount(self.size, r)[self.counts] / self.count[self.counts]
        between = mean**2 + np.bincount(self.size, left)[self.counts] / self.count[self.counts] ** 2
        total = float((r**2 + left)[self.counts[self.size]].sum())
        within = total - float(between @ self.count[self.counts])
        return Best(q, a, c, alpha, rms, mean, float(between.sum()), within, len(mean) - free)


@dataclass(frozen=True)
class Best:
    """The least Q, where it is, and the residuals there."""

    q: float
    a: float
    c: float
    alpha: float
    rms: float  # over the runs that reached the goal
    mean: np.ndarray  # mean residual of every size that counts
    between: float  # sum of squares of those means
    within: float  # sum of squares of runs about the mean of their size
    degrees: int  # of freedom, of the means


def _bend(z: np.ndarray) -> np.ndarray:
    """ln(1 + eᶻ), in a third of the time of np.logaddexp."""
    return np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z)))


def _hazard(t: np.ndarray) -> np.ndarray:
    """φ(t)/Φ(-t) of the normal distribution, without overflow."""
    return math.sqrt(2 / math.pi) / erfcx(t / math.sqrt(2))


def find_minimum(
    function: Callable[[np.ndarray], np.ndarray], low: Any, high: Any, count: int, rounds: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """Where a function is least between low and high, and its value there; arrays of limits give one minimum for each.

    The function takes and returns arrays with one more axis, the last. The search begins with an even grid of `count` points
    and goes on with ever finer ones about the best of them.
    """
    low, high = np.asarray(low, dtype=np.float64)[..., None], np.asarray(high, dtype=np.float64)[..., None]
    grid = low + (high - low) * np.linspace(0.0, 1.0, count)
    half, fine = (high - low) / (count - 1), np.linspace(-1.0, 1.0, 25)
    for _ in range(rounds):
        values = function(grid)
        index = values.argmin(-1)[..., None]
        best, value = np.take_along_axis(grid, index, -1), np.take_along_axis(values, index, -1)
        grid, half = np.clip(best + half * fine, low, high), half / 12
    return best[..., 0], value[..., 0]


def find_reach(inside: Callable[[np.ndarray], np.ndarray], start: float, edge: float, count: int, points: int = 25) -> float:
    """The farthest point from `start` towards `edge` that is inside; exactly `edge` where that is inside."""
    grid, fine = np.linspace(edge, start, count), np.linspace(0.0, 1.0, points)
    found = inside(grid)
    if found[0]:
        return edge
    for _ in range(5):
        found[-1] = True
        index = int(found.argmax())
        grid = grid[index - 1] + (grid[index] - grid[index - 1]) * fine
        found = inside(grid)
    return float(grid[-1])


def find_rises(runs: Likelihood, best: Best, confidence: float) -> list[float]:
    """How far Q may rise inside the intervals of ln S_min, ln B_crit and ln E_min, and inside that of the free exponent.

    Each is t² times the variance of the mean of a batch size; see `hyperbola.fit`. The exponent's has no correction for errors
    that neighbours or groups share.
    """

    def t_squared(degrees: float) -> float:
        return float(stdtrit(degrees, 0.5 + confidence / 2)) ** 2

    counts, sizes = runs.count[runs.counts], len(best.mean)
    kept = runs.counts[runs.size]
    place = (np.cumsum(runs.counts) - 1)[runs.size[kept]]
    seeds = len(place) - sizes
    noise, shared, groups = _shared_offsets(runs, best.within / max(seeds, 1))
    lack = best.between / best.degrees
    pooled = (best.between + seeds * noise * float((1 / counts).mean())) / (best.degrees + seeds)
    least = max(t_squared(best.degrees + seeds) * pooled, t_squared(best.degrees) * _NOISE_FLOOR**2)

    design = np.column_stack([np.ones(sizes), expit(best.c - runs.sizes[runs.counts])])
    influence = np.linalg.pinv(design)
    # How far neighbouring sizes err alike: the lag-one correlation, less what the fit leaves in white residuals.
    left = np.eye(sizes) - design @ influence
    alike = float(best.mean[1:] @ best.mean[:-1]) / max(float(best.mean @ best.mean), 1e-300)
    rho = min(max(alike - float(np.trace(left, 1) / np.trace(left)), 0.0), 0.8)
    correlation = rho ** np.abs(np.subtract.outer(np.arange(sizes), np.arange(sizes)))
    rises = []
    for h in (influence[0], influence[1], influence.sum(0)):
        square = max(float(h @ h), 1e-300)
        between = lack * max(1.0, float(h @ correlation @ h) / square)
        offsets = np.bincount(runs.group[kept], (h / counts)[place])
        extra = shared * float(offsets @ offsets) / square
        degrees = (between + extra) ** 2 / max(between**2 / best.degrees + extra**2 / groups, 1e-300)  # Satterthwaite's
        rises.append(max(least, t_squared(max(degrees, 1.0)) * (between + extra)))
    return [*rises, max(least, t_squared(best.degrees) * lack)]


def _shared_offsets(runs: Likelihood, within: float) -> tuple[float, float, float]:
    """Variance of a run about its size, variance of the offsets that the runs of a group share, and its degrees of freedom.

    The method of moments, on what is left of each run after the mean of its size. Where no group has runs at several sizes, the
    first variance is `within` and the second is zero.
    """
    kept = ~runs.missed
    size, group = (np.unique(v[kept], return_inverse=True)[1] for v in (runs.size, runs.group))
    sizes, groups, total = size.max() + 1, group.max() + 1, len(size)
    if groups in (1, total):
        return within, 0.0, 1.0
    table = np.zeros((sizes, groups))
    np.add.at(table, (size, group), 1.0)
    y = runs.y[kept]
    apart = y - (np.bincount(size, y) / table.sum(1))[size]
    overlap = np.diag(table.sum(0)) - table.T @ (table / table.sum(1)[:, None])
    trace, square = float(np.trace(overlap)), float((overlap**2).sum())
    determinant = (total - sizes) * square - trace**2
    runs_sum, groups_sum = float(apart @ apart), float((np.bincount(group, apart) ** 2).sum())
    shared = ((total - sizes) * groups_sum - trace * runs_sum) / determinant if determinant > 1e-6 * square**2 else 0.0
    if shared <= 0:
        return within, 0.0, 1.0
    return max((square * runs_sum - trace * groups_sum) / determinant, 0.0), shared, groups - 1.0
