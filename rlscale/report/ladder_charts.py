"""The charts over several tasks: how they rank, and predicted against measured B_crit, of every goal or of the verdict's rungs.

The verdict's rungs are drawn twice: against each other over all decades, and task by task with their names.

What is drawn comes from `rlscale.analysis.comparison`; charts of one sweep are in `rlscale.report.sweep_charts`.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import altair as alt

from ..analysis import Row
from ..analysis.paper import PAPER
from ..analysis.predictions import PRIMARY
from ..analysis.rungs import Rung
from .answers import CONFIDENCE, Answer
from .chart_style import (
    GREY,
    LIMITS,
    PALETTE,
    Figure,
    clip,
    colour,
    finish,
    layer,
    log_axis,
    log_domain,
    numbers,
    shown,
    slug,
)
from .ranking import ranked_of
from .words import flags, head_name, say_aim

__all__ = ["ladder_figure", "rank_figure", "tasks_figure", "verdict_figure"]

_PREDICTED, _MEASURED = "predicted: noise scale (observations)", "measured: critical batch size (observations)"
_CONFIDENCES = {"good": PALETTE[2], "fair": PALETTE[0], "poor": PALETTE[1]}
_HEADS = ("policy", "value", "joint", "joint_policy_parameters")


def ladder_figure(rows: Sequence[Row]) -> Figure | None:
    """Cumulative noise scale against measured critical batch size, of the loss that the reader chooses; None without a point."""
    points = [point for head in _HEADS for row in rows if (point := _ladder_point(row, head)) is not None]
    if not points:
        return None
    _, x, y, background = _against(points, intervals=True)
    losses = [name for name in map(head_name, _HEADS) if any(p["loss"] == name for p in points)]
    chosen = alt.param(name="loss", value=losses[0], bind=alt.binding_select(options=losses, name="loss: "))
    everyone = list(dict.fromkeys(row.name for row in rows if row.goal is not None))
    names = [name for name in everyone if any(p["task"] == name for p in points)]
    by = colour("task", names, colours=[PALETTE[everyone.index(name) % len(PALETTE)] for name in names])
    about = [alt.Tooltip(f"{field}:N") for field in ("task", "goal", "predicted", "measured", "flags")]
    open_ended = [p for p in points if p["open"]]
    resolved = [p for p in points if p["mark"] == "resolved"]
    circles = [p for p in resolved if not p["open"]]
    limits = [p for p in points if p["mark"] != "resolved" and not p["open"]]
    at = {"x": x, "y": y, "color": by, "tooltip": about}
    own = [
        *layer(points, "rule", {"x": alt.X("x1:Q"), "x2": "x2:Q", "y": y, "color": by}, opacity=0.5),
        *layer(resolved, "rule", {"x": x, "y": alt.Y("y1:Q"), "y2": "y2:Q", "color": by}, opacity=0.5),
        *layer(circles, "circle", at, size=75, opacity=0.9),
        *layer(limits, "point", {**at, "shape": LIMITS}, size=75, filled=False),
        *layer(open_ended, "point", {**at, "shape": alt.value("triangle-right")}, size=75, filled=False),
    ]
    chart = alt.layer(*background, *(part.transform_filter(alt.datum.loss == chosen) for part in own)).add_params(chosen)
    triangle = "Triangle up or down: B_crit is not identifiable, only this limit is known. " if limits else ""
    triangle += "Triangle to the right: the prediction is not resolved, its true value lies beyond. " if open_ended else ""
    note = (
        "One point per goal of each task, with 95% intervals both ways; the noise scale is cumulative to the goal, of the loss "
        f"that is chosen below the chart (as a file, of {losses[0]}). Dashed: y = x. {triangle}Grey crosses, for reference: the "
        "paper's own tasks, its critical batch size at the end of training against its simple noise scale averaged over "
        "training, in images, tokens or observations."
    )
    return Figure("ladder", "Predicted against measured critical batch size, every goal", note, finish(chart, 420))


def _against(points: Sequence[dict[str, Any]], *, intervals: bool) -> tuple[tuple[float, float], Any, Any, list[Any]]:
    """What lies behind the points: the domain of both axes, x, y, and the layers of y = x and of the paper's tasks.

    Args:
        points: with `x`, `y` and their `x_ends` and `y_ends`, None for an open one; each gets `x1`, `x2`, `y1` and `y2`, the ends
            as far as the axes reach.
        intervals: draw those of the paper's tasks too.
    """
    paper = _paper()
    domain = log_domain([v for p in (*points, *paper) for v in (p["x"], p["y"])], padding=3)
    for p in points:
        for axis in ("x", "y"):
            low, high = p[f"{axis}_ends"]
            p[f"{axis}1"], p[f"{axis}2"] = clip(low or 0.0, domain), clip(math.inf if high is None else high, domain)
    x, y = log_axis(alt.X, "x", _PREDICTED, domain), log_axis(alt.Y, "y", _MEASURED, domain)
    at = {"x": x, "y": y}
    background = layer([{"x": end, "y": end} for end in domain], "line", at, color="#000", strokeWidth=1, strokeDash=[5, 4])
    if intervals:
        grey = {"color": GREY, "opacity": 0.5, "strokeWidth": 3}
        background += layer(paper, "rule", {"x": alt.X("x1:Q"), "x2": "x2:Q", "y": y}, **grey)
        background += layer(paper, "rule", {"x": x, "y": alt.Y("y1:Q"), "y2": "y2:Q"}, **grey)
    about = [alt.Tooltip("task:N", title="the paper")]
    about += numbers(y="B_crit, end of training", x="B_simple, average over training")
    cross = {"shape": "cross", "color": GREY, "size": 60, "filled": True, "opacity": 0.8}
    return domain, x, y, background + layer(paper, "point", {**at, "tooltip": about}, **cross)


def _ladder_point(row: Row, head: str) -> dict[str, Any] | None:
    measured, predicted = shown(row.measured), shown(row.predicted(head, "cumulative"))
    if measured["mark"] == "nothing" or predicted["mark"] not in ("resolved", "above"):
        return None
    return {
        "loss": head_name(head),
        "task": row.name,
        "goal": row.goal_label,
        "mark": measured["mark"],
        "open": predicted["mark"] == "above",
        "x": predicted["value"],
        "y": measured["value"],
        "x_ends": (predicted["low"], predicted["high"]),
        "y_ends": (measured["low"], measured["high"]),
        "predicted": predicted["text"],
        "measured": measured["text"],
        "flags": flags(row) or "none",
    }


_ROLES = {"task": PALETTE[0], "development": PALETTE[1], "control": PALETTE[2], "intervention": PALETTE[3]}


def verdict_figure(rungs: Sequence[Rung]) -> Figure | None:
    """The primary prediction of every rung against its measured critical batch size; None where no rung has both."""
    points = [point for rung in rungs if (point := _rung_point(rung)) is not None]
    if not points:
        return None
    domain, x, y, background = _against(points, intervals=False)
    numbered = sorted(points, key=lambda p: -p["y"])
    _place_labels(numbered, domain)
    roles = [role for role in _ROLES if any(p["role"] == role for p in points)]
    by = colour("role", roles, colours=[_ROLES[role] for role in roles])
    about = [alt.Tooltip(f"{field}:N") for field in ("task", "goal", "predicted", "measured", "scored")]
    at = {"x": x, "y": y, "color": by, "tooltip": about}
    scored, unscored = ([p for p in points if (p["scored"] == "yes") == which] for which in (True, False))
    closed, open_ended = ([p for p in points if (p["mark"] == "resolved") == which] for which in (True, False))
    by_name = {p["task"]: p for p in points}
    moves = [
        {"pair": p["task"], "x": q["x"], "y": q["y"]} for p in points if p["base"] in by_name for q in (by_name[p["base"]], p)
    ]
    layers = [
        *background,
        *layer(moves, "line", {"x": x, "y": y, "detail": "pair:N"}, color=_ROLES["intervention"], strokeWidth=1, opacity=0.6),
        *layer(points, "rule", {"x": alt.X("x1:Q"), "x2": "x2:Q", "y": y, "color": by}, opacity=0.5),
        *layer(points, "rule", {"x": x, "y": alt.Y("y1:Q"), "y2": "y2:Q", "color": by}, opacity=0.5),
        *layer([p for p in scored if p in closed], "circle", at, size=80, opacity=1),
        *layer([p for p in unscored if p in closed], "point", at, size=60, filled=False, strokeWidth=1.5),
        *layer(open_ended, "point", {**at, "shape": alt.value("triangle-right")}, size=80, filled=False, strokeWidth=1.5),
    ]
    number = {
        "x": log_axis(alt.X, "label_x", _PREDICTED, domain),
        "y": log_axis(alt.Y, "label_y", _MEASURED, domain),
        "text": "number:Q",
    }
    line = {"x": x, "y": y, "x2": "label_x:Q", "y2": "label_y:Q"}
    layers += layer([p for p in points if p["side"] == "apart"], "rule", line, color="#999", strokeWidth=0.7)
    for side, look in _BESIDE.items():
        layers += layer([p for p in points if p["side"] == side], "text", number, fontWeight=600, fontSize=11, **look)
    title = "Predicted against measured critical batch size"
    marks = ["Hollow: not scored. "] if unscored else []
    marks += ["Triangle: the prediction is not resolved, its true value lies to the right. "] if open_ended else []
    marks += ["Lines: to the same task with noise on its rewards, or with clones. "] if moves else []
    key = ", ".join(f"{p['number']}\u00a0{p['task']} to\u00a0{p['goal']}" for p in numbered)
    note = (
        f"One point per sweep, at its last goal, with 95% intervals both ways. Predicted: the noise scale of the joint loss "
        f"on the policy's parameters, averaged to the goal, in Adam's metric. Dashed: y = x. {''.join(marks)}"
        f"Grey crosses, for reference: the paper's own tasks, in images, tokens or observations. Tasks and goals: {key}."
    )
    return Figure(slug("verdict"), title, note, finish(alt.layer(*layers), _HEIGHT))


_HEIGHT, _NARROW = 480, 290  # points: of the verdict's plot, and the width that it has on a phone
_BESIDE: dict[str, dict[str, Any]] = {
    "right": {"align": "left", "baseline": "middle", "dx": 9},
    "left": {"align": "right", "baseline": "middle", "dx": -9},
    "apart": {"align": "center", "baseline": "middle"},
}
# Where a number may stand, in points from its own: beside it, or apart, with a line to it.
_PLACES = [("beside", 16.0, 0.0), ("beside", -16.0, 0.0)] + [
    ("apart", radius * math.cos(angle), radius * math.sin(angle))
    for radius in (30.0, 44.0, 58.0)
    for angle in (math.pi * k / 8 for k in (1, -1, 2, -2, 3, -3, 0, 5, 11, 6, 10, 7, 9, 8))
]


def _place_labels(points: list[dict[str, Any]], domain: tuple[float, float]) -> None:
    """Number the points from the top down: each number as near its point as it touches no other number or point on a phone.

    Names would not fit: on a phone the plot is 290 points wide, and most tasks lie in the same two decades.

    Args:
        points: by falling `y`; each gets `number`, the `side` of the point that it stands on, and `label_x` and `label_y`.
        domain: of both axes.
    """
    width = math.log(domain[1] / domain[0])
    spots = [
        (math.log(p["x"] / domain[0]) / width * _NARROW, math.log(domain[1] / p["y"]) / width * _HEIGHT, 10.0, 10.0)
        for p in points
    ]
    middle = statistics.median(across for across, *_ in spots)
    placed: list[tuple[float, float, float, float]] = []  # middle of a number, and how near another one's may come
    for number, (p, (across, down, *_)) in enumerate(zip(points, spots, strict=True), start=1):
        outward = 1 if across >= middle else -1  # so that lines do not cross the crowd
        places = [(side, across + outward * right, down + below) for side, right, below in _PLACES]
        crowds = [sum(abs(x - u) < w and abs(y - v) < h for u, v, w, h in (*spots, *placed)) for _, x, y in places]
        side, x, y = places[crowds.index(min(crowds))]
        if side == "beside":
            side = "right" if x > across else "left"
        placed.append((x, y, 15.0, 12.0))
        p["number"], p["side"] = number, side
        p["label_x"] = p["x"] if side in ("right", "left") else domain[0] * math.exp(x / _NARROW * width)
        p["label_y"] = domain[1] * math.exp(-y / _HEIGHT * width)


def tasks_figure(rungs: Sequence[Rung]) -> Figure | None:
    """Measured and predicted B_crit of every scored task, by its name, the most parallel first; None where none is scored."""
    counted = [rung for rung in rungs if rung.role == "task" and rung.left_out is None]
    points = sorted((p for rung in counted if (p := _rung_point(rung)) is not None), key=lambda p: -p["y"])
    if not points:
        return None
    domain = log_domain([v for p in points for v in (p["x"], p["y"], *p["y_ends"])], padding=2)
    measured, predicted = "measured", "predicted by the noise scale"
    marks = []
    for p in points:
        task = f"{p['id']} to {p['goal']}{', per iteration' if p['inner_steps'] > 1 else ''}"
        for what, value, said, (low, high), mark in (
            (measured, p["y"], p["measured"], p["y_ends"], "resolved"),
            (predicted, p["x"], p["predicted"], p["x_ends"], p["mark"]),
        ):
            ends = {"low": clip(low or 0.0, domain), "high": clip(math.inf if high is None else high, domain)}
            marks.append({"task": task, "what": what, "value": value, "said": said, "mark": mark, **ends})
    x = log_axis(alt.X, "value", "critical batch size (observations)", domain)
    names = alt.Axis(labels=False, ticks=False, domain=False, grid=False)
    y = alt.Y("task:N", sort=list(dict.fromkeys(m["task"] for m in marks)), title=None, axis=names)
    scale = alt.Scale(domain=[measured, predicted], range=PALETTE[:2])
    by = alt.Color("what:N", title=None, scale=scale, legend=alt.Legend(orient="top", symbolType="circle"))
    about = [alt.Tooltip("task:N"), alt.Tooltip("what:N", title="B_crit"), alt.Tooltip("said:N", title="observations")]
    layers = []
    for what, below in ((measured, 5), (predicted, 12)):
        those = [m for m in marks if m["what"] == what]
        at = {"y": y, "color": by, "tooltip": about}
        layers += layer(those, "rule", {"x": alt.X("low:Q"), "x2": "high:Q", **at}, strokeWidth=3, opacity=0.5, yOffset=below)
        for mark, shape in (("resolved", "circle"), ("above", "triangle-right")):
            shaped = {"shape": shape, "size": 70, "filled": True, "opacity": 1, "yOffset": below}
            layers += layer([m for m in those if m["mark"] == mark], "point", {"x": x, **at}, **shaped)
    name = {"x": alt.value(4), "y": y, "text": "task:N"}
    one_each = [m for m in marks if m["what"] == measured]
    layers += layer(one_each, "text", name, align="left", baseline="bottom", dy=-3, fontSize=12, color="#1a1a1a")
    open_ended = any(p["mark"] == "above" for p in points)
    several = "Per iteration: of several optimizer steps; the others are observations of one optimizer step."
    note = (
        "Every scored task at its goal, the most parallel first: measured by a sweep, and predicted by the noise scale that was "
        "chosen beforehand. Bars: 95% intervals, as far as the axis reaches. "
        f"{'Triangle: not resolved, the true value lies to the right. ' if open_ended else ''}"
        f"{several if any(p['inner_steps'] > 1 for p in points) else ''}"
    )
    return Figure("tasks", "How far each task can be parallelized", note, finish(alt.layer(*layers), 20 + 40 * len(points)))


def _rung_point(rung: Rung) -> dict[str, Any] | None:
    row = rung.row
    predicted = shown(row.predicted(*PRIMARY))
    if row.measured.value is None or row.measured.interval is None or predicted["mark"] not in ("resolved", "above"):
        return None
    return {
        "task": rung.name,
        "id": row.task,
        "inner_steps": row.inner_steps,
        "base": rung.base,
        "role": rung.role,
        "goal": row.goal_label,
        "mark": predicted["mark"],
        "x": predicted["value"],
        "x_ends": (predicted["low"], predicted["high"]),
        "y": row.measured.value,
        "y_ends": row.measured.interval,
        "predicted": predicted["text"],
        "measured": row.measured.say(),
        "scored": "yes" if rung.left_out is None else f"no: {rung.left_out}",
    }


def _paper() -> list[dict[str, Any]]:
    return [
        {
            "task": task.name if task.measured else f"{task.name} (B_crit: more than this, its estimate)",
            "x": math.sqrt(x1 * x2),
            "y": math.sqrt(y1 * y2),
            "x1": x1,
            "x2": x2,
            "y1": y1,
            "y2": y2,
        }
        for task, (x1, x2), (y1, y2) in ((task, task.noise, task.b_crit_end) for task in PAPER)
    ]


def rank_figure(found: list[Answer]) -> Figure | None:
    """The critical batch size of every task with its interval, the most parallel first; None where none is measured."""
    points: list[dict[str, Any]] = []
    known = [e for a in found if a.row.measured.value for e in (a.row.measured.value, *(a.row.measured.interval or ())) if e > 0]
    domain = log_domain(known, padding=1.5)
    ranked = ranked_of(found)
    for number, answer in enumerate(ranked, start=1):
        measured = answer.row.measured
        low, high = measured.interval or (0.0, math.inf)
        ends = {"low": clip(low, domain), "high": clip(high, domain)}
        place = f"{number}. " if len(ranked) > 2 else ""
        said = {
            "task": answer.name,
            "label": f"{place}{answer.row.name}\nto {say_aim(answer.row)}: {measured.say()}",
        }
        said |= {"confidence": answer.confidence or ""}
        points.append({**said, "said": measured.say(), "value": measured.value, **ends})
    if not points:
        return None
    x = log_axis(alt.X, "value", "critical batch size, observations", domain)
    y = alt.Y("task:N", sort=[p["task"] for p in points], title=None, axis=alt.Axis(labelLimit=0, labels=False, ticks=False))
    scale = alt.Scale(domain=list(_CONFIDENCES), range=list(_CONFIDENCES.values()))
    by = alt.Color("confidence:N", scale=scale, legend=alt.Legend(orient="bottom", title="confidence"))
    about = [alt.Tooltip("task:N"), alt.Tooltip("said:N", title="critical batch size"), alt.Tooltip("confidence:N")]
    name = {"x": alt.value(4), "y": y, "text": "label:N"}
    layers = [
        *layer(
            points,
            "bar",
            {"x": alt.X("low:Q"), "x2": "high:Q", "y": y, "color": by, "tooltip": about},
            height=9,
            opacity=0.45,
            yOffset=14,
        ),
        *layer(points, "tick", {"x": x, "y": y, "color": by, "tooltip": about}, thickness=4, size=16, yOffset=14),
        *layer(points, "text", name, align="left", baseline="bottom", lineBreak="\n", dy=-10, fontSize=12, color="#1a1a1a"),
    ]
    note = (
        "Each mark: the critical batch size B_crit, up to which more observations a step save steps; there training takes twice "
        f"the fewest steps and twice the fewest observations. Bar: 95% interval. {CONFIDENCE} Two tasks are told apart where the "
        "95% interval of the ratio of their B_crit does not hold 1."
    )
    return Figure("ranking", "How far each task can be parallelized", note, finish(alt.layer(*layers), 20 + 60 * len(points)))
