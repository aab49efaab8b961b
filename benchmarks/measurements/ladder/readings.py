"""The verdict by other readings of its rule, and over other choices of rungs.

The rule leaves open what becomes of noise runs that missed the goal, whether a noise scale predicts an iteration or a mini-batch,
which goal counts where the last has no interval, and how far a crossing can be trusted. Each is read here in every way. The
published verdict is not here but in `rlscale.analysis.verdict`; the page that all of it stands on is `.page`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import mul

import numpy as np

from rlscale.analysis import Comparison
from rlscale.analysis.points import fit_points, surface_points
from rlscale.analysis.predictions import PRIMARY, Prediction, at_crossings, pooled_noise
from rlscale.analysis.rows import LEAST_STEPS
from rlscale.analysis.rungs import Rung, interventions_of, why_left_out
from rlscale.analysis.verdict import Verdict, verdict
from rlscale.noise import RUN_WINDOW
from rlscale.records import SweepRecord, TrialResult
from rlscale.records.trial import NoiseSums

from ..measuring import markdown_table

__all__ = [
    "by_windows",
    "doubtful_crossings",
    "earlier_goals",
    "fewer_rungs",
    "for_mini_batches",
    "iterations_or_mini_batches",
    "missed_runs",
    "windows_of_few_iterations",
    "with_fewer_rungs",
    "with_missed_runs",
]

MORE_STEPS = 100  # optimizer steps of S_min, for which the preregistration's issue asks beside the 50 of the rule
# Their environments were at the same step of their episodes in every batch; docs/log.md, 26 November 2026, third session.
IN_STEP = ("umbrella", "umbrella-noise-4", "umbrella-noise-16", "cliffwalking-2", "minatar-freeway-2")
# Their results are in the first commit of this repository that holds docs/preregistration.md; earlier ones are lost.
WITH_THE_RULE = ("frozenlake", "frozenlake-8x8")


def fewer_rungs(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The verdict over goals that take more steps, over rungs whose environments were out of step, and over registered ones."""
    rows = []
    for name, found in with_fewer_rungs(rungs).items():
        if found.primary is None:
            rows.append([name, "0", "–", "–", "–", "–", found.state])
            continue
        errors = (found.primary.rms, found.primary.left_out, found.primary.constant)
        moved = [one.holds for one in found.interventions if one.counts]
        held = f"{sum(map(bool, moved))} of {len(moved)}"
        rows.append([name, str(found.primary.tasks), *(error.say("–") for error in errors), held, found.state])
    columns = ["", "tasks", "RMS about the offset", "a task left out", "by the mean of the others", "interventions as predicted"]
    return markdown_table([*columns, "verdict"], rows)


def with_fewer_rungs(rungs: Sequence[Rung]) -> dict[str, Verdict]:
    """The verdict by which rungs are left out, which the rule keeps."""
    choices = {
        "as published": rungs,
        f"where S_min is at least {MORE_STEPS} optimizer steps": [
            rung for rung in rungs if not rung.row.has_few_steps(MORE_STEPS)
        ],
        f"where S_min is at least {LEAST_STEPS} iterations": [
            rung for rung in rungs if (rung.row.s_min.value or 0.0) >= LEAST_STEPS
        ],
        "without rungs whose environments were in step": [rung for rung in rungs if rung.folder not in IN_STEP],
        "without rungs that this repository has no earlier rule of": [rung for rung in rungs if rung.folder not in WITH_THE_RULE],
    }
    return {name: verdict(those, interventions_of(those)) for name, those in choices.items()}


