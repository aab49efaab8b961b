"""`plain_console`: where every command prints. Names that a user gave are shown as typed, neither as markup nor as emoji.

`say` prints a sentence there; `make_table` begins a table.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table

from rlscale.records.files import is_full

__all__ = ["make_table", "plain_console", "say", "terminal_width"]


class _LastingConsole(Console):
    def _check_buffer(self) -> None:
        """A log whose disk is full: what is said is kept for when there is room, and what the command does goes on."""
        try:
            super()._check_buffer()
        except OSError as error:
            if not is_full(error):
                raise

    def on_broken_pipe(self) -> None:
        """Whoever read, `head` say, has gone: what the command does goes on without a word. Rich would end the process."""
        with suppress(SystemExit):
            super().on_broken_pipe()


def plain_console(*, width: int | None = None, stderr: bool = False) -> Console:
    """A console on standard output, or standard error, `width` columns wide; None: as wide as the terminal."""
    return _LastingConsole(width=width, stderr=stderr, emoji=False, markup=False)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is: nothing is marked up, and a line may be longer than the terminal is wide."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def make_table(title: str, left: Sequence[str], right: Sequence[str], box: Box = SIMPLE_HEAD) -> Table:
    """A table without rows: columns that are aligned at the left, as words are, then those at the right, as figures are."""
    table = Table(title=title, title_justify="left", box=box)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def terminal_width(otherwise: int) -> int | None:
    """None where standard output is a terminal, which knows its width; else so many columns."""
    return None if sys.stdout is not None and sys.stdout.isatty() else otherwise
