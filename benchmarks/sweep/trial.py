"""One trial of a sweep: train until every goal's crossing is known, or until the run can be given up.

A trial depends on nothing but its own description, so it gives the same result whenever and wherever it runs.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from rlscale.agents.config import TrainConfig
from rlscale.agents.learning import NoiseRecord
from rlscale.agents.machine import find_commit
from rlscale.agents.rollout import Evaluation, Evaluator
from rlscale.agents.setup import prepare
from rlscale.crossing import BANDWIDTH, Evaluated, GoalSearch, earliest_step, smooth
from rlscale.envs import Task, find_task
from rlscale.frontier import adaptive_gain
from rlscale.noise import POOL_WINDOW, RUN_WINDOW, BlockStatistics, NotFiniteError, pool, run_average
from rlscale.records import Run
from rlscale.records.trial import GoalCrossing, NoiseAtGoal, NoiseInWindow, NoiseSums, Trial, TrialResult
from rlscale.text import first_line, true_error

__all__ = ["Advance", "Course", "TrainingCourse", "run_trial"]

MOST_WINDOWS = 24
MOST_LAG = 0.06  # of the steps made so far, by which training episodes may be late; corrected for, what is left is below 0.02
ENOUGH = 24  # training episodes that stand for an evaluation, or a quarter of its episodes if these are more
FEWEST_STEPS = 4  # with finished episodes, for a standard error


@dataclass(frozen=True)
class Advance:
    """What one step S of a course gave.

    Attributes:
        observations: sampled so far.
        noise: measured in it.
        episodes: that finished in it; whole ones of the policies that were learning.
        return_mean: of these episodes.
        episode_steps: their mean length, in steps S; a fraction where an episode is shorter than a rollout.
    """

    observations: int
    noise: list[NoiseRecord]
    episodes: int = 0
    return_mean: float = 0.0
    episode_steps: float = 0.0


class Course(Protocol):
    """What a trial advances: PPO on a task here, a problem with a known answer in the tests."""

    def advance(self) -> Advance:
        """Make one optimizer step, or one iteration of several.

        Raises:
            NotFiniteError: the run has diverged and cannot go on.
        """

    def weights(self) -> np.ndarray:
        """A copy of the present parameters."""

    def evaluate(self, weights: np.ndarray, optimizer_steps: int) -> Evaluation:
        """Evaluate the policy that these parameters make."""

    def close(self, state: str, reason: str | None) -> None:
        """End, with how the trial ended."""


class TrainingCourse:
    """PPO on a task, with a run record in `folder`. An iteration is one step S, however many optimizer steps it has.

    Args:
        config: of the run; its budget is not looked at.
        episodes: of one evaluation.
        folder: of the record; must not exist.
        command: what the user typed.
    """

    def __init__(self, config: TrainConfig, *, episodes: int, folder: Path, command: list[str]) -> None:
        task: Task = find_task(config.task)
        setup = prepare(config, task)
        self._rollout_length = config.rollout.rollout_length
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

    def advance(self) -> Advance:
        while (iterated := self._session.iterate()) is None:
            pass
        row, result = iterated
        self._run.append(row)
        noise = [replace(measured, optimizer_step=row["iteration"]) for measured in result.noise]
        return Advance(
            row["observations"],
            noise,
            row["episodes"],
            row["return_mean"] or 0.0,
            (row["episode_length_mean"] or 0.0) / self._rollout_length,
        )

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
    inner_steps: int = 1,
    episodes: int = 0,
) -> TrialResult:
    """Run the trial to its end.

    Args:
        trial: what to run.
        goals: ascending mean returns.
        most_observations: give up after so many.
        make_course: begins the training.
        inner_steps: optimizer steps in one step S.
        episodes: of an evaluation of a frozen policy.
    """
    started = time.perf_counter()
    wanted = [goal for goal in goals if trial.last_goal is None or goal <= trial.last_goal]
    search = GoalSearch(wanted, earliest_step(inner_steps))
    policies = _Policies(search, episodes)
    observations_after = [0]
    noise: list[NoiseRecord] = []
    course = make_course()
    state, reason, missed_until = "failed", None, 0
    try:
        while (end := _end_of(trial, search, observations_after, most_observations)) is None:
            try:
                advance = course.advance()
            except NotFiniteError:
                end = "hopeless", f"diverged in step {len(observations_after):,}"
                missed_until = search.earliest  # however soon: no goal counts as reached before
                break
            observations_after.append(advance.observations)
            noise += advance.noise
            policies.look(len(observations_after) - 1, advance, course)
        state, reason = end
    except BaseException as error:
        state, reason = "failed", f"{type(true_error(error)).__name__}: {first_line(error)}"
        raise
    finally:
        course.close("failed" if state == "failed" else "finished", reason)
    return TrialResult(
        **asdict(trial),
        state=state,
        reason=reason,
        optimizer_steps=len(observations_after) - 1,
        observations=observations_after[-1],
        goals=tuple(_goal(search, goal, observations_after, missed_until) for goal in goals),
        evaluations=tuple(evaluated for _, evaluated in sorted(search.evaluated.items())),
        evaluation_steps=sum(evaluation.steps for evaluation in policies.evaluations),
        evaluation_seconds=sum(evaluation.seconds for evaluation in policies.evaluations),
        evaluation_unfinished=sum(evaluation.unfinished for evaluation in policies.evaluations),
        noise=_noise_at_goals(search, observations_after, noise),
        noise_windows=_noise_windows(search, observations_after, noise),
        noise_sums=_noise_sums(noise),
        seconds=time.perf_counter() - started,
        commit=find_commit(),
    )


def _end_of(
    trial: Trial, search: GoalSearch, observations_after: Sequence[int], most_observations: int
) -> tuple[str, str | None] | None:
    """The state in which the trial ends now, and why; None while it goes on."""
    if search.finished:
        return "finished", None
    if trial.most_optimizer_steps is not None and len(observations_after) > trial.most_optimizer_steps:
        return "hopeless", trial.limit
    if observations_after[-1] >= most_observations:
        return "budget", f"{most_observations:,} observations spent"
    return None


class _Policies:
    """Keeps the policies that may have to be evaluated, evaluates those that the search asks for, and tells it of them.

    Args:
        search: for the goals.
        episodes: of an evaluation.

    Attributes:
        evaluations: that were made.
    """

    def __init__(self, search: GoalSearch, episodes: int) -> None:
        self._search = search
        self._training = _TrainingEpisodes(max(ENOUGH, episodes // 4))
        self._kept: dict[int, np.ndarray] = {}  # parameters after so many steps
        self.evaluations: list[Evaluation] = []

    def look(self, steps: int, advance: Advance, course: Course) -> None:
        """The course has made its step of that number."""
        search, training = self._search, self._training
        training.add(steps, advance)
        if not search.keep(steps):
            return
        if training.suffice(steps):
            search.spare(steps)
            if (own := training.take(steps)) and own.optimizer_steps not in search.evaluated:
                search.take(own)
        else:
            self._kept[steps] = course.weights()
        while due := search.due():
            for optimizer_steps in due:
                self.evaluations.append(course.evaluate(self._kept[optimizer_steps], optimizer_steps))
                search.take(self.evaluations[-1].at(optimizer_steps))
        self._kept = {s: weights for s, weights in self._kept.items() if s >= search.oldest_needed}


class _TrainingEpisodes:
    """Collects the episodes of training between two places of the grid, to spare an evaluation where they say as much.

    An episode that finishes after S steps was played by the policies of the steps since it began, so it is late by half its
    length. Where that is less than `MOST_LAG` of S, and the collection no wider than the kernel that smooths evaluations, the
    mean return is taken for that of the policy in the middle of the collection, less half a length. Frozen policies are
    evaluated elsewhere.

    Args:
        enough: episodes of a collection. Its standard error is at most twice that of an evaluation then: one that is larger at
            small batches would find goals there that were never reached.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._start = 0
        self._returns: list[tuple[int, float]] = []  # episodes and mean return of every step that had any
        self._length = math.nan  # of the latest episodes, in steps

    def add(self, steps: int, advance: Advance) -> None:
        """The episodes that finished in a step."""
        if advance.episodes:
            self._returns.append((advance.episodes, advance.return_mean))
            kept = min(1.0, advance.episodes / ENOUGH)
            before = advance.episode_steps if math.isnan(self._length) else self._length
            self._length = before + kept * (advance.episode_steps - before)

    def suffice(self, steps: int) -> bool:
        """Whether training episodes about that step stand for the policy; forgets a collection that has become too wide."""
        if self._length / 2 <= MOST_LAG * steps and steps - self._start <= BANDWIDTH * steps:
            return True
        self._start, self._returns = steps, []
        return False

    def take(self, steps: int) -> Evaluated | None:
        """The collection as an evaluation of the policy in its middle; None while it is too small, and goes on."""
        columns = np.array(self._returns, dtype=np.float64).reshape(-1, 2)
        counts, means = columns[:, 0], columns[:, 1]
        episodes = float(counts.sum())
        if episodes < self._enough or len(counts) < FEWEST_STEPS:
            return None
        mean = float(counts @ means / episodes)
        variance = float(counts @ (means - mean) ** 2) / (len(counts) - 1)  # of an episode, from the scatter between steps
        middle = round((self._start + 1 + steps) / 2 - self._length / 2)
        self._start, self._returns = steps, []
        return Evaluated(middle, mean, math.sqrt(variance / episodes), int(episodes), training=True)


