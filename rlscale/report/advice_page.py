"""What `rlscale advise` says: its ten lines, its page, and the figures behind both. Nothing is measured or decided here."""

import html
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Context
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt

from ..analysis.predictions import shows_value_alone
from ..analysis.reading import NoiseReading, published
from ..estimate import Estimate
from ..records import RunRecord
from ..records.files import finite
from ..sizing import ScaleOut
from ..text import format_duration, format_quantity, format_return
from .answers import say_suggestion
from .chart_style import PALETTE, Figure, draw, finish, numbers, unchecked
from .page import add_chart, section, table, write_page
from .run_charts import noise_chart, return_chart
from .words import say_limit

__all__ = ["Advice", "Throughput", "advice_lines", "write_advice_page"]

_WORTH = 4 / 3  # a doubling that speeds up by less saves less than a quarter of the time


@dataclass(frozen=True)
class Throughput:
    """What was measured here.

    Attributes:
        actors, environments: of the recommended fleet; environments of each actor.
        cpus: that the actors could use.
        sampling: observations per second of sampling alone.
        end_to_end: observations per second with learning.
        one_pass: the same if every observation is learned from once, as in a sweep.
        shares: of an iteration's time, by what takes it.
        doubled: how many times as fast twice the actors are predicted to be; None where the readings do not tell.
        timed: mini-batches whose learning was timed, the one in use included.
    """

    actors: int
    environments: int
    cpus: int
    sampling: Estimate
    end_to_end: float
    one_pass: float
    shares: Mapping[str, float]
    doubled: float | None
    timed: int


@dataclass(frozen=True)
class Advice:
    """Everything that is said.

    Attributes:
        task: its name.
        known: whether rlscale can run the task, and not only read a record of it.
        run: folder of the run that the noise was read from.
        reading: of its noise.
        throughput: None where the task is not known.
        more: what more machines, or clusters, would give; empty where nothing is predicted.
        unit: what was measured and could be had several times, a `machine` or a `cluster`.
        price_hour: of one of them; None: costs are relative.
        mini_batch: of the run that the noise was read from.
        settings: of PPO, with the suggested batch.
        lines: that set them, by library.
        seconds: that the advice took.
        command, commit, date: provenance.
        has_goals: whether a sweep of the task needs none named.
        valid: of the steps that a mini-batch counts, those that are observations; the others only reset an environment.
    """

    task: str
    known: bool
    run: str
    reading: NoiseReading
    throughput: Throughput | None
    more: Sequence[ScaleOut]
    unit: str
    price_hour: float | None
    mini_batch: int
    settings: Mapping[str, Any]
    lines: Mapping[str, str]
    seconds: float
    command: Sequence[str]
    commit: str | None
    date: str
    has_goals: bool = True
    valid: float = 1.0

    @property
    def suggested(self) -> float | None:
        """The batch that the first line suggests, in observations; None where it suggests none."""
        scale = self.reading.suggestion
        return None if shows_value_alone(scale, self.reading.policy) else scale.value

    @property
    def least(self) -> float | None:
        """The lower end of the suggestion, by which settings and machines are chosen where it has no value; None otherwise."""
        scale = self.reading.suggestion
        return None if scale.value is not None or scale.interval is None else scale.interval[0] or None

    def as_json(self) -> dict[str, Any]:
        """Plain values; an end of an interval that is not finite is null."""
        return finite({**asdict(self), "published": dict(published()), "said": advice_lines(self)})


def advice_lines(advice: Advice) -> list[str]:
    """The advice in some ten lines, the answer first."""
    lines = [_answer(advice), _caution(advice), _policy(advice.reading)]
    if advice.reading.idle:
        read, left = (format_quantity(float(n)) for n in (advice.reading.observations, advice.reading.idle))
        lines.append(
            f"Read from the first {read} observations, in which nine tenths of the rise in return were made; the {left} after "
            "them are left out, since a run that no longer learns has no gradient to measure."
        )
    if advice.throughput is not None:
        lines.append(_here(advice.throughput))
    elif not advice.known:
        lines.append("How fast it runs here is not known: name the task as well, 'rlscale advise TASK --run FOLDER'")
    if advice.more:
        lines.append(_machines(advice))
    if advice.known:
        lines.append(_sweep(advice))
    lines.append(_SHAPE)
    lines += [f"{name}:  {line}" for name, line in advice.lines.items()]
    return lines


