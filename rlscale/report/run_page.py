"""The report page: one self-contained HTML file that shows runs, from their records alone. Needs no network to be read.

Figures are derived in `summary`; here they become charts and tables, which `page` puts on the page.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis.predictions import ADVISED
from ..analysis.rows import Row, row_of_run
from ..analysis.summary import (
    NoiseWindow,
    diagnostics,
    distinct_names,
    evenly_measured,
    final_value,
    head_kinds,
    lost_actors,
    noise_of_sums,
    noise_over_run,
    noise_windows,
    recent_return,
    step_batches,
)
from ..errors import UsageError
from ..noise import NoiseEstimate
from ..records import RunRecord
from ..text import format_duration, format_quantity, format_return
from .answers import run_answer
from .chart_style import unchecked
from .page import add_chart, facts, provenance, section, table, write_page
from .run_charts import diagnostic_chart, head_label, noise_chart, policy_chart, return_chart, speed_chart, time_chart
from .words import say_predictor

__all__ = ["write_report"]


@unchecked
def write_report(runs: Sequence[RunRecord], page: Path) -> list[str]:
    """Write the page of one or more runs, and return the answers that it begins with, one for each.

    Raises:
        UsageError: a run has no iteration to show, or the page cannot be written.
    """
    for run in runs:
        if not run.rows:
            raise UsageError("RUN", f"{run.folder} has no finished iteration to show", "Let it run longer")
    names, predicted = distinct_names(runs), [row_of_run(run) for run in runs]
    said_of = names if len(runs) > 1 else [None]
    answers = [run_answer(*each) for each in zip(runs, predicted, said_of, strict=True)]
    charts: dict[str, Any] = {}
    title = f"{runs[0].manifest['task']['id']}: {names[0]}" if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p class='answer'>{html.escape(answer)}</p>" for answer in answers]
    body.append(_facts(runs, names, predicted))
    if len(runs) > 1:
        body.append(section("Return", add_chart(charts, return_chart(runs, names)), _RETURN_NOTE))
        body.append(section("Policy noise scale", add_chart(charts, policy_chart(runs, names)), _NOISE_NOTE))
    for run, name, row in zip(runs, names, predicted, strict=True):
        body.append(_run_sections(run, name, row, charts, alone=len(runs) == 1))
    write_page(page, title, body, charts)
    return answers


_RETURN_NOTE = (
    "Raw score, mean of the last 100 finished episodes (fewer at the start). Dashed: goals that it came to, if the task has any."
)
_NOISE_NOTE = (
    "tr Σ / |G|² in observations, pooled over windows of updates; band: 95% interval, as far as the chart reaches. A triangle "
    "on a vertical line means <em>not resolved</em>: the signal does not stand out from the noise, and only a lower bound is "
    "known, or none where it stands at the chart's edge; one that points down: no noise stands out, and only an upper bound is "
    "known. Where none was seen at all nothing is drawn. Blocks are sets of environments unless marked <em>mini-batch</em> "
    "(shuffled transitions, which cannot see that the steps of one environment are alike)."
)
_SPEED_NOTE = (
    "Observations per second, mean of up to 150 stretches of the run. End to end counts sampling, transfer and learning."
)
_TIME_NOTE = (
    "Seconds of the whole run. Transfer: waiting for fragments beyond the slowest worker's own work, and preparing the batch. "
    "Where sampling goes on during learning, its seconds are what the learner waited for it."
)


# Name, unit, and what one needs to know to read the value.
_FIGURES = {
    "policy_loss": (
        "policy loss",
        "",
        "what a step of the policy lowers; near 0 as long as advantages are scaled to a mean of 0",
    ),
    "value_loss": (
        "value loss",
        "",
        "half the mean squared error of the value function, in squares of the returns it learns from",
    ),
    "entropy": (
        "entropy",
        "nats",
        "of the distribution of actions: 0 always takes the same one, ln of their number takes all alike",
    ),
    "approx_kl": ("KL divergence", "nats", "how far an iteration moves the policy from the one that sampled; 0 is not at all"),
    "clip_fraction": (
        "clip fraction",
        "",
        "share of samples whose probability ratio has left the clip's range, where they stop pulling",
    ),
    "explained_variance": ("explained variance", "", "of returns by the value function: 1 is perfect, 0 knows nothing"),
}
_FIGURES_NOTE = (
    "At the end: mean over the last tenth of the iterations. Charts: means over each iteration, and over stretches of iterations "
    "where there are more than 150."
)
_LOST_NOTE = "Rollout workers that were lost, and how long it took until the first of their fragments was there again."


def _run_sections(run: RunRecord, name: str, row: Row, charts: dict[str, Any], *, alone: bool) -> str:
    sections = [] if alone else [f"<h2>{html.escape(name)}</h2>"]
    if alone and row.has_policy:
        sections.append(section("Return", add_chart(charts, return_chart([run], [name])), _RETURN_NOTE))
    heads = head_kinds(run)
    if heads:
        sections.append(section("Noise scale", add_chart(charts, noise_chart(run)) + _noise_table(run, row), _NOISE_NOTE))
    figures = diagnostics(run)
    if figures:
        drawn = "".join(_diagnostic(run, field, points, charts) for field, points in figures.items())
        sections.append(section("Losses and diagnostics", drawn, _FIGURES_NOTE))
    lost = lost_actors(run)
    if lost:
        sections.append(section("Lost workers", _lost_table(lost), _LOST_NOTE))
    sections.append(section("Throughput", add_chart(charts, speed_chart(run)), _SPEED_NOTE))
    sections.append(section("Where time goes", add_chart(charts, time_chart(run)), _TIME_NOTE))
    sections.append(_details(run))
    return "\n".join(sections)


def _diagnostic(run: RunRecord, field: str, points: list[dict[str, float]], charts: dict[str, Any]) -> str:
    """A figure's value at the end, what it means, and its chart."""
    name, unit, meaning = _FIGURES[field]
    end = f"{final_value(run, field):.3g} {unit}".strip()
    head = f"<strong>{html.escape(name)}: {end} at the end</strong>"
    said = f"<p class='end'>{head} <span class='note'>{html.escape(meaning)}</span></p>"
    return said + add_chart(charts, diagnostic_chart(f"{name} ({unit})" if unit else name, points))


