"""One trial of a sweep: train until every goal's crossing is known, or until the run can be given up.

A trial depends on nothing but its own description, so it gives the same result whenever and wherever it runs.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np

from rlscale.agents.config import TrainConfig
from rlscale.agents.learning import NoiseRecord
from rlscale.agents.machine import find_commit
from rlscale.agents.rollout import Evaluation, Evaluator
from rlscale.agents.setup import prepare
from rlscale.analysis.summary import UPDATES
from rlscale.crossing import GoalSearch, smooth
from rlscale.envs import Task, find_task
from rlscale.frontier import adaptive_gain
from rlscale.noise import BlockStatistics, pool, run_average
from rlscale.records import Run
from rlscale.records.trial import GoalCrossing, NoiseAtGoal, NoiseInWindow, Trial, TrialResult

__all__ = ["Course", "DivergedError", "TrainingCourse", "run_trial"]

MOST_WINDOWS = 24


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
) -> TrialResult:
    """Run the trial to its end.

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
    evaluations: list[Evaluation] = []
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
                    evaluations.append(course.evaluate(kept[optimizer_steps], optimizer_steps))
                    search.take(evaluations[-1].at(optimizer_steps))
            kept = {s: weights for s, weights in kept.items() if s >= search.oldest_needed}
    except BaseException as error:
        state, reason = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        course.close("failed" if state == "failed" else "finished", reason)
    return TrialResult(
        **asdict(trial),
        state=state,
        reason=reason,
        optimizer_steps=len(observations_after) - 1,
        observations=observations_after[-1],
        goals=tuple(_goal(search, goal, observations_after) for goal in goals),
        evaluations=tuple(evaluated for _, evaluated in sorted(search.evaluated.items())),
        evaluation_steps=sum(evaluation.steps for evaluation in evaluations),
        evaluation_seconds=sum(evaluation.seconds for evaluation in evaluations),
        evaluation_unfinished=sum(evaluation.unfinished for evaluation in evaluations),
        noise=_noise_at_goals(search, observations_after, noise),
        noise_windows=_noise_windows(search, observations_after, noise),
        seconds=time.perf_counter() - started,
        commit=find_commit(),
    )


def _goal(search: GoalSearch, goal: float, observations_after: list[int]) -> GoalCrossing:
    """Where the goal was reached, or how far the run is known not to have reached it."""
    crossing = search.crossings.get(goal)
    if crossing is None:
        return GoalCrossing(goal, None, None, None, not_before=math.floor(search.settled))
    steps = crossing.optimizer_steps
    assert steps.value is not None
    return GoalCrossing(goal, steps.value, steps.interval, _observations_at(steps.value, observations_after), None)


def _observations_at(optimizer_steps: float, observations_after: list[int]) -> float:
    """Observations sampled by then, between two steps by interpolation."""
    return float(np.interp(optimizer_steps, np.arange(len(observations_after)), observations_after))


def _by_head(noise: Sequence[NoiseRecord]) -> dict[str, list[tuple[int, BlockStatistics]]]:
    """Usable measurements of every head, with the optimizer steps made before each."""
    heads: dict[str, list[tuple[int, BlockStatistics]]] = {}
    for record in noise:
        if record.kind == "rollout" and (record.statistics.size > 0).sum() > 2:
            heads.setdefault(record.head, []).append((record.optimizer_step, record.statistics))
    return heads


def _noise_at_goals(search: GoalSearch, observations_after: list[int], noise: Sequence[NoiseRecord]) -> tuple[NoiseAtGoal, ...]:
    """The noise scale on the way to each goal: over the first updates, over the last before it, and cumulative (paper, D.1)."""
    found = []
    batch = observations_after[-1] / max(len(observations_after) - 1, 1)
    for head, measured in _by_head(noise).items():
        for goal, crossing in search.crossings.items():
            reached = crossing.optimizer_steps.value
            assert reached is not None
            until = [statistics for step, statistics in measured if step < reached]
            if len(until) < 2:
                continue
            # The fewest equal windows of at most 20 updates: a remainder of a few updates would be all noise.
            window = math.ceil(len(until) / math.ceil(len(until) / UPDATES))
            quantities = {
                "start": pool(until[:UPDATES]),
                "goal": pool(until[-UPDATES:]),
                "cumulative": run_average(until, batch, window),
            }
            gain = _gain(until, batch, window)
            for quantity, pooled in quantities.items():
                gained = gain if quantity == "cumulative" else None
                found.append(NoiseAtGoal.of(head, pooled, goal=goal, quantity=quantity, gain=gained))
    return tuple(found)


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


def _noise_windows(search: GoalSearch, observations_after: list[int], noise: Sequence[NoiseRecord]) -> tuple[NoiseInWindow, ...]:
    """The noise scale along the run, each window beside the smoothed return of its policies."""
    evaluated = list(search.evaluated.values())
    windows = []
    for head, measured in _by_head(noise).items():
        size = max(min(UPDATES, len(measured)), math.ceil(len(measured) / MOST_WINDOWS))
        for start in range(0, len(measured) - size + 1, size):
            part = measured[start : start + size]
            middle = max(1.0, float(np.mean([step for step, _ in part])))  # of the policies that were measured
            windows.append(
                NoiseInWindow.of(
                    head,
                    pool([statistics for _, statistics in part]),
                    optimizer_steps=middle,
                    observations=_observations_at(middle, observations_after),
                    mean_return=float(smooth(evaluated, np.log([middle]))[0]) if evaluated else None,
                )
            )
    return tuple(windows)
