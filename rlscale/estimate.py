"""`Estimate`, the one type for every estimated figure, and how it is said."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from .text import format_quantity

__all__ = ["Estimate", "from_logarithms"]


@dataclass(frozen=True)
class Estimate:
    """An estimated figure with its confidence interval.

    Attributes:
        value: the point estimate; None when the data do not resolve it.
        interval: lower and upper end (95% unless said otherwise). Ends may be infinite; None when not even an interval
            can be given.
        reason: why `value` is None; None when it is resolved.
    """

    value: float | None
    interval: tuple[float, float] | None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("an Estimate has either a value or the reason why it has none")

    @property
    def known(self) -> float:
        """The value, where it cannot but be resolved."""
        assert self.value is not None, self.reason
        return self.value

    def map(self, rising: Callable[[float], float]) -> "Estimate":
        """The estimate of a rising function of the figure."""
        ends = None if self.interval is None else (rising(self.interval[0]), rising(self.interval[1]))
        return Estimate(None if self.value is None else rising(self.value), ends, self.reason)

    def __str__(self) -> str:
        return self.say()

    def say(self, missing: str = "not resolved") -> str:
        """The value with its interval; where there is no value, `missing` and the limits that are known."""
        low, high = self.interval or (0.0, math.inf)
        if self.value is not None:
            interval = f" [{format_quantity(low)}, {format_quantity(high)}]" if self.interval else ""
            return format_quantity(self.value) + interval
        if high == 0:
            return "none seen"  # as of a loss whose gradient has no noise
        if low > 0 and math.isfinite(high):
            return f"{missing}, between {format_quantity(low)} and {format_quantity(high)}"
        if low > 0 and math.isfinite(low):
            return f"{missing}, above {format_quantity(low)}"
        return f"{missing}, below {format_quantity(high)}" if math.isfinite(high) else missing


def from_logarithms(value: float, ends: tuple[float, float], reason: str | None = None) -> Estimate:
    """The figure with that natural logarithm, and its interval; no value where a reason is given."""
    return Estimate(None if reason else math.exp(value), (math.exp(ends[0]), math.exp(ends[1])), reason)
