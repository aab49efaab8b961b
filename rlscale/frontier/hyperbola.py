"""The hyperbola of optimizer steps against observations, its fit and the result.

S are the optimizer steps and E the observations to a goal, B is the batch size in observations per optimizer step:

    (S/S_min - 1)(E/E_min - 1) = 1, or S = S_min (1 + B_crit/B), E = E_min (1 + B/B_crit), E_min = S_min · B_crit
    ln S = ln S_min + ln(1 + B_crit/B) + e        one residual per run; E = S·B is not a second datum

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, equations 2.11 and
2.12 and appendix D. The interval is this project's own, see `fit`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy.special import stdtrit

from ..estimate import Estimate, from_logarithms
from .advice import say_too_few, say_unidentified
from .likelihood import Likelihood, find_minimum, find_reach, find_rises
from .runs import Point, check_runs

__all__ = ["Frontier", "fit"]

_Floats = TypeVar("_Floats", float, np.ndarray)
_EXPONENTS = 0.1, 10.0  # the range in which the free exponent is sought
UNRESOLVED_EXPONENT = "these runs do not resolve the exponent: add batch sizes at both ends, or more runs"


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
        confidence: confidence level of all intervals.

    B_crit depends on the range of batch sizes. So `exponent` and `leave_one_size_out` belong to every result; each is computed
    when it is first asked for.
    """

    s_min: Estimate
    e_min: Estimate
    b_crit: Estimate
    residual: float
    points: tuple[Point, ...] = field(repr=False)
    confidence: float = 0.95
    _fitted_parameters: ClassVar[int] = 2  # taken off the number of runs for the degrees of freedom

    def optimizer_steps(self, batch_size: _Floats) -> _Floats:
        """S = s_min (1 + b_crit/B) for a batch size or an array of them.

        Raises:
            ValueError: the frontier is not identified, or a batch size is not positive.
        """
        s_min, b_crit = self._identified_at(batch_size)
        return s_min * (1.0 + b_crit / batch_size)

    def observations(self, batch_size: _Floats) -> _Floats:
        """E = s_min (B + b_crit) for a batch size or an array of them.

        Raises:
            ValueError: the frontier is not identified, or a batch size is not positive.
        """
        s_min, b_crit = self._identified_at(batch_size)
        return s_min * (batch_size + b_crit)

    def overhead_batch(self, overhead: float = 0.2) -> Estimate:
        """Batch size at which E = (1 + overhead) e_min, which is overhead · b_crit; at 1 it is b_crit itself.

        The default is the figure that Zhang et al. 2024 quote ("How Does Critical Batch Size Scale in Pre-training?").

        Raises:
            ValueError: `overhead` is not positive.
        """
        if not overhead > 0:
            raise ValueError("overhead must be positive")
        return self.b_crit.map(lambda b: overhead * b)

    @property
    def run_half_width(self) -> float:
        """Half the width of the 95% interval of ln S of one further run about the law, if it reaches the goal; nan as `residual`.

        Residuals are smaller than the noise by as many runs as there are parameters: hence the root.
        """
        reached = sum(not p.censored for p in self.points)
        freedom = max(reached - self._fitted_parameters, 1)
        return self.residual * math.sqrt(reached / freedom) * float(stdtrit(freedom, 0.975))

    @cached_property
    def exponent(self) -> Estimate:
        """α of S = S_min (1 + (B_crit/B)^α), fitted freely. The theory says 1; below 1 the bend is longer than it says."""
        return _fit_exponent(self.points, self.confidence)

    @cached_property
    def leave_one_size_out(self) -> Mapping[float, float | None]:
        """For every batch size the B_crit of the fit without its runs; None where that fit does not identify it."""
        sizes = sorted({p.batch_size for p in self.points})
        rest = {size: tuple(p for p in self.points if p.batch_size != size) for size in sizes}
        return {size: _fit(points, self.confidence).b_crit.value if points else None for size, points in rest.items()}

    def _identified_at(self, batch_size: float | np.ndarray) -> tuple[float, float]:
        if self.b_crit.value is None or self.s_min.value is None:
            raise ValueError(f"the frontier is not identified: {self.b_crit.reason}")
        if not np.all(np.asarray(batch_size) > 0):
            raise ValueError("batch_size must be positive")
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
    counts once, by the mean of its runs, because the runs of one size share a learning rate and with it an error of their own.

    The interval is that of the profile likelihood, F-calibrated: Q may rise by t² times the variance of the mean of a batch
    size, with t of (sizes - 2) degrees of freedom. That variance is the residual one between sizes, or the pooled one of all
    runs with its own t where that gives more. It is increased by the errors that neighbouring sizes have in common and, for
    s_min and e_min, by those that the runs of a group have in common.

    Coverage at 95%, simulated: three fresh runs at each of 3 to 10 sizes from B_crit/16 to 16 B_crit, noise of 5, 10 or 20%, at
    the true best rate or the best of five a factor of √2 or 2 apart, chosen on one noisy run each: B_crit 93 to 99%. Pooling
    all runs as if they were independent gives 81 to 91% there, and ±1 standard error 60% with five sizes. There are two limits.
    A learning rate beside the best costs steps at every size, so s_min and e_min are those of the runs as tuned (they cover
    the best rate's in 78 to 98%). And rates a factor of three apart that drift against the best one along the sizes bend the
    frontier itself (58 to 92%): choose finer ones.

    Args:
        batch_size: (N,) B of every run, observations per optimizer step; exactly the same number for runs meant as one size.
        optimizer_steps: (N,) S of every run, to the goal; inf for a run that missed it.
        observations: (N,) those to the goal, or spent without reaching it. A run that missed its goal needs them, and is
            censored at observations / batch_size steps; for the others they are only kept.
        group: (N,) the name of each run's replicate, such as its seed. Runs of one group at several sizes may share an offset.
            None for a run by itself.
        confidence: confidence level of the intervals.

    Returns:
        A `Frontier`. Its b_crit has no value, but a reason, where its interval has no end on one side, where it lies outside
        the sizes, and where fewer than three sizes have a run that reached the goal.

    Raises:
        ValueError: the lengths differ, there is no run, or a number is not positive; the message names the argument.
    """
    points = check_runs(batch_size, optimizer_steps, observations, group)
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")
    return _fit(points, confidence)


def _fit(points: tuple[Point, ...], confidence: float) -> Frontier:
    """`fit` of runs that were checked."""
    runs = Likelihood(points)
    if runs.counts.sum() < 3:
        nothing = Estimate(None, None, say_too_few(points))
        return Frontier(nothing, nothing, nothing, math.nan, points, confidence)
    best = runs.settle(2, lambda: (float(runs.best()[0]), 1.0))
    s_rise, b_rise, e_rise, _ = find_rises(runs, best, confidence)
    bottom, top = (float(edge) for edge in runs.edges())

    @cache
    def region(rise: float) -> tuple[float, float]:
        """The values of c at which Q rises by at most `rise`."""
        count = 2 + int(4 * (top - bottom))
        low, high = (find_reach(lambda c: runs.profile(c)[0] <= best.q + rise, best.c, edge, count) for edge in (bottom, top))
        return low, high

    def projected_estimate(value: float, rise: float, slope: float, known: bool) -> Estimate:
        """Of a + slope·c: its ends over the region are the profile-likelihood interval."""

        def end(sign: float) -> float:
            def least(c: np.ndarray) -> np.ndarray:
                q, a, curvature = runs.profile(c)
                return sign * (a + slope * c) - np.sqrt(np.maximum(best.q + rise - q, 0.0) / curvature)

            return sign * float(find_minimum(least, *region(rise), 65, 3)[1])

        return from_logarithms(value, (end(1.0) if known else -math.inf, end(-1.0)), None if known else reason)

    low, high = region(b_rise)
    # A bend outside the sizes would follow from the model and not from the data: only one limit is kept.
    low = -math.inf if low == bottom or best.c < runs.sizes[0] else low
    high = math.inf if high == top or best.c > runs.sizes[-1] else high
    reason = say_unidentified(points, low, high)

    return Frontier(
        s_min=projected_estimate(best.a, s_rise, 0.0, high < math.inf),
        e_min=projected_estimate(best.a + best.c, e_rise, 1.0, low > -math.inf),
        b_crit=from_logarithms(best.c, (low, high), reason),
        residual=best.rms,
        points=points,
        confidence=confidence,
    )


def _fit_exponent(points: tuple[Point, ...], confidence: float) -> Estimate:
    """The free exponent; see `Frontier.exponent`."""
    runs = Likelihood(points)
    if runs.counts.sum() < 4:
        return Estimate(None, None, "a free exponent needs four batch sizes at which a run reached its goal")
    low, high = (math.log(end) for end in _EXPONENTS)

    def q(log_alpha: np.ndarray) -> np.ndarray:
        return runs.best(np.exp(log_alpha))[1]

    def search() -> tuple[float, float]:
        alpha = math.exp(float(find_minimum(q, low, high, 24)[0]))
        return float(runs.best(alpha)[0]), alpha

    best = runs.settle(3, search)
    threshold, start = best.q + find_rises(runs, best, confidence)[3], math.log(best.alpha)
    ends = [find_reach(lambda v: q(v) <= threshold, start, edge, 12, 9) for edge in (low, high)]
    interval = math.exp(ends[0]) if ends[0] > low else 0.0, math.exp(ends[1]) if ends[1] < high else math.inf
    if ends[0] > low and ends[1] < high:
        return Estimate(best.alpha, interval)
    return Estimate(None, interval, UNRESOLVED_EXPONENT)
