"""`UsageError`: what a person asked for cannot be done. The command prints it as one line and exits with code 2."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(ValueError):
    """Bad input.

    Args:
        field: what to change, as the user typed it: `--environments`, `TASK`, `RUN`.
        problem: what is wrong with it.
        mend: what to do instead.
    """

    def __init__(self, field: str, problem: str, mend: str) -> None:
        self.field, self.problem, self.mend = field, problem, mend
        super().__init__(f"{field}: {problem}. {mend}")

    def __reduce__(self) -> tuple[type[UsageError], tuple[str, str, str]]:
        return type(self), (self.field, self.problem, self.mend)