def _goal(search: GoalSearch, goal: float, observations_after: list[int], missed_until: int) -> GoalCrossing:
    """Where the goal was reached, or how far the run is known not to have reached it: at least until that step."""
    crossing = search.crossings.get(goal)
    if crossing is None:
        return GoalCrossing(goal, None, None, None, not_before=max(math.floor(search.not_before(goal)), missed_until))
    steps = crossing.optimizer_steps
    return GoalCrossing(goal, steps.known, steps.interval, _observations_at(steps.known, observations_after), None)


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
            reached = crossing.optimizer_steps.known
            until = [statistics for step, statistics in measured if step < reached]
            if len(until) < 2:
                continue
            # The fewest equal windows for γ: a remainder of a few updates would be all noise.
            window = math.ceil(len(until) / math.ceil(len(until) / POOL_WINDOW))
            quantities = {
                "start": pool(until[:POOL_WINDOW]),
                "goal": pool(until[-POOL_WINDOW:]),
                "cumulative": run_average(until, batch),
            }
            gain = _gain(until, batch, window)
            for quantity, pooled in quantities.items():
                gained = gain if quantity == "cumulative" else None
                found.append(NoiseAtGoal.of(head, pooled, goal=goal, quantity=quantity, gain=gained))
    return tuple(found)


