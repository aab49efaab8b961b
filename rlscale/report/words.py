"""How the figures of a comparison are said, the same on the page and in a terminal. Plain text; nothing is computed here."""

import math
import shlex
from collections.abc import Mapping, Sequence

from ..analysis.comparison import ComparedSweep
from ..analysis.predictions import ADVISED, HEADS, ONLY_LOSS, PLAIN, PRIMARY, QUANTITIES
from ..analysis.rows import LEAST_STEPS, Row
from ..analysis.rungs import Intervention, Rung, interventions_of
from ..analysis.verdict import FEWEST_MOVED, FEWEST_SCORED, FEWEST_TASKS, Verdict, agreement_of, verdict
from ..estimate import Estimate
from ..text import format_quantity

__all__ = [
    "AGREEMENT_COLUMNS",
    "AGREEMENT_NOTE",
    "QUANTITY_LABELS",
    "flags",
    "head_name",
    "range_of",
    "remarks",
    "say_aim",
    "say_all_agreements",
    "say_conclusion",
    "say_gain",
    "say_limit",
    "say_measured",
    "say_next",
    "say_prediction",
    "say_predictor",
    "say_verdict",
    "say_verdict_details",
    "score_name",
    "warnings",
]

QUANTITY_LABELS = {
    "start": "at the start",
    "goal": "at the goal",
    "cumulative": "cumulative to the goal",
    "cumulative_adam": "cumulative, in Adam's metric",
    "goal_adam": "at the goal, in Adam's metric",
    "sums": "ratio of sums",
    "sums_adam": "ratio of sums, in Adam's metric",
}
_OF = {  # a prediction that is not the primary one
    PLAIN: "of the policy's loss, in the plain metric",
    ONLY_LOSS: "of the only loss, in the plain metric",
    ADVISED: "of the joint loss, ratio of sums",
}
_VERDICTS = {
    "predicts": "Verdict: the noise scale predicts the critical batch size. Over",
    "fails": "Verdict: the noise scale does not predict the critical batch size. Over",
    "undecided": "Verdict: undecided. Over",
    "too few": f"No verdict yet: it needs {FEWEST_SCORED} scored tasks. So far, over",
}
_LIMITS = {  # what takes most of an iteration's time
    "learner": "the learner is",
    "emulator": "the environments are",
    "inference": "acting is",
    "waiting": "waiting for the slowest is",
    "transfer": "the transfer to the learner is",
}
AGREEMENT_COLUMNS = (
    "noise scale",
    "goals",
    "R² as it is",
    "R² with an offset",
    "offset, decades",
    "RMS, decades",
    "RMS with the offset",
    "a task left out",
)
AGREEMENT_NOTE = (
    "Decades are powers of ten. With so many candidates the best one looks good by luck. The verdict above is about the one "
    "named beforehand, over tasks at their last goals. This table has all scored goals, of interventions too, and a task counts "
    "by the mean of its goals; it has not what is unresolved. So it can say otherwise, and its constant differs from row to row. "
    "Only the cumulative ones mean the same as B_crit."
)


def head_name(head: str) -> str:
    """A head for people."""
    return {"policy_last_layer": "policy, last layer", "joint_policy_parameters": "joint, on the policy's parameters"}.get(
        head, head
    )


def say_predictor(row: Row) -> str:
    """The prediction that is shown first; where it is not the primary one, that is said. None of a run that suggests nothing."""
    if row.suggests_nothing:
        return "not resolved: mostly the value function's"
    found = row.prediction(*row.predictor)
    said = say_prediction(row, *row.predictor)
    if found is None or row.predictor == PRIMARY:
        return said
    return f"{said}; {_OF[row.predictor]}"


def say_prediction(row: Row, head: str, quantity: str) -> str:
    """A predicted figure and, where it does not come from all runs, from how many; or that it is not resolved or not measured."""
    found = row.prediction(head, quantity)
    if found is None:
        return "not measured"
    return found.scale.say() + (f" ({found.resolved} of {found.runs} seeds)" if found.resolved < found.runs > 1 else "")


