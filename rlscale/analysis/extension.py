"""The command that would sharpen a sweep: what a person types next. The sweep itself decides in `rlscale.benchmarks.sweep`."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from ..records import SweepRecord, folder_name, kind_of
from .predictions import ADVISED
from .rows import Row

__all__ = ["is_too_easy", "last_command", "next_command"]

# Of a sequential sweep, as `rlscale.benchmarks.sweep` has them, a floor above.
MOST_RUNS = 400
PILOT_RUNS = 3
QUICK_RUNS = 4
FITTED_SIZES = 3  # the fewest at which a surface can be fitted
SWITCHES = ("--quick", "--no-quick", "--report", "--no-report")  # flags of the command without a value
USUAL_FOLDER = "sweeps"  # where `rlscale sweep` puts its folders unless --out says otherwise


def next_command(record: SweepRecord, rows: Sequence[Row], *, stopped: bool | None = None) -> list[str] | None:
    """The words of a command that goes on with a sweep, in the place where it was begun.

    A quick sweep whose prediction is resolved goes on as one that measures, another one with twice the noise runs. A sequential
    sweep that was stopped goes on with the same command, with twice the budget where that is spent; one that ended gets half the
    width of its interval in ln B_crit, or runs four times as long where that has no upper end. A grid that was stopped goes on
    too. One that ended gets a third size, or a size beyond the end at which B_crit is open, or twice the rates where the best
    ones seem to lie elsewhere, or twice the seeds where B_crit is open at both ends or the size at that end missed the goal.

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
    words = _with(_for_one_task(last_command(record), record.task), "--out", str(_home(record)))
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
    if is_too_easy(reached[-1]):
        return None
    low, high = reached[-1].measured.interval or (0.0, math.inf)
    if sizes is not None:
        arrived, frontier = _arrived(reached[-1]), reached[-1].frontier
        few = len(sizes) < FITTED_SIZES  # of which no number of seeds makes a frontier
        smaller = (few or (low == 0 and high < math.inf)) and sizes[0] in arrived and sizes[0] % (4 * _unit(record)) == 0
        larger = (few or (high == math.inf and low > 0)) and sizes[-1] in arrived
        more = [sizes[0] // 4] * smaller + sizes + [4 * sizes[-1]] * larger
        if len(more) > len(sizes):
            return _with(words, "--batch-sizes", ",".join(map(str, more)))
        if (
            len(arrived) >= FITTED_SIZES and frontier is not None and frontier.fitted is None
        ):  # the best rates are not among those tried
            return _with(words, "--rates", str(2 * plan["rates"]))
        return _with(words, "--seeds", str(2 * plan["seeds"]))
    return _sequential(
        record,
        words,
        has_ended=stopped is False,
        is_sharp=low > 0 and high / low <= plan["interval_ratio"],
        is_open=low > 0 and high == math.inf,
    )


def last_command(record: SweepRecord) -> list[str]:
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
    if sizes is None or not reached or len(_arrived(reached[-1])) < FITTED_SIZES:
        return False  # noise runs have the surface's best rate, and without three sizes there is no surface
    # Those that ended at an earlier goal, before the grid was extended, do not count.
    to_last = [run for run in record.results.values() if run.stage == "noise" and run.last_goal in (None, reached[-1].goal)]
    return len(to_last) < plan["noise_runs"]


def is_too_easy(row: Row) -> bool:
    """Whether a goal has no figure because more than half of the runs hold it at the earliest step that counts.

    The pilot's alone do not say so: they are of one size, and smaller batches may take longer.
    """
    return row.measured.value is None and len(row.points) > PILOT_RUNS and row.at_limit > len(row.points) / 2


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
