"""What the charts share: palette, logarithmic axes with decades, legends, sizes, and the type of a figure.

What they show is in `rlscale.report.run_charts` (one run), `rlscale.report.sweep_charts` and `rlscale.report.ladder_charts`.
"""

import math
import re
from collections.abc import Iterable
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from ..estimate import Estimate

__all__ = [
    "GREY",
    "LIMITS",
    "NUMBER",
    "PALETTE",
    "SI_LABEL",
    "Figure",
    "clip",
    "colour",
    "draw",
    "finish",
    "layer",
    "log_axis",
    "log_domain",
    "message",
    "numbers",
    "shown",
    "slug",
    "unchecked",
]

# Okabe and Ito's palette: told apart by colour-blind readers and in grey print.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]
# Tol's muted colours follow for more tasks than six; beyond fourteen they repeat, and the tooltip tells.
PALETTE += ["#882255", "#44AA99", "#999933", "#AA4499", "#332288", "#661100", "#000000", "#88CCEE"]
GREY = "#8a8a8a"
# An axis's own SI format gives all its labels one prefix, so that 0 is "0k"; and below one it says 10m for 0.01.
SI_LABEL = "format(datum.value, datum.value > 0 && datum.value < 1 ? '~g' : '~s')"
NUMBER = ",.4~r"  # four significant digits, without an exponent however large or small
_COUNTS = {"actors", "batch", "machines", "reached", "runs", "workers"}  # fields of tooltips that are shown to the last digit
_LETTERS = 48  # that fit side by side on a phone


# Triangles for what is not resolved, by the `mark` that `shown` gives.
LIMITS = alt.Shape("mark:N", legend=None, scale=alt.Scale(domain=["above", "below"], range=["triangle-up", "triangle-down"]))


# What writes a page, faster: Altair would hold every part of every chart against its schema, which the tests do.
unchecked: ContextDecorator = debug_mode(False)


@dataclass(frozen=True)
class Figure:
    """A chart with its words.

    Attributes:
        name: for a file name.
        title: what it shows.
        note: how to read it, plain text.
        chart: the Altair chart.
    """

    name: str
    title: str
    note: str
    chart: Any


def draw(data: list[dict[str, Any]]) -> Any:
    """A chart of these records; they travel inside the specification."""
    return alt.Chart(alt.Data(values=tuple(data)))  # Altair copies a list, record by record, for every layer


def layer(data: list[dict[str, Any]], mark: str, encoding: dict[str, Any], **style: Any) -> list[Any]:
    """These records drawn with one mark, as a list of one layer; an empty list where there are no records.

    Args:
        data: the records.
        mark: `line`, `rule`, `point` and so on.
        encoding: channels and fields, as of Altair's `encode`.
        style: properties of the mark.
    """
    return [getattr(draw(data), f"mark_{mark}")(**style).encode(**encoding)] if data else []


def slug(*words: str) -> str:
    """Words as part of a file name."""
    return "-".join(re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in words)


def numbers(**titles: str) -> list[Any]:
    """A tooltip line for every numeric field, by its title; counts are shown whole."""
    return [
        alt.Tooltip(f"{field}:Q", title=title, format=",d" if field in _COUNTS else NUMBER) for field, title in titles.items()
    ]


def shown(estimate: Estimate) -> dict[str, Any]:
    """An estimate as a point of a logarithmic chart. JSON knows no infinity: an open end is None.

    Returns:
        `mark`: `resolved`, or what is known instead: `above` or `below` a limit, or `nothing`. `value`: the value, or that limit.
        `low`, `high`: ends of the interval. `text`: for people.
    """
    low, high = estimate.interval or (0.0, math.inf)
    ends = {"low": low if low > 0 else None, "high": high if math.isfinite(high) else None}
    mark, value = "nothing", estimate.value
    if value is not None:
        mark = "resolved"
    elif low > 0:
        mark, value = "above", low
    elif 0 < high < math.inf:  # of what was not seen at all no axis of logarithms has the place
        mark, value = "below", high
    return {"mark": mark, "value": value, **ends, "text": estimate.say()}


def log_domain(values: Iterable[float], *, padding: float = 1.5) -> tuple[float, float]:
    """Ends of a logarithmic axis that holds all positive finite values, with some room; (1, 10) where there are none."""
    kept = [value for value in values if value > 0 and math.isfinite(value)]
    return (min(kept) / padding, max(kept) * padding) if kept else (1.0, 10.0)


def log_axis(channel: Any, field: str, title: str, domain: tuple[float, float]) -> Any:
    """A logarithmic position channel (`alt.X` or `alt.Y`) of that field, with a label at every decade.

    Where fewer than three decades are in sight, 2 and 5 are labelled too; where none of these is, all whole multiples.
    """
    first, last = math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1]))
    exponents = range(first, last + 1)

    def inside(multiples: Iterable[int]) -> list[float]:
        return [m * 10.0**e for e in exponents for m in multiples if domain[0] <= m * 10.0**e <= domain[1]]

    step = 1 if len(exponents) <= 8 else 2
    ticks = [10.0**e for e in exponents if e % step == 0 and domain[0] <= 10.0**e <= domain[1]]
    if len(ticks) < 3:
        ticks = inside((1, 2, 5)) or inside(range(1, 10))
    axis = alt.Axis(values=ticks, labelExpr=SI_LABEL, labelOverlap="greedy", labelSeparation=6)
    return channel(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(type="log", domain=list(domain), nice=False))


def clip(value: float, domain: tuple[float, float]) -> float:
    """The value, or the end of the axis that it lies beyond; tooltips keep the number itself."""
    return min(max(value, domain[0]), domain[1])


def colour(
    field: str, names: list[str], *, colours: list[str] | None = None, own_shapes: bool = False, alone: bool = True
) -> Any:
    """A colour for each name, with a legend below the chart; of circles, or of the shapes that the names have in the chart.

    `alone`: a single name has a legend too.
    """
    columns = max(1, min(4, _LETTERS // (4 + max(map(len, names), default=0))))
    circles = {} if own_shapes else {"symbolType": "circle"}
    legend = alt.Legend(orient="bottom", columns=columns, labelLimit=320, symbolOpacity=1, **circles)
    chosen = colours or [PALETTE[i % len(PALETTE)] for i in range(len(names))]
    scale = alt.Scale(domain=names, range=chosen)
    return alt.Color(f"{field}:N", title=None, scale=scale, legend=legend if alone or len(names) > 1 else None)


def message(text: str) -> Any:
    """In place of a chart that has nothing to show."""
    return finish(alt.Chart(alt.Data(values=[{}])).mark_text(text=text, fontSize=14), 60)


def finish(chart: Any, height: int = 340) -> Any:
    """Size and fonts; the width is that of the page."""
    return (
        chart.properties(width="container", height=height)
        .configure_axis(labelFontSize=12, titleFontSize=12, grid=True, gridOpacity=0.4)
        .configure_legend(labelFontSize=12, titleFontSize=12, titleLimit=320)
        .configure_view(stroke=None)
    )
