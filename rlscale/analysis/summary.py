"""Figures derived from run records for people to look at: smoothed returns, noise windows, time shares.

The estimators are in `rlscale.noise`; how figures are drawn is in `rlscale.report.run_page`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError
from ..noise import POOL_WINDOW, BlockStatistics, NoiseEstimate, pool, run_average, usable
from ..records import RunRecord
from ..returns import RecentReturn

__all__ = [
    "DIAGNOSTICS",
    "HEADS",
    "NoiseWindow",
    "diagnostics",
    "distinct_names",
    "evenly_measured",
    "final_value",
    "head_kinds",
    "lost_actors",
    "mean_batch",
    "noise_of_sums",
    "noise_over_run",
    "noise_windows",
    "recent_return",
    "returns",
    "step_batches",
    "time_shares",
]

HEADS = ("policy", "value", "entropy", "joint", "joint_policy_parameters", "policy_last_layer")
DIAGNOSTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance")
MOST_POINTS = 150
MOST_WINDOWS = 50


@dataclass(frozen=True)
class NoiseWindow:
    """The noise scale pooled over consecutive measurements of one head.

    Attributes:
        observations: mean over the window's measurements of the observations sampled so far.
        updates: measurements in the window.
        noise: the pooled estimate.
    """

    observations: float
    updates: int
    noise: NoiseEstimate


def distinct_names(runs: Sequence[RunRecord]) -> list[str]:
    """The names of runs; the folder as it was given for those of which there are several of one name."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs, strict=True)]


def head_kinds(run: RunRecord) -> list[tuple[str, str]]:
    """Every (head, kind) that the run measured, heads in their fixed order."""
    found = {(entry["head"], entry["kind"]) for row in run.rows for entry in row.get("noise", ())}
    return sorted(found, key=lambda pair: (HEADS.index(pair[0]) if pair[0] in HEADS else len(HEADS), pair))


