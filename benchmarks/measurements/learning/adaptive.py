"""A batch size that follows the noise scale, against the best fixed one and against the predicted gain γ.

    python -m rlscale.benchmarks.measurements.learning.adaptive [--tasks TASK ...] [--out FILE]

Both kinds of run take one optimizer step per batch and 16 steps of each environment. A fixed batch has as many environments as
it needs; an adaptive one takes turns among 512 environments, eight at a time, B = √(r 𝓑) of them. For each
batch size, and for the adaptive one, the fastest of three learning rates on one seed is measured again on fresh seeds. A run
costs its optimizer steps to the goal, at r observations each, plus its observations. Predicted: γ (paper, appendix D) is read
from the noise of the final fixed runs, and on the fitted frontier the best adaptive run costs S_min r + E_min +
2 √(γ S_min r E_min), the best fixed one the same with γ = 1.
"""

import math
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from rlscale.agents.config import TrainConfig
from rlscale.frontier import fit
from rlscale.records import read_run

from ...sweep.options import SweepOptions, make_training_plan
from ...sweep.trial import TrainingCourse, run_trial
from ..measuring import map_in_processes, print_table, settings_of, write_result

ENVIRONMENTS = 512
CURVE = 40  # points of a run's batch sizes in the record


@dataclass(frozen=True)
class Options:
    """Adaptive against fixed batch sizes."""

    tasks: tuple[str, ...] = ("minatar/breakout", "minatar/space_invaders")
    """MinAtar games."""
    goals: tuple[float, ...] = (4.0, 16.0)
    """The mean return to reach in each."""
    batch_sizes: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    """Fixed batch sizes."""
    exchange_rate: float = 1024.0
    """r: observations that an optimizer step is worth."""
    rates: tuple[float, ...] = (0.005, 0.01, 0.02)
    """Learning rates tried for each."""
    seeds: int = 4
    """Fresh seeds at the chosen rate."""
    entropy_coef: float = 0.03
    """Keeps single seeds from getting stuck (docs/log.md)."""
    observations: int = 2_000_000
    """A run that has not reached its goal by then is given up."""
    out: Path = Path("results/adaptive.json")
    """Where the record goes."""


@dataclass(frozen=True)
class Kind:
    """One run; `batch_size` None is adaptive."""

    task: str
    goal: float
    batch_size: int | None
    learning_rate: float
    seed: int


def main() -> None:
    options = tyro.cli(Options)
    runs: list[dict[str, Any]] = []

    def make(kinds: list[Kind]) -> list[dict[str, Any]]:
        for done in map_in_processes(run, [(options, kind) for kind in kinds]):
            runs.append(done)
            reached = f"{done['optimizer_steps']:.0f} steps" if done["optimizer_steps"] else "missed the goal"
            size = done["batch_size"] or "adaptive"
            print(f"{done['task']} {size} rate {done['learning_rate']:g} seed {done['seed']}: {reached}", flush=True)
        write_result(options.out, {"options": settings_of(options), "runs": runs})
        return runs[-len(kinds) :]

    for task, goal in zip(options.tasks, options.goals, strict=True):
        sizes = (None, *sorted(options.batch_sizes, reverse=True))
        tried = make([Kind(task, goal, size, rate, 0) for size in sizes for rate in options.rates])
        final = []
        for size in sizes:
            fastest = min((r for r in tried if r["batch_size"] == size), key=lambda r: cost(r, options.exchange_rate))
            final += [Kind(task, goal, size, fastest["learning_rate"], 1 + seed) for seed in range(options.seeds)]
        show(task, goal, make(final), options)


