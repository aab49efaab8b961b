"""The likelihood of all runs of a sweep around a response surface: optimizer steps over batch size and learning rate.

Everything here is in natural logarithms: x = ln B, r = ln of the learning rate, y = ln S. A run that trains as it should has

    y = a + ln(1 + e^α(c - x)) + k u² + offset of its seed + σ t₄,      u = r - r*(x),  r*(x) = p + q (x - x̄)

with a = ln S_min, c = ln B_crit, α = 1 but for the free exponent, and a curvature k of its own on either side of the best rate
r*. A run is *stuck* with a probability that is larger at the end sizes and rises to one beyond a brink at high rates. A stuck
run needs more steps by a factor whose logarithm is exponentially distributed, or for ever. A run that missed its goal says only
that y exceeds its limit. `surface.fit_surface` says what the result means; the runs themselves are in `runs`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, ndtr

from .runs import Point, group_names, logarithms, number_groups

__all__ = ["Fitted", "Response"]

A, C, P, Q, CURVATURE, ASYMMETRY, SIGMA, STUCK, STUCK_ENDS, BRINK, ALPHA, OFFSETS = range(12)

# Weak normal priors (mean, standard deviation) on what a sweep may not resolve; a, c and p have none here. Curvature: a rate an
# octave off costs 2 to 25% of the steps. Exponent of the best rate: between constant and proportional to B.
_PRIORS = {
    Q: (0.5, 0.3),
    CURVATURE: (math.log(0.15), 0.8),
    ASYMMETRY: (0.0, 0.5),
    SIGMA: (math.log(0.25), 0.7),
    STUCK: (-2.7, 1.0),
    STUCK_ENDS: (0.5, 1.5),
    BRINK: (1.4, 0.5),
}
_STUCK_MEAN = 1.5  # mean of the exponential part of a stuck run's ln S
_STUCK_NOISE = 0.3  # standard deviation of its normal part
_NEVER = 0.3  # share of stuck runs that never arrive
_BRINK_WIDTH = 0.2  # in ln of the rate
_LEAST_SIGMA = 0.02
_LEAST_CURVATURE = 0.1  # along a direction of a search: a step of one moves no parameter by more than three


@dataclass(frozen=True)
class Fitted:
    """The parameters with the highest posterior density, in the order of this module's indices, and its negative logarithm.

    `runs` is the likelihood that was maximized.
    """

    theta: np.ndarray
    loss: float
    runs: Response


class Response:
    """Runs as arrays, and the posterior density of a response surface through them.

    Args:
        points: the runs.
        learning_rate: (N,) of each.
        offset_sd: standard deviation of the offset that the runs of one seed share; 0 for none.
    """

    def __init__(self, points: Sequence[Point], learning_rate: np.ndarray, offset_sd: float = 0.0) -> None:
        self.missed, self.x, self.y = logarithms(points)
        self.any_missed = bool(self.missed.any())
        self.r = np.log(learning_rate)
        self.middle = float(self.x.mean())
        self.z = self.x - self.middle
        self.ends = self.nearness_to_ends(self.x)
        # In the order of the parameters, those of the offsets last. The fit never rests on one, but a line search may try.
        self.bounds = [
            (self.y.min() - 30, self.y.max() + 30),
            (self.x.min() - 30, self.x.max() + 30),
            (self.r.min() - 6, self.r.max() + 6),
            (-2, 3),
            (-8, 3),
            (-3, 3),
            (-6, 2),
            (-8, 3),
            (-8, 8),
            (-2, 6),
            (-2, 2),
            (-5, 5),
        ]
        self.priors = (*_PRIORS.items(), (P, (float((self.r - 0.5 * self.z).mean()), 1.5)))
        self.names = group_names(points)
        self.group = number_groups(self.names)
        self.offset_sd = offset_sd
        self.offsets = int(self.group.max() + 1) if offset_sd > 0 else 0

    def nearness_to_ends(self, x: np.ndarray) -> np.ndarray:
        """0 in the middle of the runs' ln B, 1 at both ends, more beyond them."""
        middle, half = (self.x.max() + self.x.min()) / 2, (self.x.max() - self.x.min()) / 2
        return ((x - middle) / max(half, 1e-9)) ** 4

    def loss(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative logarithm of the posterior density at θ, and its gradient."""
        total, slopes = self._by_run(theta)
        loss, gradient = -float(np.log(total).sum()), np.zeros_like(theta)
        gradient[:OFFSETS] = slopes.sum(axis=1)
        for index, (mean, deviation) in self.priors:
            apart = (float(theta[index]) - mean) / deviation
            loss += 0.5 * apart * apart
            gradient[index] += apart / deviation
        if self.offsets:
            offsets = theta[OFFSETS:] / self.offset_sd
            loss += 0.5 * float(offsets @ offsets)
            gradient[OFFSETS:] = np.bincount(self.group, slopes[A], self.offsets) + offsets / self.offset_sd
        return loss, gradient

    def _by_run(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N,) the density of each run at θ, and (OFFSETS, N) slopes of its negative logarithm; those of an offset are a's."""
        a, c, _, _, _, _, log_sigma, stuck, stuck_ends, brink, log_alpha = theta.tolist()[:OFFSETS]
        alpha, sigma = math.exp(log_alpha), self.sigma(theta)
        u, k = self._off_rate(theta)
        lift = k * u * u
        bend_at = alpha * (c - self.x)
        e = self.y - a - np.logaddexp(0.0, bend_at) - lift
        if self.offsets:
            e = e - theta[OFFSETS:][self.group]
        usual = expit(stuck + stuck_ends * self.ends)
        beyond = expit((u - brink) / _BRINK_WIDTH)
        unusual, below_brink = 1 - usual, 1 - beyond
        share = usual + unusual * beyond

        t = e / sigma
        squared = 4.0 + t * t
        normal = density = 12.0 / squared**2.5 / sigma
        normal_slope = -5.0 * t / squared * density / sigma
        normal_by_sigma = (5.0 * t * t / squared - 1.0) * density / sigma
        if self.any_missed:
            s = t / np.sqrt(squared)
            normal = np.where(self.missed, 0.5 - 0.75 * s + 0.25 * s**3, density)
            normal_slope = np.where(self.missed, -density, normal_slope)
            normal_by_sigma = np.where(self.missed, density * t, normal_by_sigma)
        held, held_slope = _stuck(e, self.missed if self.any_missed else None)
        running = 1 - share
        total = np.maximum(running * normal + share * held, 1e-300)
        by_e = (running * normal_slope + share * held_slope) / total
        by_share = (held - normal) / total
        by_beyond = by_share * unusual * beyond * below_brink / _BRINK_WIDTH
        by_u = by_beyond - by_e * 2 * k * u
        by_usual = by_share * below_brink * usual * unusual
        slope = expit(bend_at)

        slopes = np.empty((OFFSETS, len(e)))
        slopes[A] = by_e
        slopes[C] = alpha * by_e * slope
        slopes[P] = by_u
        slopes[Q] = by_u * self.z
        slopes[CURVATURE] = by_e * lift
        slopes[ASYMMETRY] = np.where(u > 0, slopes[CURVATURE], -slopes[CURVATURE])
        slopes[SIGMA] = running * normal_by_sigma / total * -math.exp(log_sigma)
        slopes[STUCK] = -by_usual
        slopes[STUCK_ENDS] = -by_usual * self.ends
        slopes[BRINK] = by_beyond
        slopes[ALPHA] = by_e * slope * bend_at
        return total, slopes

    def directions(self, theta: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """(parameters, n) combinations of the allowed moves along which the loss is about a unit sphere near θ.

        Its curvature is taken for the sum of squares of the runs' slopes (Berndt, Hall, Hall and Hausman 1974) and that of the
        priors, which costs one evaluation.

        Args:
            theta: the parameters.
            allowed: (parameters, n) orthogonal unit vectors.
        """
        _, slopes = self._by_run(theta)
        if self.offsets:
            slopes = np.vstack([slopes, (np.arange(self.offsets)[:, None] == self.group) * slopes[A]])
        curvature = slopes @ slopes.T
        for index, (_, deviation) in self.priors:
            curvature[index, index] += 1 / deviation**2
        offsets = np.arange(OFFSETS, len(theta))
        curvature[offsets, offsets] += 1 / self.offset_sd**2 if self.offsets else 0.0
        values, vectors = np.linalg.eigh(allowed.T @ curvature @ allowed)
        return allowed @ (vectors / np.sqrt(np.maximum(values, _LEAST_CURVATURE)))

    def _off_rate(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u, the distance of each run's rate from the best one, and the curvature k on its side."""
        u = self.r - theta[P] - theta[Q] * self.z
        return u, np.exp(theta[CURVATURE] + np.where(u > 0, theta[ASYMMETRY], -theta[ASYMMETRY]))

    def lift(self, theta: np.ndarray) -> np.ndarray:
        """k u² of each run: what its rate costs."""
        u, k = self._off_rate(theta)
        return k * u * u

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """y less its expectation, of each run; offsets are left in."""
        return self.y - theta[A] - self.bend(theta) - self.lift(theta)

    def bend(self, theta: np.ndarray) -> np.ndarray:
        """ln S at the best rate beyond ln S_min, of each run's batch size."""
        return np.logaddexp(0.0, math.exp(theta[ALPHA]) * (theta[C] - self.x))

    @staticmethod
    def sigma(theta: np.ndarray) -> float:
        """Scale of the t₄ noise."""
        return math.exp(theta[SIGMA]) + _LEAST_SIGMA

    def minimize(self, start: np.ndarray, fixed: Sequence[int] = (ALPHA,), *, roughly: bool = False) -> Fitted:
        """The least loss, to 1e-10 of it or roughly, with some parameters kept as they are in `start`."""
        allowed = np.delete(np.eye(len(start)), fixed, axis=1)
        precision = (1e-4, 1e-3) if roughly else (1e-10, 1e-5)
        return self.minimize_along(start, self.directions(start, allowed), precision)

    def curvature(self, theta: np.ndarray) -> np.ndarray:
        """The matrix of second derivatives of the loss, from differences of the gradient."""
        step = 1e-4
        rows = [(self.loss(theta + move)[1] - self.loss(theta - move)[1]) / (2 * step) for move in step * np.eye(len(theta))]
        return (np.array(rows) + np.array(rows).T) / 2

    def minimize_along(self, start: np.ndarray, directions: np.ndarray, precision: tuple[float, float] = (1e-9, 1e-3)) -> Fitted:
        """The least loss over `start` plus any combination of the directions (parameters, n).

        Along `directions` of this class it takes half to a third of the evaluations that it takes along the parameters.

        Args:
            start: where to begin.
            directions: (parameters, n).
            precision: of the loss, relative, and of its gradient.
        """
        lowest, highest = np.array([self.bounds[min(index, OFFSETS)] for index in range(len(start))]).T

        def loss(part: np.ndarray) -> tuple[float, np.ndarray]:
            theta = start + directions @ part
            within = np.clip(theta, lowest, highest)  # a line search may try anything
            value, gradient = self.loss(within)
            beyond = theta - within
            return value + 0.5 * float(beyond @ beyond), (np.where(beyond == 0, gradient, 0.0) + beyond) @ directions

        options = {"maxcor": 30, "ftol": precision[0], "gtol": precision[1]}
        found = minimize(loss, np.zeros(directions.shape[1]), jac=True, method="L-BFGS-B", options=options)
        return Fitted(start + directions @ found.x, float(found.fun), self)

    def starts(self) -> list[np.ndarray]:
        """Where to begin: several values of c, of the best rate at the mean size, and of the curvature.

        From too small a curvature a fit may end with all runs at one far rate taken for stuck.
        """
        found = []
        places, rates = np.quantile(np.unique(self.x), (0.25, 0.5, 0.75)), np.quantile(self.r - 0.5 * self.z, (0.3, 0.7))
        for c, p, curvature in itertools.product(places, rates, (0.15, 0.6)):
            theta = np.zeros(OFFSETS + self.offsets)
            for index, (mean, _) in _PRIORS.items():
                theta[index] = mean
            theta[C], theta[P], theta[CURVATURE] = c, p, math.log(curvature)
            u = self.r - p - 0.5 * self.z
            rest = self.y - np.logaddexp(0.0, c - self.x) - curvature * u * u
            theta[A] = np.median(rest[~self.missed]) if not self.missed.all() else rest.max()
            found.append(theta)
        return found

    def best(self, *, quickly: bool = False) -> Fitted:
        """The least loss from all starts, or quickly from the likeliest of them alone."""
        starts = sorted(self.starts(), key=lambda theta: self.loss(theta)[0])
        if quickly:
            return self.minimize(starts[0])
        found = min((self.minimize(theta, roughly=True) for theta in starts), key=lambda fitted: fitted.loss)
        even = found.theta.copy()
        even[ASYMMETRY] = 0.0  # the side of a run's rate may be the other one in a likelier place beside this one
        return min((self.minimize(theta) for theta in (found.theta, even)), key=lambda fitted: fitted.loss)


def prior_deviation(index: int) -> float:
    """Standard deviation of the prior of a parameter; a wide one where it has none."""
    return _PRIORS[index][1] if index in _PRIORS else 10.0


def stuck_share(theta: np.ndarray, u: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Probability that a run is stuck, at a distance u from the best rate and so near to the end sizes."""
    usual = expit(theta[STUCK] + theta[STUCK_ENDS] * ends)
    return usual + (1 - usual) * expit((u - theta[BRINK]) / _BRINK_WIDTH)


def _stuck(e: np.ndarray, missed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Density of a stuck run's excess e in ln S, or its survival function where the run missed its goal; and the slope in e.

    `missed` is None where no run did: half of the work.
    """
    rate = 1 / _STUCK_MEAN
    tail = np.exp(np.minimum(0.5 * (_STUCK_NOISE * rate) ** 2 - rate * e, 60.0))
    argument = e / _STUCK_NOISE - _STUCK_NOISE * rate
    below = ndtr(argument)
    bell = np.exp(-0.5 * argument**2) / math.sqrt(2 * math.pi) / _STUCK_NOISE
    rising = (1 - _NEVER) * rate * tail
    density, slope = rising * below, rising * (bell - rate * below)
    if missed is None:
        return density, slope
    survival = _NEVER + (1 - _NEVER) * (ndtr(-e / _STUCK_NOISE) + tail * below)
    return np.where(missed, survival, density), np.where(missed, -density, slope)
