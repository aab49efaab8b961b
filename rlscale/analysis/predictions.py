"""The critical batch size that the noise scale predicts: one figure per goal, loss and quantity, from several seeds.

The mean over seeds with its interval and the ratio of two estimates live here; the noise scale of one run is in `rlscale.noise`.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from ..estimate import Estimate
from ..frontier import adaptive_gain
from ..noise import POOL_WINDOW, RUN_WINDOW, average_windows, ratio_of_sums
from ..records import RunRecord
from ..records.trial import TrialResult
from .summary import noise_of_sums, noise_over_run, noise_windows

__all__ = [
    "ADVISED",
    "FEWEST_POOLED",
    "HEADS",
    "ONLY_LOSS",
    "PLAIN",
    "PRIMARY",
    "QUANTITIES",
    "Prediction",
    "at_crossings",
    "geometric_mean",
    "pooled_gain",
    "pooled_noise",
    "predict",
    "predict_from_run",
    "ratio",
    "shows_value_alone",
]

HEADS = ("policy", "value", "joint", "joint_policy_parameters", "policy_last_layer")  # entropy carries no reward signal
QUANTITIES = ("start", "goal", "cumulative", "cumulative_adam")
PRIMARY = ("joint_policy_parameters", "cumulative_adam")
"""The predictor of the critical batch size, chosen before any frontier of the ladder was fitted (docs/preregistration.md)."""
ADVISED = ("joint", "sums")
"""What a single run suggests, and the second hypothesis of the ladder: the joint loss's ratio of sums in the plain metric.

