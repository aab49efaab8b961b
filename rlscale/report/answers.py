"""The answer first: how far a task can be parallelized, in one plain sentence.

The figures come from `rlscale.analysis.comparison`; what else is said of them, in `rlscale.report.words`; how tasks rank, in
`rlscale.report.ranking`.
"""

import math
from dataclasses import dataclass

from ..analysis.comparison import ComparedSweep, Comparison
from ..analysis.points import say_limit
from ..analysis.predictions import PLAIN, predict_from_run, shows_value_alone
from ..analysis.reading import while_it_learned
from ..analysis.rows import Row
from ..analysis.summary import lost_actors, recent_return, time_shares
from ..estimate import Estimate
from ..records import RunRecord, folder_name
from ..text import format_quantity, format_return
from .words import flags, say_aim, say_next

__all__ = ["CONFIDENCE", "Answer", "answers", "run_answer", "say_suggestion"]

_GOOD, _FAIR = 2.5, 4.0  # of the upper to the lower end of B_crit's interval
# Doubling a batch of B saves B_crit / (2 (B + B_crit)) of the steps: a sixth at twice B_crit. The observations are
# E_min (1 + B/B_crit): a fifth more than the fewest at a fifth of B_crit.
_BEYOND, _SAVED = 2.0, "a sixth"
_ALIKE = 1.25  # times that two noise scales of one run may differ, and only one is said
_SUGGESTS = "its noise scale suggests"
CONFIDENCE = (
    f"Confidence is good where the ends of the 95% interval are at most a factor of {_GOOD:g} apart and nothing speaks against "
    f"the figure, fair up to {_FAIR:g}; poor beyond that, and where the figure is not scored."
)
"""What the word at the end of an answer means."""


@dataclass(frozen=True)
class Answer:
    """What a sweep or a run says about its task.

    Attributes:
        name: of the task, with the goal.
        row: that it is read from.
        confidence: `good`, `fair` or `poor` for a measured figure; None where nothing is measured.
        sentence: the answer.
    """

    name: str
    row: Row
    confidence: str | None
    sentence: str


def answers(comparison: Comparison) -> list[Answer]:
    """One answer for each sweep, at its last goal with a figure, and for each single run; the most parallel task first."""
    found = [_of_sweep(sweep) for sweep in comparison.sweeps]
    found.sort(key=lambda answer: -(answer.row.measured.value or 0.0))
    single = zip(comparison.runs, [row for row in comparison.rows if row.goal is None], strict=True)
    return found + [Answer(row.name, row, None, f"{row.name}: {_of_run(run, row)}") for run, row in single]


def _of_sweep(sweep: ComparedSweep) -> Answer:
    measured = [row for row in sweep.rows if row.measured.value is not None]
    reached = [row for row in sweep.rows if row.frontier is not None]
    row = (measured or reached or list(sweep.rows))[-1]
    name = f"{row.name} to {say_aim(row)}"
    asked = say_next(sweep) or f"next: {_instead(sweep, row)}"
    settle = f"{asked[0].upper()}{asked[1:]}"
    if row.quick and row.frontier is not None:
        suggested = say_suggestion(row.predicted(*row.predictor))
        doubt = " That is a prediction, nothing is measured." if suggested.startswith(_SUGGESTS) else ""
        return Answer(name, row, None, f"{name}: {suggested}.{doubt} {settle}")
    batch, steps = "an iteration" if row.inner_steps > 1 else "an optimizer step", row.steps_name
    if row.is_too_easy:
        held = f"{row.at_limit} of {len(row.points)} runs held it after {say_limit(row.points, steps)}"
        return Answer(name, row, None, f"{name}: the goal is too easy to measure with: {held}. {settle}")
    if row.measured.value is None:
        low, high = row.measured.interval or (0.0, math.inf)
        known = f" (more than {format_quantity(low)})" if low > 0 else f" (fewer than {format_quantity(high)})"
        limit = known if low > 0 or math.isfinite(high) else ""
        unknown = f"how many observations {batch} are well spent cannot be said yet{limit}"
        return Answer(name, row, None, f"{name}: {unknown}. {settle}")
    low, high = row.measured.interval or (0.0, math.inf)
    between = f"{format_quantity(low)} to {format_quantity(high)}" if math.isfinite(high) else f"at least {format_quantity(low)}"
    confidence = _confidence(row)
    bounded = low > 0 and math.isfinite(high)
    wide = f"the interval's ends are a factor of {high / low:.3g} apart" if bounded else "the interval has an open end"
    reasons = ", ".join(filter(None, (wide if high > _GOOD * low else "", flags(row))))
    why = f" ({reasons})" if confidence != "good" else ""
    doubled = "the workers" if row.has_policy else "the batch"
    return Answer(
        name,
        row,
        confidence,
        f"{name}: up to {format_quantity(row.measured.value)} observations {batch} are well spent (95%: {between}); from "
        f"{format_quantity(_BEYOND * row.measured.value)} on, doubling {doubled} saves less than {_SAVED} of the {steps}. "
        f"With up to {format_quantity(row.measured.value / 5)}, a run takes at most a fifth more than the fewest observations. "
        f"Confidence: {confidence}{why}.{_say_altered(row)}",
    )


