"""`rlscale report`: writes a page that shows one or more runs, from their records alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rlscale.errors import UsageError
from rlscale.records import RunRecord, read_run

from ..options import parse, refuse_given

__all__ = ["ReportOptions", "run", "write_page"]


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained page that shows one or more runs, from their records alone."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs; with --watch of sweeps too."""
    out: str | None = None
    """The page to write; None: report.html in the first run's folder, with --watch no file."""
    watch: bool = False
    """Serve the page to a browser on this machine, and follow runs and sweeps while they go on."""
    port: int = 0
    """With --watch, where it is served; 0: a free one."""


def run(arguments: list[str]) -> int:
    """Write the page of the runs that the arguments name.

    Raises:
        UsageError: no run is named, a folder holds none, or the port cannot be had.
    """
    options = parse(ReportOptions, "report", arguments)
    if not options.runs:
        raise UsageError("RUN", "no run was named", "Name the folder of a run, for example: rlscale report runs/my-run")
    if options.watch:
        from .watch import watch

        return watch(options.runs, options.out, options.port)
    refuse_given(options, ("port",), "nothing is served without --watch", "Add --watch, or leave it out")
    write_page(options.runs, options.out)
    return 0


def write_page(folders: Sequence[str], out: str | None = None) -> None:
    """Write the page, say where it is, by default in the first folder, and print its answers. What cannot be read is said.

    Raises:
        UsageError: nothing can be read, or the page cannot be written.
    """
    runs: list[RunRecord] = []
    errors: list[UsageError] = []
    places: dict[str, str] = {}
    for folder in folders:
        places.setdefault(os.path.realpath(folder), folder)  # a run that is named twice is one
    for folder in places.values():
        try:
            run = read_run(Path(folder))
            if not run.rows:
                raise UsageError("RUN", f"{folder} has no finished iteration to show", "Let it run longer")
            runs.append(run)
        except UsageError as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    for left_out in errors:
        print(f"note: {left_out.problem}; it was left out")
    from rlscale.report.run_page import write_report  # Altair takes a third of a second, for which no run need wait to begin

    page = Path(out) if out else runs[0].folder / "report.html"
    answers = write_report(runs, page)
    print(f"wrote {page}")
    for answer in answers:
        print(answer)
