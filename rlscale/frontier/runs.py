"""The runs that a frontier is fitted to, as they were given and checked."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Point", "check_runs"]


@dataclass(frozen=True)
class Point:
    """One run, as it was given.

    Attributes:
        batch_size: B, observations per optimizer step.
        optimizer_steps: S, optimizer steps to the goal; inf for a run that missed it.
        observations: observations to the goal, or those that a run which missed it spent; None when not given.
        group: the name of its replicate, such as its seed; None for a run by itself.
        censored: whether the run missed its goal. Then S > observations / batch_size is all that is known.
    """

    batch_size: float
    optimizer_steps: float
    observations: float | None
    group: Hashable
    censored: bool


def check_runs(batch_size: Any, optimizer_steps: Any, observations: Any, group: Sequence[Hashable] | None) -> tuple[Point, ...]:
    """The runs as points; arguments and errors are those of `fit`."""
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
    return tuple(
        Point(float(b[i]), float(s[i]), None if math.isnan(e[i]) else float(e[i]), names[i], math.isinf(s[i]))
        for i in range(b.size)
    )
