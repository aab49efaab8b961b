"""`rlscale runs`: lists the runs and sweeps that are there, with their state, task, return and noise scale."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.table import Table

from rlscale.analysis import compare
from rlscale.analysis.predictions import PLAIN, predict_from_run
from rlscale.analysis.summary import recent_return
from rlscale.errors import UsageError
from rlscale.records import is_run, is_sweep, read_run, read_sweep
from rlscale.report.words import say_prediction, say_predictor
from rlscale.text import format_return

from ..console import plain_console, terminal_width
from ..options import parse

__all__ = ["RunsOptions", "run"]

_DEPTH = 3  # folders below those that are named
_COLUMNS = ("folder", "task", "state", "observations", "return", "policy noise scale", "critical batch size")


@dataclass(frozen=True)
class RunsOptions:
    """List runs and sweeps: state, task, return, the policy's noise scale, and a sweep's critical batch size."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional] = ("runs", "sweeps")
    """Where to look, three folders deep."""


def run(arguments: list[str]) -> int:
    """List what is there.

    Raises:
        UsageError: a folder that was named does not exist, or none holds a run or a sweep.
    """
    options = parse(RunsOptions, "runs", arguments)
    for folder in options.folders:
        try:
            os.listdir(folder)
        except OSError as error:
            if options.folders != RunsOptions().folders:
                said = {FileNotFoundError: "does not exist", NotADirectoryError: "is a file"}
                problem = said.get(type(error), f"cannot be read: {error.strerror}")
                raise UsageError("FOLDER", f"{folder} {problem}", "Name folders that hold runs or sweeps") from None
    found = sorted({place for folder in options.folders for place in _records(Path(folder), _DEPTH)})
    if not found:
        where = " and ".join(options.folders)
        raise UsageError(
            "FOLDER", f"there is no run and no sweep in {where}", "Name another folder, or begin: rlscale train TASK"
        )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in _COLUMNS:
        whole = name == "folder"  # so that it can be copied
        table.add_column(name, overflow="fold", no_wrap=whole, justify="left" if name in _COLUMNS[:3] else "right")
    for place in found:
        try:
            cells = _sweep(place) if is_sweep(place) else _run(place)
        except UsageError as error:
            cells = ["", f"cannot be read: {error.problem}", "", "", "", ""]
        table.add_row(str(place), *cells)
    plain_console(width=terminal_width(160)).print(table)
    return 0


def _records(folder: Path, depth: int) -> list[Path]:
    """Folders of runs and sweeps in that folder, and those that cannot be read; the runs of a sweep are not listed."""
    if not os.path.isdir(folder):
        return []
    if is_sweep(folder) or is_run(folder):
        return [folder]
    try:
        children = sorted(folder.iterdir())
    except OSError:
        return [folder]
    return [place for child in children if depth for place in _records(child, depth - 1)]


def _run(folder: Path) -> list[str]:
    record = read_run(folder)
    observations = f"{record.rows[-1]['observations']:,}" if record.rows else "0"
    scales = predict_from_run(record) if record.rows else ()
    scale = next((p.scale.say() for p in scales if (p.head, p.quantity) == PLAIN), "not measured")
    reason = f": {record.manifest['reason']}" if record.state == "failed" and record.manifest.get("reason") else ""
    shown = recent_return(record)
    mean = "no episode yet" if shown is None else format_return(shown)
    return [record.manifest["task"]["id"], record.state + reason, observations, mean, scale, ""]


def _sweep(folder: Path) -> list[str]:
    record = read_sweep(folder)
    results = record.results.values()
    count = "1 run" if len(results) == 1 else f"{len(results)} runs"
    observations = f"{sum(result.observations for result in results):,}"
    state = str(record.ladder.get("state", "finished"))
    if not results or state != "finished":  # figures of a rung of the ladder are not shown before it has ended
        return [record.task, count + f", {state}" * (state != "finished"), observations, "", "", ""]
    rows = compare([record], []).rows
    if predicted := [row for row in rows if row.quick and row.predictions]:
        row = predicted[-1]
        return [record.task, count, observations, f"goal {row.goal_label}", say_predictor(row), ""]
    measured = [row for row in rows if row.measured.value is not None]
    row = (measured or list(rows))[-1]
    return [
        record.task,
        count,
        observations,
        f"goal {row.goal_label}",
        say_prediction(row, *PLAIN) if row.has_policy else say_predictor(row),
        row.measured.say() if measured else "not identifiable",
    ]
