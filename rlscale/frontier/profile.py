"""The profile likelihood of a response surface: how far a sum of its parameters can be moved before the runs speak against it.

The likelihood is in `response`; `surface` says which sums there are and how far its logarithm may fall.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import null_space

from . import response
from .response import ALPHA, Fitted

__all__ = ["critical_interval", "ends", "reach", "scan", "unit"]

_BEYOND = 3.0  # how far, in ln B, the interval of B_crit may reach outside the sizes before it has no end
_STEP = 0.7  # in ln B_crit, between two places at which the likelihood is looked for


def unit(theta: np.ndarray, *summed: int) -> np.ndarray:
    """The direction in which these parameters are summed."""
    along = np.zeros(len(theta))
    along[list(summed)] = 1.0
    return along


def scan(best: Fitted) -> list[Fitted]:
    """Roughly the least loss at B_crit of a step below the smallest size, and so on to a step above the largest.

    A likelihood may have several wells: with another bend, other runs are the ones that are stuck, or another rate is the best.
    From the best fit no path leads to the others. So each place is looked at from what the fit begins with and from the best fit,
    and then from its neighbours, upwards and downwards.
    """
    runs = best.runs
    low, high = float(runs.x.min()) - _STEP, float(runs.x.max()) + _STEP
    places = np.linspace(low, high, math.ceil((high - low) / _STEP) + 1)
    begun = [*runs.starts(), best.theta]

    def slid(theta: np.ndarray, place: float) -> np.ndarray:
        """The same parameters with ln B_crit at that place, and S_min such that the runs' mean ln S stays."""
        moved = theta.copy()
        moved[response.C] = place
        moved[response.A] += float(np.mean(runs.bend(theta) - runs.bend(moved)))
        return moved

    def look(theta: np.ndarray, place: float) -> Fitted:
        return runs.minimize(slid(theta, place), (response.C, ALPHA), roughly=True)

    found = [look(min(begun, key=lambda theta: runs.loss(slid(theta, place))[0]), place) for place in places.tolist()]
    upwards = range(1, len(found))
    for number, neighbour in [*((n, n - 1) for n in upwards), *((n - 1, n) for n in reversed(upwards))]:
        found[number] = min(found[number], look(found[neighbour].theta, places[number]), key=lambda one: one.loss)
    return found


def critical_interval(best: Fitted, rise: float, scanned: Sequence[Fitted] = (), *, exactly: bool = True) -> tuple[float, float]:
    """Both ends of the interval of ln B_crit, exactly or further out; infinite where the runs give none."""
    x = best.runs.x
    edges = float(x.min()) - _BEYOND, float(x.max()) + _BEYOND
    low, high = ends(best, rise, unit(best.theta, response.C), edges, scanned, exactly=exactly)
    # A bend outside the sizes would follow from the model and not from the data: only one limit is kept.
    at = best.theta[response.C]
    return -math.inf if at < x.min() else low, math.inf if at > x.max() else high


def ends(
    best: Fitted,
    rise: float,
    along: np.ndarray,
    edges: tuple[float, float],
    scanned: Sequence[Fitted] = (),
    *,
    exactly: bool = True,
) -> tuple[float, float]:
    """Both ends of the interval of a sum of parameters, the exponent being 1; arguments as of `reach`.

    Args:
        scanned: other parameters; those within the allowed rise lie inside, whatever is between them and the best.
    """
    free = np.setdiff1d(np.arange(len(along)), [ALPHA])
    inside = [one for one in scanned if 2 * (one.loss - best.loss) < rise]
    found = []
    for sign, edge in zip((-1, 1), edges, strict=True):
        end = reach(best, rise, along, sign, edges, free, exactly=exactly)
        if inside:
            outermost = max(inside, key=lambda one: sign * float(along @ one.theta))
            left, at = rise - 2 * (outermost.loss - best.loss), float(along @ outermost.theta)
            if sign * at < sign * edge and math.isfinite(end):
                known = end if sign * at < sign * end else None  # beyond it the way out from there may lead further
                end = reach(outermost, left, along, sign, edges, free, known, exactly=exactly)
        found.append(end)
    return found[0], found[1]


def reach(
    best: Fitted,
    rise: float,
    along: np.ndarray,
    sign: int,
    edges: tuple[float, float],
    free: np.ndarray,
    known: float | None = None,
    *,
    exactly: bool = True,
) -> float:
    """The end of the profile-likelihood interval of a sum of parameters; infinite where it lies beyond the edge.

    The root of √(twice the rise) against the distance is sought, which is a straight line where the likelihood is Gaussian.

    Args:
        best: the least loss.
        rise: how far twice the loss may rise.
        along: (parameters,) of zeros and ones, those that are summed.
        sign: -1 for the lower end, 1 for the upper one.
        edges: the range in which it is sought.
        free: parameters that are fitted.
        known: an end, which is given back if the likelihood has fallen too far there.
        exactly: False where it matters only whether there is an end: then it may be given too far out.
    """
    runs = best.runs
    start = float(along @ best.theta)
    most = abs(edges[sign > 0] - start)
    # All combinations of the free parameters that leave the sum as it is.
    allowed = np.zeros((len(along), len(free) - 1))
    allowed[free] = null_space(along[free][None])
    directions = runs.directions(best.theta, allowed)
    outwards = along / along.sum()
    theta = best.theta
    # Beyond the sizes only S_min · B_crit, or S_min, is known. Were S_min left behind, all runs would be taken for stuck.
    slides = along[response.C] > 0 and along[response.A] == 0 and not runs.x.min() <= theta[response.C] <= runs.x.max()

    def root(distance: float) -> float:
        nonlocal theta
        moved = theta + (start + sign * distance - along @ theta) * outwards
        if slides:
            moved[response.A] += float(np.mean(runs.bend(theta) - runs.bend(moved)))
        fitted = runs.minimize_along(moved, directions)
        value = math.sqrt(max(2 * (fitted.loss - best.loss), 0.0)) - math.sqrt(rise)
        if value < 0:  # from outside, which may be another well, no path may lead back
            theta = fitted.theta
        return value

    inside, outside = 0.0, math.inf
    at_inside, at_outside = -math.sqrt(rise), math.inf
    distance = min(0.3, most) if known is None else sign * (known - start)
    for _ in range(40):
        value = root(distance)
        if known is not None and inside == 0.0 and value > -0.01:
            return known
        if abs(value) < 0.01 or (value > 0 and not exactly):
            break
        if value < 0:
            if distance >= most:
                return sign * math.inf
            inside, at_inside = distance, value
        else:
            outside, at_outside = distance, value
        if math.isinf(outside):
            slope = (at_inside + math.sqrt(rise)) / inside
            distance = min(inside * 2.5, most, max(1.2 * inside, inside - 1.05 * at_inside / max(slope, 1e-6)))
        else:  # the secant, kept off the ends
            share = -at_inside / (at_outside - at_inside)
            distance = inside + min(max(share, 0.1), 0.9) * (outside - inside)
    return start + sign * distance
