"""Tasks side by side: for every goal of every sweep the measured critical batch size and what the noise scale predicts.

`compare` makes a row of every goal of every sweep and of every single run; `to_csv` and `to_parquet` write the rows as files.
"""

import csv
import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..agreement import Agreement, agreement
from ..errors import UsageError
from ..estimate import Estimate
from ..frontier import Frontier, fit
from ..records import RunRecord, SweepRecord, TrialResult
from .predictions import HEADS, QUANTITIES, Prediction, predict, predict_from_run, ratio
from .sizes import SizeRuns, size_runs
from .summary import mean_batch

__all__ = ["ComparedSweep", "Comparison", "Row", "agreement_of", "compare", "to_csv", "to_parquet"]

# Steps after which the optimizer's own running mean of squared gradients has settled: 1/(1 - β₂).
_OPTIMIZER_MEMORY = {"adam": 1000, "rmsprop": 100}


@dataclass(frozen=True)
class Row:
    """One goal of one sweep, or one single run.

    Attributes:
        name: the task, with the folder beside it where the task occurs more than once.
        task: name of the task.
        source: folder of the sweep or run.
        goal: mean return to reach; None for a single run, which is taken as a whole.
        measured: B_crit in observations; its `reason` says why where it is not identifiable.
        s_min: fewest optimizer steps.
        e_min: fewest observations.
        frontier: the whole fit; None for a single run.
        batch_sizes: those that have points, ascending.
        learning_rates: lowest and highest of the rates chosen; None where there is none.
        predictions: by head and quantity, see `rlscale.analysis.predictions.predict`.
        prediction_batch: batch size of the runs that gave them, in observations per optimizer step.
        provisional: batch sizes whose best learning rate lies on an edge of those tried.
        same_runs: S was read off the runs that the rates were chosen on: the best of several, so too small.
        notes: what else to know about this row, one sentence each.
    """

    name: str
    task: str
    source: str
    goal: float | None
    measured: Estimate
    s_min: Estimate
    e_min: Estimate
    frontier: Frontier | None
    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, float] | None
    predictions: tuple[Prediction, ...]
    prediction_batch: float | None
    provisional: tuple[int, ...]
    same_runs: bool
    notes: tuple[str, ...]

    def prediction(self, head: str, quantity: str) -> Prediction | None:
        """The prediction of one head and quantity; None where it was not measured."""
        return next((p for p in self.predictions if (p.head, p.quantity) == (head, quantity)), None)

    def predicted(self, head: str, quantity: str) -> Estimate:
        """Its noise scale in observations."""
        found = self.prediction(head, quantity)
        return found.scale if found else Estimate(None, None, "not measured")

    def ratio(self, head: str, quantity: str) -> Estimate:
        """Measured over predicted."""
        return ratio(self.measured, self.predicted(head, quantity))

    @property
    def goal_label(self) -> str:
        """The goal for people."""
        return "whole run" if self.goal is None else f"{self.goal:g}"


@dataclass(frozen=True)
class ComparedSweep:
    """A sweep and what was made of it.

    Attributes:
        name: as in its rows.
        record: as it was read.
        sizes: the runs that make the frontier, by batch size.
        rows: one per goal.
    """

    name: str
    record: SweepRecord
    sizes: tuple[SizeRuns, ...]
    rows: tuple[Row, ...]

    @property
    def runs(self) -> list[TrialResult]:
        """Every trial that ended."""
        return list(self.record.results.values())


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
    usable = []
    for run in runs:
        if run.rows:
            usable.append(run)
        else:
            notes.append(f"{run.folder} has no finished iteration and was left out")
    rows = [row for sweep in compared for row in sweep.rows] + [_row_of_run(run) for run in usable]
    if not rows:
        why = "; ".join(notes)
        raise UsageError("FOLDER", f"there is no result to compare ({why})", "Let the sweep run until its first runs have ended")
    return Comparison(tuple(rows), tuple(compared), tuple(usable), tuple(notes))


def agreement_of(rows: Sequence[Row], head: str, quantity: str) -> Agreement | None:
    """Agreement over the rows where both figures are resolved, clustered by task; None where there is no such row."""
    pairs = [
        (row.measured.value, predicted.value, row.task)
        for row in rows
        for predicted in [row.predicted(head, quantity)]
        if row.measured.value is not None and predicted.value is not None
    ]
    return agreement(*zip(*pairs, strict=True)) if pairs else None


