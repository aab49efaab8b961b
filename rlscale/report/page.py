"""What every page shares: one self-contained HTML file with tables and charts that needs no network to be read.

What a page shows is decided by `run_page` and `comparison_page`; the markup and the style are in page.html.
"""

import html
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..records.files import dump_json, is_full, refuse_record, write_atomically

__all__ = ["add_chart", "command", "facts", "fold", "provenance", "section", "table", "write_page"]


def write_page(page: Path, title: str, body: Sequence[str], charts: dict[str, Any]) -> None:
    """Write the page.

    Args:
        page: the file.
        title: plain text.
        body: pieces of markup, one below the other.
        charts: Vega-Lite specifications by the id of their element, as `add_chart` collects them.

    Raises:
        UsageError: the page cannot be written, or would take the place of a record.
        OSError: the disk is full; a page that was there before is kept.
    """
    refuse_record(page, "--out")
    parts = {
        "@TITLE@": html.escape(title),
        "@BODY@": "\n".join(body),
        "@SCRIPT@": _embed_script(),
        "@CHARTS@": dump_json(charts).replace("<", "\\u003c"),  # no text of theirs can be taken for markup
    }
    template = files("rlscale.report").joinpath("page.html").read_text(encoding="utf-8")
    # In one pass: what a record says may hold one of the marks.
    text = re.sub("|".join(parts), lambda mark: parts[mark.group()], template)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, text.encode(errors="replace"))  # a folder's name need not be UTF-8
    except OSError as error:
        if is_full(error):
            raise
        raise UsageError("--out", f"cannot write {page}: {error.strerror}", "Choose a place that you may write to") from None


def section(title: str, content: str, note: str = "") -> str:
    """A part of the page: a plain title, markup, and a note (markup) below it in small print."""
    below = f"<p class='note'>{note}</p>" if note else ""
    return f"<section><h3>{html.escape(title)}</h3>{content}{below}</section>"


def fold(title: str, content: str) -> str:
    """A part of the page of which only the title, plain, is seen until the reader opens it; print shows all of it."""
    return f"<details class='fold' open><summary>{html.escape(title)}</summary>{content}</details>"


def add_chart(charts: dict[str, Any], chart: Any) -> str:
    """Collect an Altair chart for the page; the markup of its place."""
    name = f"chart{len(charts)}"
    charts[name] = chart.to_dict(validate=False)  # see `chart_style.unchecked`
    return f"<div class='chart' id='{name}'></div>"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of plain values; without a head if no column is named.

    On a phone every row becomes a block of its own, in which each value has its column's name above it. On a wider screen that is
    still too narrow the table scrolls sideways, with a shadow at the side where more is.
    """
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    marks = [f" data-label='{html.escape(c, quote=True)}'" if c else "" for c in columns]
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{html.escape(str(cell))}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f"<div class='scroll'><table>{head}<tbody>{body}</tbody></table></div>"


def command(text: str) -> str:
    """Words to be typed. A line ends between two of them, not at a hyphen within one, as far as a phone is wide enough."""
    words = (html.escape(word) for word in text.split(" "))
    return f"<pre class='command'>{' '.join(f'<span>{word}</span>' for word in words)}</pre>"


def facts(columns: Sequence[str], values: Sequence[Any]) -> str:
    """A few figures side by side, each with its name above it."""
    pairs = zip(columns, values, strict=True)
    cells = "".join(f"<div><dt>{html.escape(c)}</dt><dd>{html.escape(str(v))}</dd></div>" for c, v in pairs)
    return f"<dl class='facts'>{cells}</dl>"


def provenance(manifest: Mapping[str, Any], known: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Where a record came from, what else is known of it, and, behind a click, every setting; markup."""
    task, machine = manifest.get("task", {}), manifest.get("machine", {})
    sessions = [*manifest.get("segments", ()), *manifest.get("extensions", ())]
    commands = [shlex.join(one["command"]) for one in (manifest, *sessions) if one.get("command")]
    if manifest.get("segments"):
        commands = commands[1:] or commands  # of a run's first session on; the manifest itself holds the last one's
    made = {
        "command": "; then: ".join(dict.fromkeys(commands)),
        "commit": _say_commits([one.get("commit") for one in manifest.get("segments", ())] or [manifest.get("commit")]),
        "machine": ", ".join(f"{k.replace('_', ' ')}: {v}" for k, v in machine.items() if v is not None),
        "versions": ", ".join(f"{k} {v}" for k, v in manifest.get("versions", {}).items() if v),
        "preprocessing": task.get("preprocessing", "–"),
        "simulator frames for each observation": task.get("frame_skip", "–"),
        "started": manifest.get("created", "–"),
        **known,
    }
    flat = {
        f"{group}.{key}" if isinstance(value, dict) else group: item
        for group, value in settings.items()
        for key, item in (value.items() if isinstance(value, dict) else [(group, value)])
    }
    every = f"<details><summary>all {len(flat)} settings</summary>{table(['setting', 'value'], flat.items())}</details>"
    return table(["", ""], made.items()) + every


def _say_commits(commits: Sequence[str | None]) -> str:
    return "; then: ".join(commit or "not run from a checkout" for commit in dict.fromkeys(commits))


@cache
def _embed_script() -> str:
    """Vega, Vega-Lite and Vega-Embed, from the package that carries them: the page works offline.

    To bundle them takes seconds, so they are kept in the user's folder of caches, by the package's version.
    """
    import vl_convert

    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return _bundle()
    kept = caches / "rlscale" / f"vega-{vl_convert.__version__}.js"  # type: ignore[attr-defined]  # its stub lacks it
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    script = _bundle()
    with suppress(OSError):  # then the next page takes as long
        kept.parent.mkdir(parents=True, exist_ok=True)
        mine = kept.with_name(f"{kept.stem}-{os.getpid()}.js")  # two processes may write their first pages side by side
        write_atomically(mine, script.encode())
        os.replace(mine, kept)
    return script


def _bundle() -> str:
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script")
