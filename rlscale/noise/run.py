"""The noise scale of one run or of several together: `run_average`, over full-batch steps from the start, and `ratio_of_sums`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..estimate import Estimate
from .blocks import BlockStatistics
from .scale import NoiseEstimate, degrees_of, leave_one_out, ratio, resolve

__all__ = ["RUN_WINDOW", "average_windows", "ratio_of_sums", "run_average"]

RUN_WINDOW = 5
"""Most updates of a window of `run_average`. The largest gradients rule a window in which the noise scale changes."""


def run_average(
    runs: Sequence[BlockStatistics] | Sequence[Sequence[BlockStatistics]],
    batch_size: float | Sequence[float],
    window: int = RUN_WINDOW,
) -> NoiseEstimate:
    """Noise scale over a run, averaged over full-batch steps from the start (paper, equation D.1).

    A critical batch size measured at a goal is the mean of the momentary noise scale over *full-batch* steps, and an
    optimizer step at batch size B makes 1 / (1 + 𝓑/B) of one. In each window of updates Q = |G|² + tr Σ / B, and the
    result is Σ(tr Σ / Q) / Σ(|G|² / Q). The few early updates with a huge gradient would dominate a ratio of plain sums.
    Windows are needed because the Q of a single update is biased.

    Of several runs the same window holds the same updates, counted from the start, and tr Σ and |G|² are summed over runs and
    updates before Q is formed. A run that is not resolved by itself so counts as much as any other. The interval of three runs or
    more leaves out one whole run at a time, because runs differ by more than the noise of their gradients; that of one or two
    leaves out one block of one run at a time.

    Args:
        runs: one entry per update, from the start of the run to the goal; or a list of those, one of each run.
        batch_size: B, observations per optimizer step of those runs; of one run whose batch changed, that of every update.
        window: most updates of a window, within which the noise scale should not change much. The windows are equally long, as
            nearly as possible.

    Returns:
        A `NoiseEstimate` whose `b_simple` is the average described above. Its `trace_cov` and `grad_sq` are plain means over the
        updates, for orientation; `b_simple` is not their ratio.

    Raises:
        ValueError: there is no update, a batch size or the window is not positive, batch sizes are fewer or more than updates, or
            in some update fewer than two blocks hold observations.
    """
    if not (np.asarray(batch_size) > 0).all():
        raise ValueError("batch_size must be positive")
    if window < 1:
        raise ValueError("window must be at least 1")
    alone = [run for run in runs if isinstance(run, BlockStatistics)]
    if 0 < len(alone) < len(runs):
        raise ValueError("runs: updates and lists of updates are mixed")
    several = [alone] if alone else [list(run) for run in runs if not isinstance(run, BlockStatistics) and len(run)]
    statistics = _tell_apart(several)
    if np.ndim(batch_size) and np.shape(batch_size) != (len(statistics),):
        raise ValueError(f"batch_size: {np.size(batch_size)} sizes for {len(statistics)} updates")
    trace, grad = leave_one_out(statistics)
    batch = np.broadcast_to(np.asarray(batch_size, np.float64).reshape(-1, 1), (len(trace), 1))
    of_run = np.repeat(np.arange(len(several)), [len(run) for run in several])
    update = np.concatenate([np.arange(len(run)) for run in several])
    longest = int(update.max()) + 1
    of_window = update * -(-longest // window) // longest

    def means(kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator from the updates that are kept, each divided by their number."""
        windows, place, updates = np.unique(of_window[kept], return_inverse=True, return_counts=True)
        sums = np.zeros((3, len(windows), trace.shape[1]))
        for part, of_update in zip(sums, (trace, grad, grad + trace / batch), strict=True):
            np.add.at(part, place, of_update[kept])
        return _over_full_batch_steps(sums[0], sums[1], sums[2], updates[:, None])

    numerator, denominator = means(of_run >= 0)
    degrees = degrees_of(statistics)
    if len(several) > 2:  # the whole sample, then without each of the runs
        parts = [(numerator, denominator), *(means(of_run != run) for run in range(len(several)))]
        numerator, denominator = np.array([[part[0] for part in pair] for pair in parts]).T
        degrees = len(several) - 1
    return resolve(numerator, denominator, trace, grad, statistics, degrees)


