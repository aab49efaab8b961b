"""`Estimate`, the one type for every estimated figure. No formulas live here."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Estimate", "format_quantity"]


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

    def __str__(self) -> str:
        if self.value is not None and self.interval is not None:
            low, high = (format_quantity(end) for end in self.interval)
            return f"{format_quantity(self.value)} [{low}, {high}]"
        if self.value is not None:
            return format_quantity(self.value)
        if self.interval is not None and math.isfinite(self.interval[0]) and self.interval[0] > 0:
            return f"not resolved, above {format_quantity(self.interval[0])}"
        return "not resolved"


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
    return f"{rounded:,.{max(digits, 0)}f}" if abs(rounded) < 1e15 else f"{value:.3g}"