def missed_runs(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """What becomes of the verdict if noise runs that missed the goal are kept, about which the preregistration says nothing."""
    short = [rung for rung in rungs if rung.role == "task" and rung.left_out is None and _missed(rung)]
    judged = with_missed_runs(comparison, rungs)
    if not short or not judged:
        return "On the scored tasks every noise run reached the goal."
    rows = []
    for name, (kept, found) in judged.items():
        predicted = {rung.folder: rung.row.predicted(*PRIMARY).say() for rung in kept}
        errors = [] if found.primary is None else [found.primary.rms, found.primary.left_out, found.primary.constant]
        rows.append([name, *(predicted[rung.folder] for rung in short), *(error.say("–") for error in errors), found.state])
    columns = ["noise runs that missed the goal", *(f"`{rung.folder}`, predicted" for rung in short)]
    return markdown_table([*columns, "RMS about the offset", "a task left out", "by the mean of the others", "verdict"], rows)


def with_missed_runs(comparison: Comparison, rungs: Sequence[Rung]) -> dict[str, tuple[list[Rung], Verdict]]:
    """The rungs and the verdict by what becomes of noise runs that missed the goal; empty where none counts that did.

    Left out, as `rlscale.analysis.predictions.predict` does; or kept, read to the median crossing of the others or to their end.
    """
    if not any(rung.role == "task" and rung.left_out is None and _missed(rung) for rung in rungs):
        return {}
    of = {sweep.name: sweep.record for sweep in comparison.sweeps}
    kept = {
        "left out": list(rungs),
        "kept, to the median crossing of the others": [_kept(rung, of[rung.name], whole=False) for rung in rungs],
        "kept, to their end": [_kept(rung, of[rung.name], whole=True) for rung in rungs],
    }
    return {name: (those, verdict(those, interventions_of(those))) for name, those in kept.items()}


def iterations_or_mini_batches(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The rungs whose iterations have several optimizer steps, by what a noise scale may predict there, and both verdicts."""
    several = [rung for rung in rungs if rung.left_out is None and rung.row.inner_steps > 1]
    if not several:
        return "No scored rung has several optimizer steps an iteration."
    by_mini_batch = for_mini_batches(comparison, rungs)
    other = {rung.folder: rung.row for rung in by_mini_batch}
    rows = [
        [
            f"`{rung.folder}`",
            rung.role,
            rung.row.measured.say(),
            *(
                text
                for row in (rung.row, other[rung.folder])
                for text in (row.predicted(*PRIMARY).say(), row.ratio(*PRIMARY).say())
            ),
        ]
        for rung in several
    ]
    columns = ["rung", "role", "B_crit of an iteration", "predicted, the whole iteration", "measured / predicted"]
    table = markdown_table([*columns, "predicted, its mini-batch times their number", "measured / predicted"], rows)
    found = [verdict(those, interventions_of(those)) for those in (rungs, by_mini_batch)]
    if any(one.primary is None for one in found):
        return table
    errors = [(one.primary.left_out.say("–"), one.primary.constant.say("–"), one.state) for one in found if one.primary]
    said = [f"{error} decades with a task left out, against {constant}: {state}" for error, constant, state in errors]
    return f"{table}\n\nThe verdict by the first reading: {said[0]}. By the second: {said[1]}."


def windows_of_few_iterations(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The scored rungs whose noise runs are few windows long, by which windows of them count, and the verdict by each."""
    of = {sweep.name: sweep.record for sweep in comparison.sweeps}
    readings = {"as published": list(rungs), **by_windows(comparison, rungs)}
    rows = []
    for number, rung in enumerate(rungs):
        goal = rung.row.goal
        if rung.left_out is not None or rung.row.inner_steps == 1 or goal is None:
            continue
        _, ends = at_crossings(_noise_runs(rung, of[rung.name]), goal)
        predicted = [those[number].row.predicted(*PRIMARY).say() for those in readings.values()]
        rows.append([f"`{rung.folder}`", rung.role, f"{min(ends):.0f} to {max(ends):.0f}", rung.row.measured.say(), *predicted])
    if not rows:
        return "No scored rung has several optimizer steps an iteration."
    found = {name: verdict(those, interventions_of(those)) for name, those in readings.items()}
    said = [
        f"{name}, {one.primary.left_out.say('–')} against {one.primary.constant.say('–')}: {one.state}"
        for name, one in found.items()
        if one.primary is not None
    ]
    table = markdown_table(
        ["rung", "role", "iterations to the goal", "B_crit", *(f"predicted, {name}" for name in readings)], rows
    )
    return f"{table}\n\nThe verdict over all rungs, in decades with a task left out: {'; '.join(said)}."


def by_windows(comparison: Comparison, rungs: Sequence[Rung]) -> dict[str, list[Rung]]:
    """The rungs by the windows that their primary prediction is taken in."""
    of = {sweep.name: sweep.record for sweep in comparison.sweeps}
    return {
        "with the window of the goal": [_in_windows(rung, of[rung.name]) for rung in rungs],
        "with it, in windows of ten": [_in_windows(rung, of[rung.name], merged=2) for rung in rungs],
    }


def _in_windows(rung: Rung, record: SweepRecord, merged: int = 1) -> Rung:
    """The rung with the primary prediction from so many windows at a time, the one in which a run reached its goal counted too.

    That window counts with the updates before the goal; within it the noise scale is taken for constant.
    """
    goal = rung.row.goal
    if goal is None or rung.row.prediction(*PRIMARY) is None:
        return rung
    chosen, ends = at_crossings(_noise_runs(rung, record), goal)
    cut, windows = [], []
    for run, steps in zip(chosen, ends, strict=True):
        sums = [_cut(one, max(int(steps), 1), merged) for one in run.noise_sums]
        cut.append(replace(run, noise_sums=tuple(sums)))
        windows.append(float(RUN_WINDOW * max((len(one.updates) for one in sums), default=1)))
    scale = pooled_noise(cut, windows, *PRIMARY)
    if scale is None:
        return rung
    others = [one for one in rung.row.predictions if (one.head, one.quantity) != PRIMARY]
    mine = [replace(one, scale=scale) for one in rung.row.predictions if (one.head, one.quantity) == PRIMARY]
    return replace(rung, row=replace(rung.row, predictions=(*others, *mine)))


def _cut(sums: NoiseSums, steps: int, merged: int) -> NoiseSums:
    """What was measured in the first so many steps, `merged` windows at a time."""
    count = np.array(sums.updates[: -(-steps // RUN_WINDOW)])
    count[-1] = min(count[-1], steps - RUN_WINDOW * (len(count) - 1))
    begins = range(0, len(count), merged)
    updates = np.add.reduceat(count, begins)
    trace, grad = (
        np.add.reduceat(np.array(part[: len(count)]) * count, begins) / np.maximum(updates, 1)
        for part in (sums.trace_cov, sums.grad_sq)
    )
    return replace(sums, trace_cov=tuple(trace.tolist()), grad_sq=tuple(grad.tolist()), updates=tuple(updates.tolist()))


def earlier_goals(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The verdict with the tasks that are left out at their last goal and would be scored at an earlier one, by every reading."""
    with_them = at_earlier_goals(comparison, rungs)
    joined = [rung for rung, other in zip(with_them, rungs, strict=True) if rung is not other]
    if not joined:
        return "No task that is left out could be scored at an earlier goal."
    said = [
        f"`{rung.folder}` to {rung.row.goal:g}: {rung.row.measured.say()}, predicted {rung.row.predicted(*PRIMARY).say()}"
        for rung in joined
    ]
    readings = {
        "as published": with_them,
        **{name: those for name, (those, _) in with_missed_runs(comparison, with_them).items()},
    }
    readings["noise scales read as those of mini-batches"] = for_mini_batches(comparison, with_them)
    readings.pop("left out", None)
    rows = []
    for name, those in readings.items():
        found = verdict(those, interventions_of(those))
        errors = [] if found.primary is None else [found.primary.rms, found.primary.left_out, found.primary.constant]
        rows.append([name, *(error.say("–") for error in errors), found.state])
    columns = ["with these, by the reading", "RMS about the offset", "a task left out", "by the mean of the others", "verdict"]
    return f"{'; '.join(said)}.\n\n{markdown_table(columns, rows)}"


def at_earlier_goals(comparison: Comparison, rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs; a task that is left out for its interval at its last goal is at the last one at which it is scored, if any."""
    rows = {sweep.name: sweep.rows for sweep in comparison.sweeps}

    def read(rung: Rung) -> Rung:
        if rung.role != "task" or rung.left_out is None or not rung.left_out.startswith(("B_crit has", "the ends of")):
            return rung
        row = next((row for row in reversed(rows[rung.name]) if row.frontier is not None and why_left_out(row) is None), None)
        return rung if row is None else replace(rung, row=row, left_out=None)

    return [read(rung) for rung in rungs]


def doubtful_crossings(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The scored rungs with crossings whose interval has no upper end, which fits take as they stand, and B_crit otherwise."""
    of = {sweep.name: sweep.runs for sweep in comparison.sweeps}
    rows = []
    for rung in rungs:
        goal = rung.row.goal
        if rung.left_out is not None or goal is None:
            continue
        points = surface_points(of[rung.name], goal)
        crossed = [point for point in points if not point.missed]
        doubtful = [point for point in crossed if _is_open(point.run, goal)]
        if not doubtful:
            continue
        without = [point for point in points if point not in doubtful]
        spent = [replace(p, steps=math.inf, observations=p.steps * p.batch_size) if p in doubtful else p for p in points]
        fits = [fit_points(those, stopped=True).b_crit.say() for those in (without, spent)]
        rows.append((len(doubtful), [f"`{rung.folder}`", f"{len(doubtful)} of {len(crossed)}", rung.row.measured.say(), *fits]))
    columns = ["rung", "crossings without an upper end", "B_crit, as published", "without them", 'as "more steps"']
    return markdown_table(columns, [cells for _, cells in sorted(rows, reverse=True)]) if rows else "No scored rung has any."


def _is_open(run: TrialResult, goal: float) -> bool:
    crossing = run.crossing(goal)
    return crossing is not None and crossing.interval is not None and math.isinf(crossing.interval[1])


def for_mini_batches(comparison: Comparison, rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs, with every noise scale read as that of a mini-batch, of which an iteration has several.

    Where runs are pooled its mean is over full-batch steps of mini-batches; the iteration is so many times as large.
    """
    of = {sweep.name: sweep.record for sweep in comparison.sweeps}

    def read(rung: Rung) -> Rung:
        parts, goal = of[rung.name].plan["mini_batches"], rung.row.goal
        if goal is None:
            return rung
        chosen, ends = at_crossings(_noise_runs(rung, of[rung.name]), goal)
        scales = [(one, pooled_noise(chosen, ends, one.head, one.quantity, parts)) for one in rung.row.predictions]
        predictions = tuple(replace(one, scale=(scale or one.scale).map(partial(mul, parts))) for one, scale in scales)
        return replace(rung, row=replace(rung.row, predictions=predictions))

    return [read(rung) if rung.row.inner_steps > 1 else rung for rung in rungs]


def _missed(rung: Rung) -> int:
    found = rung.row.prediction(*PRIMARY)
    return 0 if found is None else found.runs - found.resolved


def _noise_runs(rung: Rung, record: SweepRecord) -> list[TrialResult]:
    return [run for run in record.results.values() if run.stage == "noise" and run.batch_size == rung.row.prediction_batch]


def _kept(rung: Rung, record: SweepRecord, whole: bool) -> Rung:
    """The rung with the primary prediction from all of its noise runs."""
    goal = rung.row.goal
    if goal is None or not _missed(rung):
        return rung
    runs = _noise_runs(rung, record)
    crossings = [run.steps_to(goal) for run in runs]
    median = float(np.median([steps for steps in crossings if steps is not None]))
    ends = [
        float(run.optimizer_steps if whole else min(median, run.optimizer_steps)) if steps is None else steps
        for run, steps in zip(runs, crossings, strict=True)
    ]
    scale = pooled_noise(runs, ends, *PRIMARY)
    others = [one for one in rung.row.predictions if (one.head, one.quantity) != PRIMARY]
    if scale is None:
        return rung
    return replace(rung, row=replace(rung.row, predictions=(*others, Prediction(*PRIMARY, scale, len(runs), len(runs), None))))
