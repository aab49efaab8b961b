"""The report page: one self-contained HTML file that shows runs, from their records alone. Needs no network to be read.

Figures are derived in `rlscale.summary`; here they become charts (Vega-Lite through Altair) and tables.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from rlscale.charts import head_label, noise_chart, policy_chart, return_chart, speed_chart, time_chart
from rlscale.errors import UsageError
from rlscale.estimate import format_quantity
from rlscale.runs import RunRecord
from rlscale.summary import (
    head_kinds,
    mean_batch,
    noise_over_run,
    noise_windows,
    recent_return,
)

__all__ = ["write_report"]


def write_report(runs: Sequence[RunRecord], page: Path) -> None:
    """Write the page of one or more runs.

    Raises:
        UsageError: a run has no iteration to show, or the page cannot be written.
    """
    for run in runs:
        if not run.rows:
            raise UsageError("RUN", f"{run.folder} has no finished iteration to show", "Let it run longer")
    names = _distinct_names(runs)
    charts: dict[str, Any] = {}
    body = [_header(runs, names)]
    if len(runs) > 1:
        body.append(_section("Return", _chart(charts, return_chart(runs, names)), _RETURN_NOTE))
        body.append(_section("Policy noise scale", _chart(charts, policy_chart(runs, names)), _NOISE_NOTE))
    for run, name in zip(runs, names, strict=True):
        body.append(_run_sections(run, name, charts, alone=len(runs) == 1))
    template = files("rlscale").joinpath("report.html").read_text(encoding="utf-8")
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
    parts = {
        "@TITLE@": html.escape(title),
        "@BODY@": "\n".join(body),
        "@SCRIPT@": _embed_script(),
        "@CHARTS@": _script_json(charts),
    }
    for mark, part in parts.items():
        template = template.replace(mark, part)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(template, encoding="utf-8")
    except OSError as error:
        raise UsageError("--out", f"cannot write {page}: {error.strerror}", "Choose a place that you may write to") from None


_RETURN_NOTE = "Raw score, mean of the last 100 finished episodes (fewer at the start)."
_NOISE_NOTE = (
    "tr Σ / |G|² in observations, pooled over windows of updates; band: 95% interval. A triangle on a vertical line means "
    "<em>not resolved</em>: the signal does not stand out from the noise, and only a lower bound is known. Blocks are sets of "
    "environments unless marked <em>mini-batch</em> (shuffled transitions, which cannot see that the steps of one environment "
    "are alike)."
)
_SPEED_NOTE = (
    "Observations per second, mean of up to 150 stretches of the run. End to end counts sampling, transfer and learning."
)
_TIME_NOTE = (
    "Seconds of the whole run. Transfer: waiting for fragments beyond the slowest worker's own work, and preparing the batch."
)


def _run_sections(run: RunRecord, name: str, charts: dict[str, Any], *, alone: bool) -> str:
    sections = [] if alone else [f"<h2>{html.escape(name)}</h2>"]
    if alone:
        sections.append(_section("Return", _chart(charts, return_chart([run], [name])), _RETURN_NOTE))
    heads = head_kinds(run)
    if heads:
        sections.append(_section("Noise scale", _chart(charts, noise_chart(run)) + _noise_table(run), _NOISE_NOTE))
    sections.append(_section("Throughput", _chart(charts, speed_chart(run)), _SPEED_NOTE))
    sections.append(_section("Where time goes", _chart(charts, time_chart(run)), _TIME_NOTE))
    sections.append(_details(run))
    return "\n".join(sections)


def _distinct_names(runs: Sequence[RunRecord]) -> list[str]:
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs, strict=True)]


def _header(runs: Sequence[RunRecord], names: list[str]) -> str:
    columns = ["run", "task", "state", "observations", "optimizer steps", "time", "return", "policy noise scale, whole run"]
    rows = []
    for run, name in zip(runs, names, strict=True):
        last = run.rows[-1]
        noise = noise_over_run(run, "policy", "rollout")
        recent = recent_return(run)
        reason = run.manifest.get("reason")
        rows.append(
            [
                name,
                run.manifest["task"]["id"],
                run.state + (f": {reason}" if run.state == "failed" else ""),
                f"{last['observations']:,}",
                f"{last['optimizer_steps']:,}",
                _duration(last["seconds"]),
                recent.reason if recent.value is None else f"{recent.value:.1f}",
                str(noise.noise_scale) if noise else "not measured",
            ]
        )
    if len(rows) == 1:
        cells = "".join(
            f"<div><dt>{html.escape(c)}</dt><dd>{html.escape(str(v))}</dd></div>"
            for c, v in zip(columns[1:], rows[0][1:], strict=True)
        )
        return f"<h1>{html.escape(names[0])}</h1><dl class='facts'>{cells}</dl>"
    return f"<h1>{len(runs)} runs</h1>" + _table(columns, rows)


def _section(title: str, content: str, note: str) -> str:
    return f"<section><h3>{html.escape(title)}</h3>{content}<p class='note'>{note}</p></section>"


def _chart(charts: dict[str, Any], chart: Any) -> str:
    name = f"chart{len(charts)}"
    charts[name] = chart.to_dict()
    return f"<div class='chart' id='{name}'></div>"


def _noise_table(run: RunRecord) -> str:
    rows = []
    for head, kind in head_kinds(run):
        windows = noise_windows(run, head, kind)
        whole = noise_over_run(run, head, kind)
        if not windows or whole is None:
            continue
        share = whole.top_tenth_share
        rows.append(
            [
                head_label(head, kind),
                str(windows[0].noise.noise_scale),
                str(windows[-1].noise.noise_scale),
                str(whole.noise_scale),
                f"{whole.updates:,}",
                f"{whole.blocks}",
                "–" if np.isnan(share) else f"{share:.0%}",
            ]
        )
    note = (
        f"Whole run: mean over full-batch steps at {format_quantity(mean_batch(run))} observations per optimizer step. "
        "Noisiest tenth: share of the noise that the noisiest tenth of the blocks carries; far above 10% means heavy tails."
    )
    columns = ["head", "first window", "last window", "whole run", "measurements", "blocks", "noisiest tenth"]
    return _table(columns, rows) + f"<p class='note'>{note}</p>"


def _details(run: RunRecord) -> str:
    m = run.manifest
    facts = {
        "command": " ".join(m["command"]),
        "commit": m["commit"] or "not run from a checkout",
        "seed": m["seed"],
        "machine": ", ".join(f"{k.replace('_', ' ')}: {v}" for k, v in m["machine"].items() if v is not None),
        "device, precision, threads": f"{m['device']}, {m['precision']}, {m['threads']}",
        "versions": ", ".join(f"{k} {v}" for k, v in m["versions"].items() if v),
        "network parameters": f"{m['parameters']:,}",
        "preprocessing": m["task"]["preprocessing"],
        "frames": f"{m['task']['frame_skip']} simulator frames per observation",
        "started": m["created"],
        "resumed": "; ".join(f"at iteration {s['first_iteration']}, environments {s['environments']}" for s in m["segments"][1:])
        or "never",
    }
    settings = {
        f"{section}.{key}" if isinstance(value, dict) else section: item
        for section, value in m["config"].items()
        for key, item in (value.items() if isinstance(value, dict) else [(section, value)])
    }
    return (
        f"<section><h3>Configuration and machine</h3>{_table(['', ''], facts.items())}"
        f"<details><summary>all {len(settings)} settings</summary>"
        f"{_table(['setting', 'value'], settings.items())}</details></section>"
    )


def _table(columns: Sequence[str], rows: Any) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f"<div class='scroll'><table>{head}<tbody>{body}</tbody></table></div>"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _embed_script() -> str:
    """Vega, Vega-Lite and Vega-Embed, from the package that carries them: the page works offline."""
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script")


def _script_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("</", "<\\/")