def _facts(runs: Sequence[RunRecord], names: list[str], predicted: list[Row]) -> str:
    columns = [
        "run",
        "task",
        "state",
        "observations",
        "optimizer steps",
        "time",
        "return",
        "lost workers",
        "predicted batch size",
    ]
    rows = []
    for run, name, row in zip(runs, names, predicted, strict=True):
        last = run.rows[-1]
        recent = recent_return(run)
        reason = run.manifest.get("reason")
        rows.append(
            [
                name,
                run.manifest["task"]["id"],
                run.state + (f": {reason}" if run.state == "failed" else ""),
                f"{last['observations']:,}",
                f"{last['optimizer_steps']:,}",
                format_duration(last["seconds"]),
                format_return(recent) if recent is not None else "no episode has finished" if row.has_policy else "–",
                _say_lost(lost_actors(run)),
                say_predictor(row),
            ]
        )
    return facts(columns[1:], rows[0][1:]) if len(rows) == 1 else table(columns, rows)


def _noise_table(run: RunRecord, row: Row) -> str:
    suggested = (None, None) if row.suggests_nothing else row.predictor
    rows = []
    for head, kind in head_kinds(run):
        windows = noise_windows(run, head, kind)
        whole = noise_over_run(run, head, kind)
        if not windows or whole is None:
            continue
        mark = ": the suggestion" if (head, "cumulative") == suggested and kind == "rollout" else ""
        rows.append([f"{head_label(head, kind)}{mark}", *_noise_cells(windows, whole)])
        if (head, kind) == (ADVISED[0], "rollout") and (sums := noise_of_sums(run, head, kind)) is not None:
            mark = ": the suggestion" if suggested == ADVISED else ""
            rows.append([f"the same as a ratio of sums{mark}", *_noise_cells(windows, sums)])
    averaged = [row for head, kind in head_kinds(run) for row, _ in evenly_measured(run, head, kind)]
    batches = step_batches(run, averaged or run.rows)
    at, most = format_quantity(min(batches)), format_quantity(max(batches))
    collected = f"{at} observations collected for each" if at == most else f"the observations collected for it, {at} to {most}"
    note = (
        "Whole run: the mean over the run (paper, D.1), in which a step counts by how far it comes at "
        f"{collected}. "
        "Ratio of sums: the sum of the noise by the sum of the signal, which gives the early updates more weight. "
        "Noisiest tenth: share of the noise that the noisiest tenth of the blocks carries; far above 10% means heavy tails."
    )
    columns = ["head", "first window", "last window", "whole run", "measurements", "blocks", "noisiest tenth"]
    return table(columns, rows) + f"<p class='note'>{note}</p>"


def _noise_cells(windows: Sequence[NoiseWindow], whole: NoiseEstimate) -> list[str]:
    share = whole.top_tenth_share
    return [
        str(windows[0].noise.noise_scale),
        str(windows[-1].noise.noise_scale),
        str(whole.noise_scale),
        f"{whole.updates:,}",
        f"{whole.blocks}",
        "–" if np.isnan(share) else f"{share:.0%}",
    ]


def _say_lost(lost: Sequence[dict[str, Any]] | None) -> str:
    return "not recorded" if lost is None else f"{len(lost)}" if lost else "none"


def _lost_table(lost: Sequence[dict[str, Any]]) -> str:
    columns = ["iteration", "observations", "worker", "what", "groups", "fragments made again", "replaced by", "recovered after"]
    rows = []
    for loss in lost:
        seconds = loss["recovery_seconds"]
        replaced = "the others" if loss["replaced_by"] is None else f"worker {loss['replaced_by']}"
        groups, fragments = ", ".join(map(str, loss["groups"])), loss["fragments"]
        after = "a later iteration" if seconds is None else f"{seconds:.1f} s"
        rows.append(
            [loss["iteration"], f"{loss['observations']:,}", loss["actor"], loss["what"], groups, fragments, replaced, after]
        )
    return table(columns, rows)


def _details(run: RunRecord) -> str:
    m = run.manifest
    resumed = [f"at iteration {s['first_iteration']}, environments {s['environments']}" for s in m["segments"][1:]]
    known = {
        "seed": m["seed"],
        "device, precision, threads": f"{m['device']}, {m['precision']}, {m['threads']}",
        "network parameters": f"{m['parameters']:,}",
        "lost workers": _say_lost(lost_actors(run)),
        "resumed": "; ".join(resumed) or "never",
    }
    return section("Configuration and machine", provenance(m, known, m["config"]))
