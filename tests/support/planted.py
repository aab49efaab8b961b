"""Sweeps with a planted frontier, written through the sweep's own plan and record: what a finished sweep folder looks like.

Runs of a response surface, without noise or with rates that fail. And fleets of `rlscale workers` that follow a planted
law, with a frontier to plan with.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from rlscale.agents.config import default_config
from rlscale.benchmarks.sweep.kinds import TrainingPlan
from rlscale.benchmarks.sweep.plan import SweepPlan
from rlscale.benchmarks.workers.calibration import FleetReading, Shape
from rlscale.benchmarks.workers.plan import Known
from rlscale.benchmarks.workers.recommendation import to_measure
from rlscale.envs import find_task
from rlscale.frontier import fit
from rlscale.records.sweep import Sweep, SweepRecord, read_sweep
from rlscale.records.trial import GoalCrossing, NoiseAtGoal, NoiseInWindow, Trial, TrialResult

SIZES = np.repeat([32.0, 128.0, 512.0, 2048.0, 8192.0], 6)
OFF = np.tile([-1.0, -0.5, 0.0, 0.3, 0.6, 0.9], 5)  # of `exact`: ln of each rate less that of the best one
HEADS = {"policy": 1.0, "value": 0.1, "joint": 0.3, "policy_last_layer": 0.8}  # noise scale, relative to B_crit


def make_plan(**changes) -> TrainingPlan:
    config = default_config(find_task("classic/cartpole"))
    rollout, update = replace(config.rollout, rollout_length=16), replace(config.update, epochs=1, mini_batch=None)
    config = replace(config, rollout=rollout, update=update)
    settings = {
        "config": config,
        "batch_sizes": (32, 128, 512, 2048, 8192, 32768),
        "goals": (50.0, 100.0, 200.0),
        "rates": 4,
        "seeds": 2,
        "rate_batch": 1e6,  # far above the sizes: the rates are a power of B
        "rate_exponent": 0.5,
        "mini_batches": 1,
        "pilot_batch": 2048,
        "noise_runs": 3,
        "interval_ratio": 2.0,
        "total_observations": None,
        "hours": None,
        "jobs": 2,
        "episodes": 128,
        "most_observations": 50_000_000,
        "quick": False,
    }
    return TrainingPlan(**{**settings, **changes})


class Planted:
    """A task whose frontier is known.

    Args:
        b_crit: at the last goal, in observations; at goal j it is smaller by `growth` for every later goal.
        s_min: at the last goal.
        scatter: standard deviation of ln S between runs.
        predicted: noise scale of the policy, relative to B_crit.
        best_rate: k of the best learning rate at every batch size, in half octaves from the plan's own.
        curvature: how fast ln S grows with the square of the distance to it.
    """

    def __init__(
        self, b_crit=1440.0, s_min=150.0, *, scatter=0.0, predicted=1.0, best_rate=0.0, curvature=0.08, growth=1.5, seed=0
    ) -> None:
        self.b_crit, self.s_min, self.scatter, self.predicted = b_crit, s_min, scatter, predicted
        self.best_rate, self.curvature, self.growth = best_rate, curvature, growth
        self.rng = np.random.default_rng(seed)

    def frontier(self, goal: int, goals: int) -> tuple[float, float]:
        """S_min and B_crit of the goal with that index."""
        later = goals - 1 - goal
        return self.s_min / 1.6**later, self.b_crit / self.growth**later

    def result(self, trial: Trial, plan: SweepPlan) -> TrialResult:
        """The result of one trial."""
        off = math.log2(trial.learning_rate / plan.learning_rate(trial.batch_size)) * 2 - self.best_rate
        slower = math.exp(self.curvature * off**2 + self.scatter * self.rng.normal())
        most = plan.most_observations / trial.batch_size
        limit = math.inf if trial.most_optimizer_steps is None else trial.most_optimizer_steps
        made = min(most, limit)
        goals = []
        for j, goal in enumerate(plan.goals):
            s_min, b_crit = self.frontier(j, len(plan.goals))
            s = s_min * (1 + b_crit / trial.batch_size) * slower
            reached = s <= made
            goals.append(
                GoalCrossing(
                    goal,
                    optimizer_steps=s if reached else None,
                    interval=(0.95 * s, 1.05 * s) if reached else None,
                    observations=s * trial.batch_size if reached else None,
                    not_before=None if reached else math.floor(made),
                )
            )
        finished = goals[-1].optimizer_steps is not None
        steps = math.ceil(goals[-1].optimizer_steps) if finished else math.floor(made)
        heads = [head for head in HEADS if trial.stage == "noise" or (trial.measures_noise and head == "joint")]
        return TrialResult(
            **asdict(trial),
            state="finished" if finished else "hopeless" if limit < most else "budget",
            reason=None if finished else trial.limit or "observations spent",
            optimizer_steps=steps,
            observations=steps * trial.batch_size,
            goals=tuple(goals),
            evaluation_steps=40_000,
            evaluation_seconds=3.0,
            noise=tuple(self._noise(goals, heads)),
            noise_windows=tuple(self._windows(plan, steps, trial.batch_size, heads)),
            seconds=20.0,
        )

    def _scale(self, value: float) -> dict:
        value *= math.exp(self.scatter * self.rng.normal())
        facts = {"trace_cov": 1.0, "grad_sq": 1 / value, "blocks": 32, "measurements": 20, "top_tenth_share": 0.2}
        return {"value": value, "interval": (0.8 * value, 1.3 * value), "reason": None, **facts}

    def _noise(self, goals: list[GoalCrossing], heads: list[str]) -> list[NoiseAtGoal]:
        found = []
        for j, goal in enumerate(goals):
            cumulative = self.frontier(j, len(goals))[1] * self.predicted
            if goal.optimizer_steps is not None:
                for head in heads:
                    for quantity, factor in (("start", 0.3), ("goal", 2.0), ("cumulative", 1.0)):
                        gain = 0.8 if quantity == "cumulative" else None
                        scale = self._scale(cumulative * HEADS[head] * factor)
                        found.append(NoiseAtGoal(head, goal=goal.goal, quantity=quantity, gain=gain, **scale))
        return found

    def _windows(self, plan: SweepPlan, steps: int, batch_size: int, heads: list[str]) -> list[NoiseInWindow]:
        found = []
        for head in heads:
            for i in range(12):
                share = (i + 0.5) / 12
                scale = self._scale(self.b_crit * self.predicted * HEADS[head] * 3 ** (2 * share - 1))
                if i == 0 and head != "policy":
                    scale |= {"value": None, "interval": (scale["interval"][0], math.inf)}
                at = {"optimizer_steps": steps * share, "observations": steps * share * batch_size}
                found.append(NoiseInWindow(head, mean_return=share * plan.goals[-1] * 1.05, **at, **scale))
        return found


def write_sweep(
    folder: Path,
    planted: Planted,
    task: str = "classic/cartpole",
    plan: SweepPlan | None = None,
    most=10_000,
    change=None,
    command=None,
):
    """Run the plan on the planted task, at most so many runs; the record as read back.

    Args:
        change: called with every trial and its result; what it returns is recorded.
        command: that is recorded; None: that of the task alone.
    """
    plan = plan or make_plan()
    facts = {
        "task": {"id": task, "preprocessing": "none", "frame_skip": 1, "goals": list(plan.goals)},
        "commit": "abc1234",
        "versions": {"torch": "2"},
        "machine": {"cores": 2, "accelerator": None},
        "command": command or ["rlscale", "sweep", task],
    }
    sweep = Sweep.open(folder, plan.to_dict(), facts)
    while most > 0 and (trials := plan.next_trials(sweep.results)):
        for trial in trials[:most]:
            result = planted.result(trial, plan)
            sweep.append(result if change is None else change(trial, result))
            most -= 1
    sweep.close()
    return read_sweep(folder)


def read_again(record: SweepRecord) -> SweepRecord:
    """The same folder, after a test has changed its files."""
    return read_sweep(record.folder)


PONG = find_task("atari/pong")
FIXED, PARALLEL = 2e-3, 5e-4  # of a step, and per environment of it, shared by threads


def reading(shape: Shape, slowdown: float, rounds=4, message=0.01, noise=None) -> FleetReading:
    """What a fleet of that law does; every fragment costs the learner's machine `message` seconds."""
    seconds = 32 * (FIXED + shape.environments * PARALLEL / shape.threads) * slowdown
    fragments = tuple((seconds * (1 if noise is None else noise()),) * shape.actors for _ in range(rounds))
    walls = tuple(row[0] + message * shape.actors for row in fragments)
    return FleetReading(shape, 32, walls, fragments, shape.actors * shape.environments * 32 * 7100)


