"""One trial of a sweep and its result: the line that it leaves in results.jsonl. docs/glossary.md defines every field.

`TrialResult` is the only form in which results are passed on: a trial returns it, the record stores it, and the sweep's next
runs, its display and the comparison page read it. `SWEEP_SCHEMA` in `rlscale.records.sweep` is its version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from ..crossing import Evaluated
from ..estimate import Estimate
from ..noise import NoiseEstimate

__all__ = ["GoalCrossing", "MeasuredNoise", "NoiseAtGoal", "NoiseInWindow", "NoiseSums", "Trial", "TrialResult"]


@dataclass(frozen=True)
class Trial:
    """A run of a sweep, completely described together with the settings that all runs of the sweep share.

    Attributes:
        id: stable name, for example `run-012`, or `b2048-k+1-s3` in a grid.
        stage: `pilot`, `span`, `sharpen`, `grid` or `noise`; see `rlscale.benchmarks.sweep.plan`. Older records have others.
        batch_size: B, environments x rollout length.
        rate_index: k, the learning rate's place in a grid, in half-octaves from its centre; None in a sequential sweep.
        learning_rate: constant during the run.
        seed: of everything.
        most_optimizer_steps: the run is given up after so many; None for no such limit.
        limit: what that limit was derived from, for people.
        measures_noise: whether noise is measured: of every loss in a noise run, else of the joint loss.
        last_goal: the run ends when it has reached this one; None for the last goal of the sweep.
    """

    id: str
    stage: str
    batch_size: int
    rate_index: int | None
    learning_rate: float
    seed: int
    most_optimizer_steps: int | None
    limit: str | None
    measures_noise: bool
    last_goal: float | None

    def __post_init__(self) -> None:
        if not (self.batch_size > 0 and self.learning_rate > 0):
            raise ValueError(f"batch_size {self.batch_size!r} or learning_rate {self.learning_rate!r} is not above zero")

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The trial, or result, that a line of a record holds. Fields of later versions are passed over.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: a field is missing, or holds something else.
        """
        return _from_json(cls, stored)


@dataclass(frozen=True)
class GoalCrossing:
    """Where a trial reached a goal, or how far it is known not to have reached it.

    Attributes:
        goal: the mean return to reach.
        optimizer_steps: S at which the goal was reached; None if it was missed.
        interval: 95% interval of S, from the evaluations; None if the goal was missed.
        observations: E at that step; None if the goal was missed.
        not_before: for a missed goal, the most optimizer steps after which evaluations were still below it, and of a run that
            diverged at least the earliest step that counts; else None.
    """

    goal: float
    optimizer_steps: float | None
    interval: tuple[float, float] | None
    observations: float | None
    not_before: float | None

    def __post_init__(self) -> None:
        if self.optimizer_steps is not None and not (self.optimizer_steps > 0 and (self.observations or 0) > 0):
            raise ValueError(f"goal {self.goal}: steps {self.optimizer_steps!r} or observations {self.observations!r}")


@dataclass(frozen=True)
class MeasuredNoise:
    """The noise scale of one loss, pooled over several measurements of a trial; see `rlscale.noise.NoiseEstimate`.

    Attributes:
        head: which loss.
        value: the noise scale in observations; None where it is not resolved.
        interval: of the noise scale, 95%.
        measurements: optimizer steps at which it was measured.
        reason: why there is no value.
    """

    head: str
    value: float | None
    interval: tuple[float, float]
    trace_cov: float
    grad_sq: float
    blocks: int
    measurements: int
    top_tenth_share: float
    reason: str | None

    @classmethod
    def of(cls, head: str, noise: NoiseEstimate, **where: Any) -> Self:
        """From an estimate, with the fields that say where in the run it was measured."""
        return cls(
            head=head,
            value=noise.b_simple,
            interval=noise.interval,
            trace_cov=noise.trace_cov,
            grad_sq=noise.grad_sq,
            blocks=noise.blocks,
            measurements=noise.updates,
            top_tenth_share=noise.top_tenth_share,
            reason=noise.reason,
            **where,
        )

    @property
    def scale(self) -> Estimate:
        """The noise scale in observations."""
        if self.value is None:
            return Estimate(None, self.interval, self.reason or "not resolved")
        if self.value <= 0:
            return Estimate(None, self.interval, "the gradients show no noise")
        return Estimate(self.value, self.interval)


@dataclass(frozen=True)
class NoiseAtGoal(MeasuredNoise):
    """The noise scale on the way to one goal.

    Attributes:
        goal: the return to which it was measured.
        quantity: `start` (first updates), `goal` (last updates before it), or `cumulative` (mean over full-batch steps, D.1).
        gain: γ of a batch size that follows the noise scale; None where it was not resolved, or for the other quantities.
    """

    goal: float
    quantity: str
    gain: float | None


