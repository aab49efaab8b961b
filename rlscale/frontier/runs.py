"""The runs that a frontier is fitted to, as they were given and checked, and what its likelihoods have in common."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

__all__ = ["Point", "check_runs", "group_names", "logarithms", "number_groups", "rise_for"]


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
    # Of a tensor the numbers: its elements would each be a name of their own.
    names = [None] * b.size if group is None else list(group.tolist() if hasattr(group, "tolist") else group)
    if not all(isinstance(name, Hashable) for name in names):
        raise ValueError("group: a name must be a number or a text")
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


def logarithms(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which runs missed the goal, x = ln B and y = ln S, or ln of the limit of S for a run that missed it; each (N,)."""
    y = [p.observations / p.batch_size if p.censored and p.observations else p.optimizer_steps for p in points]
    return np.array([p.censored for p in points]), np.log([p.batch_size for p in points]), np.log(y)


def group_names(points: Sequence[Point]) -> list[Hashable]:
    """The group of each run; one of its own for a run by itself."""
    return [(0, p.group) if p.group is not None else (1, i) for i, p in enumerate(points)]


def number_groups(names: Sequence[Hashable]) -> np.ndarray:
    """A number for each distinct name, in the order of their first occurrence."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names])


def rise_for(runs: int, parameters: int, confidence: float) -> float:
    """How far twice the loss may rise inside an interval.

    The likelihood takes the noise for smaller than it is, by as many runs as there are parameters: hence the first factor.
    """
    degrees = max(runs - parameters, 1)
    return runs / degrees * float(stdtrit(degrees, 0.5 + confidence / 2)) ** 2