@unchecked
def write_advice_page(page: Path, advice: Advice, run: RunRecord) -> None:
    """Write the page.

    Raises:
        UsageError: it cannot be written.
    """
    charts: dict[str, Any] = {}
    first, caution, *rest = advice_lines(advice)
    rest = rest[: len(rest) - len(advice.lines)]
    title = f"{advice.task}: which batch, how many actors"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class='answer'>{html.escape(first)}</p>",
        f"<p class='note'>{html.escape(caution)}</p>",
    ]
    figure = _machines_figure(advice)
    noise = section("Noise scale on the way", add_chart(charts, noise_chart(run)), _NOISE_NOTE)
    if figure is not None:
        columns = [f"{advice.unit}s", "iteration batch", "times as fast", "relative cost", "bound by"]
        columns += [] if advice.price_hour is None else ["price of an hour"]
        rows = [_machine_cells(one, advice.price_hour) for one in advice.more]
        drawn = add_chart(charts, figure.chart) + f"<p class='note'>{html.escape(figure.note)}</p>"
        body.append(section(figure.title, drawn + table(columns, rows)))
    else:
        body.append(noise)
    body.append("<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in rest) + "</ul>")
    lines = [[name, line] for name, line in advice.lines.items()]
    body.append(section("Settings that follow it", table(["", "type or write"], lines), _settings_note(advice)))
    if figure is not None:
        body.append(noise)
    body.append(
        section(
            "Return",
            add_chart(charts, return_chart([run], [run.name])),
            "Mean of the last 100 episodes, raw score. Dashed: goals, where the task has any.",
        )
    )
    made = {
        "command": shlex.join(advice.command),
        "run": advice.run,
        "commit": advice.commit or "not run from a checkout",
        "date": advice.date,
        "took": format_duration(advice.seconds),
        "observations": f"{advice.reading.observations:,}",
        "machine": ", ".join(f"{k.replace('_', ' ')}: {v}" for k, v in run.manifest["machine"].items() if v is not None),
    }
    body.append(section("Where this comes from", table(["", ""], made.items())))
    write_page(page, title, body, charts)


def _settings_note(advice: Advice) -> str:
    least = advice.least or 0.0
    stays = advice.settings["mini_batch"] == advice.mini_batch
    if advice.suggested is None and stays and least <= advice.mini_batch * advice.valid:
        return "The mini-batch is the one in use, since no other is suggested."
    rate = "The learning rate grows with its root, at most fourfold."
    suggested = f"one of more than {format_quantity(least)} observations" if least else "the suggested one"
    if advice.throughput is None:
        one = f"the power of two nearest to {_least(least)}" if least else suggested
        return f"The mini-batch is {one}, never less than the one in use. {rate}"
    for_many = f"{suggested[0].upper()}{suggested[1:]} is for many machines."
    if advice.throughput.timed < 2:
        return f"The mini-batch is the one in use, since none larger was timed here. {for_many}"
    soonest = "The mini-batch is the one that is predicted to end soonest here, never less than the one in use"
    computed = f" (computed for a critical batch of {_least(least)})" * (least > 0)
    return f"{soonest}{computed}. {for_many} {rate}"


def _least(observations: float) -> str:
    return f"{format_quantity(observations)}, the lower end of the suggestion"


_SHAPE = (
    "Environments or steps: at one batch, three seeds showed no difference between 16 and 256 environments on two MinAtar games; "
    "1,024 of four steps learned less on one of them. So let the batch grow by environments, with rollouts of 16 steps or more."
)  # results/shapes.json
_NOISE_NOTE = (
    "tr Σ / |G|², the batch at which noise and signal of the gradient are alike, in observations; band: 95% interval. A "
    "triangle on a "
    "vertical line: not resolved, only a lower bound is known."
)


def _answer(advice: Advice) -> str:
    measured = advice.throughput
    here = f" Here {_fleet(measured)} will do: {say_limit(measured.shares, measured.doubled)}." if measured else ""
    trust = "fair" if advice.reading.policy.value is not None else "poor, the policy's own noise is not resolved"
    suggested, size = advice.suggested, advice.settings["mini_batch"]
    observed = size * advice.valid
    if suggested is not None and observed > 2 * suggested:
        times = 1 + observed / suggested
        why = (
            "with several epochs such predictions have been off both ways"
            if advice.settings["epochs"] > 1
            else f"if the prediction holds, they cost {times:.2g} times the fewest observations; try smaller ones"
        )
        here += f" Mini-batches of {size:,} stay, as in use: {why}."
    elif suggested is not None and advice.throughput is not None and observed < suggested / 2:
        costs = f"larger ones save optimizer steps and cost observations, which pays on more {advice.unit}s"
        if advice.throughput.timed > 1:
            here += f" Of the mini-batches timed here, {size:,} ends soonest: {costs}."
        else:
            here += f" Mini-batches of {size:,} stay, and none larger was timed here: {costs}."
    said = say_suggestion(advice.reading.suggestion, advice.reading.policy)
    return f"{advice.task}: {said}. Confidence: {trust}.{here}"


def _fleet(measured: Throughput) -> str:
    return f"{measured.actors} actor{'s' * (measured.actors > 1)} of {measured.environments} environments"


def _caution(advice: Advice) -> str:
    known = published()
    ratios = sorted(known["measured_over_predicted"].values())
    others = f"; of {known['unresolved']} more the prediction was not resolved" if known["unresolved"] else ""
    if epochs := [f"{ratio:.2g}" for ratio in sorted(known["with_epochs"].values())]:
        others += f"; with several epochs, {', '.join(epochs)} times"
        others += f", and {missing} not resolved" if (missing := known["unresolved_with_epochs"]) else ""
    if not ratios:
        return "This is a prediction, not a measurement; on no published task was such a prediction resolved yet."
    low, high = (f"{ratio:.2g}" for ratio in (ratios[0], ratios[-1]))
    times = f"{low} times" if low == high else f"{low} to {high} times"
    tasks = "task" if len(ratios) == 1 else "tasks"
    said = f"on {len(ratios)} published {tasks} a sweep measured {times} the prediction{others}"
    if advice.suggested is None:
        return f"How far such predictions are off: {said}."
    return f"This is a prediction, not a measurement: {said}."


def _policy(reading: NoiseReading) -> str:
    first, last = reading.first, reading.last
    returns = (reading.first_return, reading.last_return)
    when = [f" at a return of {format_return(value, 3)}" if value is not None else "" for value in returns]
    trend = f"{first.say()} at first{when[0]}, {last.say()} now{when[1]}"
    if reading.policy.value is not None:
        return f"Policy's loss alone: {reading.policy.say()} over the run; {trend}."
    if reading.idle:
        more = "more observations of a run that has learned its task do not resolve it; those of another seed's beginning may"
    elif reading.few_blocks:
        more = "every update held two blocks and an interval needs three, so give the job eight environments or more"
    elif reading.missing is None:
        more = (
            "its signal cannot be seen yet, so how many more observations would resolve it cannot be said; "
            f"{4 * reading.observations:,} in all would halve the weakest signal that can be"
        )
    else:
        more = f"if its signal is as strong as it looks, {format_quantity(float(reading.missing))} more observations resolve it"
        more += f", measured in every iteration instead of one in {reading.spacing}" if reading.spacing > 1 else ""
    return f"Policy's loss alone: {reading.policy.say()} over the run; {trend}; {more}."


def _here(measured: Throughput) -> str:
    shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in measured.shares.items())
    rate = f"{format_quantity(measured.end_to_end)} observations per second with learning"
    return f"Here: {_fleet(measured)}, {rate}; {say_limit(measured.shares, measured.doubled)} ({shares})."


