"""Which task can be parallelized furthest, and which tasks cannot be told apart: the sentences and the figure."""

import math
from typing import Any

import altair as alt

from ..analysis.predictions import ratio
from ..text import format_quantity, stretches
from .answers import CONFIDENCE, Answer
from .chart_style import PALETTE, Figure, clip, finish, layer, log_axis, log_domain
from .words import say_aim

__all__ = ["rank_figure", "say_answers", "say_ranking"]

_COLOURS = {"good": PALETTE[2], "fair": PALETTE[0], "poor": PALETTE[1]}


def say_answers(found: list[Answer]) -> list[str]:
    """How the tasks rank, then each task's sentence; with more than two ranked tasks the sentences have the ranks as numbers."""
    ranked = _ranked(found)
    numbered = [f"{n}. {answer.sentence}" if len(ranked) > 2 else answer.sentence for n, answer in enumerate(ranked, start=1)]
    rest = [answer.sentence for answer in found if answer.row.measured.value is None]
    ranking = say_ranking(found)
    return [*([ranking] if ranking else []), *numbered, *rest]


def say_ranking(found: list[Answer]) -> str | None:
    """Which task can be parallelized further, and which tasks cannot be told apart; None with fewer than two sweeps.

    Two tasks are told apart where the 95% interval of the ratio of their critical batch sizes does not hold 1. Its ends are those
    of the difference of ln B_crit, from the two profile intervals by `rlscale.analysis.predictions.ratio`: the squares of the
    half-widths that face each other add (Zou and Donner 2008, the method of variance estimates recovery). Overlapping intervals
    may so be told apart. Every pair is judged by itself, and sweeps are taken as independent.
    """
    ranked = _ranked(found)
    if len(ranked) < 2:
        unknown = [answer.name for answer in found if answer.row.goal is not None and answer.row.measured.value is None]
        if len(ranked) + len(unknown) < 2:
            return None
        return f"Which task can be parallelized further cannot be said yet: B_crit is not known of {_joined(unknown)}."
    of_iterations = [answer.name for answer in ranked if answer.row.inner_steps > 1]
    if 0 < len(of_iterations) < len(ranked):
        others = "the other" if len(ranked) - len(of_iterations) == 1 else "the others"
        mixed = f" B_crit of {_joined(of_iterations)} is of an iteration of several optimizer steps, of {others} of one step."
    else:
        mixed = ""
    return _say_order(ranked) + mixed + _say_goals(ranked)


def _say_goals(ranked: list[Answer]) -> str:
    """A warning where sweeps of one task have different goals: they do not say how tasks differ."""
    goals: dict[str, set[float | None]] = {}
    for answer in ranked:
        goals.setdefault(answer.row.task, set()).add(answer.row.goal)
    several = [task for task, own in goals.items() if len(own) > 1]
    return f" Of {_joined(several)} the goals differ, and B_crit mostly grows with the goal." if several else ""


def _say_order(ranked: list[Answer]) -> str:
    """The order of two or more measured tasks in a sentence or two."""
    places = range(1, len(ranked) + 1)
    alike = {n: [m for m in places if m > n and _alike(ranked[n - 1], ranked[m - 1])] for n in places}
    first, second = ranked[:2]
    if len(ranked) == 2:
        factor = ratio(first.row.measured, second.row.measured)
        low, high = factor.interval or (0.0, math.inf)
        between = f"95%: {format_quantity(low)} to {format_quantity(high)}"
        times = f"{format_quantity(factor.value or 0.0)} times"
        if alike[1]:
            return (
                f"{first.name} and {second.name} cannot be told apart: B_crit of the first is {times} that of the second, "
                f"and the interval holds 1 ({between})."
            )
        said = f"{first.name} can be parallelized further than {second.name}: its B_crit is {times} as large ({between})."
        return said + _say_poor(ranked)
    apart = [f"{n} from {_listed(below)}" for n, below in alike.items() if below]
    top = f"Of {len(ranked)} measured sweeps, {first.name} can be parallelized furthest"
    care = _say_poor([first])
    if not apart:
        return f"{top}; all of them can be told apart (95%).{care}"
    top, care = (f"Which of {len(ranked)} measured sweeps can be parallelized furthest is open", "") if alike[1] else (top, care)
    return f"{top}. Numbered by B_crit, these cannot be told apart (95%): {'; '.join(apart)}.{care}"


def _say_poor(named: list[Answer]) -> str:
    poor = [answer.name for answer in named if answer.confidence == "poor"]
    return f" Confidence: poor, that in {_joined(poor)}." if poor else ""


def _ranked(found: list[Answer]) -> list[Answer]:
    """The measured ones, as they are ordered."""
    return [answer for answer in found if answer.row.measured.value is not None]


def _alike(first: Answer, second: Answer) -> bool:
    """Whether the interval of the ratio of their critical batch sizes holds 1."""
    low, high = ratio(first.row.measured, second.row.measured).interval or (0.0, math.inf)
    return low <= 1 <= high


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _listed(numbers: list[int]) -> str:
    """Ascending numbers, three or more consecutive ones as a range: 2, 4 to 6 and 8."""
    runs = stretches(numbers)
    parts = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return _joined(parts)


def rank_figure(found: list[Answer]) -> Figure | None:
    """The critical batch size of every task with its interval, the most parallel first; None where none is measured."""
    points: list[dict[str, Any]] = []
    known = [e for a in found if a.row.measured.value for e in (a.row.measured.value, *(a.row.measured.interval or ())) if e > 0]
    domain = log_domain(known, padding=1.5)
    ranked = _ranked(found)
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
    scale = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
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
