"""The response surface of a whole sweep: optimizer steps over batch size and learning rate, and its critical batch size.

    ln S = ln S_min + ln(1 + B_crit/B) + k (ln ε - ln ε*(B))² + noise,      ln ε*(B) linear in ln B

Every run enters, whatever its rate: nothing is selected, a rate that is nearly right still says where the frontier is, and a run
that missed the goal says that S exceeds its limit. Source of the first two terms: arXiv:1812.06162, equation 2.12; the rest is
this project's own. The likelihood is in `response`; `hyperbola.fit` is the frontier of runs without a search for the rate.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, stdtrit

from ..estimate import Estimate, from_logarithms
from . import response
from .advice import FarRate, say_far_rates, say_too_few, say_unidentified
from .hyperbola import UNRESOLVED_EXPONENT, Frontier
from .profile import critical_interval, ends, reach, scan, unit
from .response import Fitted, Response
from .runs import Point, check_runs, number_groups, rise_for

__all__ = ["STOPPED_CONFIDENCE", "Surface", "allowed_rise", "far_rates", "fit_surface"]

STOPPED_CONFIDENCE = 0.97
"""Of the likelihood, for runs that were stopped when their interval was short enough.

An interval is shortest when the scatter comes out too small, so stopping then selects short ones: at 0.95 they covered 91% in
the worst setting of simulated sweeps, by hand; at 0.97 see results/README.md, Simulated sweeps.
"""

_FAR = 0.3  # of ln S, by which the fastest rates of a size are slower than the fitted best one: a third more steps
_MOST_FAR = (
    1 / 3
)  # of the runs that reached their goal; in the ladder's surfaces at most a quarter, but for four with half or more
_KEPT = 256  # fits that are remembered: more than the goals of all sweeps of the ladder
_BENT = 5.0  # twice the gain in log-likelihood by a free exponent, above which the surface is said not to fit
_EXPONENTS = math.log(0.2), math.log(5.0)  # the range in which the free exponent is sought


@dataclass(frozen=True)
class Surface(Frontier):
    """A fitted response surface. An `Estimate` without a value says in its `reason` which batch size to add.

    `residual` is the standard deviation of ln S about the surface, stuck runs left out: √2 times the scale of its t₄ noise.

    Attributes:
        learning_rates: of each run, in the order of `points`.
        stuck: fraction of the runs, at rates below the brink and batch sizes between the ends, that is stuck.
        fitted: the parameters, in natural logarithms, and the runs as the likelihood holds them; see `response`.
    """

    learning_rates: tuple[float, ...] = ()
    stuck: float = math.nan
    fitted: Fitted | None = field(default=None, compare=False, repr=False)
    _fitted_parameters: ClassVar[int] = 8

    def best_rate(self, batch_size: float) -> float:
        """ε*(B), the learning rate with the fewest optimizer steps at a batch size.

        Raises:
            ValueError: there is no surface, and `b_crit.reason` says why; or the batch size is not positive.
        """
        fitted = self._fit()
        if not batch_size > 0:
            raise ValueError("batch_size must be positive")
        x = math.log(batch_size)
        return math.exp(fitted.theta[response.P] + fitted.theta[response.Q] * (x - fitted.runs.middle))

    @property
    def steps_at_best_rate(self) -> tuple[float, ...]:
        """What each run's S would have been at the best rate of its batch size; for a run that missed the goal, its limit."""
        fitted = self._fit()
        return tuple(float(s) for s in np.exp(fitted.runs.y - fitted.runs.lift(fitted.theta)))

    @cached_property
    def exponent(self) -> Estimate:
        """α of S = S_min (1 + (B_crit/B)^α), fitted freely. The theory says 1; below 1 the bend is longer than it says."""
        if len({p.batch_size for p in self.points if not p.censored}) < 4:
            return Estimate(None, None, "a free exponent needs four batch sizes at which a run reached its goal")
        if self.fitted is None:
            return Estimate(None, None, self.b_crit.reason)
        rise = allowed_rise(self.points, self.confidence)
        along = unit(self._bent.theta, response.ALPHA)
        low, high = (reach(self._bent, rise, along, sign, _EXPONENTS, np.arange(len(along))) for sign in (-1, 1))
        reason = None if math.isfinite(low) and math.isfinite(high) else UNRESOLVED_EXPONENT
        return from_logarithms(self._bent.theta[response.ALPHA], (low, high), reason)

    @cached_property
    def leave_one_size_out(self) -> Mapping[float, float | None]:
        """For every batch size the B_crit of the fit without its runs; None where that fit does not identify it."""
        found: dict[float, float | None] = {}
        for size in sorted({p.batch_size for p in self.points}):
            kept = [i for i, p in enumerate(self.points) if p.batch_size != size]
            points, rates = tuple(self.points[i] for i in kept), np.array([self.learning_rates[i] for i in kept])
            found[size] = None
            if (fitted := _likeliest(points, rates, self)) and not far_rates(fitted):
                limits = critical_interval(fitted, allowed_rise(points, self.confidence), exactly=False)
                if not say_unidentified(points, *limits):
                    found[size] = math.exp(fitted.theta[response.C])
        return found

    @cached_property
    def warning(self) -> str | None:
        """Why B_crit should not be trusted to its interval; None where the surface fits.

        The runs are compared with the free exponent's surface. At a true exponent of 1 it warns in 1 to 6% of simulated sweeps.
        """
        if self.fitted is None or self.b_crit.value is None:
            return None
        if 2 * (self.fitted.loss - self._bent.loss) < _BENT:
            return None
        alpha = math.exp(self._bent.theta[response.ALPHA])
        return f"the free exponent is {alpha:.2f} where the theory says 1, so B_crit depends on the range of batch sizes tried"

    @cached_property
    def _bent(self) -> Fitted:
        """The fit with a free exponent."""
        fitted = self._fit()
        return fitted.runs.minimize(fitted.theta, ())

    def _fit(self) -> Fitted:
        if self.fitted is None:
            raise ValueError(f"the surface is not fitted: {self.b_crit.reason}")
        return self.fitted