def _machines(advice: Advice) -> str:
    known = {one.machines: one for one in advice.more}
    counts = sorted(known)
    least = advice.least
    if len(counts) == 1:  # numbers of machines that are slower than fewer are left out
        given = "" if least is None else f", with a critical batch of {_least(least)}"
        return f"More {advice.unit}s like this one are no faster{given}: one learner has to learn from all that they sample."
    last = next((a for a, b in pairwise(counts) if known[b].speedup < _WORTH * known[a].speedup), counts[-1])
    beyond = "doubling them saves less than a quarter of the time"
    limit = f"beyond {last}, {beyond}" if last < counts[-1] else f"every doubling up to {last} pays, more were not tried"
    shown = sorted(({2, last, min(2 * last, counts[-1])} & set(counts)) - {1})
    said = [_times(n, known[n]) for n in shown]
    price = "" if advice.price_hour is None else f" ({2 * advice.price_hour:,.10g} an hour for 2 {advice.unit}s)"
    given = "" if least is None else f" This is the least that they give: computed for a critical batch of {_least(least)}."
    return f"More {advice.unit}s like this one, if nothing is lost between them: {', '.join(said)}{price}; {limit}.{given}"


def _times(machines: int, found: ScaleOut) -> str:
    cost = f"at {found.cost:.3g} times the cost"
    if f"{found.speedup:.2f}" == "1.00":
        return f"{machines} are no faster, {cost}"
    return f"{machines} are {found.speedup:.3g} times as fast {cost}"


