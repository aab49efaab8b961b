"""How well the predicted critical batch size agrees with the measured one, over tasks.

For one goal of one task, d = log10 measured - log10 predicted is the error in decades (powers of ten). It is positive where the
task can be parallelized further than predicted. The goals of one task are not independent, so every mean is taken over the goals
of each task first and then over tasks, and the intervals resample whole tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from .estimate import Estimate

__all__ = ["FEWEST_TASKS", "Agreement", "agreement"]

FEWEST_TASKS = 3
_DRAWS = 2000
_ROUNDING = 1e-20  # decades squared


@dataclass(frozen=True)
class Agreement:
    """Predicted against measured, in decades (powers of ten).

    With fewer than three tasks `offset` and `rms` have no interval, and describe only those tasks. The other figures then have no
    value, and their `reason` says so.

    Attributes:
        tasks: number of distinct tasks.
        goals: number of goals, each a pair of figures; at least one a task.
        r_squared: share of the variance of log10 measured explained by log10 predicted as it stands, about the line y = x. At
            most 1; below 0 where the mean of the measured values would do better.
        r_squared_offset: the same after one offset for all tasks was fitted; never below `r_squared`.
        offset: mean of d. The measured value is 10 ** offset times the predicted one on average.
        rms: root mean square of d.
        rms_offset: root mean square of d about the offset.
        left_out: root mean square error for a task left out, predicted from its own noise scale and the offset of the others.
        constant: the same for a baseline without any noise scale: the geometric mean of what was measured on the other tasks.
    """

    tasks: int
    goals: int
    r_squared: Estimate
    r_squared_offset: Estimate
    offset: Estimate
    rms: Estimate
    rms_offset: Estimate
    left_out: Estimate
    constant: Estimate


def agreement(measured: Any, predicted: Any, task: Sequence[Hashable], *, confidence: float = 0.95) -> Agreement:
    """Compare the measured and the predicted figure over the goals of several tasks.

    An interval is the standard error from a bootstrap that resamples tasks, times Student's t of tasks - 1. It is taken on a
    scale where the statistic is nearly symmetric: ln of a mean square, ln(1 - R²). These intervals cover 88 to 99% from three
    tasks on (simulated); percentiles of the same bootstrap cover 30 to 80% with three to five tasks.
    That is of normal errors. Where a few tasks err far more than the others, intervals of root mean squares are too short: with
    Student's t of three degrees of freedom they cover three quarters to four fifths (8 and 13 tasks, by hand).

    Args:
        measured: (N,) critical batch sizes, positive and finite, in observations.
        predicted: (N,) noise scales, positive and finite, in observations.
        task: (N,) the task that each goal belongs to.
        confidence: confidence level of the intervals.

    Raises:
        ValueError: the vectors differ in length or are empty, a figure is not positive and finite, or the confidence does not lie
            between 0 and 1.
    """
    y, x = (np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in (measured, predicted))
    if y.ndim != 1 or y.size == 0 or x.shape != y.shape or len(task) != y.size:
        raise ValueError("measured, predicted and task must be vectors of one length, of at least 1")
    for name, values in (("measured", y), ("predicted", x)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"{name} must be positive and finite")
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")
    means = _task_means(np.log10(y), np.log10(x), task)
    count = len(means.y)
    if count < FEWEST_TASKS:
        reason = f"needs at least {FEWEST_TASKS} tasks, and there {'is 1' if count == 1 else f'are {count}'}"
        nothing = Estimate(None, None, reason)
        return Agreement(
            tasks=count,
            goals=y.size,
            r_squared=nothing,
            r_squared_offset=nothing,
            offset=Estimate(float(means.d.mean()), None),
            rms=Estimate(math.sqrt(means.dd.mean()), None),
            rms_offset=nothing,
            left_out=nothing,
            constant=nothing,
        )
    draws = np.random.default_rng(20181214).integers(0, count, (_DRAWS, count))
    draws = draws[(draws != draws[:, :1]).any(axis=1)]  # a draw of one task alone says nothing about tasks
    t = math.sqrt(count / (count - 1)) * float(stdtrit(count - 1, 0.5 + confidence / 2))

    def of(statistic: Callable[[_Means], np.ndarray], back: Callable[[float], float]) -> Estimate:
        """The estimate of a statistic, which is computed on a symmetric scale; `back` leads to the scale that is shown."""
        value = float(statistic(means.take(np.arange(count)[None]))[0])
        if math.isnan(value):
            return Estimate(None, None, "the measured values do not differ")
        redrawn = statistic(means.take(draws))
        redrawn = redrawn[np.isfinite(redrawn)]
        reach = t * float(redrawn.std()) if math.isfinite(value) else 0.0
        low, high = sorted((back(value - reach), back(value + reach)))
        return Estimate(back(value), (low, high))

    def root(log_square: float) -> float:
        return math.exp(min(log_square, 700.0) / 2)

    def share(log_rest: float) -> float:
        return 1 - math.exp(min(log_rest, 700.0))  # e^700 is as far as a float goes

    return Agreement(
        tasks=count,
        goals=y.size,
        r_squared=of(lambda m: _log(m.dd.mean(-1)) - _log_variance(m), share),
        r_squared_offset=of(lambda m: _log(_variance(m.d, m.dd)) - _log_variance(m), share),
        offset=of(lambda m: m.d.mean(-1), float),
        rms=of(lambda m: _log(m.dd.mean(-1)), root),
        rms_offset=of(lambda m: _log(_variance(m.d, m.dd)), root),
        left_out=of(lambda m: _log(m.d_left_out.mean(-1)), root),
        constant=of(lambda m: _log(m.y_left_out.mean(-1)), root),
    )


@dataclass(frozen=True)
class _Means:
    """The means over the goals of every task, in decades; each (…, tasks).

    Attributes:
        y, yy, d, dd: mean of log10 measured, of its square, of d and of its square.
        d_left_out, y_left_out: mean square of d, and of log10 measured, about the mean over the *other* tasks.
    """

    y: np.ndarray
    yy: np.ndarray
    d: np.ndarray
    dd: np.ndarray
    d_left_out: np.ndarray
    y_left_out: np.ndarray

    def take(self, draws: np.ndarray) -> _Means:
        return _Means(*(values[draws] for values in vars(self).values()))


def _task_means(y: np.ndarray, x: np.ndarray, task: Sequence[Hashable]) -> _Means:
    number = {name: i for i, name in enumerate(dict.fromkeys(task))}
    of_task = np.array([number[name] for name in task])
    goals = np.bincount(of_task)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(of_task, values) / goals

    def left_out(values: np.ndarray) -> np.ndarray:
        means = mean(values)
        others = (means.sum() - means) / max(len(goals) - 1, 1)
        return mean((values - others[of_task]) ** 2)

    d = y - x
    y = y - y.mean()  # R² and the baseline do not depend on this shift, and squares lose no digits
    return _Means(mean(y), mean(y * y), mean(d), mean(d * d), left_out(d), left_out(y))


def _variance(mean: np.ndarray, mean_square: np.ndarray) -> np.ndarray:
    """Mean square about the mean over tasks, for every draw; (…, tasks) to (…)."""
    return np.maximum(mean_square.mean(-1) - mean.mean(-1) ** 2, 0.0)


def _log(mean_square: np.ndarray) -> np.ndarray:
    """Natural log; -inf below what rounding leaves of zero."""
    kept = mean_square > _ROUNDING
    return np.where(kept, np.log(np.where(kept, mean_square, 1.0)), -math.inf)


def _log_variance(means: _Means) -> np.ndarray:
    """Log variance of log10 measured; NaN where it does not vary."""
    log = _log(_variance(means.y, means.yy))
    return np.where(np.isfinite(log), log, math.nan)