def readings(cpus=4, contention=0.1, **changes):
    return [reading(s, 1 + contention * (s.actors - 1), **changes) for s in to_measure(PONG, cpus)]


def exact(b_crit=500.0, s_min=80.0, below=0.2, above=0.4, exponent=0.4):
    """Runs without noise at six rates of five sizes."""
    best = 0.01 * (SIZES / 500) ** exponent
    steps = s_min * (1 + b_crit / SIZES) * np.exp(np.where(OFF > 0, above, below) * OFF**2)
    return SIZES, best * np.exp(OFF), steps


def failing_rates(seed: int, highest: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Batch sizes, rates, steps and observations of runs whose steps fall as 1/rate up to a rate beyond which all fail.

    By the fastest of each size B_crit is 100. No parabola in the rate passes through them, and its vertex may lie far off.

    Args:
        seed: of the scatter.
        highest: rate that is tried, in octaves from the highest one with which runs reach the goal.
    """
    rng = np.random.default_rng(seed)
    octaves = np.array([-3, -2.25, -1.5, -1, -0.5, 0, 0.5])
    octaves = octaves[octaves <= highest]
    sizes, off = (v.ravel() for v in np.meshgrid(10.0 * 2 ** np.arange(9), octaves, indexing="ij"))
    rates = 0.005 * (sizes / 160) ** 0.35 * 2**off
    steps = 200 * (1 + 100 / sizes) * 2**-off * np.exp(0.2 * rng.standard_t(4, sizes.size))
    fails = off > 0
    return sizes, rates, np.where(fails, np.inf, steps), sizes * np.where(fails, 3 * steps, steps)


def known_frontier() -> Known:
    """A sweep of MinAtar Breakout whose runs learn otherwise than the task does by default."""
    task = find_task("minatar/breakout")
    config = default_config(task)
    config = replace(
        config, update=replace(config.update, epochs=1, mini_batch=None, advantage_scale="running", entropy_coef=0.03)
    )
    config = replace(config, rollout=replace(config.rollout, rollout_length=16))
    sizes = [128, 512, 2048, 8192]
    return Known(config, 4.0, fit(sizes, [100 * (1 + 1000 / b) for b in sizes]), dict.fromkeys(sizes, 0.0123))
