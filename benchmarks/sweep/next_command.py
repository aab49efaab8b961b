"""The command that would sharpen a sweep: what a person types next.

`next_command` reads it off the record, `would_make_a_run` asks the plan of a command whether there is anything to do, and
`shortest_command` leaves out the options that change nothing. `with_next_words` puts what follows from the three beside the
sweeps of a comparison. Which run a sweep makes next is decided in `plan` and `design`.

Plans load torch, which takes longer than all the rest of `rlscale compare`, so they are imported where a command is to be named.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlscale.analysis.comparison import Comparison
from rlscale.analysis.predictions import ADVISED
from rlscale.analysis.rows import Row
from rlscale.errors import UsageError
from rlscale.records import SweepRecord, folder_name, kind_of

from ..options import MOST_RATES, flag_of, parse
from .design import FEWEST_SIZES, MOST_RUNS, PILOT_RUNS, QUICK_RUNS

if TYPE_CHECKING:
    from .options import SweepOptions
    from .plan import SweepPlan

__all__ = ["next_command", "shortest_command", "with_next_words", "would_make_a_run"]

SWITCHES = ("--quick", "--no-quick", "--report", "--no-report")  # flags of the command without a value
USUAL_FOLDER = "sweeps"  # where `rlscale sweep` puts its folders unless --out says otherwise
_OUTSIDE = ("jobs", "ray_address", "out", "report")  # no part of what a plan decides, so kept wherever they were typed


def with_next_words(comparison: Comparison) -> Comparison:
    """The same comparison; the command that would sharpen a sweep is what its plan says it needs, in as few words as say it."""
    found = []
    for sweep in comparison.sweeps:
        words = next_command(sweep.record, sweep.rows)
        if words is not None or any(run.failed for run in sweep.runs):
            stopped = would_make_a_run(sweep.record)
            words = next_command(sweep.record, sweep.rows, stopped=stopped)
            makes = would_make_a_run(sweep.record, words) if words else None
            # As with more observations beyond the largest batch; or it is refused, where the sweep's own command is not.
            if makes is False or (makes is None and stopped is not None):
                words = None
        found.append(replace(sweep, next_words=tuple(shortest_command(words)) if words else ()))
    return replace(comparison, sweeps=tuple(found))


def next_command(record: SweepRecord, rows: Sequence[Row], *, stopped: bool | None = None) -> list[str] | None:
    """The words of a command that goes on with a sweep, in the place where it was begun.

    A quick sweep whose prediction is resolved goes on as one that measures, another one with twice the noise runs. A sequential
    sweep that was stopped goes on with the same command, with twice the budget where that is spent; one that ended gets half the
    width of its interval in ln B_crit, or runs four times as long where that has no upper end. A grid that was stopped goes on
    too. One that ended gets a third size, or a size beyond the end at which B_crit is open, or twice the rates, as far as so many
    may be asked for, where the best ones seem to lie elsewhere, or twice the seeds where B_crit is open at both ends or the size
    at that end missed the goal.

    Args:
        record: of the sweep.
        rows: its rows of the comparison, by goal.
        stopped: whether its own command would make a run; None where only the record tells, which is not always enough.

    Returns:
        None for sweeps of earlier versions, which cannot be extended, for copies in folders of other names, which the command
        would not open, where the first runs have ended and none has reached a goal, where most runs hold it from the start, where
        half the width is below a percent, and where a sequential sweep has as many runs as there may be.
    """
    plan, reached = record.plan, [row for row in rows if row.frontier is not None]
    if "interval_ratio" not in plan or record.folder.resolve().name != folder_name(record.task):
        return None
    words = _with(_for_one_task(_last_command(record), record.task), "--out", str(_home(record)))
    words = words[:-2] if words[-1] == USUAL_FOLDER else words
    sizes = plan["batch_sizes"]
    if stopped or (stopped is None and _seems_stopped(record, reached)):
        return words
    if not reached:
        return None
    if plan.get("quick"):
        if reached[-1].predicted(*ADVISED).value is None:
            return _with(words, "--noise-runs", str(2 * plan["noise_runs"]))
        return [word for word in words if word not in ("--quick", "--no-quick")]
    if reached[-1].is_too_easy:
        return None
    low, high = reached[-1].measured.interval or (0.0, math.inf)
    if sizes is not None:
        arrived, frontier = _arrived(reached[-1]), reached[-1].frontier
        few = len(sizes) < FEWEST_SIZES  # of which no number of seeds makes a frontier
        smaller = (few or (low == 0 and high < math.inf)) and sizes[0] in arrived and sizes[0] % (4 * _unit(record)) == 0
        larger = (few or (high == math.inf and low > 0)) and sizes[-1] in arrived
        more = [sizes[0] // 4] * smaller + sizes + [4 * sizes[-1]] * larger
        if len(more) > len(sizes):
            return _with(words, "--batch-sizes", ",".join(map(str, more)))
        # The best rates are not among those tried.
        elsewhere = len(arrived) >= FEWEST_SIZES and frontier is not None and frontier.fitted is None
        if elsewhere and plan["rates"] < MOST_RATES:
            return _with(words, "--rates", str(min(2 * plan["rates"], MOST_RATES)))
        return _with(words, "--seeds", str(2 * plan["seeds"]))
    return _sequential(
        record,
        words,
        has_ended=stopped is False,
        is_sharp=low > 0 and high / low <= plan["interval_ratio"],
        is_open=low > 0 and high == math.inf,
    )


def _last_command(record: SweepRecord) -> list[str]:
    """The words of the command that the sweep was last gone on with."""
    return list([record.manifest, *record.manifest.get("extensions", ())][-1]["command"])


def _home(record: SweepRecord) -> Path:
    """The folder that the sweep's own is in, as --out takes it.

    A name such as `.`, or that of a link to it, says nothing of where it is.
    """
    if record.folder.name == folder_name(record.task):
        return record.folder.parent
    home = record.folder.resolve().parent
    return home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home


def _arrived(row: Row) -> set[float]:
    """Batch sizes at which a run has reached the goal."""
    return {point.run.batch_size for point in row.points if not point.missed}


def _seems_stopped(record: SweepRecord, reached: Sequence[Row]) -> bool:
    """Whether runs are missing that every sweep with this plan makes, a sequential sweep's later ones apart."""
    plan = record.plan
    noise = sum(result.stage == "noise" for result in record.results.values())
    others, sizes = len(record.results) - noise, plan["batch_sizes"]
    if others < (PILOT_RUNS if sizes is None else len(sizes) * plan["rates"] * plan["seeds"]):
        return True
    if plan.get("quick"):
        return bool(reached) and noise < min(plan["noise_runs"], QUICK_RUNS)
    if sizes is None or not reached or len(_arrived(reached[-1])) < FEWEST_SIZES:
        return False  # noise runs have the surface's best rate, and without three sizes there is no surface
    # Those that ended at an earlier goal, before the grid was extended, do not count.
    to_last = [run for run in record.results.values() if run.stage == "noise" and run.last_goal in (None, reached[-1].goal)]
    return len(to_last) < plan["noise_runs"]


