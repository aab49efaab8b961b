"""`plain_console`: where every command prints. Names that a user gave are shown as typed, neither as markup nor as emoji."""

import sys
from contextlib import suppress

from rich.console import Console

__all__ = ["plain_console", "terminal_width"]


class _LastingConsole(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read, `head` say, has gone: what the command does goes on without a word. Rich would end the process."""
        with suppress(SystemExit):
            super().on_broken_pipe()


def plain_console(*, width: int | None = None, stderr: bool = False) -> Console:
    """A console on standard output, or standard error, `width` columns wide; None: as wide as the terminal."""
    return _LastingConsole(width=width, stderr=stderr, emoji=False, markup=False)


def terminal_width(otherwise: int) -> int | None:
    """None where standard output is a terminal, which knows its width; else so many columns."""
    return None if sys.stdout is not None and sys.stdout.isatty() else otherwise
