"""What an error of somebody else's code says, as a part of a line for users."""

__all__ = ["first_line"]


def first_line(error: Exception) -> str:
    """The first line of its message without the full stop; the name of its class where it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