def noise_windows(run: RunRecord, head: str, kind: str, metric: str = "plain") -> list[NoiseWindow]:
    """The run cut into windows of about 20 measurements; fewer a window where there are few, more beyond 50 windows."""
    measured = run.noise(head, kind, metric)
    window = max(1, min(POOL_WINDOW, len(measured) // 5), math.ceil(len(measured) / MOST_WINDOWS))
    windows: list[NoiseWindow] = []
    for start in range(0, len(measured), window):
        part = measured[start : start + window]
        if len(part) < window and windows:
            break  # an incomplete last window would have a wider interval than its neighbours for no reason of the run's
        kept = usable([s for _, s in part])
        if kept:
            windows.append(NoiseWindow(float(np.mean([row["observations"] for row, _ in part])), len(kept), pool(kept)))
    return windows


def noise_over_run(run: RunRecord, head: str, kind: str, metric: str = "plain") -> NoiseEstimate | None:
    """The mean over full-batch steps of the whole run (paper, equation D.1); None where nothing was measured.

    A run measures densely at first. Its beginning would then count too much, so of these measurements only those count that
    stand as far apart as the last ones do.
    """
    measured = evenly_measured(run, head, kind, metric)
    batches = step_batches(run, [row for row, _ in measured])
    return run_average([statistics for _, statistics in measured], batches) if measured else None


def noise_of_sums(run: RunRecord, head: str, kind: str) -> NoiseEstimate | None:
    """The sum of tr Σ over the run by the sum of |G|², of the same measurements; None where nothing was measured."""
    measured = [statistics for _, statistics in evenly_measured(run, head, kind)]
    return pool(measured) if measured else None


def evenly_measured(run: RunRecord, head: str, kind: str, metric: str = "plain") -> list[tuple[dict[str, Any], BlockStatistics]]:
    """What was measured as many iterations apart as at the end of the run, in order, each with its row; see `noise_over_run`."""
    measured = run.noise(head, kind, metric)
    kept = _evenly_spaced([row["iteration"] for row, _ in measured])
    even = [(row, s) for row, s in measured if row["iteration"] in kept]
    good = {id(s) for s in usable([s for _, s in even])}
    return [(row, s) for row, s in even if id(s) in good]


def _evenly_spaced(iterations: Sequence[int]) -> set[int]:
    """From the last one backwards, those at least the median distance between the last quarter of them apart.

    Not those in phase with the last one: a job of RLlib that is restored begins to count anew.
    """
    distinct = sorted(set(iterations))
    gaps = np.diff(distinct[-max(len(distinct) // 4, 2) :])
    spacing = int(np.median(gaps)) if len(gaps) else 1
    kept = distinct[-1:]
    for iteration in reversed(distinct):
        if kept[-1] - iteration >= spacing:
            kept.append(iteration)
    return set(kept)


def mean_batch(run: RunRecord) -> float:
    """β, observations collected per optimizer step: the batch size that stands in the run average.

    With one epoch and one step per iteration this is the batch size itself; with several epochs E = S·B does not hold, and
    β is the closest thing to it.

    Raises:
        UsageError: the run has no iteration.
    """
    if not run.rows:
        raise UsageError("RUN", f"{run.folder} has no iteration yet", "Wait until the run has finished one")
    first, last = run.rows[0], run.rows[-1]
    observations, steps = int(last["observations"]), int(last["optimizer_steps"])
    # A job of RLlib that was restored from a checkpoint made elsewhere counts its observations from the start, not its steps.
    if first["observations"] > first["batch_observations"] and steps > first["optimizer_steps"]:
        observations, steps = observations - int(first["observations"]), steps - int(first["optimizer_steps"])
    return observations / max(steps, 1)


def step_batches(run: RunRecord, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Observations collected for each optimizer step of these rows: β, or, where the batch is adaptive, each row's own."""
    # An adaptive batch grows by orders of magnitude on the way, and with it the part of a full-batch step that a step makes.
    if run.manifest["config"].get("rollout", {}).get("batch_size") != "adaptive":
        return [mean_batch(run)] * len(rows)
    steps = float(np.mean([row["batch_observations"] for row in run.rows])) / mean_batch(run)  # an iteration, by its epochs
    return [row["batch_observations"] / steps for row in rows]


def returns(run: RunRecord) -> list[dict[str, Any]]:
    """Mean raw return of the last 100 finished episodes, against observations; nothing before an episode has finished."""
    recent, points = RecentReturn(), []
    for row in run.rows:
        if row["episodes"]:
            recent.add(row["episodes"], row["return_mean"])
            points.append({"observations": row["observations"], "return": recent.mean, "episodes": recent.episodes})
    return points[:: max(1, len(points) // (4 * MOST_POINTS))] + (points[-1:] if len(points) > 4 * MOST_POINTS else [])


def recent_return(run: RunRecord) -> float | None:
    """Mean raw return of the last 100 finished episodes; None where no episode has finished."""
    points = returns(run)
    return points[-1]["return"] if points else None


def diagnostics(run: RunRecord) -> dict[str, list[dict[str, float]]]:
    """Losses, entropy, KL, clip fraction and explained variance against observations, where the run recorded them.

    Each point is the mean over a stretch of iterations, at most 150 a figure; iterations without a finite figure are left out.
    """
    found: dict[str, list[dict[str, float]]] = {}
    size = max(1, -(-len(run.rows) // MOST_POINTS))
    observations = run.column("observations")
    for field in DIAGNOSTICS:
        values = run.column(field)
        points = []
        for start in range(0, len(values), size):
            part = values[start : start + size]
            part = part[np.isfinite(part)]
            if len(part):
                at = float(observations[min(start + size, len(values)) - 1])
                points.append({"observations": at, "value": float(part.mean())})
        if points:
            found[field] = points
    return found


def final_value(run: RunRecord, field: str) -> float:
    """Mean of a column over the last tenth of the iterations, those with a finite figure; of the last such one where none has."""
    values = run.column(field)
    part = values[-max(1, len(values) // 10) :]
    part = part[np.isfinite(part)]
    return float(part.mean()) if len(part) else float(values[np.isfinite(values)][-1])


def lost_actors(run: RunRecord) -> list[dict[str, Any]] | None:
    """Every loss of a rollout actor, with the row's `iteration` and `observations`; None where the run records none at all."""
    if not any("losses" in row for row in run.rows):
        return None
    return [
        {**loss, "iteration": row["iteration"], "observations": row["observations"]}
        for row in run.rows
        for loss in row.get("losses", ())
    ]


def time_shares(run: RunRecord) -> dict[str, float]:
    """Seconds spent sampling, transferring, learning (noise apart) and measuring the noise.

    Where sampling goes on while the learner learns, what the learner waited for it counts, so that the parts add up to the run.
    """
    waited = run.column("waiting_seconds")
    overlaps = np.isnan(run.column("transfer_seconds")) & ~np.isnan(waited)  # rows of other libraries' jobs have neither
    totals = {name: float(np.nansum(run.column(f"{name}_seconds"))) for name in ("sampling", "transfer", "learning", "noise")}
    totals["sampling"] = float(np.nansum(np.where(overlaps, waited, run.column("sampling_seconds"))))
    totals["learning"] -= totals["noise"]
    return totals