def _names(sweeps: Sequence[SweepRecord]) -> list[str]:
    """The task alone where it occurs once; with the folder's name where that tells them apart; else with the whole path."""
    tasks = Counter(sweep.task for sweep in sweeps)
    folders = Counter((sweep.task, sweep.folder.resolve().name) for sweep in sweeps)
    names = []
    for sweep in sweeps:
        folder = sweep.folder.resolve().name
        if tasks[sweep.task] == 1:
            names.append(sweep.task)
        else:
            names.append(f"{sweep.task} ({folder if folders[sweep.task, folder] == 1 else sweep.folder})")
    return names


def _compare_sweep(record: SweepRecord, name: str) -> tuple[ComparedSweep, list[str]]:
    if not record.results:
        return ComparedSweep(name, record, (), ()), ["no run of it has ended"]
    sizes, notes = size_runs(record)
    rows = [_row(record, name, sizes, float(goal)) for goal in record.plan["goals"]]
    unreached = [row.goal_label for row in rows if row.learning_rates is None]
    if unreached:
        notes.append(f"no run reached {'goal' if len(unreached) == 1 else 'goals'} {', '.join(unreached)}")
    return ComparedSweep(name, record, tuple(sizes), tuple(rows)), notes


def _row(record: SweepRecord, name: str, sizes: Sequence[SizeRuns], goal: float) -> Row:
    points = [(size, *point) for size in sizes for point in size.points(goal)]
    reached = [size for size, _, steps, _ in points if math.isfinite(steps)]
    if reached:
        frontier = fit(
            [size.batch_size for size, *_ in points],
            [steps for _, _, steps, _ in points],
            [observations for *_, observations in points],
            group=[run.seed for _, run, _, _ in points],
        )
        measured, s_min, e_min = frontier.b_crit, frontier.s_min, frontier.e_min
    else:
        frontier = None
        measured = s_min = e_min = Estimate(None, None, "no run reached this goal: give them more observations")
    rates = [size.learning_rate for size in reached if size.learning_rate is not None]
    final = [run for size in sizes for run in size.runs if size.basis == "final"]
    predictions, prediction_batch = predict(final, goal, record.plan["noise_batch"])
    provisional = tuple(sorted({size.batch_size for size in reached if size.on_edge}))
    same_runs = any(size.basis == "same" for size in reached)
    notes = []
    if record.plan["rates"] == 1:
        notes.append("one learning rate per batch size: the best was not searched for")
    missed = len(points) - len(reached)
    if missed and reached:
        notes.append(f"{missed} of {len(points)} points missed the goal and enter as limits")
    if prediction_batch is not None and prediction_batch != record.plan["noise_batch"]:
        planned = record.plan["noise_batch"]
        notes.append(f"noise scale from batch size {prediction_batch:,}, since none to this goal was measured at {planned:,}")
    optimizer = record.plan["config"].get("update", {}).get("optimizer", "adam")
    memory = _OPTIMIZER_MEMORY.get(optimizer, 0)
    if s_min.value is not None and s_min.value < memory / 4:  # "far below": less than 22% of the memory is filled by then
        notes.append(
            f"S_min is far below the {memory:,} steps over which {optimizer} averages: it may be the optimizer's own transient"
        )
    return Row(
        name=name,
        task=record.task,
        source=str(record.folder),
        goal=goal,
        measured=measured,
        s_min=s_min,
        e_min=e_min,
        frontier=frontier,
        batch_sizes=tuple(sorted({size.batch_size for size, *_ in points})),
        learning_rates=(min(rates), max(rates)) if rates else None,
        predictions=predictions,
        prediction_batch=prediction_batch,
        provisional=provisional,
        same_runs=same_runs,
        notes=tuple(notes),
    )


def _row_of_run(run: RunRecord) -> Row:
    nothing = Estimate(None, None, "a single run predicts and measures nothing")
    predictions = predict_from_run(run)
    rates = [rate for rate in (row.get("learning_rate") for row in run.rows) if rate is not None]
    return Row(
        name=f"{run.manifest['task']['id']} (run {run.name})",
        task=run.manifest["task"]["id"],
        source=str(run.folder),
        goal=None,
        measured=nothing,
        s_min=nothing,
        e_min=nothing,
        frontier=None,
        batch_sizes=(),
        learning_rates=(min(rates), max(rates)) if rates else None,
        predictions=predictions,
        prediction_batch=mean_batch(run) if predictions else None,
        provisional=(),
        same_runs=False,
        notes=() if predictions else ("no rollout noise of a head was measured in it",),
    )


def _ends(name: str, read: Callable[[Row], Estimate]) -> list[tuple[str, str, Callable[[Row], Any]]]:
    """Three columns of one estimate: value, lower and upper end."""

    def end(which: int) -> Callable[[Row], float | None]:
        return lambda row: None if (interval := read(row).interval) is None else interval[which]

    return [(name, "double", lambda row: read(row).value), (f"{name}_low", "double", end(0)), (f"{name}_high", "double", end(1))]


