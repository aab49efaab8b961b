"""Does the noise scale predict the critical batch size? The rule of docs/preregistration.md, for the ladder and for any sweeps.

Every sweep counts once, at its last goal; a prediction that is not resolved counts as an error of one decade. What is scored, and
why the rest is not, is in `rlscale.analysis.rungs`. `score` says how well one predictor does, and `verdict` draws the conclusion.
`agreement_of` is the score over every goal, for exploring.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from ..estimate import Estimate
from .predictions import PRIMARY
from .rows import LEAST_STEPS, Row
from .rungs import Intervention, Rung

__all__ = [
    "FEWEST_MOVED",
    "FEWEST_SCORED",
    "FEWEST_TASKS",
    "SECONDARY",
    "PredictorScore",
    "TaskTable",
    "Verdict",
    "agreement_of",
    "is_better",
    "score",
    "score_pairs",
    "verdict",
]

AVERAGES = ("cumulative", "sums", "goal")
SECONDARY = tuple(
    (head, average + metric) for head in ("policy", "value", "joint") for metric in ("", "_adam") for average in AVERAGES
)
FEWEST_SCORED = 8
FEWEST_TASKS = 3  # for an interval
SUCCESS, FAILURE = 0.25, 0.5  # RMS about one offset, in decades
UNRESOLVED = 1.0  # decade
FEWEST_MOVED = 3  # interventions
_DRAWS = 20_000
_ROUNDING = 1e-20  # decades squared


@dataclass(frozen=True)
class PredictorScore:
    """How well one predictor does over the scored tasks, in decades.

    Attributes:
        tasks: that are scored.
        unresolved: of them, those where the prediction has no upper end.
        offset: mean of log10 measured - log10 predicted over resolved tasks.
        error: root mean square of log10 measured - log10 predicted, without an offset.
        rms: root mean square about the offset.
        left_out: root mean square error of a task that is left out, predicted with the offset of the others.
        constant: the same for the geometric mean of what was measured on the other tasks.
        r_squared: over resolved tasks, about y = x.
        r_squared_offset: with the offset taken out.
    """

    tasks: int
    unresolved: int
    offset: Estimate
    error: Estimate
    rms: Estimate
    left_out: Estimate
    constant: Estimate
    r_squared: Estimate
    r_squared_offset: Estimate


@dataclass(frozen=True)
class Verdict:
    """The conclusion.

    Attributes:
        state: `predicts`, `fails`, `undecided`, or `too few` tasks.
        primary: the score of the primary predictor; None where no task is scored.
        interventions: all of them.
    """

    state: Literal["predicts", "fails", "undecided", "too few"]
    primary: PredictorScore | None
    interventions: tuple[Intervention, ...]

    @property
    def would_predict(self) -> bool:
        """Whether the error is small enough for `predicts`, whatever the interventions did."""
        return self.primary is not None and self.primary.rms.value is not None and self.primary.rms.value <= SUCCESS


def score(rungs: Sequence[Rung], head: str, quantity: str) -> PredictorScore | None:
    """The score of one predictor over those rungs that are not left out; None where there is none.

    Rungs of one task count as their mean. Intervals are those of `TaskTable.estimate`.
    """
    table = TaskTable.of(rungs, head, quantity)
    return _score(table) if len(table.measured) else None


def score_pairs(measured: Sequence[float], predicted: Sequence[float]) -> PredictorScore:
    """The same score for pairs of numbers from elsewhere, all above zero, one of each for every task, all resolved.

    Raises:
        ValueError: not as many of one as of the other, or none.
    """
    if len(measured) != len(predicted) or not measured:
        raise ValueError(f"{len(measured)} measured and {len(predicted)} predicted batch sizes are no pairs")
    return _score(TaskTable(np.log10(measured), np.log10(predicted), np.ones(len(measured), bool)))


def agreement_of(
    rows: Sequence[Row], head: str, quantity: str, least_steps: float = LEAST_STEPS
) -> tuple[int, PredictorScore] | None:
    """How many goals are scored and have a prediction, and the score of a predictor over them; None where none is.

    The goals of one task are not independent: they count as their mean.
    """
    pairs = [
        (row.task, row.measured.value, predicted.value)
        for row in rows
        for predicted in [row.predicted(head, quantity)]
        if row.measured.value is not None and row.scored(least_steps) and predicted.value is not None
    ]
    return (len(pairs), _score(TaskTable.by_task(pairs))) if pairs else None


def _score(table: "TaskTable") -> PredictorScore:
    return PredictorScore(
        tasks=len(table.measured),
        unresolved=int((~table.resolved).sum()),
        offset=table.estimate(lambda t: t.offset, float, spread=False),
        error=table.estimate(lambda t: _log((np.where(t.resolved, t.error, UNRESOLVED) ** 2).mean(-1)), _root, spread=False),
        rms=table.estimate(lambda t: _log(t.square), _root),
        left_out=table.estimate(lambda t: _log(t.left_out), _root),
        constant=table.estimate(lambda t: _log(t.constant), _root),
        r_squared=table.estimate(lambda t: t.unexplained(0.0), _share),
        r_squared_offset=table.estimate(lambda t: t.unexplained(t.offset), _share),
    )


def is_better(rungs: Sequence[Rung], secondary: tuple[str, str]) -> bool:
    """Whether a secondary predictor is better than the primary one by the preregistered rule.

    The interval of the difference of mean squares about the offset leaves out zero, at a confidence of 1 - 0.05/len(SECONDARY).
    """
    first, second = TaskTable.of(rungs, *PRIMARY), TaskTable.of(rungs, *secondary)
    count = len(first.measured)
    if count < FEWEST_TASKS:
        return False
    draws = _draws(count)
    difference = float(second.square) - float(first.square)
    spread = (second.take(draws).square - first.take(draws).square).std()
    t = float(stdtrit(count - 1, 1 - 0.05 / len(SECONDARY) / 2)) * math.sqrt(count / (count - 1))
    return difference + t * float(spread) < 0


def verdict(rungs: Sequence[Rung], interventions: Sequence[Intervention] = ()) -> Verdict:
    """The conclusion over the tasks among the rungs."""
    primary = score([rung for rung in rungs if rung.role == "task"], *PRIMARY)
    if primary is None or primary.tasks < FEWEST_SCORED:
        return Verdict("too few", primary, tuple(interventions))
    rms, alone, constant = primary.rms.value, primary.left_out.value, primary.constant.value
    assert rms is not None
    assert alone is not None
    assert constant is not None
    state: Literal["predicts", "fails", "undecided"] = "undecided"
    if rms > FAILURE or alone >= constant:
        state = "fails"
    elif rms <= SUCCESS and sum(one.counts and one.holds is True for one in interventions) >= FEWEST_MOVED:
        state = "predicts"
    return Verdict(state, primary, tuple(interventions))


@dataclass(frozen=True)
class TaskTable:
    """log10 measured and predicted of tasks, (…, tasks); a prediction that is not resolved has no meaning."""

    measured: np.ndarray
    predicted: np.ndarray
    resolved: np.ndarray

    @classmethod
    def of(cls, rungs: Sequence[Rung], head: str, quantity: str) -> "TaskTable":
        """Rungs of one task count as one, by their mean; its prediction is resolved where that of each is."""
        scored = []
        for rung in rungs:
            if rung.left_out is None:
                found = rung.row.predicted(head, quantity)
                resolved = math.isfinite((found.interval or (0.0, math.inf))[1])
                scored.append((rung.row.task, rung.row.measured.value or math.nan, found.value if resolved else None))
        return cls.by_task(scored)

    @classmethod
    def by_task(cls, figures: Iterable[tuple[str, float, float | None]]) -> "TaskTable":
        """From tasks with a measured and a predicted figure, above zero; the latter None where it is not resolved."""
        rows: dict[str, list[tuple[float, float | None]]] = {}
        for task, measured, predicted in figures:
            rows.setdefault(task, []).append((math.log10(measured), None if predicted is None else math.log10(predicted)))
        means = np.zeros((3, len(rows)))
        for number, pairs in enumerate(rows.values()):
            means[:2, number] = np.mean([(m, p or 0.0) for m, p in pairs], axis=0)
            means[2, number] = all(p is not None for _, p in pairs)
        return cls(means[0], means[1], means[2] > 0)

    def take(self, draws: np.ndarray) -> "TaskTable":
        return TaskTable(self.measured[draws], self.predicted[draws], self.resolved[draws])

    @property
    def error(self) -> np.ndarray:
        """log10 measured - log10 predicted; zero where not resolved."""
        return np.where(self.resolved, self.measured - self.predicted, 0.0)

    @property
    def count(self) -> np.ndarray:
        return self.resolved.sum(-1)

    @property
    def offset(self) -> np.ndarray:
        """Mean error of resolved tasks; nan where none is."""
        return np.where(self.count > 0, self.error.sum(-1) / np.maximum(self.count, 1), np.nan)

    @property
    def square(self) -> np.ndarray:
        """Mean square error about the offset, over all tasks."""
        about = np.where(self.resolved, self.error - np.nan_to_num(self.offset)[..., None], UNRESOLVED)
        return (about**2).mean(-1)

    @property
    def left_out(self) -> np.ndarray:
        """Mean square error of each task with the offset of the others."""
        others = (self.error.sum(-1)[..., None] - self.error) / np.maximum(self.count[..., None] - self.resolved, 1)
        return (np.where(self.resolved, self.error - others, UNRESOLVED) ** 2).mean(-1)

    @property
    def constant(self) -> np.ndarray:
        """Mean square error of the mean over the other tasks."""
        tasks = self.measured.shape[-1]
        others = (self.measured.sum(-1)[..., None] - self.measured) / max(tasks - 1, 1)
        return ((self.measured - others) ** 2).mean(-1)

    def unexplained(self, offset: np.ndarray | float) -> np.ndarray:
        """ln of the share of the variance of log10 measured that the prediction leaves, over resolved tasks."""
        count = np.maximum(self.count, 1)
        rest = (np.where(self.resolved, self.error - np.asarray(offset)[..., None], 0.0) ** 2).sum(-1) / count
        mean = np.where(self.resolved, self.measured, 0.0).sum(-1) / count
        variance = (np.where(self.resolved, self.measured - mean[..., None], 0.0) ** 2).sum(-1) / count
        # Of one resolved task alone rounding is left, which differs from machine to machine.
        return _log(rest) - np.where(variance > _ROUNDING, _log(variance), np.nan)

    def estimate(
        self, statistic: Callable[["TaskTable"], np.ndarray], back: Callable[[float], float], spread: bool = True
    ) -> Estimate:
        """The estimate of a statistic that is computed on a symmetric scale; `back` leads to the scale that is shown.

        A statistic of the spread over tasks needs two of them, an interval three. That is the standard error over resampled
        tasks times Student's t of tasks - 1: intervals cover 88 to 99% (simulated), where percentiles of the same bootstrap cover
        30 to 80% with three to five tasks. That is of normal errors. Where a few tasks err far more than the others, those of
        root mean squares are too short: with Student's t of three degrees of freedom they cover three quarters to four fifths
        (8 and 13 tasks, by hand).
        """
        value, tasks = float(statistic(self)), len(self.measured)
        if math.isnan(value):
            return Estimate(None, None, "no task says anything about it")
        if spread and tasks < 2:
            return Estimate(None, None, "one task says nothing about the differences between tasks")
        if tasks < FEWEST_TASKS:
            return Estimate(back(value), None)
        drawn = statistic(self.take(_draws(tasks)))
        drawn = drawn[np.isfinite(drawn)]
        t = float(stdtrit(tasks - 1, 0.975)) * math.sqrt(tasks / (tasks - 1))
        reach = t * float(drawn.std()) if math.isfinite(value) and len(drawn) else 0.0
        low, high = sorted((back(value - reach), back(value + reach)))
        return Estimate(back(value), (low, high))


@lru_cache(maxsize=4)
def _draws(tasks: int, draws: int = _DRAWS) -> np.ndarray:
    """Resampled tasks, without draws of one task alone, which say nothing about tasks."""
    drawn = np.random.default_rng(20181214).integers(0, tasks, (draws, tasks))
    return drawn[(drawn != drawn[:, :1]).any(axis=1)]


def _log(mean_square: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(mean_square, _ROUNDING))


def _root(log_square: float) -> float:
    return math.exp(min(log_square, 700.0) / 2)


def _share(log_rest: float) -> float:
    return 1 - math.exp(min(log_rest, 700.0))