def _instead(sweep: ComparedSweep, row: Row) -> str:
    """What settles a sweep that no command goes on with; the one that was typed would do nothing, or make another sweep."""
    if all(run.failed for run in sweep.runs):
        return "mend what the errors of its runs say, then type its command again"
    if row.quick and row.frontier is not None:
        return "sweep it without --quick, with another --out"
    if row.is_too_easy:
        return "choose a higher goal (--goals), and another --out"
    name = folder_name(sweep.record.task)
    if sweep.record.folder.resolve().name != name:  # a renamed copy, which its own command would not open
        return f"give its folder the name {name}, by which its command finds it, and compare again to see how it goes on"
    return "choose other goals, another learning rate or more observations, and another --out"


def _confidence(row: Row) -> str:
    low, high = row.measured.interval or (0.0, math.inf)
    if not row.scored() or high > _FAIR * low:
        return "poor"
    return "good" if high <= _GOOD * low and not flags(row) else "fair"


def _suggestion(row: Row) -> str:
    """What the noise of a single run suggests, and how it would be measured."""
    scale = row.predicted(*row.predictor)
    policy = row.policy_beside
    whose, called = "the policy's own loss", "the policy's noise scale"
    if not row.prediction(*PLAIN):  # what stands in for it
        whose = "the joint loss on the policy's parameters"
        called = f"the noise scale of {whose}"
    said = say_suggestion(scale, policy, called)
    # A job of another library has a name of its own for its task, `CartPole-v1` or `ALE/Pong-v5`; ours begin in lower case.
    ours = ("/" in row.task or ":" in row.task) and row.task[0].islower()
    goals = "" if row.has_goals else " --goals RETURN"
    settle = f"'rlscale sweep {row.task}{goals}'" if ours else "'rlscale sweep TASK' ('rlscale tasks' lists the names)"
    if not said.startswith(_SUGGESTS):
        return f"{said}; {settle} measures it."
    doubt = ""
    if policy is not None and policy.value is None:
        doubt = f" Take it with care: the noise of {whose} is {policy.say()}"
        above = (policy.interval or (0.0, math.inf))[0] > (scale.interval or (0.0, math.inf))[1]
        doubt += "; most of the signal is the value function's." if above else "."
    return f"{said}. That is a prediction; {settle} measures it.{_say_altered(row)}{doubt}"


def _say_altered(row: Row) -> str:
    """What was done to the environments, where they are not the task's own, as sentences that follow others."""
    copies = f" Each environment has {row.clones} clones, which make it {row.clones} times the task's own."
    noise = f" Noise of standard deviation {row.reward_noise:g} was added to the rewards, so it is not the task's own."
    return copies * (row.clones > 1) + noise * (row.reward_noise > 0)