@dataclass(frozen=True)
class NoiseInWindow(MeasuredNoise):
    """The momentary noise scale over a stretch of a trial.

    Attributes:
        optimizer_steps: made by the middle of the stretch.
        observations: sampled by then.
        mean_return: smoothed return of the evaluated policies there; None without evaluations. `return` in the record.
    """

    optimizer_steps: float
    observations: float
    mean_return: float | None


@dataclass(frozen=True)
class NoiseSums:
    """What windows of updates of a trial measured of one loss, so that several trials can be summed before anything is divided.

    Attributes:
        head: which loss.
        metric: `plain`, or `adam` for Adam's metric.
        trace_cov: mean of tr Σ over the updates of each window, from the start of the run.
        grad_sq: mean of |G|², unbiased and so perhaps negative.
        updates: that were measured in the window.
    """

    head: str
    metric: str
    trace_cov: tuple[float, ...]
    grad_sq: tuple[float, ...]
    updates: tuple[int, ...]


@dataclass(frozen=True)
class TrialResult(Trial):
    """A trial that ended, with what it found.

    Attributes:
        state: `finished`: every goal was reached; `hopeless` or `budget`: given up; `failed`: ended by an error.
        reason: why it did not finish.
        optimizer_steps: made in all.
        observations: sampled in all, valid ones only.
        goals: one entry per goal, ascending; none for a failed trial.
        evaluations: of frozen policies, in the order of their optimizer steps.
        evaluation_steps: environment steps of all evaluations.
        evaluation_unfinished: episodes that were cut off.
        noise: on the way to each goal that was reached; empty unless the trial measured it.
        noise_windows: along the whole run.
        noise_sums: in windows of `rlscale.noise.RUN_WINDOW` steps.
        seconds: wall time, evaluations included.
        commit: of the code that ran; None outside a checkout.
        jobs: runs side by side when it ended; None in earlier records.
    """

    state: str
    reason: str | None
    optimizer_steps: int = 0
    observations: int = 0
    goals: tuple[GoalCrossing, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    evaluation_steps: int = 0
    evaluation_seconds: float = 0.0
    evaluation_unfinished: int = 0
    noise: tuple[NoiseAtGoal, ...] = ()
    noise_windows: tuple[NoiseInWindow, ...] = ()
    noise_sums: tuple[NoiseSums, ...] = ()
    seconds: float = 0.0
    commit: str | None = None
    jobs: int | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended by an error, so that it says nothing about its goals."""
        return self.state == "failed"

    @property
    def reached(self) -> list[float]:
        """Optimizer steps S to each goal that was reached, in the order of the goals."""
        return [entry.optimizer_steps for entry in self.goals if entry.optimizer_steps is not None]

    def hours(self, jobs: int) -> float:
        """Its part of a sweep's hours: its own over the runs side by side, which are so many where it does not say."""
        return self.seconds / 3600 / (self.jobs or jobs)

    def crossing(self, goal: float) -> GoalCrossing | None:
        """What the trial says about one goal; None if it failed."""
        return next((entry for entry in self.goals if entry.goal == goal), None)

    def steps_to(self, goal: float) -> float | None:
        """S to a goal; None for a trial that did not get there."""
        found = self.crossing(goal)
        return None if found is None else found.optimizer_steps

    def to_json(self) -> dict[str, Any]:
        """The object of the record's line, but for figures that are not finite."""
        stored = asdict(self)
        if self.jobs is None:
            del stored["jobs"]
        for window in stored["noise_windows"]:
            window["return"] = window.pop("mean_return")
        return stored


Part = TypeVar("Part")
_LATER: dict[str, Any] = {
    "last_goal": None,
    "training": False,
    "noise_sums": (),
    "jobs": None,
}  # fields that earlier records lack
_PARTS: dict[str, type] = {
    "goals": GoalCrossing,
    "evaluations": Evaluated,
    "noise": NoiseAtGoal,
    "noise_windows": NoiseInWindow,
    "noise_sums": NoiseSums,
}


def _from_json(kind: type[Part], stored: Mapping[str, Any]) -> Part:
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name = "return" if field.name == "mean_return" else field.name
        value = stored.get(name, _LATER[name]) if name in _LATER else stored[name]
        if field.name in _PARTS:
            value = tuple(_from_json(_PARTS[field.name], part) for part in value)
        elif isinstance(value, list) and field.name != "interval":
            value = tuple(value)
        elif field.name == "interval" and value is not None:  # JSON has no infinity: an open end is null there
            low, high = value
            value = (-math.inf if low is None else low, math.inf if high is None else high)
        values[field.name] = value
    return kind(**values)
