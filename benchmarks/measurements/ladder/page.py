"""docs/ladder.md: its tables, sentences and picture, made from the records in results/ladder.

    python -m rlscale.benchmarks.measurements.ladder page

The page's own prose stays; what stands between `<!-- made: NAME -->` and `<!-- end -->` is written anew. A test holds the page
against the records.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlscale.analysis import Comparison, Row, compare
from rlscale.analysis.comparison import ComparedSweep
from rlscale.analysis.predictions import ADVISED, PRIMARY, ratio
from rlscale.analysis.rungs import GIVEN_UP, NOT_ENDED, Rung, interventions_of, rungs_of, why_left_out
from rlscale.analysis.verdict import SECONDARY, PredictorScore, is_better, score, verdict
from rlscale.estimate import Estimate
from rlscale.records import SweepRecord, read_sweep
from rlscale.records.files import dump_json
from rlscale.report.ladder_charts import tasks_figure, verdict_figure
from rlscale.report.pictures import write_figures
from rlscale.report.words import (
    QUANTITY_LABELS,
    head_name,
    say_aim,
    say_measured,
    say_prediction,
    say_verdict,
    say_verdict_details,
)
from rlscale.text import format_quantity

from ..learning.noise_without_sweep import table
from ..measuring import markdown_table
from .afterwards import (
    JOINT,
    agreement,
    beside_the_paper,
    second_hypothesis,
    third_hypothesis,
)
from .again import AGAIN, repetitions
from .readings import (
    by_windows,
    doubtful_crossings,
    earlier_goals,
    fewer_rungs,
    for_mini_batches,
    iterations_or_mini_batches,
    missed_runs,
    windows_of_few_iterations,
    with_fewer_rungs,
    with_missed_runs,
)

__all__ = ["PAGE", "PUBLISHED", "read_ladder", "rewritten", "what_is_published", "write_page"]

MISSED = "noise-runs-that-missed-the-goal"  # the page's section
INNER = "an-iteration-or-a-mini-batch"  # likewise
FEWER = "fewer-rungs"  # likewise
WINDOWS = "windows-of-five-iterations"  # likewise
SURE = "how-sure-the-verdict-is"  # likewise
# The verdict is also given without these: noise scales of single runs of theirs had been published before their rungs began, of
# Breakout before its rung had ended.
SEEN = tuple(f"atari/{game}" for game in ("alien", "beam_rider", "breakout", "pong", "qbert", "seaquest", "space_invaders"))
PAGE, PICTURES = Path("docs/ladder.md"), Path("docs/pictures")
UNSWEPT = "noise-without-sweep*.json"  # beside the records of the rungs
PUBLISHED = Path("rlscale/analysis/published.json")
_HOLDS = {True: "yes", False: "no", None: "–"}
_MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read_ladder(folder: Path) -> Comparison | None:
    """Every rung with a run that ended; None while there is none."""
    sweeps = [read_sweep(path.parent) for path in sorted(folder.glob("*/sweep.json"))]
    ended = [sweep for sweep in sweeps if sweep.results]
    return compare(ended, []) if ended else None


def rewritten(text: str, comparison: Comparison) -> str:
    """The page with everything that is made from records written anew.

    Raises:
        KeyError: the page asks for something that is not made.
    """
    rungs = rungs_of(comparison)
    return _MADE.sub(lambda found: f"{found[1]}{_PARTS[found[2]](comparison, rungs)}\n{found[3]}", text)


def write_page(folder: Path) -> int:
    """Write the page, its pictures, and what `rlscale advise` says of published predictions; the exit code.

    Raises:
        FileNotFoundError: no page, or no record.
    """
    comparison = read_ladder(folder)
    if comparison is None:
        raise FileNotFoundError(f"{folder} holds no rung with a run that ended")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), comparison), encoding="utf-8")
    PUBLISHED.write_text(dump_json(what_is_published(comparison), indent=1) + "\n", encoding="utf-8")
    rungs = [rung for rung in rungs_of(comparison) if rung.left_out not in (GIVEN_UP, NOT_ENDED)]
    for figure, width in ((verdict_figure(rungs), 700), (tasks_figure(rungs), 500)):
        if figure is not None:
            write_figures([figure], PICTURES, width)
    return 0


def what_is_published(comparison: Comparison) -> dict[str, Any]:
    """How far the advised predictor was off on the scored tasks, and what their sweeps cost; see `reading.published`."""
    scored = [rung for rung in rungs_of(comparison) if rung.left_out is None and rung.role in ("task", "development")]
    ratios = {rung.folder: rung.row.ratio(*ADVISED).value for rung in scored if rung.row.inner_steps == 1}
    parts = {sweep.record.folder.name: sweep.record.plan.get("mini_batches", 1) for sweep in comparison.sweeps}
    outer = {rung.folder: rung.row.ratio(*ADVISED).value for rung in scored if rung.row.inner_steps > 1}
    spent = {sweep.record.folder.name: sum(run.observations for run in sweep.runs) for sweep in comparison.sweeps}
    fewest = {rung.folder: rung.row.e_min.value for rung in scored if rung.row.inner_steps == 1}
    costs = [spent[name] / least for name, least in fewest.items() if least is not None]
    return {
        "measured_over_predicted": {name: round(ratio, 3) for name, ratio in ratios.items() if ratio is not None},
        "unresolved": sum(ratio is None for ratio in ratios.values()),
        "with_epochs": {name: round(ratio / parts[name], 3) for name, ratio in outer.items() if ratio is not None},
        "unresolved_with_epochs": sum(ratio is None for ratio in outer.values()),
        "sweep_cost": [int(float(f"{cost:.2g}")) for cost in np.quantile(costs, [0, 0.25, 0.75, 1])] if costs else [],
    }


def _verdict(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The rule's conclusion, and whether it would be another by a reading about which the rule says nothing."""
    found = verdict(rungs, interventions_of(rungs))
    states = {state for state, _ in (*_other_readings(comparison, rungs), *_without_seen(rungs))}
    return say_verdict(found) + (f" This verdict is [not settled](#{SURE})." if states - {found.state} else "")


