"""Three of the paper's claims on one MinAtar game, from a few runs of each kind, every run on one core.

    python -m rlscale.benchmarks.measurements.studies

* growth: does the noise scale of each head grow over training? The *plain* runs.
* temperature: cut ε/B sixteenfold for a stretch of training and restore it; does the noise scale follow and come back? The *cold*
  runs beside the plain ones of the same seeds.
* model size: three widths of the network; does the noise scale differ at equal return, or only through the return? The *narrow*
  and *wide* runs beside the plain ones.

The noise of every head is pooled over windows of updates, and the policy at the end of each window is evaluated. Writes
results/studies.json; `python docs/pictures/studies.py` draws it, and docs/studies.md says what came out.
"""

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from rich.progress import track

from rlscale.agents.rollout import Evaluator
from rlscale.agents.setup import prepare
from rlscale.envs import find_task
from rlscale.noise import POOL_WINDOW, BlockStatistics, pool

from ..sweep.options import SweepOptions, make_training_plan
from .measuring import map_in_processes, settings_of, write_result

PERIOD = 2  # optimizer steps between measurements
HEADS = ("policy", "value", "joint", "policy_last_layer")
CUT = 16.0  # of ε in a cold stretch


@dataclass(frozen=True)
class Options:
    """Growth, temperature and model size of the noise scale."""

    task: str = "minatar/breakout"
    """A task whose runs take minutes."""
    batch_size: int = 2048
    """Observations per optimizer step."""
    learning_rate: float = 7e-3
    """A good one for that batch size."""
    optimizer_steps: int = 480
    """Length of each run; the middle third is the cold stretch."""
    seeds: int = 3
    """Runs of each kind."""
    episodes: int = 64
    """Episodes of each evaluation, one at the end of each window."""
    widths: tuple[int, int, int] = (32, 128, 512)
    """Hidden units of the narrow, plain and wide runs."""
    out: Path = Path("results/studies.json")
    """The record."""


@dataclass(frozen=True)
class Kind:
    """What one run differs in.

    Attributes:
        name: `plain`, `cold`, `narrow` or `wide`.
        width: hidden units.
        cold: first and last optimizer step of the stretch in which ε/B is a sixteenth, by way of ε, which leaves the noise
            measurement itself as it was; None for none.
        seed: of everything.
    """

    name: str
    width: int
    cold: tuple[int, int] | None
    seed: int


def run(options: Options, kind: Kind) -> dict[str, Any]:
    """One run; per window the noise scale of each head and the return of the policy at its end."""
    chosen = SweepOptions(tasks=(options.task,), batch_sizes=str(options.batch_size), rollout_length=16, width=kind.width)
    plan = make_training_plan(options.task, chosen)
    trial = replace(plan.next_trials({})[0], seed=kind.seed, learning_rate=options.learning_rate)
    trial = replace(trial, stage="noise", measures_noise=True)
    config = plan.config_of(trial)
    often = replace(config.noise, joint_noise_period=PERIOD, policy_noise_period=PERIOD, value_noise_period=PERIOD)
    config = replace(config, noise=often)
    setup = prepare(config, find_task(options.task))
    windows: list[dict[str, Any]] = []
    measured: dict[str, list[BlockStatistics]] = {head: [] for head in HEADS}
    evaluating = Evaluator(
        setup.task,
        config.update.network,
        kind.width,
        episodes=options.episodes,
        bfloat16=setup.compute.acts_in_bfloat16,
        seed=kind.seed,
        threads=1,
    )
    with closing(setup.start()) as session, closing(evaluating) as evaluator:
        for step in range(options.optimizer_steps):
            is_cold = kind.cold is not None and kind.cold[0] <= step < kind.cold[1]
            rate = options.learning_rate / (CUT if is_cold else 1.0)
            session.config = replace(session.config, update=replace(session.config.update, learning_rate=rate))
            iterated = session.iterate()
            assert iterated is not None, "16 steps cannot all be resets"
            row, result = iterated
            for record in result.noise:
                if record.head in measured:
                    measured[record.head].append(record.statistics)
            if (step + 1) % POOL_WINDOW == 0:
                evaluated = evaluator.evaluate(session.weights(), step + 1).at(step + 1)
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
    return {**asdict(kind), "windows": windows}


def _packed(statistics: list[BlockStatistics]) -> dict[str, Any]:
    noise = pool(statistics)
    high = noise.interval[1] if noise.b_simple is not None else None  # null: no upper end
    interval = (noise.interval[0], high)
    return {"value": noise.b_simple, "interval": interval, "trace_cov": noise.trace_cov, "grad_sq": noise.grad_sq}


def main() -> None:
    """Make every run and write the record."""
    options = tyro.cli(Options)
    third = options.optimizer_steps // 3 // POOL_WINDOW * POOL_WINDOW
    narrow, plain, wide = options.widths
    kinds = [
        Kind(name, width, cold, seed)
        for name, width, cold in (
            ("wide", wide, None),
            ("plain", plain, None),
            ("cold", plain, (third, 2 * third)),
            ("narrow", narrow, None),
        )
        for seed in range(options.seeds)
    ]
    runs = list(track(map_in_processes(run, [(options, kind) for kind in kinds]), "runs", total=len(kinds)))
    write_result(options.out, {"settings": settings_of(options), "runs": runs})


if __name__ == "__main__":
    main()
