"""`plain_console`: where every command prints. Names that a user gave are shown as typed, neither as markup nor as emoji."""

from rich.console import Console

__all__ = ["plain_console"]


def plain_console(*, width: int | None = None, stderr: bool = False) -> Console:
    """A console on standard output, or standard error, `width` columns wide; None: as wide as the terminal."""
    return Console(width=width, stderr=stderr, emoji=False, markup=False)
