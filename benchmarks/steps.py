"""The progress of a series of measurements, and the time that is left once one round of them has told it."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rlscale.text import format_clock

__all__ = ["Steps"]


class Steps:
    """Shows which measurement is under way: a bar in a terminal, a line each when piped. Use as a context manager.

    Args:
        console: where to print.
        total: number of measurements.
        alike: measurements of which each round of the series consists; the time left is known when a round has ended.
    """

    def __init__(self, console: Console, total: int, alike: int = 1) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._total, self._alike, self._started = total, alike, time.monotonic()
        self._progress = Progress(*columns, console=console, transient=True)
        self._console, self._bar, self._begun = console, self._progress.add_task("", total=total), 0

    def begin(self, what: str, beside: int = 0) -> None:
        """Say that the next measurement begins, beside so many that have not ended."""
        ended = self._begun - beside
        if ended >= self._alike:
            left = (time.monotonic() - self._started) * (self._total / ended - 1)
            what += f"  {format_clock(left)} left"
        self._progress.update(self._bar, description=what, completed=ended)
        self._begun += 1
        if not self._console.is_terminal:
            self._console.print(what, markup=False, highlight=False)

    def __enter__(self) -> Steps:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