def range_of(ends: tuple[float, float] | None) -> str:
    """Two ends as one range, to two digits; one figure where they are equal."""
    if ends is None:
        return "–"
    low, high = (f"{end:.2g}" for end in ends)
    return low if low == high else f"{low} … {high}"


_FEW_UNCERTAIN = 0.1  # of a goal's runs, whose crossings may be uncertain without more being said than how many


def flags(row: Row) -> str:
    """What must not be overlooked about a B_crit that has a value, in a few words; empty where there is nothing."""
    found = ["provisional"] if row.provisional else []
    if row.measured.value is not None:
        found += ["S_min below 50 steps: not scored"] if row.has_few_steps() else []
        found += ["runs at the goal by the earliest step: not scored"] if row.at_limit else []
        found += ["many crossings may not have happened"] if row.uncertain > _FEW_UNCERTAIN * len(row.points) else []
    bent = row.frontier is not None and row.frontier.warning
    return ", ".join([*found, "the surface does not fit"] if bent else found)


def warnings(rows: Sequence[Row]) -> list[str]:
    """One sentence for every reason to take a measured figure with care, with the goals that it holds for."""
    found = []
    for row in rows:
        if row.goal is not None and row.measured.value is None and not (row.quick and row.frontier):
            found.append((row, f"B_crit is not identifiable: {row.measured.reason}"))
        if row.provisional:
            sizes = ("sizes " if len(row.provisional) > 1 else "size ") + ", ".join(f"{size:,}" for size in row.provisional)
            found.append((row, f"provisional: the best learning rate at batch {sizes} lies outside those that reached the goal"))
        if row.frontier is not None and row.frontier.warning and not row.quick:
            found.append((row, f"the surface does not fit: {row.frontier.warning}"))
        if row.measured.value is not None:
            found += [(row, f"not scored: {why}") for why in row.why_not_scored()]
            if row.uncertain:
                crossed = sum(not point.missed for point in row.points)
                said = f"{row.uncertain} of {crossed} crossings may not have happened: their interval has no upper end"
                found.append((row, f"{said}, and the fit takes them as they stand"))
    return _gathered(found)


def say_next(sweep: ComparedSweep) -> str | None:
    """The command that would sharpen a sweep; None where there is none."""
    return f"next: {shlex.join(sweep.next_words)}" if sweep.next_words else None


def say_measured(row: Row, missing: str = "not identifiable") -> tuple[str, str]:
    """B_crit and S_min of a goal; what they count is said where a step is an iteration of several optimizer steps.

    Args:
        row: of the goal.
        missing: said of a B_crit without a value.
    """
    b_crit, s_min = row.measured.say(missing), row.s_min.say("unknown")
    if row.inner_steps > 1:
        b_crit += " an iteration" * (b_crit != missing)
        s_min += f" {row.steps_name}" * (s_min != "unknown")
    return b_crit, s_min


def remarks(rows: Sequence[Row]) -> list[str]:
    """What else to know about the rows, one sentence for the same remark on several goals."""
    return _gathered([(row, note) for row in rows for note in row.notes])


def _gathered(said: Sequence[tuple[Row, str]]) -> list[str]:
    goals: dict[tuple[str, str], list[Row]] = {}
    for row, sentence in said:
        goals.setdefault((row.name, sentence), []).append(row)
    sentences = []
    for (name, sentence), rows in goals.items():
        labels = ", ".join(row.goal_label for row in rows)
        at = "" if rows[0].goal is None else f", goal {labels}" if len(rows) == 1 else f", goals {labels}"
        sentences.append(f"{name}{at}: {sentence}.")
    return sentences


def score_name(row: Row) -> str:
    """What goals are of: the return, or the accuracy or minus the loss on the held-out examples of a supervised task."""
    return "return" if row.has_policy else "accuracy" if (row.goal or 0.0) > 0 else "minus the loss"


def say_aim(row: Row) -> str:
    """The goal of a sweep in words."""
    label = row.goal_label
    aims = {"return": f"a return of {label}", "accuracy": f"an accuracy of {label}"}
    return aims.get(score_name(row), f"a loss of {label.removeprefix('-')}")


