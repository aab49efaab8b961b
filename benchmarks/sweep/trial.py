"""One run of a sweep: train until every goal's crossing is known, or until the run can be given up; one result line.

Which runs there are is in `plan`, where they run in `run`. A trial depends on nothing but its own
description, so that it gives the same result whenever and wherever it runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlscale.agents.config import TrainConfig
from rlscale.agents.learning.results import NoiseRecord
from rlscale.agents.rollout.evaluate import Evaluation, Evaluator
from rlscale.agents.setup import prepare
from rlscale.analysis.summary import UPDATES
from rlscale.crossing import GoalSearch, smooth
from rlscale.envs import Task, find_task
from rlscale.frontier import adaptive_gain
from rlscale.noise import BlockStatistics, NoiseEstimate, pool, run_average
from rlscale.records.run import Run

__all__ = ["Course", "DivergedError", "TrainingCourse", "Trial", "run_trial"]

MOST_WINDOWS = 24


@dataclass(frozen=True)
class Trial:
    """A run of a sweep, completely described.

    Attributes:
        id: stable name, for example `b2048-k+1-s3`.
        stage: `coarse`, `fine`, `final` or `neighbour`.
        batch_size: B, environments x rollout length.
        rate_index: k, the learning rate's place on the plan's grid, in half-octaves from its centre.
        learning_rate: constant during the run.
        seed: of everything.
        most_optimizer_steps: give the run up after so many; None for no such limit.
        limit: why, for people: what the limit was derived from.
        measures_noise: whether the noise of every head is measured.
    """

    id: str
    stage: str
    batch_size: int
    rate_index: int
    learning_rate: float
    seed: int
    most_optimizer_steps: int | None
    limit: str | None
    measures_noise: bool


class DivergedError(RuntimeError):
    """A gradient or a parameter of the run is not finite any more."""


class Course(Protocol):
    """What a trial advances: PPO on a task here, a problem with a known answer in the tests."""

    def advance(self) -> tuple[int, list[NoiseRecord]]:
        """Make one optimizer step; observations sampled so far, and the noise measured in it.

        Raises:
            DivergedError: the run cannot go on.
        """
        ...

    def weights(self) -> np.ndarray:
        """A copy of the present parameters."""
        ...

    def evaluate(self, weights: np.ndarray, optimizer_steps: int) -> Evaluation:
        """Evaluate the policy that these parameters make."""
        ...

    def close(self, state: str, reason: str | None) -> None:
        """End, with how the trial ended."""
        ...


class TrainingCourse:
    """PPO on a task, one optimizer step an iteration, with a run record in `folder`.

    Args:
        config: of the run; its budget is not looked at.
        episodes: of one evaluation.
        folder: of the record; must not exist.
        command: what the user typed.
    """

    def __init__(self, config: TrainConfig, *, episodes: int, folder: Path, command: list[str]) -> None:
        task: Task = find_task(config.task)
        setup = prepare(config, task)
        self._evaluator = Evaluator(
            task,
            config.update.network,
            config.update.width,
            episodes=episodes,
            bfloat16=setup.compute.acts_in_bfloat16,
            seed=config.seed,
            threads=max(setup.compute.threads, config.actors * config.rollout.actor_cpus),
        )
        self._run = Run.create(folder, {**setup.manifest(command), "segments": []})
        try:
            self._session = setup.start()
        except BaseException:
            self._run.discard()
            raise

    def advance(self) -> tuple[int, list[NoiseRecord]]:
        iterated = None
        try:
            while iterated is None:
                iterated = self._session.iterate()
        except ValueError as error:
            if "not finite" in str(error):  # the noise measurement notices first
                raise DivergedError from error
            raise
        row, result = iterated
        if not math.isfinite(row["gradient_norm"]):
            raise DivergedError
        self._run.append(row)
        return row["observations"], result.noise

    def weights(self) -> np.ndarray:
        return self._session.weights()

    def evaluate(self, weights: np.ndarray, optimizer_steps: int) -> Evaluation:
        return self._evaluator.evaluate(weights, optimizer_steps)

    def close(self, state: str, reason: str | None) -> None:
        self._session.close()
        self._evaluator.close()
        self._run.set_state(state, reason)
        self._run.close()


def run_trial(
    trial: Trial,
    *,
    goals: Sequence[float],
    most_observations: int,
    make_course: Callable[[], Course],
) -> dict[str, Any]:
    """Run the trial to its end; its result, ready for JSON. docs/glossary.md defines every field.

    Args:
        trial: what to run.
        goals: ascending mean returns.
        most_observations: give up after so many.
        make_course: begins the training.
    """
    started = time.perf_counter()
    search = GoalSearch(goals)
    observations_after = [0]
    noise: list[NoiseRecord] = []
    kept: dict[int, np.ndarray] = {}
    cost = {"evaluation_steps": 0, "evaluation_seconds": 0.0, "evaluation_unfinished": 0}
    course = make_course()
    state, reason = "failed", None
    try:
        while True:
            steps = len(observations_after) - 1
            if search.finished:
                state = "finished"
                break
            if trial.most_optimizer_steps is not None and steps >= trial.most_optimizer_steps:
                state, reason = "hopeless", trial.limit
                break
            if observations_after[-1] >= most_observations:
                state, reason = "budget", f"{most_observations:,} observations spent"
                break
            try:
                observations, measured = course.advance()
            except DivergedError:
                state, reason = "hopeless", f"diverged in optimizer step {steps + 1:,}"
                break
            observations_after.append(observations)
            noise += measured
            if not search.keep(steps + 1):
                continue
            kept[steps + 1] = course.weights()
            while due := search.due():
                for optimizer_steps in due:
                    evaluation = course.evaluate(kept[optimizer_steps], optimizer_steps)
                    search.take(evaluation.at(optimizer_steps))
                    cost["evaluation_steps"] += evaluation.steps
                    cost["evaluation_seconds"] += evaluation.seconds
                    cost["evaluation_unfinished"] += evaluation.unfinished
            kept = {s: weights for s, weights in kept.items() if s >= search.oldest_needed}
    except BaseException as error:
        state, reason = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        course.close("failed" if state == "failed" else "finished", reason)
    return {
        **asdict(trial),
        "state": state,
        "reason": reason,
        "optimizer_steps": len(observations_after) - 1,
        "observations": observations_after[-1],
        "goals": [_goal(search, goal, observations_after) for goal in goals],
        "evaluations": [asdict(e) for _, e in sorted(search.evaluated.items())],
        **cost,
        "noise": _noise_at_goals(search, observations_after, noise),
        "noise_windows": _noise_windows(search, observations_after, noise),
        "seconds": time.perf_counter() - started,
    }


def _goal(search: GoalSearch, goal: float, observations_after: list[int]) -> dict[str, Any]:
    """Where the goal was reached, or how far the run is known not to have reached it."""
    crossing = search.crossings.get(goal)
    if crossing is None:
        return {
            "goal": goal,
            "optimizer_steps": None,
            "interval": None,
            "observations": None,
            "not_before": math.floor(search.settled),
        }
    estimate = crossing.optimizer_steps
    assert estimate.value is not None
    return {
        "goal": goal,
        "optimizer_steps": estimate.value,
        "interval": estimate.interval,
        "observations": float(np.interp(estimate.value, np.arange(len(observations_after)), observations_after)),
        "not_before": None,
    }


def _by_head(noise: Sequence[NoiseRecord]) -> dict[str, list[tuple[int, BlockStatistics]]]:
    """Usable measurements of every head, with the optimizer steps made before each."""
    heads: dict[str, list[tuple[int, BlockStatistics]]] = {}
    for record in noise:
        if record.kind == "rollout" and (record.statistics.size > 0).sum() > 2:
            heads.setdefault(record.head, []).append((record.optimizer_step, record.statistics))
    return heads


def _noise_at_goals(search: GoalSearch, observations_after: list[int], noise: Sequence[NoiseRecord]) -> list[dict[str, Any]]:
    """The noise scale on the way to each goal: over the first updates, over the last before it, and cumulative (paper, D.1)."""
    found = []
    for head, measured in _by_head(noise).items():
        for goal, crossing in search.crossings.items():
            reached = crossing.optimizer_steps.value
            assert reached is not None
            until = [statistics for step, statistics in measured if step < reached]
            if len(until) < 2:
                continue
            window = min(UPDATES, len(until))
            batch = observations_after[-1] / (len(observations_after) - 1)
            quantities = {
                "start": pool(until[:window]),
                "goal": pool(until[-window:]),
                "cumulative": run_average(until, batch, _window_of(until)),
            }
            gain = _gain(until, batch, _window_of(until))
            for quantity, estimated in quantities.items():
                entry = {"head": head, "goal": goal, "quantity": quantity, **_packed(estimated)}
                found.append({**entry, "gain": gain if quantity == "cumulative" else None})
    return found


def _window_of(statistics: list[BlockStatistics]) -> int:
    """Updates in each of the fewest equal windows of at most 20; a remainder of a few updates would be all noise."""
    return math.ceil(len(statistics) / math.ceil(len(statistics) / UPDATES))


def _gain(statistics: list[BlockStatistics], batch: float, window: int) -> float | None:
    """γ of a batch size that follows the noise scale; None where some window's noise scale is not positive."""
    scales, full_batch_steps = [], []
    for start in range(0, len(statistics), window):
        part = pool(statistics[start : start + window])
        if part.grad_sq <= 0 or part.trace_cov <= 0:
            return None
        scales.append(part.trace_cov / part.grad_sq)
        full_batch_steps.append(part.updates / (1 + scales[-1] / batch))
    return adaptive_gain(scales, full_batch_steps)


