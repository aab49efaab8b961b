"""`rlscale report`: writes a page that shows one or more runs, from their records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rlscale.errors import UsageError
from rlscale.records import read_run
from rlscale.report.run_page import write_report

from ..options import parse

__all__ = ["ReportOptions", "run", "write_page"]


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained page that shows one or more runs, from their records alone."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs."""
    out: str | None = None
    """The page to write; None: report.html in the first run's folder."""


def run(arguments: list[str]) -> int:
    """Write the page of the runs that the arguments name.

    Raises:
        UsageError: no run is named, or a folder holds none.
    """
    options = parse(ReportOptions, "report", arguments)
    if not options.runs:
        raise UsageError("RUN", "no run was named", "Name the folder of a run, for example: rlscale report runs/my-run")
    write_page(options.runs, options.out)
    return 0


def write_page(folders: Sequence[str], out: str | None = None) -> None:
    """Write the page and say where it is; by default into the first folder."""
    page = Path(out) if out else Path(folders[0]) / "report.html"
    write_report([read_run(Path(folder)) for folder in folders], page)
    print(f"wrote {page}")