def _sure(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The readings by which the verdict would be another, and the verdict without what had been seen."""
    found = verdict(rungs, interventions_of(rungs))
    said = [words for state, words in _other_readings(comparison, rungs) if state != found.state]
    said += [words for _, words in _without_seen(rungs)]
    return " ".join(said) or "No other reading of the rule changes the verdict."


def _other_readings(comparison: Comparison, rungs: Sequence[Rung]) -> list[tuple[str, str]]:
    """The state of the verdict by each reading about which its rule says nothing, and how that is said."""
    missed = f"[noise runs that missed the goal](#{MISSED})"
    states = dict.fromkeys(kept.state for _, kept in with_missed_runs(comparison, rungs).values())
    readings = [(state, f"The verdict leaves out {missed}; with them it can be “{state}”.") for state in states]
    by_mini_batch = for_mini_batches(comparison, rungs)
    other = verdict(by_mini_batch, interventions_of(by_mini_batch)).state
    readings.append((other, f"It would be “{other}” if a noise scale were read as that of [a mini-batch](#{INNER})."))
    fewer = [(one.state, f"It would be “{one.state}” {name} ([why](#{FEWER})).") for name, one in with_fewer_rungs(rungs).items()]
    windows = {verdict(those, interventions_of(those)).state for those in by_windows(comparison, rungs).values()}
    windowed = [(one, f"It can be “{one}” by other [windows](#{WINDOWS}) of the noise scale.") for one in sorted(windows)]
    return [*readings, *fewer, *windowed]


def _without_seen(rungs: Sequence[Rung]) -> list[tuple[str, str]]:
    """The same of the verdict without the tasks that had been seen before; empty where none of them is scored."""
    scored = {rung.row.task for rung in rungs if rung.left_out is None and rung.role == "task"}
    seen = [task for task in SEEN if task in scored]
    if not seen:
        return []
    without = [rung for rung in rungs if rung.row.task not in seen]
    found = verdict(without, interventions_of(without))
    return [(found.state, f"Without {' and '.join(seen)}: {say_verdict(found)}")]


def _details(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The figures behind the conclusion, and what the tasks say that were looked at before and do not count for it."""
    said = [say_verdict_details(verdict(rungs, interventions_of(rungs)))]
    scored = [rung for rung in rungs if rung.left_out is None and rung.role == "task"]
    bent = sum(bool(rung.row.frontier and rung.row.frontier.warning) for rung in scored)
    if bent:
        said.append(f"{bent} of the {len(scored)} fits warn that B_crit depends on the range of batch sizes tried.")
    for rung in rungs:
        ratio = rung.row.ratio(*PRIMARY)
        if rung.role == "development" and rung.left_out is None and ratio.value is not None:
            said.append(
                f"Not counted, because it was looked at before: on {rung.row.task} to {say_aim(rung.row)}, with "
                f"{_steps(rung.row)}, B_crit is {ratio.say()} times the noise scale."
            )
    return " ".join(said)


def _steps(row: Row) -> str:
    return "one optimizer step a batch" if row.inner_steps == 1 else f"{row.inner_steps} optimizer steps an iteration"


def _ranking(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The tasks that count, the one that can be parallelized furthest first."""
    counted = sorted((rung for rung in rungs if _counts(rung)), key=lambda rung: -(rung.row.measured.value or 0.0))
    rows = [[f"`{rung.folder}`", rung.row.goal_label, *_figures(rung.row)] for rung in counted]
    return markdown_table(["task", "goal", "B_crit", "S_min", "predicted", "predicted / B_crit"], rows)


def _uncounted(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """Every other rung that was not given up, and why it does not count."""
    others = [rung for rung in rungs if rung.left_out != GIVEN_UP and not _counts(rung)]
    others.sort(key=lambda rung: (rung.left_out is not None, -(rung.row.measured.value or 0.0)))
    rows = [
        [
            f"`{rung.folder}`",
            rung.row.goal_label,
            *(["–"] * 4 if rung.left_out == NOT_ENDED else _figures(rung.row)),
            f"{rung.role}; {rung.left_out}" if rung.left_out else rung.role,
        ]
        for rung in others
    ]
    columns = ["rung", "goal", "B_crit", "S_min", "predicted", "predicted / B_crit", "why it does not count"]
    return markdown_table(columns, rows)


def _counts(rung: Rung) -> bool:
    return rung.role == "task" and rung.left_out is None


def _figures(row: Row) -> list[str]:
    times = ratio(row.predicted(*PRIMARY), row.measured)
    return [*say_measured(row), say_prediction(row, *PRIMARY), times.say("–")]


def _finished(comparison: Comparison) -> list[ComparedSweep]:
    """Rungs that have ended; of the others no figure is shown, so that nobody decides by it when they end."""
    return [sweep for sweep in comparison.sweeps if sweep.record.ladder.get("state") == "finished"]


def _growth(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """Every goal of the rungs that have several."""
    rows = []
    for sweep in _finished(comparison):
        reached = [row for row in sweep.rows if row.measured.value is not None]
        if len(reached) > 1:
            rows += [
                [
                    f"`{sweep.record.folder.name}`",
                    row.goal_label,
                    row.measured.say(),
                    say_prediction(row, *PRIMARY),
                    why_left_out(row) or "",
                ]
                for row in reached
            ]
    return markdown_table(["rung", "goal", "B_crit", "predicted", "what forbids to score it"], rows)


def _predictors(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The primary predictor and all secondary ones, over the tasks that count."""
    tasks = [rung for rung in rungs if rung.role == "task"]
    scores = [(found, which) for which in (PRIMARY, *SECONDARY) if (found := score(tasks, *which)) is not None]
    rows = [_score_cells(which, found, _remark(tasks, which)) for found, which in scores]
    if scores:
        rows.append(["none: the mean of the others", "", "", "", scores[0][0].constant.say("–"), "", "", ""])
    columns = [
        "noise scale",
        "unresolved",
        "offset",
        "RMS about it",
        "a task left out",
        "R² about y = x",
        "R² with the offset",
        "",
    ]
    return markdown_table(columns, rows) if rows else "No task is scored yet."


def _score_cells(which: tuple[str, str], found: PredictorScore, remark: str) -> list[str]:
    figures: list[Estimate] = [found.offset, found.rms, found.left_out, found.r_squared, found.r_squared_offset]
    name = f"{head_name(which[0])}, {QUANTITY_LABELS[which[1]]}"
    return [name, f"{found.unresolved} of {found.tasks}", *(figure.say("–") for figure in figures), remark]


def _remark(tasks: Sequence[Rung], which: tuple[str, str]) -> str:
    if which == PRIMARY:
        return "preregistered"
    return "better than the preregistered" if is_better(tasks, which) else ""


def _interventions(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """By what each moved B_crit and two noise scales: the preregistered one, which is judged, and the joint loss's."""
    rows = [
        [f"`{one.name}`", one.measured.say("–"), one.predicted.say("–"), _HOLDS[one.holds], joint.predicted.say("–")]
        for one, joint in zip(interventions_of(rungs), interventions_of(rungs, JOINT), strict=True)
    ]
    if not rows:
        return "None has been run yet."
    columns = ["rung", "B_crit moved by", "predicted", "within 1.5 times", "joint loss, plain metric"]
    roles = [("task",), ("task", "intervention")]
    spans = [_decades([r for r in rungs if r.left_out is None and r.role in role]) for role in roles]
    span = f"B_crit of the scored tasks spans {spans[0]} decades, with the interventions {spans[1]}."
    return f"{markdown_table(columns, rows)}\n\n{span}"


def _decades(rungs: Sequence[Rung]) -> str:
    """How far apart the largest and the smallest B_crit are."""
    found = [math.log10(rung.row.measured.value or math.nan) for rung in rungs]
    return f"{max(found) - min(found):.2f}" if found else "–"


def _cost(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """Runs, observations and hours of every rung, and the machines; the commits of its runs are in its record."""
    rows = []
    for sweep in comparison.sweeps:
        results = list(sweep.record.results.values())
        seconds = sum(result.seconds for result in results)
        observations = sum(result.observations + result.evaluation_steps for result in results)
        rows.append(
            [
                f"`{sweep.record.folder.name}`",
                str(len(results)),
                format_quantity(float(observations)),
                f"{seconds / 7200:.1f}",
                f"{sum(result.evaluation_seconds for result in results) / seconds:.0%}",
                str(len({result.commit for result in results})),
                str(sweep.record.ladder.get("state", "")),
            ]
        )
    columns = [
        "rung",
        "runs",
        "observations and evaluation steps",
        "hours, two runs side by side",
        "of them evaluation",
        "commits",
        "state",
    ]
    machines = " or ".join(dict.fromkeys(_machine(sweep.record) for sweep in comparison.sweeps))
    return f"{markdown_table(columns, rows)}\n\nThe machine: {machines}. The commits are in the records."


def _machine(record: SweepRecord) -> str:
    machine = record.manifest.get("machine", {})
    return f"{machine.get('processor')}, {machine.get('cores')} cores"


def _warnings(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """Where the hyperbola does not fit."""
    rows = [
        [f"`{sweep.record.folder.name}`", row.goal_label, row.frontier.exponent.say("–")]
        for sweep in _finished(comparison)
        for row in sweep.rows
        if row.frontier is not None and row.frontier.warning
    ]
    return markdown_table(["rung", "goal", "free exponent"], rows) if rows else "Nowhere."


def _again(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """Rungs that were run once more."""
    records = comparison.sweeps[0].record.folder.parent
    rows = [
        [f"`{one.name}`", f"{one.goal:g}", one.first.say(), one.second.say(), one.ratio.say("–"), _HOLDS[one.agrees]]
        for one in repetitions(records, records.parent / AGAIN.name)
    ]
    return (
        markdown_table(["rung", "goal", "B_crit", "again", "again / first", "alike"], rows)
        if rows
        else "None has been repeated yet."
    )


def _unswept(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """Tasks of which one run was made, and no sweep."""
    records = sorted(comparison.sweeps[0].record.folder.parent.parent.glob(UNSWEPT))
    tasks = [task for record in records for task in json.loads(record.read_text(encoding="utf-8"))["readings"]["tasks"]]
    return markdown_table(*table(tasks)) if tasks else "None has been measured yet."


_PARTS: dict[str, Callable[[Comparison, Sequence[Rung]], str]] = {
    "verdict": _verdict,
    "sure": _sure,
    "details": _details,
    "inner": iterations_or_mini_batches,
    "windows": windows_of_few_iterations,
    "missed": missed_runs,
    "earlier": earlier_goals,
    "doubtful": doubtful_crossings,
    "fewer": fewer_rungs,
    "ranking": _ranking,
    "uncounted": _uncounted,
    "growth": _growth,
    "predictors": _predictors,
    "agreement": agreement,
    "hypothesis": second_hypothesis,
    "third": third_hypothesis,
    "paper": beside_the_paper,
    "unswept": _unswept,
    "interventions": _interventions,
    "warnings": _warnings,
    "again": _again,
    "cost": _cost,
}