def run(options: Options, kind: Kind) -> dict[str, Any]:
    """Train until the goal is crossed; where, the noise on the way, and how the batch went."""
    chosen = SweepOptions(tasks=(kind.task,), batch_sizes="512", rollout_length=16, entropy_coef=options.entropy_coef)
    plan = make_training_plan(kind.task, chosen)
    size = kind.batch_size or ENVIRONMENTS * plan.config.rollout.rollout_length
    trial = replace(plan.next_trials({})[0], batch_size=size, learning_rate=kind.learning_rate, seed=kind.seed)
    trial = replace(trial, id="run", most_optimizer_steps=None, limit=None, measures_noise=True, stage="noise")
    config = with_batch(plan.config_of(trial), kind, options)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run"
        result = run_trial(
            trial,
            goals=(kind.goal,),
            most_observations=options.observations,
            make_course=lambda: TrainingCourse(config, episodes=128, folder=record, command=[]),
        ).to_json()
        sizes = read_run(record).column("batch_observations")
    reached = result["goals"][0]
    return {
        **asdict(kind),
        "optimizer_steps": reached["optimizer_steps"],
        "observations": reached["observations"],
        "not_before": reached["not_before"],
        "spent": result["observations"],
        "noise": result["noise"],
        "batches": [float(part.mean()) for part in np.array_split(sizes, min(CURVE, len(sizes)))],
    }


def with_batch(config: TrainConfig, kind: Kind, options: Options) -> TrainConfig:
    """The run's settings; heads other than the last layer of the policy are only measured where γ is read."""
    noise = replace(config.noise, value_noise_period=0, policy_noise_period=0 if kind.batch_size is None else 1)
    rollout = config.rollout
    if kind.batch_size is None:
        rollout = replace(rollout, batch_size="adaptive", exchange_rate=options.exchange_rate)
    return replace(config, rollout=rollout, noise=noise, update=replace(config.update, threads=1))


def cost(done: dict[str, Any], exchange_rate: float) -> float:
    """Of reaching the goal, in observations; infinite for a run that missed it."""
    if done["optimizer_steps"] is None:
        return math.inf
    return exchange_rate * float(done["optimizer_steps"]) + float(done["observations"])


def show(task: str, goal: float, final: list[dict[str, Any]], options: Options) -> None:
    """The table of one game, and measured against predicted gain."""
    r = options.exchange_rate
    rows, means = [], {}
    for size in (*sorted(options.batch_sizes), None):
        mine = [done for done in final if done["batch_size"] == size]
        logs = [math.log(cost(done, r)) for done in mine if done["optimizer_steps"] is not None]
        missed = len(mine) - len(logs)
        if not logs:
            continue
        means[size] = math.exp(statistics.fmean(logs))
        steps = [done["optimizer_steps"] for done in mine if done["optimizer_steps"] is not None]
        rows.append(
            [
                str(size or "adaptive"),
                f"{mine[0]['learning_rate']:g}",
                ", ".join(f"{s:.0f}" for s in steps) + (f", {missed} missed" if missed else ""),
                f"{means[size]:,.0f}",
                f"{statistics.stdev(logs):.2f}" if len(logs) > 1 else "",
            ]
        )
    print_table(
        f"{task} to a mean return of {goal:g}: cost r S + E at r = {r:g}",
        ["batch", "rate", "optimizer steps", "cost, geometric mean", "sd of its log"],
        rows,
    )
    fixed = [done for done in final if done["batch_size"] is not None and done["optimizer_steps"] is not None]
    frontier = fit([done["batch_size"] for done in fixed], [done["optimizer_steps"] for done in fixed])
    gammas = {
        head: statistics.median(values)
        for head in ("policy", "policy_last_layer", "joint")
        if (values := [n["gain"] for d in fixed for n in d["noise"] if n["head"] == head and n["gain"] is not None])
    }
    best = min(mean for size, mean in means.items() if size is not None)
    if None in means:
        print(f"adaptive costs {means[None] / best:.2f} of the best fixed batch size")
    s_min, e_min = frontier.s_min.value, frontier.e_min.value
    if s_min is None or e_min is None:
        print(f"the frontier of the fixed sizes is {frontier.b_crit}")
        return
    for head, gamma in gammas.items():
        plain, root = s_min * r + e_min, 2 * math.sqrt(s_min * r * e_min)
        print(f"predicted from the noise of {head}: gamma {gamma:.2f}, {(plain + root * math.sqrt(gamma)) / (plain + root):.2f}")
    print(f"frontier: S_min {frontier.s_min}, E_min {frontier.e_min}, B_crit {frontier.b_crit}")


if __name__ == "__main__":
    main()
