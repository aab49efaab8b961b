"""What the noise of one run says to somebody who must choose a batch size: now, before, and what is missing to say more.

Figures of whole sweeps are in `rlscale.analysis.predictions`; how the reading is put into words, in `rlscale.report.advice_page`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from ..errors import UsageError
from ..estimate import Estimate
from ..noise import noise_scale
from ..records import RunRecord
from .predictions import ADVISED, PRIMARY, predict_from_run
from .summary import evenly_measured, noise_windows, recent_return, returns

__all__ = ["NoiseReading", "published", "read_noise", "while_it_learned"]

_RESOLVED = 2.0  # standard errors that |G|² must stand above zero
_LEAST_SIGNAL = 0.5  # standard errors: of a weaker signal nothing can be said
_FEWEST_GROUPS, _MOST_GROUPS = 4, 10  # whose scatter is the signal's error: of two groups it is hardly known
_RISEN = 0.9  # of the rise in return: what comes after it is polish
_LEAST_MEASURED = 5  # measurements of the policy's noise that a part of a run is read from


@dataclass(frozen=True)
class NoiseReading:
    """The noise of one run.

    Attributes:
        suggestion: the critical batch size that the run predicts, in observations: the ratio of sums of its joint loss where the
            run has that, else the preregistered predictor, else the policy's plain noise scale.
        policy: the noise scale of the policy's loss alone, averaged over the run.
        first, last: the policy's noise scale in the first window of updates and in the last.
        first_return, last_return: mean raw return amid the first window and at the end; None where no episode had finished.
        observations: that are read.
        idle: observations that the run made after them, when nine tenths of its rise in return were long made. They are left out,
            since a run that no longer learns has no gradient to measure.
        missing: observations that would resolve `policy`, if its signal is as strong as it looks and it is measured in every
            iteration; None where it is resolved, where no signal can be seen, or where the run has learned its task.
        visible: whether any signal of the policy can be seen.
        spacing: iterations between the last two measurements of the policy's noise.
        few_blocks: whether no update held the three blocks that an interval needs, so that no length of run resolves anything.
    """

    suggestion: Estimate
    policy: Estimate
    first: Estimate
    last: Estimate
    first_return: float | None
    last_return: float | None
    observations: int
    idle: int
    missing: int | None
    visible: bool
    spacing: int
    few_blocks: bool = False


def read_noise(run: RunRecord) -> NoiseReading:
    """Read the noise of a run, or of an RLlib or Stable-Baselines3 job (`rlscale.rllib`, `rlscale.sb3`).

    Raises:
        UsageError: the run measured no noise of its policy.
    """
    made = int(run.rows[-1]["observations"]) if run.rows else 0
    run = while_it_learned(run)
    found = {(p.head, p.quantity): p.scale for p in predict_from_run(run)}
    if ("policy", "cumulative") not in found:
        # One environment's rollout may be a single block at every length: it holds one episode, or a part of one.
        config = run.manifest["config"]
        few = config.get("noise", {}).get("blocks_of") == "episodes" and bool(run.noise("policy", "rollout"))
        rollout = config.get("rollout", {})
        few = few or rollout.get("environments", 2) // rollout.get("clones", 1) < 2
        mend = "Use eight environments or more" if few else "Let it run longer"
        raise UsageError("--run", f"{run.folder} holds no noise of the policy's loss yet", mend)
    policy = found["policy", "cumulative"]
    windows = noise_windows(run, "policy", "rollout")
    few = all((s.size > 0).sum() < 3 for _, s in evenly_measured(run, "policy", "rollout"))
    observations = int(run.rows[-1]["observations"])
    return NoiseReading(
        suggestion=found.get(ADVISED) or found.get(PRIMARY, policy),
        policy=policy,
        first=found["policy", "start"],
        last=found["policy", "goal"],
        first_return=_return_at(run, windows[0].observations),
        last_return=recent_return(run),
        observations=observations,
        idle=made - observations,
        missing=None if policy.value is not None or few or made > observations else _missing(run, observations),
        few_blocks=few,
        visible=policy.value is not None or _signal(_measured(run)) >= _LEAST_SIGNAL,
        spacing=int(np.diff([row["iteration"] for row, _ in run.noise("policy", "rollout")][-2:], prepend=0)[-1]),
    )


def while_it_learned(run: RunRecord) -> RunRecord:
    """The run up to the iteration in which nine tenths of the rise of its return were made.

    The whole run where that was in its second half, or where the return later fell below half of the rise, as one that only
    wavers does, or where the noise was hardly measured by then, or where the task's first goal was never reached: a run that rose
    so little has not learned its task and stopped, it has hardly begun.
    """
    points = returns(run)
    if not points:
        return run
    reached = [point["return"] for point in points]
    if max(reached) < min(run.manifest["task"].get("goals") or [-math.inf]):
        return run
    rise = max(reached) - reached[0]
    end = next(i for i, value in enumerate(reached) if value >= reached[0] + _RISEN * rise)
    until = points[end]["observations"]
    kept = rise > 0 and until <= run.rows[-1]["observations"] / 2 and min(reached[end:]) >= reached[0] + rise / 2
    early = replace(run, rows=[row for row in run.rows if row["observations"] <= until])
    return early if kept and len(early.noise("policy", "rollout")) >= _LEAST_MEASURED else run


def _return_at(run: RunRecord, observations: float) -> float | None:
    """The mean raw return nearest to that many observations."""
    points = returns(run)
    return min(points, key=lambda point: abs(point["observations"] - observations))["return"] if points else None


def _measured(run: RunRecord) -> list[float]:
    """The policy's |G|² of the updates that its noise scale over the run is of."""
    return [noise_scale(s).grad_sq for _, s in evenly_measured(run, "policy", "rollout") if (s.size > 0).sum() > 1]


def _signal(squares: Sequence[float]) -> float:
    """By how many standard errors the mean of |G|² stands above zero; 0 of too few updates to tell.

    The error is taken from the scatter between groups of neighbouring updates, which share environments.
    """
    if len(squares) < 2 * _FEWEST_GROUPS:
        return 0.0
    groups = min(_MOST_GROUPS, max(_FEWEST_GROUPS, len(squares) // 4))
    means = np.array([part.mean() for part in np.array_split(np.array(squares), groups)])
    error = float(means.std(ddof=1)) / math.sqrt(groups)
    return float(means.mean()) / error if error > 0 else 0.0


def _missing(run: RunRecord, observations: int) -> int | None:
    """The standard error falls with the root of the number of measurements, one in every iteration from now on."""
    squares = _measured(run)
    signal = _signal(squares)
    if signal < _LEAST_SIGNAL:
        return None
    each = min(len(squares) / len(run.rows), 1.0)  # of a row; a job's row may hold several updates
    return round(observations * each * max((_RESOLVED / signal) ** 2 - 1, 0.25))


def published() -> Mapping[str, Any]:
    """How far such predictions were off on the published tasks, and what a sweep costs: published.json, made from the records.

    `measured_over_predicted` holds a number for every published task with one optimizer step a batch whose prediction is
    resolved, `unresolved` the number of the others. `with_epochs` and `unresolved_with_epochs` are the same for tasks with
    several epochs, of a mini-batch.
    `sweep_cost` says what the scored tasks' sweeps of one optimizer step a batch cost: the least, the ends of the middle half and
    the most of their training observations, each in units of the fewest to its last goal, E_min. Evaluation is not in it.
    """
    text = files("rlscale.analysis").joinpath("published.json").read_text(encoding="utf-8")
    return json.loads(text)