def say_conclusion(rungs: Sequence[Rung]) -> str:
    """Whether the noise scale predicts the critical batch size, as far as these sweeps tell; one task is no conclusion."""
    if len({rung.row.task for rung in rungs}) > 1:
        found = verdict(rungs, interventions_of(rungs))
        if found.primary is None:
            reasons = [f"{rung.folder}: {rung.left_out or f'its role is {rung.role}'}" for rung in rungs]
            return f"{say_verdict(found)} {'; '.join(reasons)}."
        return f"{say_verdict(found)} {_say_missed(rungs)}{_say_inner(rungs)}{say_verdict_details(found)}".strip()
    row = rungs[-1].row
    compared = row.ratio(*row.predictor)
    which = f"for {row.name} to" if len(rungs) > 1 else "to"
    here = f"One task is no conclusion; here, {which} {say_aim(row)},"
    if compared.value is None:
        said = f"{here} {compared.reason or 'the prediction is not resolved'}."
    else:
        low, high = compared.interval or (0.0, math.inf)
        times = Estimate(1 / compared.value, (1 / high if math.isfinite(high) else 0.0, 1 / low if low > 0 else math.inf))
        said = f"{here} the noise scale that predicts it is {times.say()} times B_crit."
    return " ".join([said, *_say_moved(interventions_of(rungs))])


def say_verdict(verdict: Verdict) -> str:
    """The preregistered conclusion in three sentences, for somebody who buys machines."""
    primary = verdict.primary
    if primary is None:
        return "No verdict yet: no sweep is scored."
    tasks = f"{primary.tasks} scored {'task' if primary.tasks == 1 else 'tasks'}"
    said = f"{_VERDICTS[verdict.state]} {tasks}"
    if primary.offset.value is None:
        return f"{said} the noise scale is resolved on none."
    if primary.tasks < FEWEST_TASKS:
        return f"{said}, the noise scale is {format_quantity(10**-primary.offset.value)} times B_crit on average."
    return (
        f"{said} B_crit is predicted in two ways. The noise scale, divided by its factor to B_crit on the other tasks, is off by "
        f"{_say_factor(primary.left_out)}. The mean B_crit of the other tasks, without any noise scale, is off by "
        f"{_say_factor(primary.constant)}."
    )


def _say_missed(rungs: Sequence[Rung]) -> str:
    """On which scored tasks the verdict leaves runs out because of how they ended; empty where on none."""
    scored = [(rung, rung.row.prediction(*PRIMARY)) for rung in rungs if rung.role == "task" and rung.left_out is None]
    some = [rung.folder for rung, found in scored if found is not None and found.resolved < found.runs]
    if not some:
        return ""
    return f"Noise runs that missed the goal are left out ({', '.join(some)}): with them the verdict may be another. "


def _say_inner(rungs: Sequence[Rung]) -> str:
    """On which scored tasks a noise scale might be read otherwise; empty where on none."""
    several = [rung.folder for rung in rungs if rung.role == "task" and rung.left_out is None and rung.row.inner_steps > 1]
    if not several:
        return ""
    return (
        f"Where an iteration has several optimizer steps ({', '.join(several)}) the noise scale is taken for the iteration's: if "
        "it were a mini-batch's, the verdict might be another. "
    )


def say_verdict_details(verdict: Verdict) -> str:
    """The figures behind the conclusion, and which noise scale it is about; empty where no sweep is scored."""
    primary = verdict.primary
    if primary is None:
        return ""
    said = []
    if primary.offset.value is not None and primary.tasks >= FEWEST_TASKS:
        resolved = primary.tasks - primary.unresolved
        where = f"On the {resolved} tasks where it is resolved" if primary.unresolved else "On all of them"
        ten = ", one that is not resolved counting as a factor of ten" if primary.unresolved else ""
        said.append(
            f"{where} the noise scale is {format_quantity(10**-primary.offset.value)} times B_crit on average. Divided "
            f"by that, which here includes the task that is predicted, it is off by {_say_factor(primary.rms)}, root mean square"
            f"{ten}."
        )
    said += _say_moved(verdict.interventions)
    if verdict.state == "undecided" and verdict.would_predict:
        said.append(
            f"It would be “predicts” with {FEWEST_MOVED} interventions that move B_crit as predicted: sweeps with --reward-noise "
            f"to the goals of sweeps that are here."
        )
    said.append("The noise scale is that of the joint loss on the policy's parameters, in Adam's metric, averaged to the goal.")
    return " ".join(said)


