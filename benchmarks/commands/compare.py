"""`rlscale compare`: reads finished sweeps and single runs, prints the table, writes page, pictures and exports.

What is compared is in `rlscale.analysis.comparison`; how the page looks, in `rlscale.report.comparison_page`.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from rlscale.analysis.comparison import Comparison, compare
from rlscale.analysis.export import to_csv, to_parquet
from rlscale.analysis.rungs import rungs_of
from rlscale.errors import UsageError
from rlscale.records import RunRecord, SweepRecord, is_run, is_sweep, read_run, read_sweep
from rlscale.records.files import refuse_record
from rlscale.report.answers import answers
from rlscale.report.ranking import say_answers
from rlscale.report.words import (
    flags,
    range_of,
    remarks,
    say_conclusion,
    say_measured,
    say_next,
    say_prediction,
    say_predictor,
    warnings,
)

from ..console import plain_console, say, terminal_width
from ..options import parse
from ..sweep.next_command import with_next_words

__all__ = ["CompareOptions", "read_folders", "run", "run_compare", "terminal_tables"]

_HEADS = ("policy", "joint")


@dataclass(frozen=True)
class CompareOptions:
    """Lay tasks side by side: the critical batch size that sweeps measured, and what the noise scale predicts."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Folders of sweeps, and of single runs for a prediction alone."""
    out: str | None = "comparison.html"
    """The page to write; None writes none."""
    csv: str | None = None
    """Write the table as CSV to this file as well."""
    parquet: str | None = None
    """Write the table as Parquet to this file as well."""
    figures: str | None = None
    """Write every chart as PNG and SVG into this folder as well."""


def run(arguments: list[str]) -> int:
    """Compare the sweeps and runs that the arguments name.

    Raises:
        UsageError: as `run_compare`.
    """
    return run_compare(parse(CompareOptions, "compare", arguments))


def run_compare(options: CompareOptions, console: Console | None = None) -> int:
    """Do what the options say; the exit code of the command.

    Raises:
        UsageError: nothing named, a folder that is neither sweep nor run, no result at all, or a
            file that cannot be written.
    """
    console = console or plain_console(width=terminal_width(120))
    if options.figures and not options.out:
        raise UsageError("--figures", "pictures are those of the page, and none is written", "Name a page with --out")
    targets = {"--out": options.out, "--csv": options.csv, "--parquet": options.parquet}
    named = {field: Path(target) for field, target in targets.items() if target}
    for field, path in named.items():
        refuse_record(path, field)
        if [os.path.realpath(other) for other in named.values()].count(os.path.realpath(path)) > 1:
            raise UsageError(field, f"{path} is named twice", "Give each its own file")
    sweeps, runs, left_out = read_folders(options.folders)
    comparison = with_next_words(compare(sweeps, runs, left_out))
    for table in terminal_tables(comparison):
        console.print(table)
        console.print()
    rungs = rungs_of(comparison)
    concluded = [say_conclusion(rungs)] if rungs else []
    for sentence in (*warnings(comparison.rows), *concluded, *remarks(comparison.rows)):
        say(console, sentence)
    for sentence in comparison.notes:
        say(console, f"note: {sentence}")
    for sweep in comparison.sweeps:
        if said := say_next(sweep):
            say(console, said)
    console.print()
    for sentence in say_answers(answers(comparison)):
        say(console, sentence)
    if options.csv:
        to_csv(comparison.rows, Path(options.csv))
    if options.parquet:
        to_parquet(comparison.rows, Path(options.parquet))
    if options.out:
        from rlscale.report.comparison_page import write_comparison

        write_comparison(
            comparison,
            Path(options.out),
            figures=Path(options.figures) if options.figures else None,
        )
    for written in (options.csv, options.parquet, options.figures, options.out):
        if written:
            say(console, f"wrote {written}")
    return 0


def read_folders(folders: Sequence[str]) -> tuple[list[SweepRecord], list[RunRecord], list[str]]:
    """Sweeps and runs in these folders, and a sentence for each that could not be read beside others that could.

    Raises:
        UsageError: none named, or not one that can be read (then the first one's reason).
    """
    if not folders:
        mend = "Name folders of sweeps or runs, for example: rlscale compare sweeps/*"
        raise UsageError("FOLDER", "no sweep and no run was named", mend)
    sweeps: list[SweepRecord] = []
    runs: list[RunRecord] = []
    errors: list[UsageError] = []
    places: dict[str, str] = {}
    for name in folders:
        places.setdefault(os.path.realpath(name), name)  # Path.resolve raises where links go in a circle
    for named in map(Path, places.values()):
        if named.suffix == ".html" and len(places) > 1:
            continue  # a page of this command's own, beside the folders of sweeps/*
        if not is_sweep(named) and not is_run(named):
            errors.append(_without_record(named))
            continue
        try:
            if is_sweep(named):
                record = read_sweep(named, "FOLDER")
                state = str(record.ladder.get("state", "finished"))
                if state.startswith("given up"):
                    raise UsageError("FOLDER", f"{named} is a rung of the ladder that was {state}", "Name one that finished")
                if state != "finished":
                    problem = f"{named} is a rung of the ladder that has not ended, whose figures are not shown before it has"
                    raise UsageError("FOLDER", problem, "'make ladder' goes on with it")
                sweeps.append(record)
            else:
                runs.append(read_run(named, "FOLDER"))
        except UsageError as error:
            errors.append(error)
    if errors and not sweeps and not runs:
        raise errors[0]
    return sweeps, runs, [f"{error.problem}; it was left out" for error in errors]


def _without_record(folder: Path) -> UsageError:
    """Why nothing is read from a folder in which no record is seen."""
    problem, mend = "holds neither a sweep nor a run", "Name folders that rlscale sweep or rlscale train wrote"
    try:
        if any(is_sweep(one) or is_run(one) for one in folder.iterdir()):
            mend = f"Name those in it: {shlex.quote(str(folder))}/*"
    except NotADirectoryError:
        pass
    except FileNotFoundError:
        problem = "does not exist"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    return UsageError("FOLDER", f"{folder} {problem}", mend)


def terminal_tables(comparison: Comparison) -> list[Table]:
    """What was measured, and what was predicted; a row per goal, intervals and units below values, so that 80 columns suffice.

    An exclamation mark stands where one of `warnings` applies.
    """
    rows = comparison.rows
    measured = _table("Measured by sweeps", ["B_crit", "S_min", "E_min", "learning rates"])
    columns = ["predicts B_crit", "B_crit / predicted", *(f"{head}, plain" for head in _HEADS)]
    predicted = _table("Noise scale, cumulative to the goal", columns)
    for row in rows:
        name = f"{row.name}\n  {row.goal_label if row.goal is None else f'goal {row.goal_label}'}"
        if row.goal is not None and not row.quick:
            figures = (*say_measured(row), row.e_min.say("unknown"))
            mark, rates = (
                "! " if flags(row) or row.measured.value is None else "",
                range_of(row.learning_rates).replace(" … ", " …\n"),
            )
            cells = [re.sub(" (an )?(?=iteration)", r"\n\1", _two_lines(figure)) for figure in figures]
            measured.add_row(name, mark + cells[0], *cells[1:], rates)
        scales = [say_prediction(row, head, "cumulative") for head in _HEADS]
        predicted.add_row(name, *map(_two_lines, (say_predictor(row), row.ratio(*row.predictor).say("–"), *scales)))
    return [table for table in (measured, predicted) if table.row_count]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("task", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _two_lines(figure: str) -> str:
    return figure.replace(" [", "\n[").replace(", above", ",\nabove").replace(", below", ",\nbelow")
