"""Which runs of a sweep make the points of its frontier, batch size by batch size, and what was left out and why."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..records import SweepRecord, TrialResult
from .rates import CHOOSING_STAGES, choose_rate

__all__ = ["SizeRuns", "size_runs"]

_CLEARLY = 1.25  # times fewer steps, before a neighbour of the chosen rate is called faster
_NAMED = 4  # of several runs left out for the same reason


@dataclass(frozen=True)
class SizeRuns:
    """The runs of one batch size that make its points of the frontier.

    Attributes:
        batch_size: B, in observations per optimizer step.
        basis: `final`: runs on fresh seeds at the chosen rate. `same`: the best of the runs that the rate was chosen on, which
            flatters. `missed`: no tried rate reached any goal.
        runs: for `missed` all runs that tried; they make one censored point.
        on_edge: see `RateChoice`.
    """

    batch_size: int
    basis: Literal["final", "same", "missed"]
    runs: tuple[TrialResult, ...]
    on_edge: bool

    @property
    def learning_rate(self) -> float | None:
        """The chosen one; None for `missed`."""
        return None if self.basis == "missed" else self.runs[0].learning_rate

    def points(self, goal: float) -> list[tuple[TrialResult, float, float]]:
        """Runs as points of the frontier at a goal: S (inf if missed) and observations to the goal, or known to be too few.

        A run that missed the goal is known to have been below it up to `not_before` steps; one of which not even that is known
        is no point. Where no rate reached any goal the point is the run with the fewest such steps: the best rate, whichever
        that is, needs more than these.
        """
        found = []
        for run in self.runs:
            crossing = run.crossing(goal)
            if crossing is None:
                continue
            if crossing.optimizer_steps is not None and crossing.observations is not None:
                found.append((run, crossing.optimizer_steps, crossing.observations))
            elif crossing.not_before:
                found.append((run, math.inf, crossing.not_before * run.batch_size))
        return [min(found, key=lambda point: point[2])] if self.basis == "missed" and found else found


def size_runs(sweep: SweepRecord) -> tuple[list[SizeRuns], list[str]]:
    """For every batch size the runs that make the frontier, ascending, and sentences about what was left out and why.

    The frontier is made of the `final` runs at the chosen rate. Only where the sweep has none at all, the best of the runs that
    the rates were chosen on take their place. Failed runs are left out.
    """
    runs = list(sweep.results.values())
    notes = []
    failures = [run for run in runs if run.failed]
    if failures:
        named = "; ".join(f"{run.id}: {run.reason}" for run in failures[:_NAMED])
        more = f"; and {len(failures) - _NAMED} more" if len(failures) > _NAMED else ""
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        notes.append(f"{count} failed and {'was' if len(failures) == 1 else 'were'} left out ({named}{more})")
    any_final = any(run.stage == "final" and not run.failed for run in runs)
    found = []
    for batch_size in sorted({run.batch_size for run in runs if not run.failed} | set(sweep.plan["batch_sizes"])):
        mine = [run for run in runs if run.batch_size == batch_size]
        tried = [run for run in mine if run.stage in CHOOSING_STAGES]
        usable = [run for run in tried if not run.failed]
        final = [run for run in mine if run.stage == "final" and not run.failed]
        choice = choose_rate(tried)
        if final:
            found.append(SizeRuns(batch_size, "final", tuple(final), choice.on_edge))
            notes += _faster_neighbours(batch_size, final, [run for run in mine if run.stage == "neighbour" and not run.failed])
            if len(final) < sweep.plan["seeds"]:
                notes.append(f"batch size {batch_size:,}: {len(final)} of {sweep.plan['seeds']} final runs are there")
        elif choice.best is None and usable and len(tried) >= sweep.plan["rates"]:
            found.append(SizeRuns(batch_size, "missed", tuple(usable), False))
        elif choice.best is not None and not any_final:
            found.append(SizeRuns(batch_size, "same", (choice.best,), choice.on_edge))
            if len(tried) < sweep.plan["rates"]:
                notes.append(
                    f"batch size {batch_size:,}: only {len(tried)} of {sweep.plan['rates']} learning rates have been tried"
                )
        else:
            missing = "no final run of it is there" if choice.best is not None else "its learning rates have not all been tried"
            notes.append(f"batch size {batch_size:,} was left out: {missing}")
    return found, notes


def _faster_neighbours(batch_size: int, final: Sequence[TrialResult], neighbours: Sequence[TrialResult]) -> list[str]:
    """A sentence for each neighbour of the chosen rate that was clearly faster to the last goal on as many fresh seeds.

    The frontier keeps to the chosen rate all the same: taking the best of three on the seeds that are measured would flatter.
    """

    def mean_steps(runs: Sequence[TrialResult]) -> float:
        steps = [run.steps_to_last_goal for run in runs if run.steps_to_last_goal is not None]
        return statistics.geometric_mean(steps) if len(steps) == len(runs) else math.inf

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
