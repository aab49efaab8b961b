"""The command that would sharpen a sweep: what a person types next. The sweep itself decides in `rlscale.benchmarks.sweep`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..records import SweepRecord, folder_name
from .comparison import Row
from .predictions import ADVISED

__all__ = ["next_command"]

USUAL_FOLDER = "sweeps"  # where `rlscale sweep` puts its folders unless --out says otherwise


def next_command(record: SweepRecord, rows: Sequence[Row]) -> list[str] | None:
    """The words of a command that goes on with a sweep, in the place where it was begun.

    A quick sweep whose prediction is resolved goes on as one that measures, another one with twice the noise runs. A sequential
    sweep that is not as sharp as it was asked to be goes on with the same command, with twice the budget where that
    is spent; a sharp one gets half the width of its interval in ln B_crit. A grid gets a size beyond the end at which B_crit is
    open, or else twice the seeds.

    Args:
        record: of the sweep.
        rows: its rows of the comparison, by goal.

    Returns:
        None for sweeps of earlier versions, which cannot be extended, for copies in folders of other names, which the command
        would not open, where no run has reached a goal, and where half the width is below a percent.
    """
    plan, reached = record.plan, [row for row in rows if row.frontier is not None]
    if "interval_ratio" not in plan or not reached or record.folder.resolve().name != folder_name(record.task):
        return None
    words = list(record.manifest["command"])
    for extension in record.manifest.get("extensions", ()):
        words = list(extension["command"])
    words = _with(words, "--out", str(record.folder.parent))
    words = words[:-2] if words[-1] == USUAL_FOLDER else words
    if plan.get("quick"):
        if reached[-1].predicted(*ADVISED).value is None:
            return _with(words, "--noise-runs", str(2 * plan["noise_runs"]))
        return [word for word in words if word not in ("--quick", "--no-quick")]
    low, high = reached[-1].measured.interval or (0.0, math.inf)
    if plan["batch_sizes"] is not None:
        sizes = plan["batch_sizes"]
        more = [sizes[0] // 4] * (low == 0 and sizes[0] % (4 * _unit(plan)) == 0) + sizes + [4 * sizes[-1]] * (high == math.inf)
        if len(more) > len(sizes):
            return _with(words, "--batch-sizes", ",".join(map(str, more)))
        return _with(words, "--seeds", str(2 * plan["seeds"]))
    if low > 0 and high / low <= plan["interval_ratio"] and any(r.stage == "noise" for r in record.results.values()):
        sharper = f"{math.sqrt(plan['interval_ratio']):.3g}"
        return _with(words, "--interval-ratio", sharper) if 1 < float(sharper) < plan["interval_ratio"] else None
    results = record.results.values()
    if plan["total_observations"] and sum(r.observations + r.evaluation_steps for r in results) >= plan["total_observations"]:
        words = _with(words, "--total-observations", str(2 * plan["total_observations"]))
    if plan["hours"] and sum(r.seconds for r in results) / 3600 / plan["jobs"] >= plan["hours"]:
        words = _with(words, "--hours", f"{2 * plan['hours']:g}")
    return words


def _unit(plan: Mapping[str, Any]) -> int:
    """What the batch sizes of a sweep with environments are multiples of; 1 without."""
    rollout = plan["config"].get("rollout")
    return 1 if rollout is None else rollout["rollout_length"] * rollout.get("clones", 1) * plan.get("mini_batches", 1)


def _with(words: Sequence[str], flag: str, value: str) -> list[str]:
    """A command with another value of a flag, `--flag value` or `--flag=value`; appended where it is not there yet."""
    found, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == flag:
            skip = True
        elif not word.startswith(f"{flag}="):
            found.append(word)
    return [*found, flag, value]
