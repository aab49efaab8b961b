"""Quantities as people write and read them: numbers, amounts of memory, times. And what is said in one line, errors too."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby

from .errors import UsageError

__all__ = [
    "first_line",
    "format_bytes",
    "format_clock",
    "format_duration",
    "format_quantity",
    "format_return",
    "parse_bytes",
    "parse_duration",
    "stretches",
    "tell",
    "true_error",
]

_DURATIONS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_BYTES |= {f"{unit}b": size for unit, size in _BYTES.items()}


def first_line(error: BaseException) -> str:
    """The first line of what an exception says; the name of its class where it says nothing. See `true_error`."""
    error = true_error(error)
    return next((line.strip() for line in str(error).strip().splitlines()), type(error).__name__)


def tell(line: str) -> None:
    """Say something on standard error, or nothing where that cannot be written to: it may be a log on the disk that is full."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def true_error(error: BaseException) -> BaseException:
    """What went wrong in another process, where Ray hands it on: the first line of Ray's own names that process and its node."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def format_quantity(value: float) -> str:
    """Three significant digits with thousands separators: 0.0123, 4.56, 1,230, 45,600; `inf` as ∞."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if math.isnan(value):
        return "?"
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    decimals = max(2 - math.floor(math.log10(abs(rounded))), 0)  # of the rounded number, which may have a digit more: 9.9996
    return f"{rounded:,.{decimals}f}" if abs(rounded) < 1e15 else f"{value:.3g}"


def format_return(value: float, digits: int = 4) -> str:
    """So many significant digits, and from 1,000 on all before the point, without trailing zeros: 0.5, 17.53, 32,064."""
    rounded = f"{value:.{digits}g}"
    return rounded if abs(float(rounded)) < 1000 else f"{value:,.0f}"


def format_bytes(count: float) -> str:
    """Three significant digits and a binary unit: 6.94 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def format_duration(seconds: float) -> str:
    """3 h 20 min, 2 min 5 s, 40 s; with three significant digits below 20 seconds, where fractions matter."""
    if seconds < 20:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any: 1:05, 2:00:10."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def stretches(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers in groups of consecutive ones: 2, 4, 5, 6 is [2] and [4, 5, 6]."""
    places = enumerate(numbers)
    return [[number for _, number in run] for _, run in groupby(places, lambda placed: placed[1] - placed[0])]


def parse_bytes(text: str, field: str) -> int:
    """Bytes from `12GiB`, `500MB`, `2g` or a plain number.

    Args:
        text: what was typed.
        field: the flag that it was typed for, which the error names.

    Raises:
        UsageError: the text is no amount of memory.
    """
    return int(_parse(text, _BYTES, field, "amount of memory", "12GiB or 500MB"))


def parse_duration(text: str, field: str) -> float:
    """Seconds from `45s`, `90min`, `8h` or `2d`; arguments as of `parse_bytes`.

    Raises:
        UsageError: the text is no time.
    """
    return _parse(text, _DURATIONS, field, "time", "90min or 8h")


def _parse(text: str, units: Mapping[str, int], field: str, what: str, examples: str) -> float:
    """A positive number followed by one of the units, in any case, with spaces allowed."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in units or not 0 < float(found[1]) * units[found[2]] < math.inf:
        raise UsageError(field, f"{text!r} is no {what}", f"Give for example {examples}")
    return float(found[1]) * units[found[2]]
