"""Draw docs/pictures/study-*.png from results/studies.json: `python docs/pictures/studies.py`."""

import json
import math
from pathlib import Path

import altair as alt
import vl_convert

from rlscale.chart_style import PALETTE

HERE = Path(__file__).parent
RECORD = json.loads((HERE.parent.parent / "results" / "studies.json").read_text())
RUNS, SETTINGS = RECORD["readings"]["runs"], RECORD["readings"]["settings"]
HEADS = ["policy", "value", "joint"]
GAME, BATCH = SETTINGS["task"], f"batch of {SETTINGS['batch_size']:,}"


def points(*names):
    """One entry per run, window and head whose noise scale is resolved."""
    for run in RUNS:
        if run["name"] in names:
            for window in run["windows"]:
                for head in HEADS:
                    noise = window["noise"][head]
                    low, high = noise["interval"]
                    if noise["value"] is not None:
                        common = {"seed": run["seed"], "kind": run["name"], "width": f"{run['width']} units", "head": head}
                        step, score = window["optimizer_steps"], window["return"]
                        yield {**common, "step": step, "return": score, "value": noise["value"], "low": low, "high": high}


def log_y(title="noise scale (observations)"):
    axis = alt.Axis(format="~s", values=[10.0**k for k in range(-1, 7)])
    return alt.Y("value:Q", title=title, scale=alt.Scale(type="log"), axis=axis)


def colour(field, domain):
    legend = alt.Legend(orient="bottom", labelLimit=300, symbolStrokeWidth=3)
    return alt.Color(f"{field}:N", title=None, scale=alt.Scale(domain=domain, range=PALETTE[: len(domain)]), legend=legend)


STEPS = alt.X("step:Q", title="optimizer steps", scale=alt.Scale(nice=False))


def growth():
    data = list(points("plain"))
    base = alt.Chart(alt.Data(values=data)).encode(x=STEPS, y=log_y(), color=colour("head", HEADS))
    lines = base.mark_line(strokeWidth=1.2, opacity=0.8).encode(detail="seed:N")
    return (lines + base.mark_point(size=14, filled=True)).properties(
        title=f"{GAME}, {BATCH}: every head, {SETTINGS['seeds']} seeds", width=620, height=320
    )


def temperature():
    plain = {(p["seed"], p["head"], p["step"]): p["value"] for p in points("plain")}
    data = [
        {**p, "value": p["value"] / plain[p["seed"], p["head"], p["step"]]}
        for p in points("cold")
        if (p["seed"], p["head"], p["step"]) in plain
    ]
    first, last = next(run["cold"] for run in RUNS if run["name"] == "cold")
    stretch = alt.Chart(alt.Data(values=[{"first": first, "last": last}])).mark_rect(color="#56B4E9", opacity=0.18)
    one = alt.Chart(alt.Data(values=[{"value": 1}])).mark_rule(strokeDash=[4, 4], color="#888").encode(y="value:Q")
    axis = alt.Axis(values=[0.25, 0.5, 1, 2, 4, 8, 16, 32])
    y = alt.Y("value:Q", title="noise scale, cold run ÷ plain run", scale=alt.Scale(type="log"), axis=axis)
    base = alt.Chart(alt.Data(values=data)).encode(x=STEPS, y=y, color=colour("head", HEADS))
    lines = base.mark_line(strokeWidth=1.2, opacity=0.8).encode(detail="seed:N")
    shade = stretch.encode(x="first:Q", x2="last:Q")
    return (shade + one + lines + base.mark_point(size=14, filled=True)).properties(
        title=f"{GAME}, {BATCH}: ε cut {16}-fold in the shaded stretch", width=620, height=320
    )


def width():
    data = [p for p in points("narrow", "plain", "wide") if p["head"] == "policy"]
    order = [f"{units} units" for units in SETTINGS["widths"]]
    x = alt.X("return:Q", title="return of the frozen policy")
    base = alt.Chart(alt.Data(values=data)).encode(
        x=x, y=log_y("noise scale of the policy (observations)"), color=colour("width", order)
    )
    bars = base.mark_rule(opacity=0.25).encode(y=alt.Y("low:Q"), y2="high:Q")
    return (bars + base.mark_point(size=26, filled=True)).properties(
        title=f"{GAME}, {BATCH}: three widths at equal return", width=620, height=320
    )


for name, chart in (("growth", growth()), ("temperature", temperature()), ("width", width())):
    spec = chart.configure_axis(labelFontSize=12, titleFontSize=12, gridOpacity=0.4).configure_view(stroke=None).to_dict()
    (HERE / f"study-{name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=1.5))


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def between(kind, head, first, last):
    """Geometric mean over seeds and windows of steps first … last, and how many windows were resolved."""
    values = [p["value"] for p in points(kind) if p["head"] == head and first < p["step"] <= last]
    return f"{geometric_mean(values):,.0f} ({len(values)})"


third = SETTINGS["optimizer_steps"] // 3
for head in HEADS:
    cells = [between(kind, head, k * third, (k + 1) * third) for kind in ("plain", "cold", "narrow", "wide") for k in range(3)]
    print(f"{head:8s}", *cells)