def _say_moved(interventions: Sequence[Intervention]) -> list[str]:
    """How many of those that count moved B_crit as predicted, in a sentence or two; empty where none counts."""
    said = []
    known = [one.holds for one in interventions if one.counts and one.holds is not None]
    if known:
        some = "The one intervention" if len(known) == 1 else f"Of {len(known)} interventions {sum(known)}"
        said.append(f"{some} {'did not move' if known == [False] else 'moved'} B_crit as predicted.")
    if unknown := [one.name for one in interventions if one.counts and one.holds is None]:
        said.append(f"Whether B_crit moved as predicted is not resolved for {', '.join(unknown)}.")
    return said


def _say_factor(decades: Estimate) -> str:
    """An error in decades as the factor that it is."""
    factor = f"a factor of {10 ** (decades.value or 0.0):.1f}"
    if decades.interval is None:
        return factor
    low, high = (10**end if end < 300 else math.inf for end in decades.interval)
    return f"{factor} (95%: {low:.1f} to {format_quantity(high)})"


def say_limit(shares: Mapping[str, float], doubled: float | None) -> str:
    """What limits a run, and whether more rollout workers help, from the shares of an iteration's time.

    Args:
        shares: of `emulator`, `inference`, `waiting`, `transfer` and `learner`.
        doubled: as of `say_gain`.
    """
    sampling = 1 - shares["learner"]
    most = "learner" if sampling < 0.5 else max((name for name in shares if name != "learner"), key=lambda name: shares[name])
    limit = f"{_LIMITS[most]} the limit, sampling takes {100 * sampling:.0f}% of the time"
    return f"{limit}, and {say_gain(doubled, 'that')}"


def say_gain(doubled: float | None, most: str) -> str:
    """What more workers on CPUs of their own give.

    Args:
        doubled: how many times as fast twice as many are predicted to be; None where that is not known.
        most: what more of them can save at most, which is said where the gain is not known.
    """
    if doubled is None:
        return f"more CPUs for workers save at most {most}"
    gain = round(100 * (doubled - 1))
    return "twice the CPUs for workers would make it " + (f"{gain}% faster" if gain > 0 else "no faster")


def say_all_agreements(rows: Sequence[Row]) -> list[list[str]]:
    """A table row for every head and quantity, in the order of `AGREEMENT_COLUMNS`.

    One more has the paper's predictor over goals of twice the steps that are asked for, and one the baseline. Fewer than three
    tasks are described by their offset and their error; nothing is concluded from them.
    """
    named = [(head, quantity, LEAST_STEPS, "") for head in HEADS for quantity in QUANTITIES]
    named.append((*PLAIN, 2 * LEAST_STEPS, f", S_min from {2 * LEAST_STEPS} steps on"))
    found = []
    for head, quantity, least_steps, which in named:
        if agreement := agreement_of(rows, head, quantity, least_steps):
            goals, a = agreement
            figures = [figure.say("–") for figure in (a.r_squared, a.r_squared_offset, a.offset, a.error, a.rms, a.left_out)]
            if a.tasks < FEWEST_TASKS:
                figures = ["–", "–", *figures[2:4], "–", "–"]
            found.append([f"{head_name(head)}, {QUANTITY_LABELS[quantity]}{which}", str(goals), *figures])
    if plain := agreement_of(rows, *PLAIN):
        goals, a = plain
        if a.tasks >= FEWEST_TASKS:
            found.append(["none: a constant", str(goals), *["–"] * 5, a.constant.say("–")])
    return found
