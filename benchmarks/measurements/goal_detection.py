"""Is the detected step the true one? The goal search beside an evaluation of every policy, on episodes of its own.

    python -m rlscale.benchmarks.measurements.goal_detection [--tasks classic/cartpole minatar/freeway] [--environments 8 1024]

One run per task and number of environments; the search decides when it ends. Afterwards every kept policy (of a cheap task:
that of every optimizer step) is evaluated on fresh episodes, and the crossing of the curve smoothed over those is compared
with what the search had said. Writes results/goal-detection.json.
"""

import math
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

from rlscale.agents.compute import resolve_precision
from rlscale.agents.config import TrainConfig
from rlscale.agents.rollout import Evaluator
from rlscale.crossing import find_crossing, is_on_grid
from rlscale.envs import find_task, list_tasks

from ..sweep.options import SweepOptions, make_training_plan
from ..sweep.trial import Advance, TrainingCourse, run_trial
from .measuring import require_known, write_result

EVERY_STEP = ("classic/cartpole",)  # tasks whose policies are all evaluated, not only those on the grid
OTHER_EPISODES = 0x0DD  # added to the seed: the comparison shares no episode with the search


class _RememberingCourse(TrainingCourse):
    """A course of training that keeps every policy that the comparison evaluates."""

    def __init__(self, config: TrainConfig, every_step: bool, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._every_step, self._steps = every_step, 0
        self.policies: dict[int, np.ndarray] = {}

    def advance(self) -> Advance:
        advanced = super().advance()
        self._steps += 1
        if self._every_step or is_on_grid(self._steps):
            self.policies[self._steps] = self.weights()
        return advanced


def measure(task_id: str, environments: int, episodes: int, observations: int, console: Console) -> dict[str, Any]:
    """One run, and what became of each goal by both ways."""
    sizes = str(16 * environments)
    plan = make_training_plan(
        task_id, SweepOptions(tasks=(task_id,), batch_sizes=sizes, rollout_length=16, observations=observations)
    )
    trial = plan.next_trials({})[0]
    config = plan.config_of(trial)
    with tempfile.TemporaryDirectory() as folder:
        course = _RememberingCourse(
            config, task_id in EVERY_STEP, episodes=plan.episodes, folder=Path(folder) / "run", command=sys.argv
        )
        result = run_trial(
            trial, goals=plan.goals, most_observations=plan.most_observations, make_course=lambda: course
        ).to_json()
    console.print(f"{task_id}, {environments} environments: {result['state']} after {result['optimizer_steps']:,} steps")
    evaluator = Evaluator(
        find_task(task_id),
        config.update.network,
        config.update.width,
        episodes=episodes,
        bfloat16=resolve_precision(config.update.precision, config.update.network, torch.device("cpu")) == "bfloat16",
        seed=config.seed + OTHER_EPISODES,
        threads=1,
    )
    started = time.perf_counter()
    every = [evaluator.evaluate(weights, steps).at(steps) for steps, weights in course.policies.items()]
    seconds = time.perf_counter() - started
    goals = []
    for found in result["goals"]:
        brute = find_crossing(every, found["goal"]).optimizer_steps
        both = found["optimizer_steps"] is not None and brute.value is not None
        goals.append(
            {
                "goal": found["goal"],
                "search": found["optimizer_steps"],
                "search_interval": found["interval"],
                "every_policy": brute.value,
                "every_policy_interval": brute.interval,
                "log_ratio": math.log(found["optimizer_steps"] / brute.value) if both and brute.value else None,
            }
        )
        console.print(f"  goal {found['goal']:g}: search {found['optimizer_steps']}, every policy {brute}", highlight=False)
    return {
        "task": task_id,
        "environments": environments,
        "batch_size": trial.batch_size,
        "learning_rate": trial.learning_rate,
        "seed": trial.seed,
        "state": result["state"],
        "optimizer_steps": result["optimizer_steps"],
        "observations": result["observations"],
        "goals": goals,
        "search_evaluations": result["evaluations"],
        "search_seconds": result["evaluation_seconds"],
        "search_steps": result["evaluation_steps"],
        "every_policy_evaluations": [asdict(e) for e in every],
        "every_policy_seconds": seconds,
    }


def main(
    tasks: tuple[str, ...] = ("classic/cartpole", "minatar/freeway"),
    environments: tuple[int, ...] = (8, 1024),
    episodes: int = 128,
    observations: int = 30_000_000,
    out: Path = Path("results/goal-detection.json"),
) -> None:
    """Compare the goal search with an evaluation of every policy.

    Args:
        tasks: Tasks.
        environments: Environments of each run; the batch is 16 times as large.
        episodes: Episodes of each evaluation of the comparison.
        observations: A run that has spent this many is given up.
        out: Where the record goes.
    """
    console = Console()
    require_known("--tasks", tasks, [listing.id for listing in list_tasks()])
    write_result(out, [measure(task, count, episodes, observations, console) for task in tasks for count in environments])


if __name__ == "__main__":
    tyro.cli(main)