On the scored tasks with one optimizer step a batch where both are resolved it is nearer to the critical batch size than the
primary one is (docs/ladder.md).
"""
PLAIN = ("policy", "cumulative")
"""Perhaps the paper's own, which does not name its loss; it stands in where a record has nothing in Adam's metric."""
ONLY_LOSS = ("joint", "cumulative")
"""That of a supervised task, which has one loss and is learned by SGD, whose metric is the plain one."""
FEWEST_POOLED = 3
"""Runs that are summed before anything is divided; of fewer the geometric mean is taken, and there is no ratio of sums."""
_APART = 20.0  # on the ladder's tasks the policy's noise scale is at most some seventeen times what was measured
MORE_QUANTITIES = ("goal_adam", "sums", "sums_adam")  # of three runs or more, for the preregistered comparison


@dataclass(frozen=True)
class Prediction:
    """A predicted critical batch size.

    Attributes:
        head: which loss, one of `HEADS`.
        quantity: `start` and `goal` are momentary; `cumulative`, the mean over full-batch steps from the start (paper, D.1), is
            what a critical batch size measured at a goal should be compared with; `cumulative_adam` is the same in Adam's metric.
            `sums` is the ratio of the sums of tr Σ and |G|² from the start, which its early updates rule.
        scale: in observations.
        resolved: of `runs`, those that count: they reached the goal and, where they are not summed, resolve it by themselves.
        runs: runs of that batch size that measured the noise and went on to that goal or a later one.
        gain: γ of a batch size that follows the noise scale, of the plain metric's sums over runs; None where a window shows no
            signal. The geometric mean over the runs that resolve it where these are not summed.
    """

    head: str
    quantity: str
    scale: Estimate
    resolved: int
    runs: int
    gain: float | None


def geometric_mean(scales: Sequence[Estimate]) -> Estimate:
    """The geometric mean of the noise scale over seeds, from those that resolve it.

    Two half-widths are computed in log space on either side, and the longer one counts:

    - from the scatter between seeds: t(n-1) · s / √n. It holds the error of each seed too, but two or three seeds may lie close
      together by luck;
    - from the seeds' own intervals: the root of the sum of their squared half-widths, divided by n.

    A seed that is not resolved has no upper end, so then the mean has none, and its value is a lower guess.

    Args:
        scales: one per seed, with intervals; positive where resolved.

    Returns:
        An `Estimate`; without a value where no seed is resolved, above the lowest of their lower ends.

    Raises:
        ValueError: an empty list.
    """
    resolved = [(s.value, s.interval or (0.0, math.inf)) for s in scales if s.value is not None]
    if not resolved:
        low = min(s.interval[0] if s.interval else 0.0 for s in scales)
        return Estimate(None, (max(low, 0.0), math.inf), "the signal does not stand out from the noise in any run")
    count = len(resolved)
    logs = [math.log(value) for value, _ in resolved]
    mean = sum(logs) / count
    scatter = float(stdtrit(count - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(count) if count > 1 else 0.0
    below = math.hypot(*(x - _log(interval[0]) for x, (_, interval) in zip(logs, resolved, strict=True))) / count
    above = math.hypot(*(_log(interval[1]) - x for x, (_, interval) in zip(logs, resolved, strict=True))) / count
    high = math.inf if count < len(scales) else math.exp(mean + max(scatter, above))
    return Estimate(math.exp(mean), (math.exp(mean - max(scatter, below)), high))


def ratio(measured: Estimate, predicted: Estimate) -> Estimate:
    """measured / predicted, with their intervals combined as independent ones: squares of half-widths add in log space."""
    if measured.value is None or predicted.value is None:
        which = "measured" if measured.value is None else "predicted"
        return Estimate(None, None, f"the {which} figure is not resolved")
    value = measured.value / predicted.value
    if measured.interval is None or predicted.interval is None:
        return Estimate(value, None)
    down, up = (_log(end / measured.value) for end in measured.interval)
    over, under = (_log(end / predicted.value) for end in predicted.interval)
    below, above = math.hypot(down, under), math.hypot(up, over)
    return Estimate(value, (value * math.exp(-below), value * math.exp(above)))


def predict(runs: Sequence[TrialResult], goal: float, batch_size: int) -> tuple[tuple[Prediction, ...], int | None]:
    """What the runs of one batch size predict for a goal, and which batch size that was.

    Three runs or more are summed, window by window, before anything is divided, so that runs which are not resolved by themselves
    count as much as the others. Of fewer, and in records of earlier versions, the geometric mean is taken.

    Args:
        runs: that measured the noise, of any batch size.
        goal: the return that the noise scale was measured up to.
        batch_size: the one to predict from; where its runs have no noise scale to that goal, the nearest that has.

    Returns:
        Predictions in the order of `HEADS`, `QUANTITIES` and `MORE_QUANTITIES`; empty, and None, where no run measured the noise
        to that goal.
    """
    sizes = {run.batch_size for run in runs if any(noise.goal == goal for noise in run.noise)}
    if not sizes:
        return (), None
    nearest = min(sizes, key=lambda size: (abs(math.log(size / batch_size)), size))
    made = [run for run in runs if run.batch_size == nearest and (run.last_goal is None or run.last_goal >= goal)]
    chosen, ends = at_crossings(made, goal)
    at_goal = [noise for run in chosen for noise in run.noise if noise.goal == goal]
    found = []
    for head in HEADS:
        for quantity in (*QUANTITIES, *MORE_QUANTITIES):
            mine = [noise for noise in at_goal if (noise.head, noise.quantity) == (head, quantity)]
            pooled = pooled_noise(chosen, ends, head, quantity)
            if pooled is not None:
                gain = pooled_gain(chosen, ends, head) if quantity == "cumulative" else None
                found.append(Prediction(head, quantity, pooled, len(chosen), len(made), gain))
            elif mine:
                resolved = sum(noise.scale.value is not None for noise in mine)
                scale = geometric_mean([noise.scale for noise in mine])
                gains = [noise.gain for noise in mine if noise.gain is not None]
                gain = statistics.geometric_mean(gains) if gains else None
                found.append(Prediction(head, quantity, scale, resolved, len(made), gain))
    return tuple(found), nearest


def at_crossings(runs: Sequence[TrialResult], goal: float) -> tuple[list[TrialResult], list[float]]:
    """Those of the runs that reached the goal, and the steps of each to it."""
    crossings = [(run, steps) for run in runs if (steps := run.steps_to(goal)) is not None]
    return [run for run, _ in crossings], [steps for _, steps in crossings]


def pooled_noise(
    runs: Sequence[TrialResult], ends: Sequence[float], head: str, quantity: str, steps_each: int = 1
) -> Estimate | None:
    """The noise scale of three runs or more together, in observations; None where fewer measured it.

    Args:
        runs: that measured the noise.
        ends: optimizer steps of each, its crossing of the goal; it is read for the whole windows before, the first one at least.
        head, quantity: which noise scale, see `Prediction`.
        steps_each: parts of what a sweep counts as a step, an iteration, of which the mean over full-batch steps is taken.
    """
    windows = _windows_before(runs, ends, head, "adam" if quantity.endswith("_adam") else "plain")
    few = POOL_WINDOW // RUN_WINDOW  # windows of a momentary figure
    if quantity == "start":
        windows = [part[:, :few] for part in windows]
    elif quantity.startswith("goal"):
        windows = [part[:, -few:] for part in windows]
    parts = [part for part in windows if part[2].any()]
    if len(parts) < FEWEST_POOLED:
        return None
    if quantity.startswith("sums"):
        return ratio_of_sums(np.array([trace @ updates for trace, _, updates in parts]), np.array([g @ n for _, g, n in parts]))
    trace_cov, grad_sq, updates = _stacked(parts)
    return average_windows(trace_cov, grad_sq, updates, _batch_of(runs) / steps_each)


def pooled_gain(runs: Sequence[TrialResult], ends: Sequence[float], head: str) -> float | None:
    """γ of three runs or more together, from sums over runs and some twenty updates; None where one of these shows no signal.

    The noise of an estimate looks like a noise scale that varies, so that γ of single runs is too small. Arguments as of
    `pooled_noise`.
    """
    parts = [part for part in _windows_before(runs, ends, head, "plain") if part[2].any()]
    if len(parts) < FEWEST_POOLED:
        return None
    trace_cov, grad_sq, updates = _stacked(parts)
    begins = range(0, updates.shape[1], POOL_WINDOW // RUN_WINDOW)
    trace, grad, count = (
        np.add.reduceat(part.sum(0), begins) for part in (trace_cov * updates, grad_sq * updates, updates / len(parts))
    )
    if not (grad > 0).all() or not (trace > 0).all():
        return None
    return adaptive_gain(trace / grad, count / (1 + trace / grad / _batch_of(runs)))


def _windows_before(runs: Sequence[TrialResult], ends: Sequence[float], head: str, metric: str) -> list[np.ndarray]:
    """(3, windows) mean of tr Σ, of |G|² and updates in the whole windows before each run's end, the first one at least."""
    return [
        np.array([sums.trace_cov, sums.grad_sq, sums.updates], dtype=np.float64)[:, : max(1, int(steps // RUN_WINDOW))]
        for run, steps in zip(runs, ends, strict=True)
        for sums in run.noise_sums
        if (sums.head, sums.metric) == (head, metric)
    ]


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """(3, runs, windows); beyond the end of a run no update."""
    longest = max(part.shape[1] for part in parts)
    return np.stack([np.pad(part, ((0, 0), (0, longest - part.shape[1]))) for part in parts], axis=1)


def _batch_of(runs: Sequence[TrialResult]) -> float:
    """Observations of a step, on average."""
    return sum(run.observations for run in runs) / sum(run.optimizer_steps for run in runs)


def predict_from_run(run: RunRecord) -> tuple[Prediction, ...]:
    """What one run's rollout noise predicts: over its first window, its last one, and over the whole run in three ways."""
    found = []
    for head in HEADS:
        windows, whole = noise_windows(run, head, "rollout"), noise_over_run(run, head, "rollout")
        if windows and whole is not None:
            in_adams_metric, sums = noise_over_run(run, head, "rollout", "adam"), noise_of_sums(run, head, "rollout")
            noises = (windows[0].noise, windows[-1].noise, whole, in_adams_metric, sums)
            for quantity, noise in zip((*QUANTITIES, "sums"), noises, strict=True):
                if noise is not None:
                    scale = noise.noise_scale
                    found.append(Prediction(head, quantity, scale, int(scale.value is not None), 1, None))
    return tuple(found)


def shows_value_alone(joint: Estimate, policy: Estimate | None) -> bool:
    """Whether the joint loss's noise scale is mostly the value function's, so that no batch is suggested by it.

    Args:
        joint: noise scale of the joint loss.
        policy: noise scale of the policy's loss, known to be far above where this is so, or not resolved where the interval of
            the joint loss's begins at zero; None where it was not measured, or is the one that suggests.
    """
    if joint.value is None or policy is None:
        return False
    low, high = joint.interval or (0.0, math.inf)
    if policy.value is None and low == 0:
        return True
    return (policy.interval or (0.0, math.inf))[0] > _APART * high


def _log(end: float) -> float:
    return math.log(end) if end > 0 else -math.inf