def _sequential(record: SweepRecord, words: list[str], *, has_ended: bool, is_sharp: bool, is_open: bool) -> list[str] | None:
    """The command for a sequential sweep that has reached a goal: one that makes a run, as far as the record tells.

    The sweep ends by its own interval, which may be narrower than the page's. Where nobody knows that it ended, its noise runs
    show it, which come last; without any, a sweep that is not sharp may as well have been stopped.
    """
    plan, results = record.plan, list(record.results.values())
    runs = [result for result in results if result.stage != "noise"]
    shows_end = bool(plan["noise_runs"]) and results[-1].stage == "noise"
    measured = has_ended or (len(results) - len(runs) >= plan["noise_runs"] and (shows_end or not plan["noise_runs"]))
    if len(runs) >= MOST_RUNS and measured:
        return None
    is_spent = False
    for flag, budget, spent in (
        ("--total-observations", plan["total_observations"], sum(run.observations + run.evaluation_steps for run in runs)),
        ("--hours", plan["hours"], sum(run.hours(plan["jobs"]) for run in runs)),
    ):
        if budget and spent >= budget:
            is_spent = True
            doublings = math.floor(math.log2(spent / budget)) + 1
            words = _with(words, flag, f"{2**doublings * budget:.12g}")
    if (
        measured and is_open and (has_ended or shows_end) and not is_spent
    ):  # it ended because no run that it can afford is large enough
        return _with(words, "--observations", str(4 * plan["most_observations"]))
    if measured and (is_sharp or ((has_ended or shows_end) and not is_spent)):
        sharper = f"{math.sqrt(plan['interval_ratio']):.3g}"
        return _with(words, "--interval-ratio", sharper) if 1 < float(sharper) < plan["interval_ratio"] else None
    return words


