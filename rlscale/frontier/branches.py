"""The local critical batch size, from short branches of one run: `fit_branches` and its result, `LocalFrontier`.

All branches start from the same parameters and learn from equally many observations, so that only batch size and learning
rate differ. Their progress per observation falls with the batch size as a frontier says it does:

    progress / observation = p₀ / (1 + B/B_local) · exp(-k (ln ε - ln ε*(B))²),      ln ε*(B) linear in ln B

At B_local it has fallen to half. A sweep asks the same of whole runs, from the first step to a goal; the two agree where the
noise scale does not change on the way. Source of the question: Merrill et al. 2025, arXiv:2505.23971, who train branches of
language models; this curve and its likelihood are this project's own.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import bisect, minimize

from ..estimate import Estimate, from_logarithms
from .runs import rise_for

__all__ = ["LocalFrontier", "fit_branches"]

_PARAMETERS = 6  # taken off the number of branches for the degrees of freedom
_BEYOND = 3.0  # how far, in ln B, an interval may reach outside the sizes before it has no end
_GRID = 40  # points of the profile likelihood to either side
_P, _A, _Q, _K, _TAU, _OFFSET = range(6)
_CURVATURE = math.log(0.3), 0.7  # of ln progress in ln ε: centre and sd of ln k; MinAtar's sweeps have 0.1 to 0.6
_EXPONENT = 0.5, 0.15  # of the best rate over the batch size; MinAtar's sweeps have 0.35 to 0.65
_SCATTER = math.log(0.5), 0.5  # relative, between branches that differ in their seeds alone
_COLLAPSED = 0.1  # of the branches, whose gain says nothing: too high a rate, or bad luck, has ruined their policy
_RATE = 1.0  # sd of ln ε* about the middle of the tried rates
_OUTSIDE = 0.35  # sd of how far, in ln ε, the best rate of a size lies outside half an octave beyond the tried ones


@dataclass(frozen=True)
class LocalFrontier:
    """What branches say about the batch size from here on.

    Attributes:
        b_local: the batch size at which progress per observation has fallen to half that of small batches, observations.
        progress: p₀, progress per observation of small batches, in units of the gain; nan where the branches gained nothing.
        scatter: standard deviation of a branch's progress over seeds, relative to its mean.
        best_rates: (sizes,) ε*(B) for each of `sizes`.
        gains: (sizes,) median gain at each size, the branches put to the best rate by the curve, and its standard error; nan
            where all rates were far off.
        sizes: the batch sizes, ascending.
    """

    b_local: Estimate
    progress: float
    scatter: float
    sizes: tuple[float, ...]
    best_rates: tuple[float, ...]
    gains: tuple[tuple[float, float], ...]

    def largest_within(self, share: float) -> Estimate:
        """The batch size at which progress per observation has fallen by that share; at 0.2 it is a quarter of B_local.

        Raises:
            ValueError: the share does not lie between 0 and 1.
        """
        if not 0 < share < 1:
            raise ValueError("share must lie between 0 and 1")
        return self.b_local.map(lambda b: share / (1 - share) * b)


def fit_branches(
    batch_size: Any,
    learning_rate: Any,
    gain: Any,
    observations: Any,
    *,
    gain_error: Any = None,
    start_error: float = 0.0,
    confidence: float = 0.95,
) -> LocalFrontier:
    """Fit the local frontier to all branches of one checkpoint.

    The likelihood is Student's with four degrees of freedom, beside one branch in ten that has collapsed and may end anywhere.
    Its scale is that of the seeds, proportional to the progress at a size's best rate, and of the evaluation. The error of the
    evaluation at the start is common to all branches: it is a parameter with that standard deviation. A return with a ceiling,
    which small batches reach first, makes B_local too large: no branch gains more than that. The interval is that of
    the profile likelihood, twice its logarithm falling by t² n/(n - 6). Coverage over planted branches is in results/README.md.

    Args:
        batch_size: (N,) of every branch, observations per optimizer step.
        learning_rate: (N,).
        gain: (N,) how far the return rose over the branch; it may be negative.
        observations: (N,) that the branch learned from.
        gain_error: (N,) standard error of each final return; None for exact returns.
        start_error: standard error of the return at the start, from which all gains are counted.
        confidence: of the interval.

    Raises:
        ValueError: lengths differ, a size, rate or number of observations is not positive, a gain is not finite, an error is
            negative or not finite, the confidence does not lie between 0 and 1, or there are fewer than three sizes or ten
            branches.
    """
    b, rate, g, d = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (batch_size, learning_rate, gain, observations))
    error = np.zeros_like(g) if gain_error is None else np.atleast_1d(np.asarray(gain_error, dtype=np.float64))
    if len({v.shape for v in (b, rate, g, d, error)}) > 1 or b.ndim != 1:
        raise ValueError("batch_size, learning_rate, gain, observations and gain_error must be vectors of one length")
    for name, v in (("batch_size", b), ("learning_rate", rate), ("observations", d)):
        if not (np.isfinite(v) & (v > 0)).all():
            raise ValueError(f"{name} must be positive and finite")
    if not np.isfinite(g).all():
        raise ValueError("gain must be finite")
    for name, v in (("gain_error", error), ("start_error", np.asarray(start_error, dtype=np.float64))):
        if not (np.isfinite(v) & (v >= 0)).all():
            raise ValueError(f"{name} must be zero or more, and finite")
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")
    if len(np.unique(b)) < 3 or len(b) < 10:
        raise ValueError("batch_size: a local frontier needs three batch sizes and ten branches")
    fit = _Fit(np.log(b), np.log(rate), g, d, error, start_error)
    low, best, high = fit.profile(rise_for(len(b), _PARAMETERS, confidence))
    sizes = np.unique(b)
    theta, c = best
    rise = fit.best_gain(theta, c)
    shape = fit.shape(theta)
    # A branch far off the best rate says nothing about the gain there.
    near = shape > 0.5
    gains = []
    for size in sizes:
        mine = (b == size) & near
        put = (g[mine] + fit.offset(theta)) / shape[mine]
        # The median's standard error, from the middle half of the branches, so that a collapsed one weighs no more than another.
        spread = 0.93 * float(np.subtract(*np.quantile(put, [0.75, 0.25]))) / math.sqrt(len(put)) if len(put) > 1 else math.nan
        gains.append((float(np.median(put)) if len(put) else math.nan, spread))
    # Of the branches near the best rate: many that a high rate ruined say nothing about whether the others gained.
    learned = (
        bool(near.any())
        and float(np.median(g[near])) > 0
        and float(rise.max()) > 2 * math.hypot(start_error, float(np.median(error)))
    )
    if not learned:
        low, high = -math.inf, math.inf
    resolved = math.isfinite(high) and math.isfinite(low)
    reason = None if resolved else _say_why(g, low, high) if learned else _NOTHING
    return LocalFrontier(
        b_local=from_logarithms(c, (low, high), reason),
        progress=math.exp(theta[_P]) if learned else math.nan,
        scatter=math.exp(theta[_TAU]),
        sizes=tuple(float(s) for s in sizes),
        best_rates=tuple(math.exp(theta[_A] + theta[_Q] * (math.log(s) - fit.middle)) for s in sizes),
        gains=tuple(gains),
    )


def _say_why(gain: np.ndarray, low: float, high: float) -> str:
    here = "or more seeds, with another --out"
    if np.ptp(gain) == 0:
        return "all branches gained the same, so the return may have a ceiling: branch where the run still learns"
    if math.isinf(low) and math.isinf(high):
        return "these branches scatter too much to show where progress falls: add more seeds, with another --out"
    if math.isinf(high):
        return f"progress per observation does not fall to half at these batch sizes: add larger ones, {here}"
    return f"progress per observation has fallen at all these batch sizes: add smaller ones, {here}"


class _Fit:
    """The likelihood of branches: (ln p₀, ln ε* at the middle size, its slope, ln k, ln scatter, error at the start)."""

    def __init__(
        self, x: np.ndarray, z: np.ndarray, gain: np.ndarray, observations: np.ndarray, error: np.ndarray, start_error: float
    ) -> None:
        self.x, self.z, self.gain, self.d, self.error, self.start_error = x, z, gain, observations, error, start_error
        self.middle = float(x.mean())
        self.rates = float(z.mean())
        self.range = float(np.ptp(gain)) + 1e-12  # a collapsed branch may end anywhere between the worst and the best
        self.sizes = np.unique(x)
        self.tried = np.array([[z[x == s].min(), z[x == s].max()] for s in self.sizes]) + np.array([-0.35, 0.35])
        priors = (self.rates, _RATE), _EXPONENT, _CURVATURE, _SCATTER, (0.0, 1.0)
        self.centre, self.sd = np.array(priors).T  # of all parameters but ln p₀

    def off_rate(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N,) distance u of each rate from the best one, and k u²."""
        u = self.z - theta[_A] - theta[_Q] * (self.x - self.middle)
        return u, np.exp(theta[_K]) * u**2

    def shape(self, theta: np.ndarray) -> np.ndarray:
        """What a rate that is not the best leaves of the progress, (N,) in 0 … 1."""
        return np.exp(-self.off_rate(theta)[1])

    def outside(self, theta: np.ndarray) -> np.ndarray:
        """(sizes,) how far each best rate lies above the tried ones, or with a minus below them.

        Without a limit, poor rates would explain everything.
        """
        best = theta[_A] + theta[_Q] * (self.sizes - self.middle)
        return best - np.clip(best, self.tried[:, 0], self.tried[:, 1])

    def best_gain(self, theta: np.ndarray, c: float) -> np.ndarray:
        """(N,) expected gains at the best rates."""
        return self.d * np.exp(theta[_P]) / (1 + np.exp(self.x - c))

    def offset(self, theta: np.ndarray) -> float:
        """By how much the evaluated return at the start is above the true one."""
        return float(theta[_OFFSET]) * self.start_error

    def loss(self, theta: np.ndarray, c: float) -> tuple[float, np.ndarray]:
        """Negative logarithm of likelihood and priors, and its gradient, of which the last is that by ln B_local."""
        u, lost = self.off_rate(theta)
        best, shape = self.best_gain(theta, c), np.exp(-lost)
        seeds = (np.exp(theta[_TAU]) * best) ** 2 / 2  # t₄ has √2 times its scale; the error counts in full
        variance = seeds + self.error**2
        r = (self.gain - best * shape + self.offset(theta)) / np.sqrt(variance)
        tail = 1 + r**2 / 4
        sound = (1 - _COLLAPSED) * _T4 * tail**-2.5 / np.sqrt(variance)
        density = sound + _COLLAPSED / self.range
        apart, outside = (theta[_A:] - self.centre) / self.sd, self.outside(theta) / _OUTSIDE
        loss = -float(np.log(density).sum()) + float(apart @ apart + outside @ outside) / 2

        # Derivatives by each branch's expected gain, and by the logarithms of its shape, its scatter and its best gain.
        by_gain = -sound / density * 1.25 * r / tail / np.sqrt(variance)
        by_shape = by_gain * best * shape
        by_scatter = sound / density * (1 - 1.25 * r**2 / tail) * seeds / variance
        by_best = by_shape + by_scatter
        by_rate, by_outside = 2 * np.exp(theta[_K]) * u * by_shape, outside / _OUTSIDE
        gradient = np.array(
            [
                by_best.sum(),
                by_rate.sum() + by_outside.sum(),
                by_rate @ (self.x - self.middle) + by_outside @ (self.sizes - self.middle),
                -(by_shape @ lost),
                by_scatter.sum(),
                -by_gain.sum() * self.start_error,
                by_best @ (1 / (1 + np.exp(c - self.x))),
            ]
        )
        gradient[_A:-1] += apart / self.sd
        return loss, gradient

    def minimize(self, theta: np.ndarray, c: float) -> tuple[np.ndarray, float]:
        """The other parameters at a given ln B_local, and the loss there."""

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.loss(theta, c)
            return value, gradient[:-1]

        found = minimize(loss, theta, jac=True, method="L-BFGS-B", bounds=_BOUNDS)
        return found.x, float(found.fun)

    def profile(self, rise: float) -> tuple[float, tuple[np.ndarray, float], float]:
        """Lower end, best parameters with ln B_local, upper end; infinite where the branches give no end."""
        per_observation = float(np.quantile(self.gain / self.d, 0.75))
        start = np.array(
            [math.log(max(per_observation, 1e-12)), self.rates, *(p[0] for p in (_EXPONENT, _CURVATURE, _SCATTER)), 0]
        )
        edges = float(self.x.min()) - _BEYOND, float(self.x.max()) + _BEYOND
        starts = np.linspace(*edges, 9)
        tried = [(*self.minimize(start, c), c) for c in starts]
        theta, _, c = min(tried, key=lambda t: t[1])
        start, bounds = np.append(theta, c), [*_BOUNDS, edges]
        found = minimize(lambda v: self.loss(v[:-1], v[-1]), start, jac=True, method="L-BFGS-B", bounds=bounds)
        theta, c, least = found.x[:-1], float(found.x[-1]), float(found.fun)
        low = self._end(theta, c, edges[0], least + rise / 2)
        high = self._end(theta, c, edges[1], least + rise / 2)
        # A bend outside the sizes would follow from the model and not from the branches: only one limit is kept.
        return -math.inf if c < self.x.min() else low, (theta, c), math.inf if c > self.x.max() else high

    def _end(self, theta: np.ndarray, c: float, edge: float, most: float) -> float:
        """The end of the interval towards an edge; infinite where even the edge is inside."""
        inside = c
        for at in np.linspace(c, edge, _GRID + 1)[1:].tolist():
            moved, loss = self.minimize(theta, at)
            if loss > most:
                return bisect(lambda at, theta: self.minimize(theta, at)[1] - most, inside, at, (theta,), abs(at - inside) / 400)
            inside, theta = at, moved
        return math.copysign(math.inf, edge - c) if edge != c else math.copysign(math.inf, edge - self.middle)


_T4 = 0.375  # density of Student's distribution with four degrees of freedom at zero
_NOTHING = (
    "the branches gained nothing that stands out from the evaluation: make them longer, or start where the run still learns"
)
_BOUNDS = [(-60.0, 60.0), (-30.0, 10.0), (-1.0, 2.0), (-4.0, 3.0), (-4.0, 2.0), (-5.0, 5.0)]
