"""Which task can be parallelized furthest, and which tasks cannot be told apart: sentences; the figure is in `ladder_charts`."""

import math

from ..analysis.predictions import ratio
from ..text import format_quantity, stretches
from .answers import Answer

__all__ = ["ranked_of", "say_answers", "say_ranking"]

_MOST_NAMED = 8  # tasks with others that cannot be told from them; a longer list of pairs is not read


def say_answers(found: list[Answer]) -> list[str]:
    """How the tasks rank, then each task's sentence; with more than two ranked tasks the sentences have the ranks as numbers."""
    ranked = ranked_of(found)
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
    ranked = ranked_of(found)
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
    if len(apart) > _MOST_NAMED:
        contenders = f", between {_joined([ranked[n - 1].name for n in (1, *alike[1])])}" if 0 < len(alike[1]) <= 2 else ""
        ends = " to ".join(format_quantity(answer.row.measured.value or 0.0) for answer in (first, ranked[-1]))
        pairs = math.comb(len(ranked), 2)
        told = f"{pairs - sum(map(len, alike.values()))} of {pairs} pairs can be told apart (95%)"
        return f"{top}{contenders}.{care} B_crit falls from {ends}, and {told}."
    return f"{top}. Numbered by B_crit, these cannot be told apart (95%): {'; '.join(apart)}.{care}"


def _say_poor(named: list[Answer]) -> str:
    poor = [answer.name for answer in named if answer.confidence == "poor"]
    return f" Confidence: poor, that in {_joined(poor)}." if poor else ""


def ranked_of(found: list[Answer]) -> list[Answer]:
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
