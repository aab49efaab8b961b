"""Noise runs and rows of a comparison with planted figures, and the rungs that they are."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlscale.analysis.predictions import PRIMARY, Prediction
from rlscale.analysis.rows import Row
from rlscale.analysis.rungs import rungs_of
from rlscale.estimate import Estimate
from rlscale.noise import RUN_WINDOW
from rlscale.records.trial import GoalCrossing, NoiseAtGoal, NoiseSums, TrialResult

BATCH = 512
FACTS = {"trace_cov": 1.0, "grad_sq": 1.0, "blocks": 32, "measurements": 20, "top_tenth_share": 0.1, "reason": None}


def skip_without_its_engine(rung):
    """Skip a test of a rung whose task needs an engine that `make test` does not install (`make ladder` does)."""
    if rung.task.startswith("gym/"):
        pytest.importorskip("Box2D" if "Lander" in rung.task else "mujoco", reason="pip install '.[ladder]'")


def row_of(task, measured, predicted, *, ratio=2.0, s_min=200.0, inner_steps=1, goal=1.0, more=()):
    """B_crit with an interval whose ends are a factor apart, and the primary prediction (None: not resolved)."""
    half = math.sqrt(ratio)
    scale = Estimate(predicted, (predicted / 1.2, predicted * 1.2)) if predicted else Estimate(None, (5.0, math.inf), "open")
    predictions = [Prediction(*PRIMARY, scale, 8, 8, None)]
    predictions += [Prediction(*which, Estimate(value, (value / 1.2, value * 1.2)), 8, 8, None) for which, value in more]
    nothing = Estimate(None, None, "not asked for")
    return Row(
        name=task,
        task=task,
        source=task,
        goal=goal,
        measured=Estimate(measured, (measured / half, measured * half)),
        s_min=Estimate(s_min, (s_min / 1.1, s_min * 1.1)),
        e_min=nothing,
        frontier=SimpleNamespace(),
        points=(),
        batch_sizes=(),
        learning_rates=None,
        inner_steps=inner_steps,
        predictions=tuple(predictions),
        prediction_batch=None,
        provisional=(),
        notes=(),
    )


def comparison_of(*rows, ladder=None):
    """A comparison with one sweep a row, or a list of rows."""
    sweeps = []
    for row in rows:
        of_sweep = row if isinstance(row, list) else [row]
        facts = (ladder or {}).get(of_sweep[0].name, {})
        record = SimpleNamespace(ladder=facts, folder=Path(of_sweep[0].source), results={})
        sweeps.append(SimpleNamespace(name=of_sweep[0].name, rows=tuple(of_sweep), record=record))
    return SimpleNamespace(sweeps=tuple(sweeps))


def rungs(*pairs, **changes):
    """Tasks a, b, c … with these decades of measured and predicted."""
    rows = [row_of(chr(97 + i), 10**y, None if x is None else 10**x, **changes) for i, (y, x) in enumerate(pairs)]
    return rungs_of(comparison_of(*rows))


def trial_of(number, steps, trace, grad, metric="plain", head="joint", goal=4.0):
    """A noise run that reached the goal after so many steps, with those means in its windows of five updates."""
    sums = NoiseSums(head, metric, tuple(trace), tuple(grad), (RUN_WINDOW,) * len(trace))
    crossing = GoalCrossing(
        goal, steps, None if steps is None else (steps, steps), None if steps is None else steps * BATCH, None
    )
    alone = NoiseAtGoal(head, 300.0, (200.0, 400.0), **FACTS, goal=goal, quantity="cumulative", gain=0.9)
    what = {"batch_size": BATCH, "rate_index": None, "learning_rate": 1e-3, "seed": number, "most_optimizer_steps": None}
    more = {"limit": None, "measures_noise": True, "last_goal": None, "state": "finished", "reason": None}
    made = RUN_WINDOW * len(trace)
    return TrialResult(
        id=f"noise-{number}",
        stage="noise",
        goals=(crossing,),
        noise=(alone,),
        noise_sums=(sums,),
        optimizer_steps=made,
        observations=made * BATCH,
        **what,
        **more,
    )