def _noise_sums(noise: Sequence[NoiseRecord]) -> tuple[NoiseSums, ...]:
    """Means over windows of `RUN_WINDOW` steps, of every head and metric."""
    windows: dict[tuple[str, str], dict[int, list[BlockStatistics]]] = {}
    for record in noise:
        for metric, statistics in (("plain", record.statistics), ("adam", record.adam)):
            if record.kind == "rollout" and statistics is not None and (statistics.size > 0).sum() > 2:
                of_head = windows.setdefault((record.head, metric), {})
                of_head.setdefault(record.optimizer_step // RUN_WINDOW, []).append(statistics)
    found = []
    for (head, metric), of_window in windows.items():
        pooled = {window: pool(statistics) for window, statistics in of_window.items()}
        each = range(max(pooled) + 1)
        found.append(
            NoiseSums(
                head,
                metric,
                trace_cov=tuple(float(f"{pooled[w].trace_cov:.5g}") if w in pooled else 0.0 for w in each),
                grad_sq=tuple(float(f"{pooled[w].grad_sq:.5g}") if w in pooled else 0.0 for w in each),
                updates=tuple(pooled[w].updates if w in pooled else 0 for w in each),
            )
        )
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
    first = min(search.evaluated, default=1)
    windows = []
    for head, measured in _by_head(noise).items():
        size = max(min(POOL_WINDOW, len(measured)), math.ceil(len(measured) / MOST_WINDOWS))
        for start in range(0, len(measured) - size + 1, size):
            part = measured[start : start + size]
            middle = max(1.0, float(np.mean([step for step, _ in part])))  # of the policies that were measured
            windows.append(
                NoiseInWindow.of(
                    head,
                    pool([statistics for _, statistics in part]),
                    optimizer_steps=middle,
                    observations=_observations_at(middle, observations_after),
                    mean_return=float(smooth(evaluated, np.log([max(middle, first)]))[0]) if evaluated else None,
                )
            )
    return tuple(windows)
