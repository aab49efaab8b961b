"""The frontier between optimizer steps and observations, and its critical batch size, from runs at several batch sizes.

What lives here: the fit with its intervals, the free exponent, the dependence on the range of sizes, the gain of an adaptive
batch size. What does not: which runs to make (`benchmarks`) and how they are stored (`rlscale.records.run`).

Notation: S optimizer steps and E observations to a goal, B the batch size in observations per optimizer step:

    (S/S_min - 1)(E/E_min - 1) = 1, or S = S_min (1 + B_crit/B), E = E_min (1 + B/B_crit), E_min = S_min · B_crit
    ln S = ln S_min + ln(1 + B_crit/B) + e        one residual per run; E = S·B is not a second datum

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, equations 2.11 and
2.12 and appendix D. The interval is this project's own, see `fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
from scipy.special import erfcx, expit, log_ndtr, stdtrit

from .estimate import Estimate

__all__ = ["Frontier", "Point", "adaptive_gain", "fit"]

_Floats = TypeVar("_Floats", float, np.ndarray)
_NOISE_FLOOR = 1e-6  # relative; no S is known better, so that runs without noise still have an interval
_BEYOND = 16.0  # how far, in ln B, B_crit is sought outside the sizes; there e⁻¹⁶ bends S by less than the noise floor
_EXPONENTS = 0.1, 10.0  # the range in which the free exponent is sought


@dataclass(frozen=True)
class Point:
    """One run, as it was given.

    Attributes:
        batch_size: B, observations per optimizer step.
        optimizer_steps: S to the goal; inf for a run that missed it.
        observations: observations to the goal, or spent by a run that missed it; None when not given.
        group: the name of its replicate, such as its seed; None for a run by itself.
        censored: whether the run missed its goal; then S > observations / batch_size is all it says.
    """

    batch_size: float
    optimizer_steps: float
    observations: float | None
    group: Hashable
    censored: bool


@dataclass(frozen=True)
class Frontier:
    """A fitted frontier. An `Estimate` without a value says in its `reason` which batch size to add.

    Attributes:
        s_min: fewest optimizer steps, at infinite batch size.
        e_min: fewest observations, at batch size zero; s_min · b_crit.
        b_crit: the critical batch size in observations, where S = 2·S_min and E = 2·E_min. Its interval reaches to inf where
            the sizes show only the branch S ∝ 1/B, and from 0 where they show only the flat one.
        residual: rms of ln S about the fit over the runs that reached the goal; nan with fewer than three sizes.
        points: the runs, as given.
        confidence: of all intervals.

    The fit with a free exponent and the fits without one size are made when first asked for. They stand beside B_crit
    because B_crit depends on the range of sizes.
    """

    s_min: Estimate
    e_min: Estimate
    b_crit: Estimate
    residual: float
    points: tuple[Point, ...]
    confidence: float = 0.95

    def optimizer_steps(self, batch_size: _Floats) -> _Floats:
        """S = s_min (1 + b_crit/B) for a batch size or an array of them.

        Raises:
            ValueError: the frontier is not identified.
        """
        s_min, b_crit = self._identified()
        return s_min * (1.0 + b_crit / batch_size)

    def observations(self, batch_size: _Floats) -> _Floats:
        """E = s_min (B + b_crit) for a batch size or an array of them.

        Raises:
            ValueError: the frontier is not identified.
        """
        s_min, b_crit = self._identified()
        return s_min * (batch_size + b_crit)

    def overhead_batch(self, overhead: float = 0.2) -> Estimate:
        """Batch size at which E = (1 + overhead) e_min, which is overhead · b_crit; at 1 it is b_crit itself.

        The default is the figure that Zhang et al. 2024 quote ("How Does Critical Batch Size Scale in Pre-training?").

        Raises:
            ValueError: `overhead` is not positive.
        """
        if not overhead > 0:
            raise ValueError("overhead must be positive")
        b = self.b_crit
        interval = None if b.interval is None else (overhead * b.interval[0], overhead * b.interval[1])
        return Estimate(None if b.value is None else overhead * b.value, interval, b.reason)

    @property
    def scatter(self) -> float:
        """Rms of ln S about the mean of its own batch size, over the runs that reached the goal; nan without repetitions.

        Degrees of freedom: runs - sizes. No curve can remove it from `residual`.
        """
        reached: dict[float, list[float]] = {}
        for p in self.points:
            if not p.censored:
                reached.setdefault(p.batch_size, []).append(math.log(p.optimizer_steps))
        logs = [np.array(values) for values in reached.values()]
        freedom = sum(len(values) - 1 for values in logs)
        return math.sqrt(sum(float(((v - v.mean()) ** 2).sum()) for v in logs) / freedom) if freedom else math.nan

    @property
    def exponent(self) -> Estimate:
        """α of S = S_min (1 + (B_crit/B)^α), fitted freely; 1 is the theory. Below 1 the bend is longer than it says."""
        return self._free[0]

    @property
    def exponent_residual(self) -> float:
        """As `residual`, of the fit with the free exponent; nan where that fit needs more sizes."""
        return self._free[1]

    @property
    def exponent_b_crit(self) -> float | None:
        """B_crit of the fit with the free exponent; None where it lies outside the sizes."""
        return self._free[2]

    @cached_property
    def leave_one_size_out(self) -> Mapping[float, float | None]:
        """For every batch size B_crit without its runs; None where it is then not identified."""
        sizes = sorted({p.batch_size for p in self.points})
        rest = {size: tuple(p for p in self.points if p.batch_size != size) for size in sizes}
        return {size: _fit(points, self.confidence).b_crit.value if points else None for size, points in rest.items()}

    @cached_property
    def _free(self) -> tuple[Estimate, float, float | None]:
        return _fit_exponent(self.points, self.confidence)

    def _identified(self) -> tuple[float, float]:
        if self.b_crit.value is None or self.s_min.value is None:
            raise ValueError(f"the frontier is not identified: {self.b_crit.reason}")
        return self.s_min.value, self.b_crit.value


def fit(
    batch_size: Any,
    optimizer_steps: Any,
    observations: Any = None,
    *,
    group: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Frontier:
    """Fit the frontier, with intervals.

    Runs that missed their goal are censored: the likelihood holds that they would have needed more steps. Every batch size
    counts once, by the mean of its runs, because runs of one size share its learning rate and with that an error of their
    own. The interval is that of the profile likelihood, F-calibrated: Q may rise by t² times the variance of such a mean, with
    t of (sizes - 2) degrees of freedom. The variance is the residual one between sizes, or the pooled one of all runs with its
    own t where that gives more; more by what neighbouring sizes err alike; more, for s_min and e_min, by what groups share.

    Coverage at 95%, simulated: three fresh runs at each of 3 to 10 sizes from B_crit/16 to 16 B_crit, noise of 5, 10 or 20%, at
    the true best rate or the best of five a factor of √2 or 2 apart, chosen on one noisy run each: B_crit 93 to 99%. Pooling
    all runs as if independent gives 81 to 91% there, and ±1 standard error 60% with five sizes. Two limits. A rate beside the
    best costs steps at every size, so s_min and e_min are those of the runs as tuned (the best rate's in 78 to 98%). And rates
    three apart that drift against the best one along the sizes bend the frontier itself (58 to 92%): choose finer ones.

    Args:
        batch_size: B of every run, observations per optimizer step; exactly the same number for runs meant as one size.
        optimizer_steps: S of every run, to the goal; inf for a run that missed it.
        observations: those to the goal, or spent without reaching it. Needed for a run that missed its goal, which is then
            censored at observations / batch_size steps; else only kept.
        group: for every run the name of its replicate, such as its seed, whose runs at several sizes may share an offset;
            None for a run by itself.
        confidence: of the intervals.

    Returns:
        A `Frontier`. Its b_crit is withheld with the reason where its interval has no end on one side, or lies outside the
        sizes, and where fewer than three sizes have a run that reached the goal.

    Raises:
        ValueError: lengths that differ, no run, or a number that is not positive; the message names the argument.
    """
    b, s = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (batch_size, optimizer_steps))
    e = np.full(b.shape, np.nan) if observations is None else np.atleast_1d(np.asarray(observations, dtype=np.float64))
    names = [None] * b.size if group is None else list(group)
    if b.ndim != 1 or b.size == 0 or s.shape != b.shape or e.shape != b.shape or len(names) != b.size:
        raise ValueError("batch_size, optimizer_steps, observations and group must have one entry for every run")
    if not (np.isfinite(b) & (b > 0)).all():
        raise ValueError("batch_size must be positive and finite")
    if not (s > 0).all():
        raise ValueError("optimizer_steps must be positive, or inf for a run that missed its goal")
    if np.any(e <= 0) or np.isinf(e).any():
        raise ValueError("observations must be positive and finite, or nan where not known")
    if np.isnan(e[np.isinf(s)]).any():
        raise ValueError("observations: a run that missed its goal (optimizer_steps = inf) needs those that it spent")
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")
    points = tuple(
        Point(float(b[i]), float(s[i]), None if math.isnan(e[i]) else float(e[i]), names[i], math.isinf(s[i]))
        for i in range(b.size)
    )
    return _fit(points, confidence)


def adaptive_gain(noise_scales: Any, full_batch_steps: Any) -> float:
    """Gain γ of adapting the batch size along a run (paper, appendix D): 1 for a constant noise scale, else less.

    With B(s) = √(r·𝓑(s)) the frontier becomes (S/S_min - 1)(E/E_min - 1) = γ where the best constant batch size has 1:

        γ = (∫√𝓑 ds)² / (S_min·E_min), S_min = ∫ds, E_min = ∫𝓑 ds

    So the smaller γ, the more there is to win: steps and observations beyond the fewest shrink by √γ each.

    Args:
        noise_scales: 𝓑 along the run, one number per stretch, in observations; zero or more.
        full_batch_steps: ds, the full-batch steps that each stretch made; an optimizer step at batch size B makes
            1 / (1 + 𝓑/B) of one.

    Raises:
        ValueError: shapes that differ, numbers that are negative or not finite, or nothing but zeros.
    """
    scale, steps = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (noise_scales, full_batch_steps))
    if scale.shape != steps.shape or scale.ndim != 1:
        raise ValueError("noise_scales and full_batch_steps must be vectors of one length")
    for name, values in (("noise_scales", scale), ("full_batch_steps", steps)):
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"{name} must be finite and not negative")
    s_min, e_min = float(steps.sum()), float((scale * steps).sum())
    if s_min == 0 or e_min == 0:
        raise ValueError("noise_scales, full_batch_steps: no stretch has both a noise scale and steps")
    return float((np.sqrt(scale) * steps).sum()) ** 2 / (s_min * e_min)


class _Runs:
    """Runs as arrays in natural logarithms, and the profile of their likelihood.

    The objective is Q = Σ w (y - a - f)² over the runs that reached the goal - 2σ² Σ w ln Φ((a + f - y)/σ) over the others,
    whose y is the limit: -2σ² times a log-likelihood in which every batch size counts once, w being 1 / (runs of that size).
    Here a = ln S_min, c = ln B_crit and f = ln(1 + e^α(c - x)).
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.missed = np.array([p.censored for p in points])
        self.x = np.log([p.batch_size for p in points])
        self.y = np.log([p.observations / p.batch_size if p.censored and p.observations else p.optimizer_steps for p in points])
        names = [(0, p.group) if p.group is not None else (1, i) for i, p in enumerate(points)]
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        self.group = np.array([number[name] for name in names])
        self.sizes, self.size, self.count = np.unique(self.x, return_inverse=True, return_counts=True)
        self.sigma = 1.0
        # Q needs the runs of one size that reached the goal only as their mean, but for a constant.
        reached = np.bincount(self.size, ~self.missed)
        self.counts = reached > 0  # sizes at which some run reached the goal
        self.mean_x, self.mean_w = self.sizes[self.counts], (reached / self.count)[self.counts]
        self.mean_y = np.bincount(self.size, np.where(self.missed, 0.0, self.y))[self.counts] / reached[self.counts]
        self.limit_x, self.limit_y, self.limit_w = (v[self.missed] for v in (self.x, self.y, 1 / self.count[self.size]))

    def profile(self, c: np.ndarray, alpha: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Q at its best a, that a, and the half curvature of Q in a; c of any shape, α broadcasting with it."""
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
        """Between which ln B_crit is sought: beyond, the runs show only one branch."""
        beyond = _BEYOND * np.maximum(1.0, 1.0 / np.asarray(alpha))
        return self.sizes[0] - beyond, self.sizes[-1] + beyond

    def best(self, alpha: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """ln B_crit with the least Q, and that Q, for every α. Q may have several minima, hence a grid first."""
        alpha = np.asarray(alpha)
        low, high = self.edges(alpha)
        return _minimum(lambda c: self.profile(c, alpha[..., None])[0], low, high, 2 + int(4 * float((high - low).min())))

    def settle(self, free: int, search: Callable[[], tuple[float, float]]) -> _Best:
        """The best of `free` parameters, of which `search` finds c and α at a given σ; settles σ on the way."""
        missed = int(self.missed.sum())
        for _ in range(30):
            c, alpha = search()
            before = self.sigma
            for _ in range(50):
                a = float(self.profile(np.array([c]), alpha)[1][0])
                r = self.y - a - _bend(alpha * (c - self.x))
                squares = float(r[~self.missed] @ r[~self.missed])
                rms = math.sqrt(squares / (len(r) - missed))
                # Of a run that missed its goal the residual is known to exceed its r: the mean and variance of what it may be.
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
        return _Best(q, a, c, alpha, rms, mean, float(between.sum()), within, len(mean) - free)


@dataclass(frozen=True)
class _Best:
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


def _minimum(
    function: Callable[[np.ndarray], np.ndarray], low: Any, high: Any, count: int, rounds: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """Where a function is least between low and high, and its value; for arrays of limits, one minimum for each.

    The function takes and returns arrays with one more, last, axis. First an even grid of `count`, then ever finer ones.
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


def _reach(inside: Callable[[np.ndarray], np.ndarray], start: float, edge: float, count: int, points: int = 25) -> float:
    """The farthest point from start towards edge that is inside; exactly edge when that is."""
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


def _rises(runs: _Runs, best: _Best, confidence: float) -> list[float]:
    """How far Q may rise inside the intervals of ln S_min, ln B_crit, ln E_min, and of a parameter about which one knows less.

    That is t² times the variance of the mean of a size; see `fit`.
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
    # Neighbours in size that err alike: the lag-one correlation, above what the fit leaves in white residuals.
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


def _shared_offsets(runs: _Runs, within: float) -> tuple[float, float, float]:
    """Variance of a run about its size, that of offsets shared by the runs of a group, and the latter's degrees of freedom.

    By moments, from what is left after the mean of each size. Without groups at several sizes it is the variance `within`.
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


def _fit(points: tuple[Point, ...], confidence: float) -> Frontier:
    """`fit` of runs that were checked."""
    runs = _Runs(points)
    if runs.counts.sum() < 3:
        nothing = Estimate(None, None, _too_few(runs))
        return Frontier(nothing, nothing, nothing, math.nan, points, confidence)
    best = runs.settle(2, lambda: (float(runs.best()[0]), 1.0))
    rises = _rises(runs, best, confidence)
    bottom, top = (float(edge) for edge in runs.edges())
    count = 2 + int(4 * (top - bottom))

    @cache
    def region(rise: float) -> tuple[float, float]:
        def inside(c: np.ndarray) -> np.ndarray:
            return runs.profile(c)[0] <= best.q + rise

        return _reach(inside, best.c, bottom, count), _reach(inside, best.c, top, count)

    def projected(rise: float, slope: float) -> tuple[float, float]:
        """Ends of a + slope·c over the region: the profile-likelihood interval of that parameter."""
        low, high = region(rise)

        def end(sign: float) -> float:
            def least(c: np.ndarray) -> np.ndarray:
                q, a, curvature = runs.profile(c)
                return sign * (a + slope * c) - np.sqrt(np.maximum(best.q + rise - q, 0.0) / curvature)

            return sign * float(_minimum(least, low, high, 65, 3)[1])

        return end(1.0), end(-1.0)

    low, high = region(rises[1])
    # A bend outside the sizes would be the model's word, not the data's: only one limit is kept.
    low = -math.inf if low == bottom or best.c < runs.sizes[0] else low
    high = math.inf if high == top or best.c > runs.sizes[-1] else high
    reason = _advice(runs, best.c, low, high)

    def estimate(value: float, ends: tuple[float, float], known: bool) -> Estimate:
        interval = math.exp(ends[0]) if known else 0.0, math.exp(ends[1])
        return Estimate(math.exp(value), interval) if known else Estimate(None, interval, reason)

    b_crit = Estimate(None if reason else math.exp(best.c), (math.exp(low), math.exp(high)), reason)
    s_min = estimate(best.a, projected(rises[0], 0.0), high < math.inf)
    e_min = estimate(best.a + best.c, projected(rises[2], 1.0), low > -math.inf)
    return Frontier(s_min, e_min, b_crit, best.rms, points, confidence)


def _fit_exponent(points: tuple[Point, ...], confidence: float) -> tuple[Estimate, float, float | None]:
    """The free exponent, the residual of its fit and its B_crit."""
    runs = _Runs(points)
    if runs.counts.sum() < 4:
        return Estimate(None, None, "a free exponent needs four batch sizes at which a run reached its goal"), math.nan, None
    low, high = (math.log(end) for end in _EXPONENTS)

    def q(log_alpha: np.ndarray) -> np.ndarray:
        return runs.best(np.exp(log_alpha))[1]

    def search() -> tuple[float, float]:
        alpha = math.exp(float(_minimum(q, low, high, 24)[0]))
        return float(runs.best(alpha)[0]), alpha

    best = runs.settle(3, search)
    threshold, start = best.q + _rises(runs, best, confidence)[3], math.log(best.alpha)
    ends = [_reach(lambda v: q(v) <= threshold, start, edge, 12, 9) for edge in (low, high)]
    known = ends[0] > low and ends[1] < high
    interval = math.exp(ends[0]) if ends[0] > low else 0.0, math.exp(ends[1]) if ends[1] < high else math.inf
    reason = None if known else "these runs do not resolve the exponent: add batch sizes at both ends, or more runs"
    inside = runs.sizes[0] <= best.c <= runs.sizes[-1]
    return Estimate(best.alpha if known else None, interval, reason), best.rms, math.exp(best.c) if inside else None


def _too_few(runs: _Runs) -> str:
    """Why no frontier can be fitted at all, and what to add."""
    sizes = [float(size) for size in np.exp(runs.mean_x)]
    if not sizes:
        return "no run reached its goal: give them more observations"
    few = f"three batch sizes must have a run that reached its goal, and only {' and '.join(map(_number, sizes))} did"
    if runs.missed.any():
        return f"{few}: give the others more observations"
    add = [_smaller(sizes[0])] * (sizes[0] > 1) + [_larger(sizes[-1])]
    return f"{few}: add {' and '.join(map(_number, add))}"


def _advice(runs: _Runs, c: float, low: float, high: float) -> str | None:
    """Why the interval of B_crit, exp(low) to exp(high) about exp(c), has no end, and what to add; None where it has both."""
    first, last = math.exp(runs.mean_x[0]), math.exp(runs.mean_x[-1])
    if low > -math.inf and high < math.inf:
        return None
    wants = []
    if high == math.inf and runs.sizes[-1] > runs.mean_x[-1]:
        wants.append(f"give the runs above {_number(last)} more observations")
    elif high == math.inf:
        wants.append(f"add a batch size of {_number(_larger(max(last, math.exp(low))))} or more")
    if low == -math.inf and runs.sizes[0] < runs.mean_x[0]:
        wants.append(f"give the runs below {_number(first)} more observations")
    elif low == -math.inf and first > 1:
        smaller = _smaller(min(first, math.exp(high)))
        wants.append(f"add a batch size of {_number(smaller)}{' or fewer' * (smaller > 1)}")
    if low > -math.inf:
        problem = f"optimizer steps still fall nearly as 1/B up to a batch size of {_number(last)}"
    elif high < math.inf:
        problem = f"optimizer steps hardly rise down to a batch size of {_number(first)}"
    else:
        problem = "these runs scatter too much to show where the frontier bends"
        wants.append("add more runs")
    return f"{problem}: {', and '.join(wants) or 'there is no smaller one to add'}"


def _larger(size: float) -> float:
    """Four times a batch size, rounded up to a power of two."""
    return 2.0 ** math.ceil(math.log2(4 * size) - 1e-6)


def _smaller(size: float) -> float:
    """A quarter of a batch size, rounded down to a power of two, at least one observation."""
    return max(1.0, 2.0 ** math.floor(math.log2(size / 4) + 1e-6))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
