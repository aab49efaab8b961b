"""What `rlscale workers` prints: what is kept, measured fleets, recommendation, check and plan. Nothing is decided here."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rlscale.estimate import Estimate
from rlscale.report.words import say_gain, say_limit
from rlscale.sizing import Choice, CostPlan, FleetTime
from rlscale.text import format_duration, format_quantity

from ..console import make_table, say
from .calibration import FleetReading
from .kept import KeptFleets
from .recommendation import Recommendation

__all__ = [
    "LAGGED",
    "say_busy",
    "say_choice",
    "say_if_busy",
    "say_recommendation",
    "say_resets",
    "say_what_is_kept",
    "show_answer",
    "show_fleets",
    "show_plan",
    "show_recommendation",
    "show_validation",
]

MOST_PLANS = 12
_BUSY = 0.3  # CPUs of other programs that lower what is measured
ALL_VALID = 0.98  # share of the steps from which on the others are not spoken of
LAGGED = "The sweep's runs were at lag 0; at lag 1 a run may need more iterations than this plan takes."


def say_what_is_kept(console: Console, kept: KeptFleets, folder: Path) -> None:
    """Say which readings are not made again."""
    if not kept.fleets:
        return
    if not kept.ended:
        told = f"{len(kept.fleets)} of the fleets were measured before this command was stopped: {folder / 'measured.json'}"
    else:
        told = f"{len(kept.fleets)} fleets were measured on {kept.date}: {folder / 'workers.json'}; --again measures them anew"
    say(console, told)


def say_if_busy(console: Console, busy: float | None) -> None:
    """Say that other programs are working while something is to be measured."""
    told = say_busy(busy)
    if told is not None:
        say(console, told)


def say_busy(busy: float | None, *, before: bool = False) -> str | None:
    """That other programs work, or did before, while something is measured; None where not, or where that is not known."""
    if busy is None or busy <= _BUSY:
        return None
    if before:
        return f"other programs used {busy:.1f} CPUs of this machine while it was measured, so rates are lower than they could be"
    return f"this machine is busy: other programs use {busy:.1f} CPUs, and what is measured now is slower than it could be"


def show_fleets(console: Console, law: FleetTime, readings: Sequence[FleetReading]) -> None:
    """The fleets that were measured, and what the law makes of them."""
    title = "Measured fleets: CPUs and environments of each actor, observations per second (brackets: middle half of the rounds)"
    table = make_table(title, (), ("actors", "CPUs", "environments", "measured"))
    for reading in readings:
        s = reading.shape
        low, middle, high = map(format_quantity, statistics.quantiles(reading.rates, n=4, method="inclusive"))
        table.add_row(str(s.actors), str(s.threads), str(s.environments), f"{middle} [{low}, {high}]")
    console.print(table)
    service = law.service
    parts = f"{1e3 * service.fixed:.3g} ms + {1e3 * service.serial:.3g} ms an environment"
    if service.parallel:
        parts += f" + {1e3 * service.parallel:.3g} ms an environment shared by its threads"
    crowd, factor = law.slowdowns[-1]
    beside = f"; with {crowd} of them busy it takes {factor:.3g} times as long" if crowd > 1 else ""
    say(console, f"a worker's step takes {parts}{beside}")
    spread = [f"{counted} times the median for {100 * share:g}%" for counted, share in _tail(law.spread)]
    say(console, f"the slowest fragments take {' and '.join(spread)}; a batch waits for them")


def show_recommendation(console: Console, found: Recommendation) -> None:
    """What to run, what it should give, what takes the time."""
    console.print()
    first, *rest = say_recommendation(found)
    say(console, first, "bold")
    for line in rest:
        say(console, line)
    say(console, f"run it:  {shlex.join(found.command)}")


def say_recommendation(found: Recommendation) -> list[str]:
    """The answer, the limit, and the figures behind both."""
    batch = found.batch_size
    rate = f"{found.rate} observations per second" + ("" if found.rate.interval else ", no interval")
    learning = batch / found.iteration.learning_seconds
    limit, shares = _side_by_side(found) if found.iteration.staleness else _in_turn(found)
    return [
        f"Use {found.shape}: {limit}",
        f"an iteration of {batch:,} observations: {format_duration(found.iteration.seconds)}, "
        f"{format_quantity(found.end_to_end)} observations per second end to end",
        shares,
        f"sampling alone: {rate} (95% for one more reading); learner {format_quantity(learning)} observations per second",
    ]


def _in_turn(found: Recommendation) -> tuple[str, str]:
    """What limits a run that samples, then learns; and what its time goes to."""
    return say_limit(found.shares, found.doubled), f"time goes to: {_listed(found.shares)}"


def _side_by_side(found: Recommendation) -> tuple[str, str]:
    """What limits a run that samples while it learns: the one that the other waits for; and how busy both are."""
    one = found.iteration
    sampling, learning = (f"busy {100 * (1 - idle):.0f}% of the time" for idle in (one.workers_idle, one.learner_idle))
    if one.bound == "learning":
        limit = f"the learner is the limit, sampling is {sampling}, and {say_gain(1.0, '')}"
    else:
        gain = say_gain(found.doubled, f"the other {100 * one.learner_idle:.0f}%")
        limit = f"sampling is the limit, the learner is {learning}, and {gain}"
    parts = {name: share for name, share in found.shares.items() if name != "learner"}
    return limit, f"sampling is {sampling} ({_listed(parts)}), the learner {100 * found.shares['learner']:.0f}%, side by side"


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())


def say_resets(readings: Sequence[FleetReading]) -> str | None:
    """That the rates count steps which are no observations; None where there are hardly any."""
    valid = statistics.fmean(reading.valid for reading in readings)
    if valid >= ALL_VALID:
        return None
    return (
        f"{100 * valid:.0f}% of the steps here are observations, the others only reset an environment; the rates count both, "
        "`rlscale train` the first alone"
    )


def show_validation(console: Console, validation: dict[str, Any]) -> None:
    """Predictions of fleets that were not used for the fit."""
    title = "Held out: CPUs and environments of each actor, observations per second"
    table = make_table(title, (), ("actors", "CPUs", "environments", "predicted", "measured", "error"))
    for row in validation["rows"]:
        s, p = row["shape"], row["predicted"]
        predicted = str(Estimate(p["value"], tuple(p["interval"]) if p["interval"] else None))
        cells = [str(s["actors"]), str(s["threads"]), str(s["environments"]), predicted]
        table.add_row(*cells, format_quantity(row["measured"]), f"{100 * row['error']:+.1f}%")
    console.print()
    console.print(table)
    best = validation["best_measured"]
    s = best["shape"]
    of_best, best_rate = f"{100 * validation['recommended_of_best']:.0f}%", format_quantity(best["rate"])
    say(
        console,
        f"error of the prediction: median {100 * validation['median_error']:.1f}%, worst {100 * validation['worst_error']:.1f}%; "
        f"with sampling as measured and learning as predicted, the recommended fleet makes {of_best} of the observations per "
        f"second of the best one ({s['actors']} × {s['threads']} × {s['environments']}, sampling alone {best_rate})",
    )


def show_plan(console: Console, made: CostPlan, goal: float, *, currency: bool, lag: int) -> None:
    """The choices that no other beats in both time and cost."""
    title = f"Plans to a mean return of {goal:g}: none is beaten in both wall time and cost"
    table = make_table(title, (), ("batch size", "workers", "wall time", "cost" if currency else "CPU hours", "bound by"))
    for choice in made.pareto[:MOST_PLANS]:
        cells = [f"{choice.batch_size:,.0f}", str(choice.workers), format_duration(choice.seconds), format_quantity(choice.cost)]
        table.add_row(*cells, choice.iteration.bound)
    console.print()
    console.print(table)
    if (more := len(made.pareto) - MOST_PLANS) > 0:
        say(console, f"and {more} slower and cheaper ones, which the page shows")
    if lag:
        say(console, LAGGED)


def say_choice(choice: Choice, *, currency: bool, deadline: float | None = None) -> str:
    """The plan that was asked for: batch size, workers, how long and for how much; and that a run of it may end too late."""
    interval = "" if choice.interval is None else f" (95%: {' to '.join(format_duration(end) for end in choice.interval)})"
    late = deadline is not None and choice.interval is not None and deadline < choice.interval[1]
    warning = "; the deadline lies within that interval, so a run may end too late" if late else ""
    cost = f"at a cost of {format_quantity(choice.cost)}" if currency else f"for {format_quantity(choice.cost)} CPU hours"
    return (
        f"batch size {choice.batch_size:,.0f} on {choice.workers} worker{'s' * (choice.workers > 1)} takes "
        f"{format_duration(choice.seconds)}{interval} {cost}{warning}."
    )


def show_answer(
    console: Console, choice: Choice, command: Sequence[str], *, currency: bool, deadline: float | None = None
) -> None:
    """The plan that was asked for."""
    console.print()
    said = say_choice(choice, currency=currency, deadline=deadline)
    say(console, f"{said[0].upper()}{said[1:]}", "bold")
    say(
        console,
        f"{choice.optimizer_steps:,.0f} iterations, {choice.observations:,.0f} observations"
        + ("" if choice.interval is None else "; the interval is that of one run that reaches the goal"),
    )
    say(console, f"run it:  {shlex.join(command)}")


def _tail(spread: Sequence[float]) -> list[tuple[str, float]]:
    """How slow the slowest tenth begins to be, and the very slowest fragment."""
    ordered = sorted(spread)
    tenth = ordered[int(0.9 * len(ordered))]
    return [(f"{tenth:.3g}", 0.1), (f"{ordered[-1]:.3g}", round(1 / len(ordered), 4))]
