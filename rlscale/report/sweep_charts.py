"""The charts of one sweep: its frontier, its critical batch size against return, its learning rates. Vega-Lite through Altair.

What is drawn comes from `comparison`; charts over several tasks are in `ladder_charts`; how charts look is in
`rlscale.report.chart_style`; where they go, in `rlscale.report.comparison_page`.
"""

import math
from typing import Any

import altair as alt
import numpy as np

from ..analysis.comparison import ComparedSweep
from ..analysis.rows import NOISE_STAGES
from .chart_style import (
    GREY,
    NUMBER,
    PALETTE,
    Figure,
    clip,
    colour,
    finish,
    layer,
    log_axis,
    log_domain,
    message,
    numbers,
    shown,
    slug,
)
from .words import head_name, score_name

__all__ = ["frontier_figure", "rate_figure", "return_figure"]

_MEASURED = "B_crit, measured"


def frontier_figure(sweep: ComparedSweep) -> Figure:
    """Optimizer steps against observations of every run, at the best rate of its batch size, with every goal's fitted curve."""
    reached: list[dict[str, Any]] = []
    missed: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    critical: list[dict[str, Any]] = []
    unfitted = [row.goal_label for row in sweep.rows if row.frontier is None or row.frontier.fitted is None]
    for row in sweep.rows:
        label = f"goal {row.goal_label}"
        frontier = row.frontier
        fitted = frontier is not None and frontier.fitted is not None
        at_best = frontier.steps_at_best_rate if frontier is not None and fitted else None
        for i, p in enumerate(row.points):
            # A missed run's place is where it is known to have missed: at its rate the surface may be far from any crossing.
            steps = at_best[i] if at_best and not p.missed else p.observations / p.batch_size
            about_run = {"goal": label, "batch": p.run.batch_size, "rate": p.run.learning_rate, "seed": p.run.seed}
            (missed if p.missed else reached).append({**about_run, "steps": steps, "observations": steps * p.batch_size})
        if frontier is not None and row.measured.value is not None:
            sizes = np.geomspace(row.batch_sizes[0] / 2, row.batch_sizes[-1] * 2, 80)
            steps_along, along = frontier.optimizer_steps(sizes), frontier.observations(sizes)
            for batch, s, e in zip(sizes, steps_along, along, strict=True):
                curves.append({"goal": label, "batch": float(batch), "steps": float(s), "observations": float(e)})
            b = row.measured.value
            at = {"steps": frontier.optimizer_steps(b), "observations": frontier.observations(b)}
            critical.append({"goal": label, "estimate": row.measured.say(), **at})
    counted = sweep.rows[0].steps_name
    title = f"{sweep.name}: {counted} against observations"
    as_made = "with the steps that it took"
    corrected = "whose steps are corrected by the fitted surface to the best learning rate of its batch size"
    if unfitted:
        corrected += f"; to {', '.join(unfitted)}, which {'has' if len(unfitted) == 1 else 'have'} no surface, {as_made}"
    drawn = "Curves: (S/S_min - 1)(E/E_min - 1) = 1, fitted. Diamond: the critical batch size, where both are twice their least. "
    note = (
        f"Each point is one run, {as_made if len(unfitted) == len(sweep.rows) else corrected}; "
        f"along a grey line the batch size is that at its end. {drawn if critical else ''}"
        "Triangle: a run that missed the goal, at the steps up to which it is known to have missed, not corrected."
    )
    name = slug("frontier", sweep.name)
    everything = [*reached, *missed, *critical]
    x_domain = log_domain((p["steps"] for p in everything), padding=2)
    y_domain = log_domain((p["observations"] for p in everything), padding=2)
    x = log_axis(alt.X, "steps", f"{counted} to the goal, S", x_domain)
    y = log_axis(alt.Y, "observations", "observations to the goal, E", y_domain)
    goals = colour("goal", [f"goal {row.goal_label}" for row in sweep.rows])
    about = [alt.Tooltip("goal:N"), *numbers(batch="batch size", rate="learning rate"), alt.Tooltip("seed:Q")]
    diagonals, labels = _batch_lines([*reached, *missed])
    there = numbers(steps=f"S, {counted}", observations="E, observations")
    beyond = numbers(steps="S, more than", observations="E, more than")
    estimate = [alt.Tooltip("goal:N"), alt.Tooltip("estimate:N", title="critical batch size")]
    channels = {"x": x, "y": y, "color": goals}
    triangle = {"shape": "triangle-up", "angle": 45, "size": 70, "filled": False, "strokeWidth": 1.5}
    diamond = {"shape": "diamond", "size": 170, "filled": True, "stroke": "white", "strokeWidth": 1.5, "opacity": 1}
    text = {"x": x, "y": y, "text": "label:N"}
    place = {"align": "left", "baseline": "bottom", "dx": 3, "dy": -2, "fontSize": 11}
    layers = [
        *layer(diagonals, "line", {"x": x, "y": y, "detail": "batch:N"}, color=GREY, strokeWidth=1, opacity=0.35),
        *layer(curves, "line", {**channels, "order": "batch:Q"}, strokeWidth=2, clip=True),
        *layer(reached, "circle", {**channels, "tooltip": [*about, *there]}, size=42, opacity=0.75),
        *layer(missed, "point", {**channels, "tooltip": [*about, *beyond]}, **triangle),
        *layer(critical, "point", {**channels, "tooltip": estimate}, **diamond),
        *layer(labels, "text", text, **place, stroke="white", strokeWidth=3),  # a curve may pass below
        *layer(labels, "text", text, **place, color="#444"),
    ]
    return Figure(
        name, title, note, finish(alt.layer(*layers), 380) if layers else message("no run says anything about a goal yet")
    )


