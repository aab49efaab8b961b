"""The runs of a sweep as points of the response surface to one goal. The surface itself is in `rlscale.frontier`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..frontier import STOPPED_CONFIDENCE, Surface, fit_surface
from ..records import TrialResult

__all__ = ["SurfacePoint", "fit_points", "say_limit", "surface_points"]


@dataclass(frozen=True)
class SurfacePoint:
    """One run on the way to a goal.

    Attributes:
        run: the trial.
        batch_size: B, valid observations per step: the mean over all runs of the trial's nominal batch size. Resets of
            environments are no observations, so it lies a little below the nominal one.
        steps: S to the goal; inf where it was missed.
        observations: to the goal, or those before which it is known to have been missed.
        at_limit: whether the goal held from the earliest step on that counts, so that S is at most `steps`.
    """

    run: TrialResult
    batch_size: float
    steps: float
    observations: float
    at_limit: bool = False

    @property
    def missed(self) -> bool:
        """Whether the run did not reach the goal."""
        return math.isinf(self.steps)


def say_limit(points: Sequence[SurfacePoint], steps: str) -> str:
    """The earliest step that counts, read from the runs at that limit: `10 iterations or fewer, the earliest that counts`."""
    return f"{max(point.steps for point in points if point.at_limit):.0f} {steps} or fewer, the earliest that counts"


def surface_points(runs: Sequence[TrialResult], goal: float) -> list[SurfacePoint]:
    """Every run that says something about a goal, whatever its rate and stage, in the order given.

    A run that missed the goal is known to have been below it up to `not_before` steps; one of which not even that is known is no
    point, and no more is one that failed.
    """
    made = [run for run in runs if not run.failed and run.optimizer_steps]
    valid = {}
    for size in {run.batch_size for run in made}:
        mine = [run for run in made if run.batch_size == size]
        valid[size] = sum(run.observations for run in mine) / sum(run.optimizer_steps for run in mine)
    found = []
    for run in made:
        crossing, batch_size = run.crossing(goal), valid[run.batch_size]
        if crossing is None:
            continue
        if crossing.optimizer_steps is not None and crossing.observations is not None:
            at_limit = crossing.interval == (0.0, crossing.optimizer_steps)
            found.append(SurfacePoint(run, batch_size, crossing.optimizer_steps, crossing.observations, at_limit))
        elif crossing.not_before:
            # Records until 26 November 2026 say so of steps after the last evaluation too.
            seen = max((e.optimizer_steps for e in run.evaluations), default=crossing.not_before)
            found.append(SurfacePoint(run, batch_size, math.inf, min(crossing.not_before, seen) * batch_size))
    return found


def fit_points(points: Sequence[SurfacePoint], *, stopped: bool = False) -> Surface:
    """The response surface through points of one goal; the runs of one seed may share an offset.

    Args:
        points: of the goal.
        stopped: whether their own interval decided when to stop; see `rlscale.frontier.surface.STOPPED_CONFIDENCE`.
    """
    return fit_surface(
        [point.batch_size for point in points],
        [point.run.learning_rate for point in points],
        [point.steps for point in points],
        [point.observations for point in points],
        group=[point.run.seed for point in points],
        confidence=STOPPED_CONFIDENCE if stopped else 0.95,
    )