def fit_surface(
    batch_size: Any,
    learning_rate: Any,
    optimizer_steps: Any,
    observations: Any = None,
    *,
    group: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Surface:
    """Fit the response surface to all runs of a sweep, with intervals.

    The likelihood holds heavy tails (t₄), runs that are stuck (more often at both end sizes, always beyond a brink at high
    rates), runs that missed the goal, a curvature of its own to either side of the best rate, and an offset that the runs of one
    seed share. Weak priors stand where a sweep resolves nothing, such as the curvature where one rate was tried; see `response`.

    The interval is that of the profile likelihood: twice its logarithm may fall by t² n/(n - 8), with n the runs that reached
    the goal and t of n - 8 degrees of freedom. Where the runs of a seed share an offset, the intervals of S_min and E_min are
    wider, since few seeds say little of how far all offsets lie from their mean: t has Satterthwaite's degrees of freedom then.
    Coverage, bias and warnings over planted sweeps are in results/README.md, Simulated sweeps.

    Args:
        batch_size: (N,) B of every run, observations per optimizer step; exactly the same number for runs meant as one size.
        learning_rate: (N,) of every run.
        optimizer_steps: (N,) S of every run, to the goal; inf for a run that missed it.
        observations: (N,) those to the goal, or spent without reaching it. A run that missed its goal needs them, and is
            censored at observations / batch_size steps; for the others they are only kept.
        group: (N,) the seed of each run. Runs of one seed at several sizes and rates may share an offset. None for a run by
            itself.
        confidence: confidence level of the intervals.

    Returns:
        A `Surface`. Its b_crit has no value, but a reason, where its interval has no end on one side, where it lies outside
        the sizes, where fewer than three sizes have a run that reached the goal, and where the fitted best rates lie far from
        those that reached it (see `far_rates`). In the last two cases there is no surface: `fitted` is None.

    Raises:
        ValueError: the lengths differ, there is no run, or a number is not positive; the message names the argument.
    """
    points = check_runs(batch_size, optimizer_steps, observations, group)
    rates = np.atleast_1d(np.asarray(learning_rate, dtype=np.float64))
    if rates.shape != (len(points),):
        raise ValueError("learning_rate must have one entry for every run")
    if not (np.isfinite(rates) & (rates > 0)).all():
        raise ValueError("learning_rate must be positive and finite")
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")
    return _fit(points, tuple(float(rate) for rate in rates), confidence)


@lru_cache(maxsize=_KEPT)
def _fit(points: tuple[Point, ...], learning_rates: tuple[float, ...], confidence: float) -> Surface:
    """`fit_surface` of runs that were checked. A page, its verdict and what comes next ask for the same fits, of seconds each."""
    best = _likeliest(points, np.array(learning_rates))
    if best is None:
        nothing = Estimate(None, None, say_too_few(points))
        return Surface(nothing, nothing, nothing, math.nan, points, confidence, learning_rates)
    runs, scanned = best.runs, scan(best)
    best = min(best, runs.minimize(min(scanned, key=lambda one: one.loss).theta), key=lambda one: one.loss)
    if far := far_rates(best):
        nothing = Estimate(None, None, say_far_rates(points, far))
        return Surface(nothing, nothing, nothing, math.nan, points, confidence, learning_rates)
    rise = allowed_rise(points, confidence)
    theta = best.theta
    low, high = critical_interval(best, rise, scanned)
    reason = say_unidentified(points, low, high)

    def estimate(known: bool, *summed: int) -> Estimate:
        along = unit(theta, *summed)
        value = float(along @ theta)
        wider = _wider_for_seeds(best, along, confidence)
        least, most = (value + wider * (end - value) for end in ends(best, rise, along, (value - 30.0, value + 30.0), scanned))
        return from_logarithms(value, (least if known else -math.inf, most), None if known else reason)

    return Surface(
        s_min=estimate(high < math.inf, response.A),
        e_min=estimate(low > -math.inf, response.A, response.C),
        b_crit=from_logarithms(theta[response.C], (low, high), reason),
        residual=math.sqrt(2.0) * runs.sigma(theta),
        points=points,
        confidence=confidence,
        learning_rates=learning_rates,
        stuck=float(expit(theta[response.STUCK])),
        fitted=best,
    )


def _likeliest(points: Sequence[Point], rates: np.ndarray, near: Surface | None = None) -> Fitted | None:
    """The likelihood of these runs and its least loss; None where fewer than three sizes have a run that reached the goal.

    It is sought from where it is for nearly the same runs, if these are given.
    """
    if len({p.batch_size for p in points if not p.censored}) < 3:
        return None
    runs = Response(points, rates)
    if near is None or near.fitted is None:
        best = runs.best()
    else:
        start = near.fitted.theta[: response.OFFSETS].copy()
        start[response.P] += start[response.Q] * (
            runs.middle - near.fitted.runs.middle
        )  # ln of the best rate at the mean of ln B
        best = runs.minimize(start)
    offset_sd = _shared_offsets(best)
    if offset_sd > 0:
        runs = Response(points, rates, offset_sd)
        best = runs.minimize(np.concatenate([best.theta, np.zeros(runs.offsets)]))
    return best


def far_rates(fitted: Fitted) -> list[FarRate]:
    """The batch sizes where no run that reached the goal had a rate near the fitted best one; none where most runs had.

    Where steps fall with the rate until runs fail, a parabola has its vertex among the rates that fail. Its curve then lies
    below all that any run took, and says of B_crit what no run has shown. A size at which one rate was tried does not count.
    """
    runs, theta = fitted.runs, fitted.theta
    reached, lift = np.flatnonzero(~runs.missed), runs.lift(theta)
    nearest = [min(reached[runs.x[reached] == x], key=lambda i: lift[i]) for x in np.unique(runs.x[reached])]
    far = [i for i in nearest if lift[i] > _FAR and np.ptp(runs.r[runs.x == runs.x[i]]) > 0]
    if np.isin(runs.x[reached], runs.x[far]).mean() <= _MOST_FAR:
        return []
    best = np.exp(theta[response.P] + theta[response.Q] * runs.z[far])
    return [FarRate(*row) for row in zip(np.exp(runs.x[far]).tolist(), best.tolist(), np.exp(runs.r[far]).tolist(), strict=True)]


def allowed_rise(points: Sequence[Point], confidence: float) -> float:
    """How far twice the loss may rise inside an interval, of which only runs that reached the goal say something."""
    return rise_for(sum(not p.censored for p in points), Surface._fitted_parameters, confidence)


def _wider_for_seeds(best: Fitted, along: np.ndarray, confidence: float) -> float:
    """How many times as far the ends of the interval of a sum lie from it because few seeds tell the sd of what each shares.

    The variance of the sum is in parts that of the runs, of n - 8 degrees of freedom, and that of the seeds' offsets, of one
    fewer than there are seeds. Both are read from the curvature of the loss, with the offsets and without.
    """
    runs, alike = best.runs, np.arange(len(along)) < response.OFFSETS
    if not runs.offsets:
        return 1.0
    curvature, free = runs.curvature(best.theta), np.arange(len(along)) != response.ALPHA

    def variance(kept: np.ndarray) -> float:
        return float(along[kept] @ np.linalg.pinv(curvature[np.ix_(kept, kept)], hermitian=True) @ along[kept])

    of_runs, both = variance(free & alike), variance(free)
    of_seeds = max(both - of_runs, 0.0)
    degrees = max(int((~runs.missed).sum()) - Surface._fitted_parameters, 1)
    seeds = int((np.bincount(runs.group[~runs.missed]) > 1).sum())  # as `_shared_offsets` counts them
    mixed = both**2 / max(of_runs**2 / degrees + of_seeds**2 / (seeds - 1), 1e-300)
    usual, wide = (float(stdtrit(each, 0.5 + confidence / 2)) for each in (degrees, min(mixed, degrees)))
    return wide / usual


def _shared_offsets(best: Fitted) -> float:
    """Standard deviation of the offset that the runs of one seed share, by the method of moments; 0 where none is seen.

    Stuck runs would count as large offsets, so residuals are cut off at three scales of the noise.
    """
    runs = best.runs
    kept = ~runs.missed
    group = number_groups([runs.names[i] for i in np.flatnonzero(kept)])
    counts = np.bincount(group)
    if (counts > 1).sum() < 2:
        return 0.0
    scale = runs.sigma(best.theta)
    residual = np.clip(runs.residuals(best.theta)[kept], -3 * scale, 3 * scale)
    means = np.bincount(group, residual) / counts
    within = float(((residual - means[group]) ** 2).sum()) / max(len(residual) - len(counts), 1)
    several = counts > 1
    center = float((means * counts)[several].sum() / counts[several].sum())
    between = float((counts * (means - center) ** 2)[several].sum()) / (several.sum() - 1)
    size = float((counts[several].sum() - (counts[several] ** 2).sum() / counts[several].sum()) / (several.sum() - 1))
    return math.sqrt(max(between - within, 0.0) / size)
