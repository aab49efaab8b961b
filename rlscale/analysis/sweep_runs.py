"""The results of a sweep as typed values, and which of its runs make the frontier.

What lives here: `SweepRun`, `SizeRuns` and the choice among the runs of one batch size. What does not: how records are stored
(`sweep`), how a sweep picks its next runs (`plan`), and what is concluded (`comparison`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..estimate import Estimate
from ..records.sweep import SweepRecord

__all__ = ["GoalReading", "NoiseReading", "SizeRuns", "SweepRun", "WindowReading", "read_runs", "size_runs"]

CHOOSING = ("coarse", "fine")  # stages whose runs the learning rate is chosen on
_CLEARLY = 1.25  # times fewer steps, before a neighbour of the chosen rate is called faster
_NAMED = 4  # of several runs left out for the same reason


@dataclass(frozen=True)
class GoalReading:
    """What one run says about one goal.

    Attributes:
        optimizer_steps: S at which it was reached; None if it was not.
        interval: of S, from the evaluations; None if it was not reached.
        observations: E at that step; None if it was not reached.
        not_before: most optimizer steps after which an evaluation was still below the goal, for a run that missed it; 0 where
            there is none.
    """

    optimizer_steps: float | None
    interval: tuple[float, float] | None
    observations: float | None
    not_before: float


@dataclass(frozen=True)
class NoiseReading:
    """The noise scale of one head in one run, on the way to one goal.

    Attributes:
        head: which loss.
        goal: the return to which it was measured.
        quantity: `start` (first updates), `goal` (last updates before it), or `cumulative` (mean over full-batch steps, D.1).
        scale: in observations, with its own interval.
        gain: γ of a batch size that follows the noise scale; None where it was not resolved, or for the other quantities.
    """

    head: str
    goal: float
    quantity: str
    scale: Estimate
    gain: float | None


@dataclass(frozen=True)
class WindowReading:
    """The momentary noise scale of one head over a stretch of a run.

    Attributes:
        head: which loss.
        optimizer_steps: made by the middle of the window.
        observations: sampled by then.
        mean_return: smoothed return of the evaluated policies there; None without evaluations.
        scale: in observations.
    """

    head: str
    optimizer_steps: float
    observations: float
    mean_return: float | None
    scale: Estimate


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep that ended; fields as in docs/glossary.md.

    Attributes:
        goals: by goal, what the run says about it; empty for a run that failed.
        noise: empty unless the run measured it.
    """

    id: str
    stage: str
    batch_size: int
    rate_index: int
    learning_rate: float
    seed: int
    state: str
    reason: str | None
    optimizer_steps: int
    observations: int
    seconds: float
    evaluation_steps: int
    evaluation_seconds: float
    evaluation_unfinished: int
    goals: Mapping[float, GoalReading]
    noise: tuple[NoiseReading, ...]
    windows: tuple[WindowReading, ...]

    @property
    def failed(self) -> bool:
        """Whether it ended by an error, so that it says nothing about its goals."""
        return self.state == "failed"


@dataclass(frozen=True)
class SizeRuns:
    """The runs of one batch size that make its points of the frontier.

    Attributes:
        batch_size: B, in observations per optimizer step.
        basis: `final`: runs on fresh seeds at the chosen rate. `same`: the best of the runs that the rate was chosen on, which
            flatters. `missed`: no tried rate reached any goal.
        runs: for `missed` all runs that tried; they make one censored point.
        learning_rate: the chosen one; None for `missed`.
        on_edge: no slower, or no faster, rate was tried than the chosen one, so a better one may lie beyond.
    """

    batch_size: int
    basis: Literal["final", "same", "missed"]
    runs: tuple[SweepRun, ...]
    learning_rate: float | None
    on_edge: bool

    def points(self, goal: float) -> list[tuple[SweepRun, float, float]]:
        """Runs as points of the frontier at a goal: S (inf if missed) and observations to the goal, or known to be too few.

        A run that missed the goal is known to have been below it up to `not_before` steps; one of which not even that is known
        is no point. Where no rate reached any goal the point is the run with the fewest such steps: the best rate, whichever
        that is, needs more than these.
        """
        found = []
        for run in self.runs:
            reading = run.goals.get(goal)
            if reading is None:
                continue
            if reading.optimizer_steps is not None and reading.observations is not None:
                found.append((run, reading.optimizer_steps, reading.observations))
            elif reading.not_before > 0:
                found.append((run, math.inf, reading.not_before * run.batch_size))
        return [min(found, key=lambda point: point[2])] if self.basis == "missed" and found else found