def say_suggestion(scale: Estimate, policy: Estimate | None = None, called: str = "the policy's noise scale") -> str:
    """The batch that a noise scale suggests, as the end of a sentence about a task.

    Args:
        scale: that predicts.
        policy: noise scale of the policy's loss, where the first is that of the joint loss; see `shows_value_alone`.
        called: what to call it, where that of another loss stands in for it.
    """
    low, high = scale.interval or (0.0, math.inf)
    if policy is not None and shows_value_alone(scale, policy):
        least = (policy.interval or (0.0, math.inf))[0]
        bound = policy.say() if policy.value is not None else f"above {format_quantity(least)}" if least > 0 else "not resolved"
        return (
            f"its noise does not say yet how many observations an optimizer step can use: {called} is "
            f"{bound}, and the joint loss's, {scale.say()}, is mostly the value function's"
        )
    if scale.value is not None:
        between = (
            f"{format_quantity(low)} to {format_quantity(high)}" if math.isfinite(high) else f"at least {format_quantity(low)}"
        )
        return f"{_SUGGESTS} {format_quantity(scale.value)} observations an optimizer step (95%: {between})"
    if low > 0:
        return f"{_SUGGESTS} more than {format_quantity(low)} observations an optimizer step (95%)"
    return "its noise says nothing yet about how many observations an optimizer step can use"


def run_answer(run: RunRecord, row: Row, name: str | None = None) -> str:
    """What one run came to, whether more rollout workers would make it faster, and which batch its noise suggests.

    Args:
        run: the run.
        row: what its noise predicts, by `row_of_run`.
        name: of the run, where it is one of several.
    """
    mean = recent_return(run)
    reached = "no finished episode after " if mean is None else f"a mean return of {format_return(mean)} after "
    which = "" if name is None else f" (run {name})"
    came = f"{run.manifest['task']['id']}{which}: {reached * row.has_policy}{run.rows[-1]['observations']:,} observations."
    suggestion = _of_run(run, row)
    limit = _limit(run) if row.has_policy else ""
    return f"{came}{_lost(run)}{limit} {suggestion[0].upper()}{suggestion[1:]}{_own_batch(run)}"


def _of_run(run: RunRecord, row: Row) -> str:
    return _suggestion(row) + _passes(run, row) + _while_it_learned(run, row)


def _passes(run: RunRecord, row: Row) -> str:
    """What the sweep that is named leaves out, where the run passed over its batches several times."""
    epochs = run.manifest["config"].get("update", {}).get("epochs") or 1
    if epochs == 1 or not row.has_policy:
        return ""
    return (
        f" A sweep passes over its observations once, this run did {epochs} times; --epochs and --mini-batches sweep as it did."
    )


def _while_it_learned(run: RunRecord, row: Row) -> str:
    """The noise scale of the part of the run that `rlscale advise --run` reads, where that is another."""
    early = while_it_learned(run)
    found = {(p.head, p.quantity): p.scale for p in predict_from_run(early)} if len(early.rows) < len(run.rows) else {}
    if row.suggests_nothing or row.predictor not in found:
        return ""
    whole, scale = row.predicted(*row.predictor), found[row.predictor]
    if whole.value and scale.value and 1 / _ALIKE < whole.value / scale.value < _ALIKE:
        return ""
    observations = f"{early.rows[-1]['observations']:,} observations"
    made = "in which nine tenths of the rise in return were made"
    return f" Of the first {observations} alone, {made}, the suggestion is {scale.say()}."


def _limit(run: RunRecord) -> str:
    """What takes the run's time, where its record says it."""
    shares = time_shares(run)
    total = sum(shares.values())
    if not total:
        return ""
    learning = (shares["learning"] + shares["noise"]) / total
    return (
        f" Learning, with its noise measurement, takes {learning:.0%} of the time: more rollout workers save at most the other "
        f"{1 - learning:.0%}."
        if learning > 0.5
        else f" Sampling takes {1 - learning:.0%} of the time, the most that more rollout workers can save; 'rlscale workers' "
        "says how many do."
    )


def _lost(run: RunRecord) -> str:
    """How many rollout workers the run lost, where it lost any."""
    count = len(lost_actors(run) or ())
    if not count:
        return ""
    return f" It lost {count} rollout worker{'s' * (count > 1)}; every observation that was missing was sampled again."


def _own_batch(run: RunRecord) -> str:
    """The mini-batch that the run had itself, where it had one."""
    used = (run.manifest.get("config") or {}).get("update", {}).get("mini_batch")
    return f" The run's own mini-batches hold {used:,}." if used else ""