def _sweep(advice: Advice) -> str:
    least, low, high, most = published()["sweep_cost"]
    cost = f"{low:.0f} to {high:.0f} times the fewest observations to their goals (all of them {least:.0f} to {most:,.0f})"
    reached = advice.reading.last_return
    goals = "" if advice.has_goals else f" --goals {'RETURN' if reached is None else _goal(reached)}"
    said = f"To measure it: rlscale sweep {advice.task}{goals}. Half of the published sweeps cost {cost}, without evaluation"
    critical, measured = advice.suggested, advice.throughput
    if critical is None or measured is None or advice.reading.last_return is None:
        return f"{said}."
    fewest = advice.reading.observations / (1 + advice.mini_batch * advice.valid / critical)
    seconds = [times * fewest / measured.one_pass for times in (low, high)]
    goal = f"to the return of {format_return(advice.reading.last_return, 3)} that this run reached, this is"
    epochs = int(advice.settings["epochs"])
    more = f", or longer: a sweep makes one pass over its observations, and the run made {epochs}" if epochs > 1 else ""
    return f"{said}; {goal} roughly {_roughly(seconds[0])} to {_roughly(seconds[1])} here{more}."


def _goal(reached: float) -> str:
    """A return that was reached as a goal to type: three significant digits, never above it."""
    below = Context(prec=3, rounding=ROUND_FLOOR).create_decimal(str(reached))
    return f"{below.normalize():f}"


def _roughly(seconds: float) -> str:
    return f"{seconds / 3600:.2g} h" if seconds >= 5400 else f"{max(seconds / 60, 1):.2g} min"


def _machine_cells(one: ScaleOut, price: float | None) -> list[str]:
    cells = [f"{one.machines}", f"{one.batch_size:,}", f"{one.speedup:.2f}", f"{one.cost:.2f}", one.bound]
    return cells if price is None else [*cells, f"{one.machines * price:,.10g}"]


def _machines_figure(advice: Advice) -> Figure | None:
    """How many times as fast several machines, or clusters, are, beside the line of twice as many in half the time."""
    more, unit, least = advice.more, advice.unit, advice.least
    if len(more) < 2:
        return None
    points = [{"machines": one.machines, "speedup": one.speedup, "cost": one.cost, "batch": one.batch_size} for one in more]
    counts = [one.machines for one in more]
    scale = alt.Scale(type="log", base=2, domain=[counts[0], counts[-1]])
    x = alt.X("machines:Q", title=f"{unit}s like this one", scale=scale, axis=alt.Axis(values=counts, grid=False))
    y = alt.Y("speedup:Q", title="times as fast", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=counts))
    ideal = [{"machines": n, "speedup": n} for n in (counts[0], counts[-1])]
    about = numbers(machines=f"{unit}s", speedup="times as fast", cost="relative cost", batch="iteration batch")
    chart = alt.layer(
        draw(ideal).mark_line(color="#888", strokeDash=[4, 4]).encode(x=x, y=y),
        draw(points).mark_line(color=PALETTE[0], strokeWidth=2).encode(x=x, y=y),
        draw(points).mark_point(color=PALETTE[0], filled=True, size=80).encode(x=x, y=y, tooltip=about),
    )
    given = "if the suggested batch is the critical one"
    if least is not None:
        given = f"computed for a critical batch of {_least(least)} (with a larger one, more {unit}s give more)"
    note = (
        f"If nothing is lost between {unit}s, and one learner learns from all. Each number of {unit}s has the iteration batch "
        f"that makes it fastest, {given}, in as many mini-batches as advised here. Dashed: twice the {unit}s, half the time."
    )
    return Figure("machines", f"What more {unit}s would give{', at least' * (least is not None)}", note, finish(chart, 260))