def _noise_windows(search: GoalSearch, observations_after: list[int], noise: Sequence[NoiseRecord]) -> list[dict[str, Any]]:
    """The noise scale along the run, each window beside the smoothed return of its policies."""
    evaluated = list(search.evaluated.values())
    windows = []
    for head, measured in _by_head(noise).items():
        size = max(min(UPDATES, len(measured)), math.ceil(len(measured) / MOST_WINDOWS))
        for start in range(0, len(measured) - size + 1, size):
            part = measured[start : start + size]
            middle = max(1.0, float(np.mean([step for step, _ in part])))  # of the policies that were measured
            windows.append(
                {
                    "head": head,
                    "optimizer_steps": middle,
                    "observations": float(np.interp(middle, np.arange(len(observations_after)), observations_after)),
                    "return": float(smooth(evaluated, np.log([middle]))[0]) if evaluated else None,
                    **_packed(pool([statistics for _, statistics in part])),
                }
            )
    return windows


def _packed(noise: NoiseEstimate) -> dict[str, Any]:
    return {
        "value": noise.b_simple,
        "interval": noise.interval,
        "trace_cov": noise.trace_cov,
        "grad_sq": noise.grad_sq,
        "blocks": noise.blocks,
        "measurements": noise.updates,
        "top_tenth_share": noise.top_tenth_share,
        "reason": noise.reason,
    }