def average_windows(trace_cov: Any, grad_sq: Any, updates: Any, batch_size: float) -> Estimate:
    """`run_average` of three runs or more, of which only the means over windows of updates are left.

    Args:
        trace_cov: (R, W) mean of tr Σ over the updates of each window of each run; not read where there are none.
        grad_sq: (R, W) mean of |G|², unbiased and so perhaps negative; not read where there are none.
        updates: (R, W) updates in the window; 0 beyond the end of a run.
        batch_size: B, observations of a step of these runs: of an optimizer step, or of an iteration, as the figure that the
            noise scale is compared with.

    Returns:
        The noise scale in observations, its interval by leaving out one run at a time.

    Raises:
        ValueError: there are fewer than three runs, or one has no update; the shapes differ; a figure is not finite; the batch
            size is not positive.
    """
    trace_cov, grad_sq, updates = (np.asarray(part, np.float64) for part in (trace_cov, grad_sq, updates))
    if updates.ndim != 2 or not trace_cov.shape == grad_sq.shape == updates.shape:
        raise ValueError("trace_cov, grad_sq and updates must be arrays of one shape (runs, windows)")
    trace_cov, grad_sq = (np.where(updates > 0, part, 0.0) for part in (trace_cov, grad_sq))
    if not (np.isfinite([trace_cov, grad_sq, updates]).all() and (updates >= 0).all()):
        raise ValueError("trace_cov, grad_sq and updates must be finite in every window with updates, and updates not negative")
    if not batch_size > 0:
        raise ValueError("batch_size must be positive")
    if len(updates) < 3 or not (updates.sum(axis=1) > 0).all():
        raise ValueError("three runs or more are needed, each with an update")

    def means(kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = updates[kept].sum(axis=0)
        trace, grad = ((updates[kept] * part[kept]).sum(axis=0)[count > 0] for part in (trace_cov, grad_sq))
        return _over_full_batch_steps(trace, grad, grad + trace / batch_size, count[count > 0])

    everyone = np.arange(len(updates))
    parts = [means(everyone), *(means(np.delete(everyone, run)) for run in everyone)]
    numerator, denominator = np.array(parts).T
    if not (np.isfinite(numerator).all() and np.isfinite(denominator).all()):
        return Estimate(None, (0.0, np.inf), "|G|² + tr Σ / B is not positive in some window")
    return ratio(numerator, denominator, len(updates) - 1)


def ratio_of_sums(trace_cov: Any, grad_sq: Any) -> Estimate:
    """The noise scale as Σ tr Σ / Σ|G|² of three runs or more, whatever their batch size; its largest gradients rule it.

    Args:
        trace_cov: (R,) sum of tr Σ over the updates of each run.
        grad_sq: (R,) sum of |G|², unbiased and so perhaps negative.

    Returns:
        The noise scale in observations, its interval by leaving out one run at a time.

    Raises:
        ValueError: there are fewer than three runs, the shapes differ, or a figure is not finite.
    """
    trace_cov, grad_sq = np.asarray(trace_cov, np.float64), np.asarray(grad_sq, np.float64)
    if trace_cov.ndim != 1 or trace_cov.shape != grad_sq.shape:
        raise ValueError("trace_cov and grad_sq must be vectors of one length, the number of runs")
    runs = len(trace_cov)
    if runs < 3:
        raise ValueError("three runs or more are needed")
    if not np.isfinite([trace_cov, grad_sq]).all():
        raise ValueError("trace_cov and grad_sq must be finite")
    # As means, since the jackknife compares the whole sample with samples of one run less.
    trace, grad = (np.concatenate([[part.mean()], (part.sum() - part) / (runs - 1)]) for part in (trace_cov, grad_sq))
    return ratio(trace, grad, runs - 1)


def _over_full_batch_steps(
    trace: np.ndarray, grad: np.ndarray, square: np.ndarray, updates: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of D.1 from the sums of tr Σ, |G|² and |G|² + tr Σ / B in each window, along the first axis."""
    q = square / updates
    q = np.where(q > 0, q, np.nan)  # E|ĝ|² cannot be negative: such a window holds only noise
    return (trace / q).sum(0) / updates.sum(), (grad / q).sum(0) / updates.sum()


def _tell_apart(runs: Sequence[Sequence[BlockStatistics]]) -> list[BlockStatistics]:
    """The updates of all runs, one run after the other, with block numbers that no two runs share."""
    apart, others = [], 0
    for run in runs:
        names = np.unique(np.concatenate([s.block for s in run]))
        apart += [BlockStatistics(s.size, s.square, s.dot, others + np.searchsorted(names, s.block)) for s in run]
        others += len(names)
    return apart
