"""Why runs do not identify a frontier, and which batch size or run to add: the `reason` of an `Estimate` without a value."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .runs import Point

__all__ = ["FarRate", "say_far_rates", "say_too_few", "say_unidentified"]


class FarRate(NamedTuple):
    """A batch size, its fitted best rate, and of the runs there that reached the goal the rate that costs least by the fit."""

    batch_size: float
    best: float
    nearest: float


def say_too_few(points: Sequence[Point]) -> str:
    """Why no frontier can be fitted when fewer than three batch sizes have a run that reached its goal, and what to add."""
    sizes = _reached(points)
    if not sizes:
        return "no run reached its goal: give them more observations"
    have = f"{'one has' if len(sizes) == 1 else 'two have'}, of {' and '.join(map(_number, sizes))} observations"
    few = f"three batch sizes must have a run that reached its goal, and only {have}"
    if any(p.censored and p.batch_size not in sizes for p in points):
        return f"{few}: give the others more observations"
    add = [_smaller(sizes[0])] * (sizes[0] > 1) + [_larger(sizes[-1])]
    return f"{few}: add {' and '.join(map(_number, add))}"


def say_unidentified(points: Sequence[Point], low: float, high: float) -> str | None:
    """Why the interval of ln B_crit has no end on one side, and what to add; None where it has both.

    Args:
        points: the runs that were fitted.
        low: lower end of the interval of ln B_crit; -inf where it has none.
        high: upper end; inf where it has none.
    """
    if low > -math.inf and high < math.inf:
        return None
    reached, sizes = _reached(points), [p.batch_size for p in points]
    first, last = reached[0], reached[-1]
    wants = []
    if high == math.inf and max(sizes) > last:
        wants.append(f"give the runs above {_number(last)} more observations")
    elif high == math.inf:
        wants.append(f"add a batch size of {_number(_larger(max(last, math.exp(low))))} or more")
    if low == -math.inf and min(sizes) < first:
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
        wants.append("add more runs, or take a goal that they reach more alike")
    return f"{problem}: {', and '.join(wants) or 'there is no smaller one to add'}"


def say_far_rates(points: Sequence[Point], far: Sequence[FarRate]) -> str:
    """Why the fitted best rates cannot be believed, shown at the size where they lie furthest off, and what to add."""
    worst = max(far, key=lambda one: abs(math.log(one.best / one.nearest)))
    side = "higher" if worst.best > worst.nearest else "lower"
    of_sizes = f"at {len(far)} of {len(_reached(points))} batch sizes no run that reached its goal had a learning rate near"
    there = f"at {_number(worst.batch_size)} observations {worst.best:.2g}, and the nearest was {worst.nearest:.2g}"
    mend = f"try {side} rates there, or, where those fail, another goal"
    return f"{of_sizes} the fitted best one ({there}): {mend}"


def _reached(points: Sequence[Point]) -> list[float]:
    """Batch sizes at which some run reached its goal, ascending."""
    return sorted({p.batch_size for p in points if not p.censored})


def _larger(size: float) -> float:
    """Four times a batch size, rounded up to a power of two."""
    return 2.0 ** math.ceil(math.log2(4 * size) - 1e-6)


def _smaller(size: float) -> float:
    """A quarter of a batch size, rounded down to a power of two, at least one observation."""
    return max(1.0, 2.0 ** math.floor(math.log2(size / 4) + 1e-6))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