def read_runs(sweep: SweepRecord) -> tuple[list[SweepRun], list[str]]:
    """Every run of the sweep, and a sentence for each result that cannot be understood."""
    runs, left_out = [], []
    for identity, result in sweep.results.items():
        try:
            runs.append(_run(result))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            said = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            left_out.append(f"the result of {identity} cannot be understood and was left out ({said})")
    return runs, left_out


def size_runs(sweep: SweepRecord, runs: Sequence[SweepRun]) -> tuple[list[SizeRuns], list[str]]:
    """For every batch size the runs that make the frontier, ascending, and what was left out and why.

    The frontier is made of the `final` runs at the chosen rate. Only where the sweep has none at all, the best of the runs that
    the rates were chosen on stand in for them. Failed runs are left out.
    """
    notes = []
    failures = [run for run in runs if run.failed]
    if failures:
        named = "; ".join(f"{run.id}: {run.reason}" for run in failures[:_NAMED])
        more = f"; and {len(failures) - _NAMED} more" if len(failures) > _NAMED else ""
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        notes.append(f"{count} failed and {'was' if len(failures) == 1 else 'were'} left out ({named}{more})")
    usable = [run for run in runs if not run.failed]
    any_final = any(run.stage == "final" for run in usable)
    found = []
    for batch_size in sorted({run.batch_size for run in usable} | set(sweep.plan["batch_sizes"])):
        mine = [run for run in usable if run.batch_size == batch_size]
        final = [run for run in mine if run.stage == "final"]
        tried = [run for run in mine if run.stage in CHOOSING]
        best = _best(tried)
        ended = sum(run.batch_size == batch_size and run.stage in CHOOSING for run in runs)
        if final:
            found.append(_size(batch_size, "final", final, tried))
            notes += _faster_neighbours(batch_size, final, [run for run in mine if run.stage == "neighbour"])
            if len(final) < sweep.plan["seeds"]:
                notes.append(f"batch size {batch_size:,}: {len(final)} of {sweep.plan['seeds']} final runs are there")
        elif best is None and tried and ended >= sweep.plan["rates"]:
            found.append(_size(batch_size, "missed", tried, tried))
        elif best is not None and not any_final:
            found.append(_size(batch_size, "same", [best], tried))
            if ended < sweep.plan["rates"]:
                notes.append(f"batch size {batch_size:,}: only {ended} of {sweep.plan['rates']} learning rates have been tried")
        else:
            missing = "no final run of it is there" if best is not None else "its learning rates have not all been tried"
            notes.append(f"batch size {batch_size:,} was left out: {missing}")
    return found, notes


def _faster_neighbours(batch_size: int, final: Sequence[SweepRun], neighbours: Sequence[SweepRun]) -> list[str]:
    """A sentence for each neighbour of the chosen rate that was clearly faster to the last goal on as many fresh seeds.

    The frontier keeps to the chosen rate all the same: taking the best of three on the seeds that are measured would flatter.
    """

    def mean_steps(runs: Sequence[SweepRun]) -> float:
        reached = [max(run.goals.items())[1].optimizer_steps if run.goals else None for run in runs]
        steps = [value for value in reached if value is not None]
        return math.exp(sum(map(math.log, steps)) / len(steps)) if len(steps) == len(runs) else math.inf

    found, chosen = [], mean_steps(final)
    for rate in sorted({run.learning_rate for run in neighbours}):
        beside = [run for run in neighbours if run.learning_rate == rate]
        if len(beside) >= len(final) and _CLEARLY * mean_steps(beside) < chosen:
            missed = " (a run at the chosen rate missed it)" if math.isinf(chosen) else f" against {chosen:,.0f}"
            found.append(
                f"batch size {batch_size:,}: rate {rate:.3g}, beside the chosen {final[0].learning_rate:.3g}, was faster to the "
                f"last goal on fresh seeds: {mean_steps(beside):,.0f} optimizer steps{missed}"
            )
    return found


