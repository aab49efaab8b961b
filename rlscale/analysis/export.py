"""The rows of a comparison as files: `to_csv` and `to_parquet`. What the rows say is computed in `comparison`."""

import csv
import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..estimate import Estimate
from ..frontier import Surface
from ..records.files import refuse_record, writing
from .predictions import HEADS, QUANTITIES, Prediction
from .rows import Row

__all__ = ["to_csv", "to_parquet"]


def _ends(name: str, read: Callable[[Row], Estimate]) -> list[tuple[str, str, Callable[[Row], Any]]]:
    """Three columns of one estimate: value, lower and upper end."""

    def end(which: int) -> Callable[[Row], float | None]:
        return lambda row: None if (interval := read(row).interval) is None else interval[which]

    return [(name, "double", lambda row: read(row).value), (f"{name}_low", "double", end(0)), (f"{name}_high", "double", end(1))]


def _of_frontier(read: Callable[[Surface], Any]) -> Callable[[Row], Any]:
    return lambda row: None if row.frontier is None else read(row.frontier)


def _left_out_sizes(pick: Callable[[list[float]], float]) -> Callable[[Row], float | None]:
    """Lowest or highest B_crit of the fits without one batch size; None where one of them does not identify it."""

    def read(row: Row) -> float | None:
        fits = [] if row.frontier is None else list(row.frontier.leave_one_size_out.values())
        identified = [value for value in fits if value is not None]
        return pick(identified) if identified and len(identified) == len(fits) else None

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
        *_ends("exponent", lambda row: row.frontier.exponent if row.frontier else none),
        ("b_crit_without_a_size_low", "double", _left_out_sizes(min)),
        ("b_crit_without_a_size_high", "double", _left_out_sizes(max)),
        (
            "b_crit_without_a_size_unidentified",
            "int64",
            _of_frontier(lambda f: sum(value is None for value in f.leave_one_size_out.values())),
        ),
        ("batch_size_low", "int64", lambda row: row.batch_sizes[0] if row.batch_sizes else None),
        ("batch_size_high", "int64", lambda row: row.batch_sizes[-1] if row.batch_sizes else None),
        ("points", "int64", _of_frontier(lambda f: len(f.points))),
        ("missed", "int64", _of_frontier(lambda f: sum(p.censored for p in f.points))),
        ("learning_rate_low", "double", lambda row: row.learning_rates[0] if row.learning_rates else None),
        ("learning_rate_high", "double", lambda row: row.learning_rates[1] if row.learning_rates else None),
        ("provisional", "bool", lambda row: bool(row.provisional)),
        ("scored", "bool", Row.scored),
        ("warning", "string", _of_frontier(lambda f: f.warning)),
        ("prediction_batch", "double", lambda row: None if row.prediction_batch is None else float(row.prediction_batch)),
    ]
    for head in HEADS:
        for quantity in (*QUANTITIES, "sums"):
            name = f"{head}_{quantity}"
            columns += _ends(name, partial(Row.predicted, head=head, quantity=quantity))
            columns += _ends(f"ratio_{name}", partial(Row.ratio, head=head, quantity=quantity))
            columns.append((f"{name}_resolved", "int64", _of_prediction(head, quantity, lambda p: p.resolved)))
            columns.append((f"{name}_runs", "int64", _of_prediction(head, quantity, lambda p: p.runs)))
        columns.append((f"{head}_gain", "double", _of_prediction(head, "cumulative", lambda p: p.gain)))
    columns += [
        ("notes", "string", lambda row: "; ".join(row.notes)),
        ("quick", "bool", lambda row: row.quick),
        ("inner_steps", "int64", lambda row: None if row.goal is None else row.inner_steps),
        ("clones", "int64", lambda row: row.clones),
        ("reward_noise", "double", lambda row: row.reward_noise),
    ]
    return columns


def to_csv(rows: Sequence[Row], path: Path | str) -> None:
    """Write the rows as CSV: a header, one line per row, empty where there is no figure, `inf` for an open interval.

    Raises:
        UsageError: the file cannot be written, or is part of a record.
    """
    columns, path = _columns(), Path(path)
    refuse_record(path, "--csv")
    cells = [[read(row) for *_, read in columns] for row in rows]
    with writing(path, "--csv", "place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([name for name, *_ in columns])
            writer.writerows(cells)


def to_parquet(rows: Sequence[Row], path: Path | str) -> None:
    """Write the rows as Parquet, the same columns as `to_csv`, null where there is no figure.

    Raises:
        UsageError: pyarrow is not installed, or the file cannot be written, or is part of a record.
    """
    try:
        pa, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("--parquet", "pyarrow is not installed", "Run: pip install 'rlscale[parquet]'") from None
    columns, path = _columns(), Path(path)
    refuse_record(path, "--parquet")
    arrays = [pa.array([read(row) for row in rows], type=pa.type_for_alias(kind)) for _, kind, read in columns]
    with writing(path, "--parquet", "place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(arrays, names=[name for name, *_ in columns]), path)