def _batch_lines(points: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For every batch size a line through its points, a little longer than they reach, and a label at its upper end."""
    diagonals, labels = [], []
    for batch in sorted({p["batch"] for p in points}):
        mine = sorted((p for p in points if p["batch"] == batch), key=lambda p: p["steps"])
        first, last = mine[0], mine[-1]
        ends = [(first, 1 / 1.25), (last, 1.25)]
        line = [{"batch": batch, "steps": p["steps"] * f, "observations": p["observations"] * f} for p, f in ends]
        diagonals += line
        labels.append({**line[1], "label": f"{batch:,}"})
    return diagonals, labels


def return_figure(sweep: ComparedSweep) -> Figure:
    """Critical batch size at each goal, and the noise scale along the runs, against return."""
    batch = next((row.prediction_batch for row in reversed(sweep.rows) if row.prediction_batch is not None), None)
    measured, predicted, windows = [], [], []
    heads = ("policy", "value", "joint")
    names = {head: f"{head_name(head)} loss, averaged to the goal" for head in heads}
    moments = {head: f"{head_name(head)} loss, momentary" for head in heads}
    for row in sweep.rows:
        measured.append({"series": _MEASURED, "return": row.goal, **shown(row.measured)})
        for head in heads:
            prediction = row.prediction(head, "cumulative")
            if prediction is not None:
                predicted.append({"series": names[head], "return": row.goal, **shown(prediction.scale)})
    measuring = [run for run in sweep.runs if run.noise_windows and run.batch_size == batch]
    runs = [run for run in measuring if run.stage in NOISE_STAGES] or measuring
    for run in runs:
        for window in run.noise_windows:
            if window.head in heads and window.mean_return is not None:
                at = {"return": window.mean_return, "seed": run.seed, "observations": window.observations}
                windows.append({"series": moments[window.head], **at, **shown(window.scale)})
    measured, predicted, windows = ([p for p in part if p["mark"] != "nothing"] for part in (measured, predicted, windows))
    score = score_name(sweep.rows[-1])
    title = f"{sweep.name}: critical batch size and noise scale against {score}"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    along = f"{count} at batch size {batch:,.0f}" if batch else "the runs"
    diamonds = "Black diamonds: B_crit measured at each goal, with its 95% interval. "
    note = (
        f"{diamonds if any(p['mark'] == 'resolved' for p in measured) else ''}Squares, drawn a little to the right: the noise "
        "scale of a loss, averaged from the start to that goal, which is what B_crit means too. Intervals are drawn as far as "
        "the chart reaches. Small dots of the same colour: "
        f"that loss's momentary noise scale along {along}. Hollow triangle upwards: not resolved, above this; downwards: "
        "below this."
    )
    name = slug("return", sweep.name)
    everything = [*measured, *predicted, *windows]
    ends = [end for p in measured for end in (p["low"], p["high"]) if end]
    domain = log_domain([*(p["value"] for p in everything), *ends], padding=4)
    for p in everything:
        p["from"], p["to"] = clip(p["low"] or 0.0, domain), clip(math.inf if p["high"] is None else p["high"], domain)
    axis = "return (raw score)" if score == "return" else f"{score}, held-out examples"
    x = alt.X("return:Q", title=axis, scale=alt.Scale(zero=False, padding=16), axis=alt.Axis(tickCount=6))
    y = log_axis(alt.Y, "value", "observations", domain)
    low = log_axis(alt.Y, "from", "observations", domain)
    signs = {_MEASURED: ("diamond", "#000000")}
    for head, paint in zip(heads, PALETTE, strict=False):
        signs |= {names[head]: ("square", paint), moments[head]: ("circle", paint)}
    kept = [series for series in signs if any(p["series"] == series for p in everything)]
    by = colour("series", kept, colours=[signs[series][1] for series in kept], own_shapes=True)
    shapes = alt.Shape("series:N", title=None, scale=alt.Scale(domain=kept, range=[signs[s][0] for s in kept]))
    layers = []
    groups = [(windows, 16, 0.0, 0)]
    for i, head in enumerate(heads):  # side by side, so that none hides another
        groups.append(([p for p in predicted if p["series"] == names[head]], 60, 0.6, 10 + 8 * i))
    groups.append((measured, 150, 0.9, 0))
    for data, size, rule, shift in groups:
        tooltip = [
            alt.Tooltip("series:N", title="what"),
            alt.Tooltip("return:Q", title=score, format=NUMBER),
            alt.Tooltip("text:N", title="observations"),
        ]
        resolved = [p for p in data if p["mark"] == "resolved"]
        if rule:
            layers += layer(
                resolved, "rule", {"x": x, "y": low, "y2": "to:Q", "color": by}, opacity=rule, strokeWidth=1.5, xOffset=shift
            )
        point = {"x": x, "y": y, "color": by, "tooltip": tooltip}
        layers += layer(
            resolved, "point", {**point, "shape": shapes}, size=size, filled=True, opacity=1 if rule else 0.5, xOffset=shift
        )
        for mark, shape in (("above", "triangle-up"), ("below", "triangle-down")):
            limits = [p for p in data if p["mark"] == mark]
            layers += layer(limits, "point", point, shape=shape, size=max(size / 2, 24), filled=False, xOffset=shift)
    return Figure(name, title, note, finish(alt.layer(*layers), 340) if layers else message("nothing was measured yet"))


def rate_figure(sweep: ComparedSweep) -> Figure:
    """Every learning rate that was tried at every batch size, by how many steps it took, and the best by the surface."""
    counted = sweep.rows[0].steps_name
    tried: list[dict[str, Any]] = []
    lost: list[dict[str, Any]] = []
    goals = [row.goal for row in sweep.rows if row.goal is not None]
    for batch in sorted({run.batch_size for run in sweep.runs}):
        mine = [run for run in sweep.runs if run.batch_size == batch and not run.failed]
        goal = next((g for g in reversed(goals) if any(run.steps_to(g) for run in mine)), None)
        by_rate: dict[float, list[float | None]] = {}
        for run in mine:
            by_rate.setdefault(run.learning_rate, []).append(None if goal is None else run.steps_to(goal))
        means = {
            rate: math.exp(float(np.mean(np.log([s for s in steps if s is not None]))))
            for rate, steps in by_rate.items()
            if any(s is not None for s in steps)
        }
        for rate, steps in by_rate.items():
            at = {"batch": batch, "rate": rate, "runs": len(steps), "goal": "none" if goal is None else f"{goal:g}"}
            if rate in means:
                relative = means[rate] / min(means.values())
                tried.append({**at, "steps": means[rate], "relative": relative, "reached": sum(s is not None for s in steps)})
            else:
                lost.append(at)
    best = _best_rates(sweep)
    title = f"{sweep.name}: learning rate against batch size"
    note = (
        f"Every rate that was tried. Colour: {counted} to the last goal that was reached at that batch size, relative to "
        "the fastest rate there (geometric mean over the runs that reached it). Cross: none did."
        f"{' Line: the best rate of the response surface that is fitted to all of these runs.' if best else ''}"
    )
    name = slug("rates", sweep.name)
    x_domain = log_domain((p["batch"] for p in (*tried, *lost)), padding=1.6)
    y_domain = log_domain((p["rate"] for p in (*tried, *lost, *best)), padding=1.6)
    x = log_axis(alt.X, "batch", f"batch size (observations per {counted.removesuffix('s')})", x_domain)
    y = log_axis(alt.Y, "rate", "learning rate", y_domain)
    worst = 3.0
    legend = alt.Legend(orient="bottom", gradientLength=220, values=[1, 1.5, 2, worst], format="~g", titleLimit=330)
    relative = alt.Color(
        "relative:Q",
        title=f"{counted}, relative to the best rate",
        legend=legend,
        scale=alt.Scale(type="log", domain=[1, worst], range=["#08306b", "#6baed6", "#eef5fb"], clamp=True),
    )
    about = numbers(batch="batch size", rate="learning rate", runs="runs")
    about.append(alt.Tooltip("goal:N"))
    outcome = numbers(reached="runs that reached it", steps=counted, relative="relative to the best")
    cross = {"shape": "M-1,-1L1,1M-1,1L1,-1", "size": 30, "color": GREY, "strokeWidth": 1.5}
    point = {"x": x, "y": y, "color": relative, "tooltip": [*about, *outcome]}
    layers = [
        *layer(lost, "point", {"x": x, "y": y, "tooltip": about}, **cross),
        *layer(tried, "circle", point, size=70, opacity=1, stroke="#666", strokeWidth=0.5),
    ]
    layers += layer(best, "line", {"x": x, "y": y}, color="#000000", strokeWidth=1.5)
    return Figure(name, title, note, finish(alt.layer(*layers), 320) if layers else message("no run has ended yet"))


def _best_rates(sweep: ComparedSweep) -> list[dict[str, float]]:
    """The best rate along the batch sizes, by the last goal whose surface is fitted; empty where none is."""
    row = sweep.last_fitted
    if row is None or row.frontier is None:
        return []
    sizes = sorted({(point.run.batch_size, point.batch_size) for point in row.points})
    return [{"batch": nominal, "rate": row.frontier.best_rate(size)} for nominal, size in sizes]
