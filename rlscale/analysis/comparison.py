"""Tasks side by side: for every goal of every sweep the measured critical batch size and what the noise scale predicts.

`compare` makes a row of every goal of every sweep and of every single run. `rlscale.analysis.export` writes the rows as files.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import UsageError
from ..records import RunRecord, SweepRecord, TrialResult
from .rows import Row, row_of_goal, row_of_run
from .summary import distinct_names

__all__ = ["ComparedSweep", "Comparison", "compare"]

_NAMED = 4  # of several runs that failed


@dataclass(frozen=True)
class ComparedSweep:
    """A sweep and what was made of it.

    Attributes:
        name: as in its rows.
        record: as it was read.
        rows: one per goal.
        next_words: the command that would sharpen it, none if empty, which it is until the caller names one: that is decided in
            `rlscale.benchmarks.sweep.next_command`.
    """

    name: str
    record: SweepRecord
    rows: tuple[Row, ...] = field(repr=False)
    next_words: tuple[str, ...] = ()

    @property
    def runs(self) -> list[TrialResult]:
        """Every trial that ended."""
        return list(self.record.results.values())

    @property
    def last_fitted(self) -> Row | None:
        """The row of the last goal whose surface is fitted; None where there is none."""
        return next((row for row in reversed(self.rows) if row.frontier is not None and row.frontier.fitted is not None), None)


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown.

    Attributes:
        rows: of the sweeps, then of the single runs.
        sweeps: those that had a result.
        runs: the single runs.
        notes: what was left out and why, one sentence each.
    """

    rows: tuple[Row, ...]
    sweeps: tuple[ComparedSweep, ...]
    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]


def compare(sweeps: Sequence[SweepRecord], runs: Sequence[RunRecord], left_out: Sequence[str] = ()) -> Comparison:
    """Rows of sweeps and single runs. Two sweeps of one task are kept apart, by the names of their folders.

    Args:
        sweeps: as read.
        runs: as read; each gives a row with predictions alone.
        left_out: sentences about what could not be read, which come first among the notes.

    Raises:
        UsageError: not one of them has a result.
    """
    notes = list(left_out)
    compared = []
    for record, name in zip(sweeps, _names(sweeps), strict=True):
        notes += record.left_out
        one, said = _compare_sweep(record, name)
        notes += [f"{name}: {sentence}" for sentence in said]
        if one.rows:
            compared.append(one)
    usable = [run for run in runs if run.rows]
    notes += [f"{run.folder} has no finished iteration and was left out" for run in runs if not run.rows]
    rows = [row for sweep in compared for row in sweep.rows] + [
        row_of_run(*named) for named in zip(usable, distinct_names(usable), strict=True)
    ]
    if not rows:
        why = "; ".join(notes)
        raise UsageError("FOLDER", f"there is no result to compare ({why})", "Let the sweep run until its first runs have ended")
    return Comparison(tuple(rows), tuple(compared), tuple(usable), tuple(notes))


def _names(sweeps: Sequence[SweepRecord]) -> list[str]:
    """The task alone where it occurs once; with the folder's name where that tells them apart; else with the whole path."""
    choices = [(s.task, f"{s.task} ({s.folder.resolve().name})", f"{s.task} ({s.folder})") for s in sweeps]
    counts = Counter(name for names in choices for name in names[:2])
    return [next((name for name in names[:2] if counts[name] == 1), names[2]) for names in choices]


def _compare_sweep(record: SweepRecord, name: str) -> tuple[ComparedSweep, list[str]]:
    if not record.results:
        return ComparedSweep(name, record, ()), ["no run of it has ended"]
    notes = []
    failures = [run for run in record.results.values() if run.failed]
    if failures:
        named = "; ".join(f"{run.id}: {run.reason}" for run in failures[:_NAMED])
        more = f"; and {len(failures) - _NAMED} more" if len(failures) > _NAMED else ""
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        notes.append(f"{count} failed and {'was' if len(failures) == 1 else 'were'} left out ({named}{more})")
    rows = [row_of_goal(record, name, float(goal)) for goal in record.plan["goals"]]
    unreached = [row.goal_label for row in rows if row.learning_rates is None]
    if unreached:
        notes.append(f"no run reached {'goal' if len(unreached) == 1 else 'goals'} {', '.join(unreached)}")
    return ComparedSweep(name, record, tuple(rows)), notes
