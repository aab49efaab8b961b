"""Draw docs/pictures/study-*.png from results/studies.json and print their numbers: `python docs/pictures/studies.py`.

Noise scales are pooled over stretches of 80 optimizer steps and over the seeds: numerators and denominators are summed, then
divided; the interval is Fieller's, from leaving out one window of 20 steps at a time.
"""

import json
from pathlib import Path

import altair as alt
import numpy as np
import vl_convert
from rlscale.chart_style import PALETTE
from scipy.special import stdtrit

from rlscale.noise import fieller

HERE = Path(__file__).parent
RECORD = json.loads((HERE.parent.parent / "results" / "studies.json").read_text())
RUNS, SETTINGS = RECORD["readings"]["runs"], RECORD["readings"]["settings"]
HEADS = ["policy", "value", "joint"]
STRETCH = 80
AXIS = (10.0, 1e6)
WHAT = f"{SETTINGS['task']}, batch of {SETTINGS['batch_size']:,}, {SETTINGS['seeds']} seeds"


def pooled(kind, head, first):
    """One stretch: noise scale (None where not resolved) with its interval, and the mean return there."""
    windows = [w for r in RUNS if r["name"] == kind for w in r["windows"] if first < w["optimizer_steps"] <= first + STRETCH]
    trace, grad = (np.array([w["noise"][head][part] for w in windows]) for part in ("trace_cov", "grad_sq"))
    count = len(windows)
    covariance = (count - 1) * np.cov(trace.sum() - trace, grad.sum() - grad, ddof=0)
    low, high = fieller(trace.sum(), grad.sum(), covariance, float(stdtrit(count - 1, 0.975)))
    value = float(trace.sum() / grad.sum()) if np.isfinite(high) else None
    score = float(np.mean([w["return"] for w in windows]))
    return {"kind": kind, "head": head, "step": first + STRETCH / 2, "return": score, "value": value, "low": low, "high": high}


def table(kinds, heads):
    rows = [
        pooled(kind, head, first) for kind in kinds for head in heads for first in range(0, SETTINGS["optimizer_steps"], STRETCH)
    ]
    for row in rows:
        high = f"{row['high']:,.0f}]" if np.isfinite(row["high"]) else "∞]"
        shown = "not resolved" if row["value"] is None else f"{row['value']:,.0f}"
        print(
            f"{row['kind']:7s}{row['head']:8s}{row['step']:5.0f} return {row['return']:.1f}: {shown} [{row['low']:,.0f}, {high}"
        )
        row["mark"] = "resolved" if row["value"] is not None else "above"
        row["from"] = float(np.clip(row["low"], *AXIS))
        row["to"] = float(np.clip(row["high"], *AXIS))
        row["at"] = row["value"] if row["value"] is not None else row["from"]
        row["low"], row["high"] = None, None
    return rows


def draw(rows, x, colour, names, dash=None, shade=None):
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


def save(name, chart, title):
    finished = chart.properties(title=f"{title} ({WHAT})", width=620, height=320)
    spec = finished.configure_axis(labelFontSize=12, titleFontSize=12, gridOpacity=0.4).configure_view(stroke=None).to_dict()
    (HERE / f"study-{name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=1.5))


steps = alt.X("step:Q", title="optimizer steps", scale=alt.Scale(domain=[0, SETTINGS["optimizer_steps"]], nice=False))
save("growth", draw(table(["plain"], HEADS), steps, "head", HEADS), "Noise scale over training")

first, last = next(run["cold"] for run in RUNS if run["name"] == "cold")
stretch = alt.Chart(alt.Data(values=[{"first": first, "last": last}])).mark_rect(color="#56B4E9", opacity=0.18)
shade = stretch.encode(x="first:Q", x2="last:Q")
heads = ["value", "joint"]
save(
    "temperature",
    draw(table(["plain", "cold"], heads), steps, "head", heads, "kind", shade),
    "ε cut 16-fold in the shaded stretch",
)

score = alt.X("return:Q", title="return of the frozen policy", scale=alt.Scale(zero=False))
units = dict(zip(("narrow", "plain", "wide"), SETTINGS["widths"], strict=True))
rows = [{**row, "width": f"{units[row['kind']]} units"} for row in table(units, ["policy"])]
save("width", draw(rows, score, "width", [f"{u} units" for u in units.values()]), "Policy's noise scale at equal return")
