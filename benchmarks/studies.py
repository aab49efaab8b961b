"""Three of the paper's claims on one MinAtar game, each from a few runs: growth, temperature, model size.

    python -m benchmarks.studies [growth] [temperature] [width]

* growth: does the noise scale of each head grow over training?
* temperature: cut ε/B sixteenfold for a stretch of training and restore it; does the noise scale follow and come back?
* width: three widths of the network; does the noise scale differ at equal return, or only through the return?

The noise is measured at every iteration and pooled over windows of updates; returns are those of frozen policies. Writes
results/studies/<study>.json; docs/studies.md says what came out, and draws the pictures from the records.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import track

from agents.config import TrainConfig
from agents.evaluate import Evaluator
from agents.session import Session
from benchmarks.measuring import write_result
from benchmarks.sweep_options import SweepOptions, make_plan
from envs import find_task
from rlscale.noise import BlockStatistics, pool

WINDOW = 20  # optimizer steps of a window
HEADS = ("policy", "value", "joint", "policy_last_layer")
TEMPERATURE = 16.0


@dataclass(frozen=True)
class Options:
    """Which studies, and on what."""

    studies: tuple[Literal["growth", "temperature", "width"], ...] = ("growth", "temperature", "width")
    """Which of the three."""
    task: str = "minatar/breakout"
    """A task whose runs take a minute."""
    batch_size: int = 2048
    """Observations per optimizer step."""
    learning_rate: float = 5e-3
    """A good one for that batch size."""
    optimizer_steps: int = 600
    """Length of each run."""
    seeds: int = 3
    """Runs of each kind."""
    episodes: int = 64
    """Episodes of each evaluation, one at the end of each window."""
    out: Path = Path("results/studies")
    """Where the records go."""


def run(options: Options, seed: int, *, width: int | None = None, cold: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """One run; per window the noise scale of each head and the return of the policy at its end.

    Args:
        options: see there.
        seed: of everything.
        width: of the network.
        cold: first and last optimizer step of the stretch in which ε/B is a sixteenth. Cutting ε and not raising B leaves the
            noise measurement itself as it was.
    """
    chosen = SweepOptions(tasks=(options.task,), batch_sizes=str(options.batch_size), width=width)
    plan = make_plan(options.task, chosen)
    trial = replace(plan.next_trials({})[0], seed=seed, learning_rate=options.learning_rate, measures_noise=True)
    config: TrainConfig = plan.config_of(trial)
    every = replace(config.noise, joint_noise_period=2, policy_noise_period=2, value_noise_period=2)
    config = replace(config, noise=every)
    session = Session(config, find_task(options.task))
    session.start()
    evaluator = Evaluator(
        session.task,
        config.update.network,
        width,
        episodes=options.episodes,
        bfloat16=session.acts_in_bfloat16,
        seed=seed,
        threads=1,
    )
    windows: list[dict[str, Any]] = []
    measured: dict[str, list[BlockStatistics]] = {head: [] for head in HEADS}
    for step in range(options.optimizer_steps):
        is_cold = cold is not None and cold[0] <= step < cold[1]
        iterated = session.iterate(options.learning_rate / (TEMPERATURE if is_cold else 1.0))
        if iterated is None:
            continue
        row, result = iterated
        for record in result.noise:
            measured[record.head].append(record.statistics)
        if (step + 1) % WINDOW == 0:
            evaluated = evaluator.evaluate(session.learner.weights(), step + 1).at(step + 1)
            windows.append(
                {
                    "optimizer_steps": step + 1,
                    "observations": row["observations"],
                    "cold": is_cold,
                    "return": evaluated.return_mean,
                    "return_error": evaluated.return_error,
                    "noise": {head: _packed(statistics) for head, statistics in measured.items()},
                }
            )
            measured = {head: [] for head in HEADS}
    session.close()
    evaluator.close()
    return windows


def _packed(statistics: list[BlockStatistics]) -> dict[str, Any]:
    noise = pool(statistics)
    return {"value": noise.b_simple, "interval": noise.interval, "trace_cov": noise.trace_cov, "grad_sq": noise.grad_sq}


def growth(options: Options) -> list[dict[str, Any]]:
    """Plain runs."""
    return [{"seed": seed, "windows": run(options, seed)} for seed in track(range(options.seeds), "growth")]


def temperature(options: Options) -> list[dict[str, Any]]:
    """Runs with a cold stretch in their middle third, each beside the same seed without it."""
    third = options.optimizer_steps // 3 // WINDOW * WINDOW
    cases = [(seed, cold) for seed in range(options.seeds) for cold in (None, (third, 2 * third))]
    return [{"seed": seed, "cold": cold, "windows": run(options, seed, cold=cold)} for seed, cold in track(cases, "temperature")]


def width(options: Options) -> list[dict[str, Any]]:
    """Runs of three widths, each four times the one before."""
    cases = [(seed, units) for units in (32, 128, 512) for seed in range(options.seeds)]
    return [{"seed": seed, "width": units, "windows": run(options, seed, width=units)} for seed, units in track(cases, "width")]


def main() -> None:
    """Run the studies that were named and write a record of each."""
    options = tyro.cli(Options)
    console = Console()
    for name in options.studies:
        readings = {"growth": growth, "temperature": temperature, "width": width}[name](options)
        settings = {**asdict(options), "out": str(options.out), "studies": [name]}
        write_result(
            options.out / f"{name}.json",
            "python -m benchmarks.studies " + " ".join(sys.argv[1:]),
            {"settings": settings, "runs": readings},
        )
        console.print(f"{name} done")


if __name__ == "__main__":
    main()
