"""The progress of a series of measurements."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Steps"]


class Steps:
    """Shows which measurement is under way: a bar in a terminal, a line each when piped. Use as a context manager.

    Args:
        console: where to print.
        total: number of measurements.
    """

    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._console, self._bar, self._begun = console, self._progress.add_task("", total=total), 0

    def begin(self, what: str) -> None:
        """Say that the next measurement begins."""
        self._progress.update(self._bar, description=what, completed=self._begun)
        self._begun += 1
        if not self._console.is_terminal:
            self._console.print(what, markup=False, highlight=False)

    def __enter__(self) -> Steps:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
