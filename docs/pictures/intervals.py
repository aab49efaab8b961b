"""What the pictures of docs/beyond.md share: estimates with their intervals one under the other, and how a picture is saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt

from rlscale.estimate import Estimate
from rlscale.report.chart_style import PALETTE, clip, layer, log_axis, log_domain, shown

_NAME, _APART, _BELOW = 28, 13, 2  # pixels from a row's top to its first interval, to each next one, and below the last


def intervals(rows: Mapping[str, Mapping[str, Estimate]], title: str) -> alt.LayerChart:
    """The rows, each with its name and below it an interval for each estimate, on one logarithmic axis.

    An end that is not known is drawn as far as the axis reaches; a triangle says that only this limit is known.

    Args:
        rows: estimates of every row, by what they are; a row may lack some. The same word has one colour.
        title: of the axis, with its unit.
    """
    kinds = list(dict.fromkeys(what for row in rows.values() for what in row))
    marks = [{"row": name, "what": what, **shown(estimate)} for name, row in rows.items() for what, estimate in row.items()]
    marks = [mark for mark in marks if mark["mark"] != "nothing"]
    domain = log_domain([end for mark in marks for end in (mark["value"], mark["low"], mark["high"]) if end])
    for mark in marks:
        mark["from"], mark["to"] = clip(mark["low"] or 0.0, domain), clip(mark["high"] or math.inf, domain)
    x = log_axis(alt.X, "value", title, domain)
    y = alt.Y("row:N", sort=list(rows), title=None, axis=alt.Axis(labels=False, ticks=False, domain=False, grid=False))
    legend = alt.Legend(orient="top", columns=2, symbolType="circle", symbolOpacity=1, labelLimit=400)
    colour = alt.Color(
        "what:N", title=None, sort=kinds, scale=alt.Scale(domain=kinds, range=PALETTE[: len(kinds)]), legend=legend
    )
    height = _NAME + _APART * len(kinds) + _BELOW
    layers = []
    for number, what in enumerate(kinds):
        offset = _NAME + _APART * number - height / 2  # from the middle of the row
        mine = [mark for mark in marks if mark["what"] == what]
        bar = {"x": alt.X("from:Q"), "x2": "to:Q", "y": y, "color": colour}
        layers += layer(mine, "rule", bar, strokeWidth=3, opacity=0.5, yOffset=offset)
        for mark, shape in (("resolved", "circle"), ("above", "triangle-right"), ("below", "triangle-left")):
            looks = {"shape": shape, "size": 70, "filled": True, "opacity": 1, "yOffset": offset}
            layers += layer([m for m in mine if m["mark"] == mark], "point", {"x": x, "y": y, "color": colour}, **looks)
    names = {"x": alt.value(2), "y": y, "text": "row:N"}
    look = {"align": "left", "baseline": "top", "dy": 3 - height / 2, "fontSize": 13, "color": "#1a1a1a"}
    layers += layer([{"row": name} for name in rows], "text", names, **look)
    return alt.layer(*layers).properties(width=470, height=height * len(rows))


def save(chart: Any, script: str) -> None:
    """Write the picture of a script beside it; letters of a picture 500 points wide can be read on a phone."""
    chart = chart.configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=14)
    chart = chart.configure_legend(labelFontSize=13).configure_view(stroke=None)
    chart.save(str(Path(script).with_suffix(".png")), scale_factor=2)
