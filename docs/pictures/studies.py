"""Draws docs/pictures/study-*.png from results/studies.json and prints the numbers of docs/studies.md.

    python docs/pictures/studies.py

Noise scales are pooled over stretches of 80 optimizer steps and over the seeds: numerators and denominators are summed and then
divided. The interval is Fieller's, from a jackknife that leaves out one window of 20 steps at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert
from scipy.special import stdtrit

from rlscale.noise import fieller
from rlscale.report.chart_style import PALETTE

HERE = Path(__file__).parent
RECORD = json.loads((HERE.parent.parent / "results" / "studies.json").read_text())
RUNS, SETTINGS = RECORD["readings"]["runs"], RECORD["readings"]["settings"]
HEADS = ["policy", "value", "joint"]
STRETCH = 80  # optimizer steps that are pooled
AXIS = (10.0, 1e6)  # what the pictures show of the noise scale


def pool_stretch(kind: str, head: str, first: int) -> dict[str, Any]:
    """Noise scale (None where it is not resolved) with its interval, and the mean return, of the stretch after step `first`."""
    windows = [w for r in RUNS if r["name"] == kind for w in r["windows"] if first < w["optimizer_steps"] <= first + STRETCH]
    trace, grad = (np.array([w["noise"][head][part] for w in windows]) for part in ("trace_cov", "grad_sq"))
    count = len(windows)
    covariance = (count - 1) * np.cov(trace.sum() - trace, grad.sum() - grad, ddof=0)
    low, high = fieller(trace.sum(), grad.sum(), covariance, float(stdtrit(count - 1, 0.975)))
    value = float(trace.sum() / grad.sum()) if np.isfinite(high) else None
    score = float(np.mean([w["return"] for w in windows]))
    return {"kind": kind, "head": head, "step": first + STRETCH / 2, "return": score, "value": value, "low": low, "high": high}


def print_row(row: dict[str, Any]) -> None:
    """One stretch as a line of text."""
    high = f"{row['high']:,.0f}]" if np.isfinite(row["high"]) else "∞]"
    shown = "not resolved" if row["value"] is None else f"{row['value']:,.0f}"
    print(f"{row['kind']:7s}{row['head']:8s}{row['step']:5.0f} return {row['return']:.1f}: {shown} [{row['low']:,.0f}, {high}")


def as_mark(row: dict[str, Any]) -> dict[str, Any]:
    """What the chart draws of a stretch: a point or a triangle, and a bar that ends where the axis does."""
    start, end = (float(np.clip(row[name], *AXIS)) for name in ("low", "high"))
    resolved = row["value"] is not None
    place = {"mark": "resolved" if resolved else "above", "from": start, "to": end, "at": row["value"] if resolved else start}
    return {name: row[name] for name in ("kind", "head", "step", "return")} | place


def tabulate(kinds: list[str], heads: list[str]) -> list[dict[str, Any]]:
    """The marks of all stretches of these runs and heads, printed on the way."""
    firsts = range(0, SETTINGS["optimizer_steps"], STRETCH)
    rows = [pool_stretch(kind, head, first) for kind in kinds for head in heads for first in firsts]
    for row in rows:
        print_row(row)
    return [as_mark(row) for row in rows]


def draw(rows: list[dict[str, Any]], x: Any, colour: str, names: list[str], dash: str | None = None, shade: Any = None) -> Any:
    """Noise scale against x, one colour for each of `names`, one dash pattern for each value of the field `dash`."""
    legend = alt.Legend(orient="bottom", labelLimit=300, symbolOpacity=1)
    scale = alt.Scale(domain=names, range=PALETTE[: len(names)])
    hue = alt.Color(f"{colour}:N", title=None, scale=scale, legend=legend)
    axis = alt.Axis(format="~s", values=[10.0**k for k in range(1, 7)])
    y = alt.Y("at:Q", title="noise scale (observations)", scale=alt.Scale(type="log", domain=list(AXIS)), axis=axis)
    shape = alt.Shape("mark:N", legend=None, scale=alt.Scale(domain=["resolved", "above"], range=["circle", "triangle-up"]))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=hue)
    dashes = {} if dash is None else {"strokeDash": alt.StrokeDash(f"{dash}:N", title=None, legend=alt.Legend(orient="bottom"))}
    lines = base.transform_filter("datum.mark == 'resolved'").mark_line(strokeWidth=1.5).encode(y=y, **dashes)
    bars = base.mark_rule(opacity=0.35).encode(y=alt.Y("from:Q", scale=alt.Scale(type="log", domain=list(AXIS))), y2="to:Q")
    points = base.mark_point(size=60, filled=True, opacity=1).encode(y=y, shape=shape)
    return alt.layer(*([shade] if shade is not None else []), bars, lines, points)


def save(name: str, chart: Any, title: str) -> None:
    """Writes docs/pictures/study-NAME.png."""
    what = f"{SETTINGS['task']}, batch of {SETTINGS['batch_size']:,}, {SETTINGS['seeds']} seeds"
    finished = chart.properties(title=f"{title} ({what})", width=620, height=320)
    spec = finished.configure_axis(labelFontSize=12, titleFontSize=12, gridOpacity=0.4).configure_view(stroke=None).to_dict()
    (HERE / f"study-{name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=1.5))


def main() -> None:
    steps = alt.X("step:Q", title="optimizer steps", scale=alt.Scale(domain=[0, SETTINGS["optimizer_steps"]], nice=False))
    save("growth", draw(tabulate(["plain"], HEADS), steps, "head", HEADS), "Noise scale over training")

    first, last = next(run["cold"] for run in RUNS if run["name"] == "cold")
    stretch = alt.Chart(alt.Data(values=[{"first": first, "last": last}])).mark_rect(color="#56B4E9", opacity=0.18)
    shade = stretch.encode(x="first:Q", x2="last:Q")
    heads = ["value", "joint"]
    cold = draw(tabulate(["plain", "cold"], heads), steps, "head", heads, "kind", shade)
    save("temperature", cold, "ε cut 16-fold in the shaded stretch")

    score = alt.X("return:Q", title="return of the frozen policy", scale=alt.Scale(zero=False))
    units = dict(zip(("narrow", "plain", "wide"), SETTINGS["widths"], strict=True))
    rows = [{**row, "width": f"{units[row['kind']]} units"} for row in tabulate(list(units), ["policy"])]
    save("width", draw(rows, score, "width", [f"{u} units" for u in units.values()]), "Policy's noise scale at equal return")


if __name__ == "__main__":
    main()
