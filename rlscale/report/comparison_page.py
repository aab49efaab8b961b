"""The comparison page: tasks side by side in one self-contained HTML file, and its charts as pictures.

Figures come from `rlscale.analysis.comparison`, their wording from `rlscale.report.words`, the charts from
`rlscale.report.sweep_charts` and `rlscale.report.ladder_charts`; `rlscale.report.page` puts them on a page.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.comparison import ComparedSweep, Comparison
from ..analysis.predictions import HEADS
from ..analysis.rows import Row
from ..analysis.rungs import rungs_of
from ..analysis.summary import distinct_names
from ..frontier import Surface
from ..records import RunRecord, SweepRecord, TrialResult
from ..text import format_duration, format_quantity, stretches
from .answers import CONFIDENCE, answers
from .chart_style import Figure, unchecked
from .ladder_charts import ladder_figure, rank_figure, verdict_figure
from .page import add_chart, command, fold, provenance, section, table, write_page
from .pictures import write_figures
from .ranking import say_answers, say_ranking
from .sweep_charts import frontier_figure, rate_figure, return_figure
from .words import (
    AGREEMENT_COLUMNS,
    AGREEMENT_NOTE,
    QUANTITY_LABELS,
    flags,
    head_name,
    range_of,
    remarks,
    say_all_agreements,
    say_conclusion,
    say_measured,
    say_next,
    say_prediction,
    say_predictor,
    score_name,
    warnings,
)

__all__ = ["write_comparison"]


@unchecked
def write_comparison(
    comparison: Comparison,
    page: Path,
    *,
    figures: Path | None = None,
) -> None:
    """Write the page, and every chart as a picture if asked for.

    Args:
        comparison: what to show.
        page: the file.
        figures: folder for the pictures, PNG and SVG.

    Raises:
        UsageError: the page or a picture cannot be written.
    """
    rows, charts = comparison.rows, _Charts()
    measured = [row for row in rows if row.goal is not None and not row.quick]
    tasks = len({row.task for row in rows})
    title = rows[0].task if tasks == 1 else f"{tasks} tasks"
    found = answers(comparison)
    body = [f"<h1>How far can {html.escape(title)} be parallelized?</h1>"]
    said, ranking, order = say_answers(found), rank_figure(found), say_ranking(found)
    if ranking and len(comparison.sweeps) > 1:
        if order:
            body.append(_answers([said.pop(0)]))
        body += [charts.add([ranking]), _answers(said)]
    else:
        body.append(_answers(said))
        body.append(f"<p class='note'>{CONFIDENCE}</p>" if any(answer.confidence for answer in found) else "")
        if comparison.sweeps and found[0].confidence:  # else the answer itself ends with the command
            body.append(_next(comparison.sweeps[0]))
        if measured and len(comparison.sweeps) == 1:
            against = f"{measured[0].steps_name.capitalize()} against observations"
            body.append(section(against, charts.add([frontier_figure(comparison.sweeps[0])])))
    body.append(section("Measured and predicted", _main_table(rows), _MAIN_NOTE))
    if doubts := warnings(rows):
        body.append(section("To be taken with care", _list(doubts)))
    if measured:
        rungs = rungs_of(comparison)
        statement = f"<p class='statement'>{html.escape(say_conclusion(rungs))}</p>" if rungs else ""
        ladders = [figure for figure in (verdict_figure(rungs), ladder_figure(rows)) if figure]
        if tasks == 1:  # the other losses of one task are in its table
            ladders = ladders[:1]
        if statement or ladders:
            question = "Does the noise scale predict the critical batch size?"
            body.append(section(question, statement + charts.add(ladders[:1])))
        body += [section(figure.title, charts.add([figure])) for figure in ladders[1:]]
        if tasks > 1 and (agreements := say_all_agreements(rows)):
            left_out = _LEFT_OUT_NOTE if any(row[-1] != "–" for row in agreements) else ""  # else there is no such column
            note = f"<p class='note'>{left_out}{AGREEMENT_NOTE}</p>"
            body.append(fold("Every loss and every average", _table(AGREEMENT_COLUMNS, agreements) + note))
    several = len(comparison.sweeps) > 1
    if several:
        body.append("<h2>Each sweep</h2>")
    for sweep in comparison.sweeps:
        content = _sweep_sections(sweep, charts, frontier=several)
        body.append(fold(_title_of(sweep), content) if several else f"<h2>{html.escape(sweep.name)}</h2>\n{content}")
    if comparison.runs:
        body.append("<h2>Single runs</h2>")
        single = [row for row in rows if row.goal is None]
        body.append(section("Noise scale of every loss", _prediction_table(single), _RUN_NOTE))
    body.append("<h2>How this was made</h2>")
    if comparison.sweeps:
        body.append(section("What evaluation cost", _cost_table(comparison.sweeps), _COST_NOTE))
    body.append(section("Remarks", _list(remarks(rows))))
    body.append(section("Left out", _list(comparison.notes)))
    made = {sweep.name: _sweep_details(sweep) for sweep in comparison.sweeps}
    for run, label in zip(comparison.runs, distinct_names(comparison.runs), strict=True):
        seeds = [] if run.manifest["seed"] is None else [int(run.manifest["seed"])]  # a job of RLlib need not have one
        made[f"{label} (single run)"] = _details(run, seeds, run.manifest["config"])
    body += [fold(name, content) if len(made) > 1 else section(name, content) for name, content in made.items()]
    write_page(page, f"{title}: critical batch size", body, charts.specifications)
    if figures is not None:
        write_figures(charts.figures, figures)


_MAIN_NOTE = (
    "B_crit: the critical batch size in observations, where training takes twice the fewest steps S_min and twice the fewest "
    "observations E_min. Steps are optimizer steps, or iterations where each makes several of them. Noise scale: of the joint "
    "loss on the policy's parameters in Adam's metric, averaged from the start to the goal, as B_crit is; where "
    "a record has none, of the policy's loss in the plain metric, or of the only loss that a supervised task has, and marked so; "
    "of a single run or a quick sweep, the joint loss's ratio of sums. Brackets: 95% intervals. "
    "Observations are agent steps, or examples."
)
_LEFT_OUT_NOTE = (
    "<em>A task left out</em>: root mean square error when the offset comes from the other tasks. <em>A constant</em>: the "
    "geometric mean of what was measured on the other tasks, with no noise scale at all. "
)
_PREDICTION_NOTE = (
    "In observations, from runs at one batch size on fresh seeds. "
    "<em>At the start</em> and <em>at the goal</em> are averages over twenty updates, of one or two noise "
    "runs ratios of sums over them. In brackets the 95% interval, and from how many of the runs it comes "
    "where not from all: the others missed the goal or, where fewer than three did not, are not resolved. γ: gain of a batch "
    "size that follows the noise scale; steps and observations beyond the fewest would both be multiplied by √γ, so 1 means "
    "nothing to gain. Ratio of sums: of noise and signal from the start to the goal, what a quick sweep predicts with."
)
_RUN_NOTE = (
    "In observations, with 95% intervals: over the first and the last window of the run, which are momentary, the mean over its "
    "full-batch steps (paper, D.1), and the sum of the noise by the sum of the signal, of which the joint loss's is what the run "
    "suggests, unless that is mostly the value function's; of a supervised run's only loss it is the mean. A single run gives a "
    "prediction and no measurement."
)
_FIT_NOTE = (
    "Residual: standard deviation of ln S about the surface, stuck runs left out. Stuck: the fraction of runs, at sizes between "
    "the ends and rates below the brink, that need far more steps than the others. Exponent: of S = S_min (1 + (B_crit/B)^α) "
    "fitted freely; the theory says 1. Without one size: range of B_crit when any one batch size is left out. 20% overhead: the "
    "batch size that costs a fifth more observations than the fewest."
)
_COST_NOTE = (
    "Training observations are those of all runs. Evaluation steps, taken by frozen policies to find when a goal was "
    "reached, are not counted in E. Unfinished: evaluation episodes cut off, counted with their return so far."
)


class _Charts:
    """Charts of the page in order, with their captions below them."""

    def __init__(self) -> None:
        self.specifications: dict[str, Any] = {}
        self.figures: list[Figure] = []

    def add(self, figures: Sequence[Figure]) -> str:
        """The markup of charts one below the other, each with its caption."""
        self.figures += figures
        said = [f"<p class='note'>{html.escape(figure.note)}</p>" for figure in figures]
        return "".join(add_chart(self.specifications, figure.chart) + note for figure, note in zip(figures, said, strict=True))


def _answers(sentences: Sequence[str]) -> str:
    return "\n".join(f"<p class='answer'>{html.escape(sentence)}</p>" for sentence in sentences)


def _sweep_sections(sweep: ComparedSweep, charts: _Charts, *, frontier: bool) -> str:
    """What there is to see of one sweep; its frontier may have been shown already."""

    def part(title: str, figure: Figure | None, content: str = "", note: str = "") -> str:
        return section(title, (charts.add([figure]) if figure else "") + content, note)

    noise = part("Noise scale of every loss", None, _prediction_table(sweep.rows), _PREDICTION_NOTE)
    if all(row.quick for row in sweep.rows):
        return "\n".join([part("Next", None, _next(sweep)) if frontier else "", noise])
    return "\n".join(
        [
            part(
                "Frontier",
                frontier_figure(sweep) if frontier else None,
                _fit_table(sweep.rows) + (_next(sweep) if frontier else ""),
                _FIT_NOTE,
            ),
            part(f"Critical batch size and noise scale against {score_name(sweep.rows[-1])}", return_figure(sweep)),
            noise,
            part("Learning rates", rate_figure(sweep), _rate_table(sweep)),
        ]
    )


def _title_of(sweep: ComparedSweep) -> str:
    """Its name with the critical batch size at its last goal that was reached."""
    measured = [row for row in sweep.rows if row.measured.value is not None and not row.quick]
    return f"{sweep.name}, goal {measured[-1].goal_label}: B_crit {measured[-1].measured.say()}" if measured else sweep.name


def _rate_table(sweep: ComparedSweep) -> str:
    """The best learning rate of every batch size, to the last goal that was reached."""
    row = sweep.last_fitted
    if row is None or row.frontier is None:
        return ""
    valid = {point.run.batch_size: point.batch_size for point in row.points}
    rates = [f"{row.frontier.best_rate(valid[size]):.2g}" for size in row.batch_sizes]
    caption = f"Best rate to goal {row.goal_label}, by batch size B, in this sweep's protocol:"
    return f"<p class='note'>{caption}</p>" + _table(
        ["", *(f"B = {size:,}" for size in row.batch_sizes)], [["best rate", *rates]]
    )


def _next(sweep: ComparedSweep) -> str:
    said = say_next(sweep)
    return command(said) if said else ""


def _main_table(rows: Sequence[Row]) -> str:
    columns = ["task", "goal", "B_crit, measured", "noise scale, predicted", "measured / predicted"]
    columns += ["S_min, steps", "E_min, observations", "learning rates"]
    return _table(
        columns,
        [
            [
                row.name,
                row.goal_label,
                _measured(row),
                say_predictor(row),
                row.ratio(*row.predictor).say("–"),
                "–" if row.goal is None or row.quick else say_measured(row)[1],
                "–" if row.goal is None or row.quick else row.e_min.say("unknown"),
                range_of(row.learning_rates),
            ]
            for row in rows
        ],
    )


def _measured(row: Row) -> str:
    """B_crit with what must not be overlooked about it; a dash where nothing was to be measured."""
    if row.goal is None or row.quick:
        return "–"
    return say_measured(row, "⚠ not identifiable")[0] + (f" ⚠ {flags(row)}" if flags(row) else "")


def _prediction_table(rows: Sequence[Row]) -> str:
    """Of the goals of one sweep, or of single runs."""
    single = any(row.goal is None for row in rows)
    columns = [
        "run" if single else "goal",
        "average",
        *map(head_name, HEADS),
        "γ, policy",
        "observations a step" if single else "at batch size",
    ]
    cells = []
    for row in rows:
        known = {found.quantity for found in row.predictions}
        for quantity in (name for name in _OF_RUN if name in known):
            policy = row.prediction("policy", quantity)
            gain = "–" if policy is None or policy.gain is None else f"{policy.gain:.2f}"
            batch = "–" if row.prediction_batch is None else f"{row.prediction_batch:,.0f}"
            said = [say_prediction(row, head, quantity) for head in HEADS]
            labels = [row.name, _OF_RUN[quantity]] if single else [row.goal_label, QUANTITY_LABELS[quantity]]
            cells.append([*labels, *said, gain, batch])
    return _table(columns, cells) if cells else "<p>No run measured it.</p>"


_OF_RUN = {
    "start": "first window",
    "goal": "last window",
    "cumulative": "cumulative over the run",
    "cumulative_adam": "the same in Adam's metric",
    "sums": "ratio of sums over the run",
}


def _fit_table(rows: Sequence[Row]) -> str:
    columns = ["goal", "B_crit", "residual", "stuck", "points", "missed", "exponent α", "B_crit without one size", "20% overhead"]
    cells = []
    for row in rows:
        frontier = row.frontier
        if frontier is None:
            continue
        cells.append(
            [
                row.goal_label,
                row.measured.say("not identifiable"),
                f"{frontier.residual:.2f}" if math.isfinite(frontier.residual) else "–",
                f"{frontier.stuck:.0%}" if math.isfinite(frontier.stuck) else "–",
                str(len(frontier.points)),
                str(sum(point.censored for point in frontier.points)),
                frontier.exponent.say(),
                _without_one_size(row, frontier),
                frontier.overhead_batch(0.2).say(),
            ]
        )
    return _table(columns, cells) if cells else "<p>No goal was reached.</p>"


def _without_one_size(row: Row, frontier: Surface) -> str:
    """The range of B_crit when each size is left out in turn, and the sizes without which it is not identifiable."""
    found = frontier.leave_one_size_out
    identified = [value for value in found.values() if value is not None]
    if not identified:
        return "–"
    between = f"{format_quantity(min(identified))} … {format_quantity(max(identified))}"
    nominal = {point.batch_size: point.run.batch_size for point in row.points}
    needed = ", ".join(f"{nominal[size]:,}" for size, value in found.items() if value is None)
    return f"{between}; not identifiable without {needed}" if needed else between


def _cost_table(sweeps: Sequence[ComparedSweep]) -> str:
    columns = ["sweep", "runs", "how they ended", "training observations", "evaluation steps", "of all steps", "evaluation time"]
    columns += ["of run time", "unfinished"]
    cells = []
    for sweep in sweeps:
        runs = sweep.runs
        training, evaluation = sum(run.observations for run in runs), sum(run.evaluation_steps for run in runs)
        seconds, evaluating = sum(run.seconds for run in runs), sum(run.evaluation_seconds for run in runs)
        ended = Counter(run.state for run in runs)
        cells.append(
            [
                sweep.name,
                len(runs),
                ", ".join(f"{count} {state}" for state, count in ended.most_common()),
                f"{training:,}",
                f"{evaluation:,}",
                f"{evaluation / (training + evaluation):.1%}" if training + evaluation else "–",
                format_duration(evaluating),
                f"{evaluating / seconds:.0%}" if seconds else "–",
                sum(run.evaluation_unfinished for run in runs),
            ]
        )
    return _table(columns, cells)


def _sweep_details(sweep: ComparedSweep) -> str:
    plan = dict(sweep.record.plan)
    config = plan.pop("config")
    return _details(sweep.record, [run.seed for run in sweep.runs], {"plan": plan, **config}, **_say_commits(sweep.runs))


def _say_commits(runs: Sequence[TrialResult]) -> dict[str, str]:
    """By which code the runs were made, where that is not all of one commit."""
    made = Counter(run.commit or "not run from a checkout" for run in runs)
    return {"commit": ", ".join(f"{commit} ({count} runs)" for commit, count in made.items())} if len(made) > 1 else {}


def _details(record: SweepRecord | RunRecord, seeds: Iterable[int], settings: Mapping[str, Any], **more: str) -> str:
    known = {"folder": record.folder, "seeds": _ranges(sorted(set(seeds))), **more}
    return provenance(record.manifest, known, settings)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, consecutive ones as a range."""
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in stretches(numbers))


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in which an interval is never broken across lines, without the columns that hold nothing but dashes."""

    def keep(cell: Any) -> str:
        return re.sub(
            r"\[[^\]]*\]|(?:above|below|…|⚠) \S+", lambda found: found.group().replace(" ", "\N{NO-BREAK SPACE}"), str(cell)
        )

    shown = [k for k in range(len(columns)) if not rows or any(row[k] != "–" for row in rows)]
    return table([columns[k] for k in shown], [[keep(row[k]) for k in shown] for row in rows])


def _list(sentences: Sequence[str]) -> str:
    if not sentences:
        return "<p>Nothing.</p>"
    return "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences) + "</ul>"