def _unit(record: SweepRecord) -> int:
    """What the batch sizes are multiples of: environments' rollouts in whole mini-batches, or examples.

    Sweeps of examples did not always record how long one is; then a divisor of every size that was tried stands in for it.
    """
    if kind_of(record.plan["config"]) == "supervised":
        return record.manifest["task"].get("length") or math.gcd(*record.plan["batch_sizes"])
    rollout = record.plan["config"]["rollout"]
    return rollout["rollout_length"] * rollout.get("clones", 1) * record.plan.get("mini_batches", 1)


def _for_one_task(words: Sequence[str], task: str) -> list[str]:
    """A command less the other tasks that it names, whose sweeps it would extend as well.

    A task's name has a slash or a colon, and what follows a flag that is no switch is the flag's value. Where none of the names
    is the task's own, as with `atari/pong@84`, its own takes their place.
    """
    kept = list(words[:2])
    for before, word in itertools.pairwise(words[1:]):
        is_value = before.startswith("-") and "=" not in before and before not in SWITCHES
        is_other_task = word != task and ("/" in word or ":" in word) and not word.startswith("-") and not is_value
        if not is_other_task:
            kept.append(word)
    return kept if task in kept else [*kept[:2], task, *kept[2:]]


def _with(words: Sequence[str], flag: str, value: str) -> list[str]:
    """A command with another value of a flag, `--flag value` or `--flag=value`; appended where it is not there yet."""
    pairs = itertools.pairwise(["", *words])
    kept = [word for before, word in pairs if flag not in (before, word) and not word.startswith(f"{flag}=")]
    return [*kept, flag, value]


def shortest_command(words: Sequence[str]) -> list[str]:
    """A command `rlscale sweep …` without the options that have their default, or that the tasks have of their own.

    The plan of every task stays exactly what it is, so the shorter command goes on with the same sweep. A command that cannot be
    read here, as of another version, is returned as it is.
    """
    try:
        options = _options(words)
        plans = _plans(options)
        kept: list[str] = []
        for field in fields(options):
            value = getattr(options, field.name)
            if field.default is MISSING or value == field.default:
                continue
            without = replace(options, **{field.name: field.default})
            if field.name not in _OUTSIDE and _same(without, plans):
                options = without
            else:
                kept += flag_of(field.name, value)
    except (UsageError, SystemExit):
        return list(words)
    return [*words[:2], *options.tasks, *kept] if plans else list(words)


def would_make_a_run(record: SweepRecord, words: Sequence[str] | None = None) -> bool | None:
    """Whether a command has runs to make of a sweep, those that failed included.

    None where its plan cannot be made here, as of a task that is not installed, by the defaults of another version, or of a batch
    that no memory here holds.

    Args:
        record: of the sweep.
        words: of a command that would go on with it; None: the one that it was last gone on with.
    """
    try:
        (plan,) = _plans(replace(_options(words or _last_command(record)), tasks=(record.task,)))
    except (UsageError, SystemExit):
        return None
    if words is None and not record.is_of(plan.to_dict()):
        return None
    plan = replace(plan, jobs=record.plan["jobs"])  # by which --hours is counted, wherever this is asked
    return bool(plan.next_trials({id: result for id, result in record.results.items() if not result.failed}))


def _options(words: Sequence[str]) -> "SweepOptions":
    from .options import SweepOptions

    return parse(SweepOptions, "sweep", list(words[2:]))


def _plans(options: "SweepOptions") -> list["SweepPlan"]:
    """As this machine would make them: no cluster is joined, and its CPUs are not asked for."""
    from .options import make_plan

    here = replace(options, ray_address=None, jobs=None if options.jobs else options.jobs)
    return [make_plan(task, here) for task in options.tasks]


def _same(options: "SweepOptions", plans: list["SweepPlan"]) -> bool:
    try:
        return _plans(options) == plans
    except UsageError:
        return False