def _size(
    batch_size: int, basis: Literal["final", "same", "missed"], runs: Sequence[SweepRun], tried: Sequence[SweepRun]
) -> SizeRuns:
    indices = {run.rate_index for run in tried}
    chosen = None if basis == "missed" else runs[0]
    on_edge = chosen is not None and len(indices) > 1 and chosen.rate_index in (min(indices), max(indices))
    return SizeRuns(batch_size, basis, tuple(runs), chosen.learning_rate if chosen else None, on_edge)


def _best(runs: Sequence[SweepRun]) -> SweepRun | None:
    """The run with the most goals, then the fewest steps to the last of them, then the rate nearest to the grid's centre."""

    def rank(run: SweepRun) -> tuple[int, float, int]:
        steps = [reading.optimizer_steps for _, reading in sorted(run.goals.items()) if reading.optimizer_steps is not None]
        return -len(steps), steps[-1] if steps else math.inf, abs(run.rate_index)

    return min((run for run in runs if rank(run)[0] < 0), key=rank, default=None)


def _run(result: Mapping[str, Any]) -> SweepRun:
    goals = {}
    for entry in result["goals"]:
        reached = entry["optimizer_steps"] is not None
        goals[float(entry["goal"])] = GoalReading(
            optimizer_steps=_positive(entry["optimizer_steps"], "optimizer_steps") if reached else None,
            interval=_interval(entry["interval"]) if reached else None,
            observations=_positive(entry["observations"], "observations") if reached else None,
            not_before=float(entry["not_before"] or 0),
        )
    return SweepRun(
        id=str(result["id"]),
        stage=str(result["stage"]),
        batch_size=int(_positive(result["batch_size"], "batch_size")),
        rate_index=int(result["rate_index"]),
        learning_rate=_positive(result["learning_rate"], "learning_rate"),
        seed=int(result["seed"]),
        state=str(result["state"]),
        reason=result["reason"],
        optimizer_steps=int(result["optimizer_steps"]),
        observations=int(result["observations"]),
        seconds=float(result["seconds"]),
        evaluation_steps=int(result["evaluation_steps"]),
        evaluation_seconds=float(result["evaluation_seconds"]),
        evaluation_unfinished=int(result["evaluation_unfinished"]),
        goals=goals,
        noise=tuple(
            NoiseReading(str(n["head"]), float(n["goal"]), str(n["quantity"]), _scale(n), n["gain"]) for n in result["noise"]
        ),
        windows=tuple(
            WindowReading(str(w["head"]), float(w["optimizer_steps"]), float(w["observations"]), w["return"], _scale(w))
            for w in result["noise_windows"]
        ),
    )


def _positive(value: Any, name: str) -> float:
    if not (isinstance(value, int | float) and value > 0):
        raise ValueError(f"{name} is {value!r}")
    return float(value)


def _interval(ends: Sequence[float | None]) -> tuple[float, float]:
    """JSON has no infinity: the record keeps null for an end that lies there."""
    low, high = ends
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _scale(entry: Mapping[str, Any]) -> Estimate:
    value, interval = entry["value"], _interval(entry["interval"])
    if value is None:
        return Estimate(None, interval, entry.get("reason") or "not resolved")
    return Estimate(float(value), interval) if value > 0 else Estimate(None, interval, "the gradients show no noise")
