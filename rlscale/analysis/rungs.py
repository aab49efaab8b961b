"""Sweeps as rungs of a ladder: at which goal each counts, in which role, why it does not, and from which other one it was moved.

What is concluded from them is in `rlscale.analysis.verdict`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..estimate import Estimate
from .comparison import Comparison
from .predictions import PRIMARY, ratio
from .rows import Row

__all__ = ["GIVEN_UP", "NOT_ENDED", "Intervention", "Rung", "interventions_of", "rungs_of", "why_left_out"]

MOST_RATIO = 4.0  # of the upper to the lower end of B_crit's interval
GIVEN_UP, NOT_ENDED = "it was given up", "it has not ended"
WITHIN = 1.5  # times the measured factor of an intervention


@dataclass(frozen=True)
class Rung:
    """A sweep at its last goal.

    Attributes:
        name: of the sweep.
        folder: its last part.
        role: `task`, `development`, `control` or `intervention`.
        base: name of the rung that an intervention, or a control, was moved from: the one whose folder its record names, beside
            its own (that folder where it is not here), else the only one here of the same task and goal.
        row: of its last goal that a run reached.
        left_out: why it is not scored, in a sentence; None where it is.
    """

    name: str
    folder: str
    role: str
    base: str | None
    row: Row
    left_out: str | None


@dataclass(frozen=True)
class Intervention:
    """A sweep whose critical batch size was moved, beside the one it was moved from.

    Attributes:
        name: of the moved rung.
        measured: factor between the two critical batch sizes.
        predicted: factor between the two predictions.
        counts: for the verdict; a control, whose factor is exact, does not, nor does a pair of which one is not scored.
    """

    name: str
    measured: Estimate
    predicted: Estimate
    counts: bool = True

    @property
    def holds(self) -> bool | None:
        """Whether the predicted factor is within 1.5 times the measured one; None where either is unknown."""
        if self.measured.value is None or self.predicted.value is None:
            return None
        return max(self.measured.value / self.predicted.value, self.predicted.value / self.measured.value) <= WITHIN


def rungs_of(comparison: Comparison) -> list[Rung]:
    """Every sweep that measures, at its last goal that a run reached."""
    found = []
    named = {sweep.record.folder.resolve(): sweep.name for sweep in comparison.sweeps}
    for sweep in comparison.sweeps:
        reached = [row for row in sweep.rows if row.frontier is not None and not row.quick]
        if reached:
            row = max(reached, key=lambda row: row.goal or 0.0)
            ladder = sweep.record.ladder
            folder, base = sweep.record.folder.resolve(), ladder.get("base")
            if base:
                base = named.get((folder.parent / base).resolve(), base)
            state = ladder.get("state", "finished")  # any other sweep is as it is
            why = GIVEN_UP if state.startswith("given up") else NOT_ENDED if state != "finished" else why_left_out(row)
            altered = "control" if row.clones > 1 else "intervention"  # clones move B_crit by an exact factor
            role = ladder.get("role", altered if row.is_altered else "task")
            found.append(Rung(sweep.name, folder.name, role, base, row, why))
    return [replace(rung, base=rung.base or _base_of(rung, found)) if rung.row.is_altered else rung for rung in found]


def _base_of(rung: Rung, rungs: Sequence[Rung]) -> str | None:
    """The sweep of the same task to the same goal whose environments are its own; None unless there is exactly one."""
    alike = (rung.row.task, rung.row.goal, rung.row.inner_steps)
    found = [
        other.name
        for other in rungs
        if not other.row.is_altered and (other.row.task, other.row.goal, other.row.inner_steps) == alike
    ]
    return found[0] if len(found) == 1 else None


def why_left_out(row: Row) -> str | None:
    """Why a sweep is not scored at this goal, in a sentence; None where it is."""
    if not row.has_policy:
        return "it has no policy, whose noise the rule is about"
    interval = row.measured.interval
    if row.measured.value is None or interval is None:
        return "B_crit has no interval"
    if interval[1] > MOST_RATIO * interval[0]:
        return f"the ends of B_crit's interval are more than a factor of {MOST_RATIO:g} apart"
    if row.prediction(*PRIMARY) is None:  # not the same as one without an upper end, which is a wrong prediction
        return "its noise scale in Adam's metric was not measured to the goal"
    return next(iter(row.why_not_scored()), None)


def interventions_of(rungs: Sequence[Rung], which: tuple[str, str] = PRIMARY) -> list[Intervention]:
    """The rungs that were moved from another one that is here too, by the primary predictor or another one.

    Both have to have ended, and at the same goal: B_crit grows with the goal, so two goals would show that growth as well. Where
    either is left out of the score, the pair is shown and does not count.
    """
    ended = [rung for rung in rungs if rung.left_out not in (GIVEN_UP, NOT_ENDED)]
    named = {rung.name: rung for rung in ended}  # not by folder: two may have one name, each in a place of its own
    pairs = [(rung, named[rung.base]) for rung in ended if rung.base in named]
    return [
        Intervention(
            moved.folder,
            ratio(moved.row.measured, still.row.measured),
            ratio(moved.row.predicted(*which), still.row.predicted(*which)),
            counts=moved.role == "intervention" and moved.left_out is None and still.left_out is None,
        )
        for moved, still in pairs
        if moved.row.goal == still.row.goal
    ]