def _of_frontier(read: Callable[[Frontier], Any]) -> Callable[[Row], Any]:
    return lambda row: None if row.frontier is None else read(row.frontier)


def _left_out_sizes(pick: Callable[[list[float]], float]) -> Callable[[Row], float | None]:
    """Lowest or highest B_crit of the fits without one batch size."""

    def read(row: Row) -> float | None:
        values = [] if row.frontier is None else [v for v in row.frontier.leave_one_size_out.values() if v is not None]
        return pick(values) if values else None

    return read


def _of_prediction(head: str, quantity: str, read: Callable[[Prediction], Any]) -> Callable[[Row], Any]:
    return lambda row: None if (found := row.prediction(head, quantity)) is None else read(found)


def _columns() -> list[tuple[str, str, Callable[[Row], Any]]]:
    """Name, Arrow type and reader of every exported column."""
    none = Estimate(None, None, "no frontier")
    columns: list[tuple[str, str, Callable[[Row], Any]]] = [
        ("name", "string", lambda row: row.name),
        ("task", "string", lambda row: row.task),
        ("source", "string", lambda row: row.source),
        ("goal", "double", lambda row: row.goal),
        *_ends("b_crit", lambda row: row.measured),
        ("b_crit_reason", "string", lambda row: row.measured.reason),
        *_ends("s_min", lambda row: row.s_min),
        *_ends("e_min", lambda row: row.e_min),
        *_ends("overhead_20_batch", lambda row: row.frontier.overhead_batch(0.2) if row.frontier else none),
        ("residual", "double", _of_frontier(lambda f: f.residual if math.isfinite(f.residual) else None)),
        ("scatter", "double", _of_frontier(lambda f: f.scatter if math.isfinite(f.scatter) else None)),
        *_ends("exponent", lambda row: row.frontier.exponent if row.frontier else none),
        ("b_crit_without_a_size_low", "double", _left_out_sizes(min)),
        ("b_crit_without_a_size_high", "double", _left_out_sizes(max)),
        ("batch_size_low", "int64", lambda row: row.batch_sizes[0] if row.batch_sizes else None),
        ("batch_size_high", "int64", lambda row: row.batch_sizes[-1] if row.batch_sizes else None),
        ("points", "int64", _of_frontier(lambda f: len(f.points))),
        ("missed", "int64", _of_frontier(lambda f: sum(p.censored for p in f.points))),
        ("learning_rate_low", "double", lambda row: row.learning_rates[0] if row.learning_rates else None),
        ("learning_rate_high", "double", lambda row: row.learning_rates[1] if row.learning_rates else None),
        ("provisional", "bool", lambda row: bool(row.provisional)),
        ("same_runs", "bool", lambda row: row.same_runs),
        ("prediction_batch", "double", lambda row: None if row.prediction_batch is None else float(row.prediction_batch)),
    ]
    for head in HEADS:
        for quantity in QUANTITIES:
            name = f"{head}_{quantity}"
            columns += _ends(name, partial(Row.predicted, head=head, quantity=quantity))
            columns += _ends(f"ratio_{name}", partial(Row.ratio, head=head, quantity=quantity))
            columns.append((f"{name}_resolved", "int64", _of_prediction(head, quantity, lambda p: p.resolved)))
            columns.append((f"{name}_runs", "int64", _of_prediction(head, quantity, lambda p: p.runs)))
        columns.append((f"{head}_gain", "double", _of_prediction(head, "cumulative", lambda p: p.gain)))
    columns.append(("notes", "string", lambda row: "; ".join(row.notes)))
    return columns


def to_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as CSV: a header, one line per row, empty where there is no figure, `inf` for an open interval.

    Raises:
        UsageError: the file cannot be written.
    """
    columns = _columns()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([name for name, *_ in columns])
            writer.writerows([[read(row) for *_, read in columns] for row in rows])
    except OSError as error:
        raise UsageError("--csv", f"cannot write {path}: {error.strerror}", "Choose a place that you may write to") from None


def to_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as Parquet, the same columns as `to_csv`, null where there is no figure.

    Raises:
        UsageError: pyarrow is not installed, or the file cannot be written.
    """
    try:
        pa, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("--parquet", "pyarrow is not installed", "Run: pip install 'rlscale[parquet]'") from None
    columns = _columns()
    arrays = [pa.array([read(row) for row in rows], type=pa.type_for_alias(kind)) for _, kind, read in columns]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(arrays, names=[name for name, *_ in columns]), path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError("--parquet", f"cannot write {path}: {reason}", "Choose a place that you may write to") from None
