"""A batch size that follows the noise scale, beside fixed ones, on a task that the ladder has measured.

    python -m rlscale.benchmarks.measurements.learning.adaptive RUNG [--seeds N] [--out FILE]

An optimizer step is worth r observations, with r the B_crit that the rung measured: there a fixed batch of B_crit costs as
much in steps as in observations, and an adaptive batch can gain most. A run costs r S + E to the rung's last goal. Every run
has the rung's settings; its learning rate is ε √(B / B_crit). The *fixed* batch is B_crit, its half or its double. An adaptive
one has B = √(r 𝓑) and takes turns among 512 environments, eight at a time; 𝓑 is the noise scale of the policy's last layer, of
the joint loss, or of the joint loss in Adam's metric. The size of the fixed batch, and ε of every kind, are those with the
lowest mean cost on a few seeds; what is compared are fresh seeds. Runs are kept as they end, in a file beside the record, and
the same command goes on from there. Predicted: on the fitted frontier an adaptive batch costs S_min r + E_min + 2 √(γ S_min r
E_min), the best fixed one the same with γ = 1 (McCandlish et al. 2018, appendix D); γ is of the rung's noise runs together.
"""

import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from scipy.stats import gmean

from rlscale.agents.config import TrainConfig
from rlscale.analysis.points import fit_points, surface_points
from rlscale.analysis.predictions import HEADS, at_crossings, pooled_gain
from rlscale.records import read_run, read_sweep

from ...options import parse
from ...sweep.kinds import TrainingPlan
from ...sweep.options import SweepOptions, make_training_plan
from ...sweep.trial import TrainingCourse, run_trial
from ..measuring import made_here, map_in_processes, print_table, require_known, write_result

RUNGS = Path("results/ladder")
ENVIRONMENTS = 512
SIZES = (0.5, 1.0, 2.0)  # of the fixed batch, times B_crit
RATES = (0.5, 1.0, 2.0)  # ε, times the surface's best rate at B_crit
FOLLOWED = ("policy_last_layer", "joint", "joint_adam")
GIVEN_UP = 10  # times E_min in observations: a run that has not reached the goal by then; the optimum is 2 (blackjack's: 30)
CURVE = 40  # points of a run's batch sizes in the record


@dataclass(frozen=True)
class Case:
    """What a run is, seed apart.

    Attributes:
        followed: the noise that the batch follows; None for a fixed batch.
        size: of a fixed batch, times B_crit; 1 for an adaptive one.
        rate: ε, times the best rate at B_crit.
    """

    followed: Literal["policy_last_layer", "joint", "joint_adam"] | None
    size: float
    rate: float


@dataclass(frozen=True)
class Measured:
    """What the rung says of its last goal.

    Attributes:
        rung: its name.
        goal: the last one.
        b_crit: r, in valid observations; S_min and E_min are the surface's too.
        steps_each: steps of environments per valid observation: more than 1 where many of them are resets.
        rate: the best learning rate at B_crit.
        gains: γ, by loss, where the noise runs together show it.
    """

    rung: str
    goal: float
    b_crit: float
    steps_each: float
    s_min: float
    e_min: float
    rate: float
    gains: dict[str, float]


def main(rung: str, /, seeds: int = 48, tries: int = 4, out: Path = Path("results/adaptive-2.json")) -> None:
    """Measure the kinds on one task.

    Args:
        rung: of the ladder.
        seeds: fresh ones of each kind.
        tries: seeds on which the fixed size, and every kind's rate, are chosen.
        out: where the record goes; what it says of other rungs is kept, and a rung that it has is only shown.
    """
    require_known("RUNG", [rung], sorted(folder.name for folder in RUNGS.iterdir()))
    known = read_rung(rung)
    readings = json.loads(out.read_text())["readings"] if out.exists() else {}
    if rung in readings:
        print(f"{out} has {rung} already; take it out to measure it again")
        show(known, readings[rung]["final"])
        return
    cases = [Case(None, size, rate) for size in SIZES for rate in RATES]
    cases += [Case(followed, 1.0, rate) for followed in FOLLOWED for rate in RATES]  # type: ignore[arg-type]
    kept = out.with_suffix(f".{rung}.jsonl")
    tried = make(known, [(case, seed) for case in cases for seed in range(tries)], kept)
    best = [
        min((c for c in cases if kind_of(asdict(c)) == kind), key=lambda c: mean_of(tried, c)) for kind in ("fixed", *FOLLOWED)
    ]
    final = make(known, [(case, 1000 + seed) for seed in range(seeds) for case in best], kept)
    readings[rung] = {
        **{"seeds": seeds, "tries": tries, "measured": asdict(known), "tried": tried, "final": final},
        **made_here(),
    }
    write_result(out, readings)
    kept.unlink()
    show(known, final)


def read_rung(rung: str) -> Measured:
    """What the rung's runs say of its last goal."""
    record = read_sweep(RUNGS / rung)
    goal = record.manifest["plan"]["goals"][-1]
    runs = list(record.results.values())
    surface = fit_points(surface_points(runs, goal), stopped=True)
    b_crit, s_min, e_min = (one.known for one in (surface.b_crit, surface.s_min, surface.e_min))
    noise_runs, ends = at_crossings([run for run in runs if run.noise_sums], goal)
    gains = {head: gain for head in HEADS if (gain := pooled_gain(noise_runs, ends, head)) is not None}
    steps_each = statistics.median(run.batch_size * run.optimizer_steps / run.observations for run in runs if run.observations)
    return Measured(rung, goal, b_crit, steps_each, s_min, e_min, surface.best_rate(b_crit), gains)


def make(known: Measured, jobs: Sequence[tuple[Case, int]], kept: Path) -> list[dict[str, Any]]:
    """The runs of these cases and seeds: those that are kept, and the others, each kept and said when it has ended."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    done = {job_of(result): result for result in map(json.loads, lines)}
    missing = [(case, seed) for case, seed in jobs if (case, seed) not in done]
    with kept.open("a", encoding="utf-8") as file:
        for number, result in enumerate(map_in_processes(run, [(known, case, seed) for case, seed in missing]), 1):
            done[job_of(result)] = result
            file.write(json.dumps(result) + "\n")
            file.flush()
            reached = f"cost {result['cost']:,.0f}" + ("" if result["reached"] else ", missed")
            print(f"{number} of {len(missing)}: {result['followed'] or result['size']} x{result['rate']:g} {reached}", flush=True)
    return [done[job] for job in jobs]


def job_of(done: Mapping[str, Any]) -> tuple[Case, int]:
    """The case and the seed of a run that ended."""
    return Case(done["followed"], done["size"], done["rate"]), done["seed"]


def plan_of(rung: str) -> TrainingPlan:
    """The rung's plan, from the command that made it."""
    words = json.loads((RUNGS / rung / "ladder.json").read_text())["command"][1:]
    options = parse(SweepOptions, "sweep", words)
    return make_training_plan(options.tasks[0], options)


def run(known: Measured, case: Case, seed: int) -> dict[str, Any]:
    """Train until the goal is crossed: what that cost, and how the batch went."""
    plan = plan_of(known.rung)
    length = plan.config.rollout.rollout_length
    environments = max(round(case.size * known.b_crit * known.steps_each / length), 1)
    size = length * (environments if case.followed is None else ENVIRONMENTS)
    first = plan.next_trials({})[0]
    trial = replace(
        first, id="run", batch_size=size, learning_rate=known.rate * case.rate, seed=seed, most_optimizer_steps=None, limit=None,
        measures_noise=case.followed is not None, last_goal=None,
    )  # fmt: skip
    config = with_batch(plan.config_of(trial), known, case)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run"
        result = run_trial(
            trial,
            goals=(known.goal,),
            most_observations=min(plan.most_observations, round(GIVEN_UP * known.e_min)),
            make_course=lambda: TrainingCourse(config, episodes=plan.episodes, folder=record, command=[]),
        )
        sizes = read_run(record).column("batch_observations")
    (goal,) = result.goals
    reached = goal.optimizer_steps is not None and goal.observations is not None
    steps = goal.optimizer_steps if reached else result.optimizer_steps
    observations = goal.observations if reached else result.observations
    assert steps is not None and observations is not None  # noqa: PT018
    return {
        **asdict(case),
        "seed": seed,
        "reached": reached,
        "optimizer_steps": steps,
        "observations": observations,
        "cost": known.b_crit * steps + observations,
        "seconds": result.seconds,
        "batches": [float(part.mean()) for part in np.array_split(sizes, min(CURVE, len(sizes)))],
    }


def with_batch(config: TrainConfig, known: Measured, case: Case) -> TrainConfig:
    """The run's settings: the rate's rule, and a batch that follows the noise or does not."""
    update = replace(config.update, threads=1, lr_rule="sqrt", lr_batch=round(known.b_crit))
    config = replace(config, update=update)
    if case.followed is None:
        return config
    rollout = replace(config.rollout, batch_size="adaptive", exchange_rate=known.b_crit)
    return replace(config, rollout=rollout, noise=replace(config.noise, followed_noise=case.followed))


def kind_of(done: Mapping[str, Any]) -> str:
    return done["followed"] or "fixed"


def mean_of(done: Sequence[dict[str, Any]], case: Case) -> float:
    """Mean of the logarithm of a case's cost; a run that missed the goal counts with what it had spent."""
    return statistics.fmean(math.log(one["cost"]) for one in done if one.items() >= asdict(case).items())


def show(known: Measured, final: Sequence[Mapping[str, Any]]) -> None:
    """The table, and the measured gain beside the predicted ones. Intervals: of 10,000 bootstrapped draws of the runs."""
    rng = np.random.default_rng(0)
    costs = {kind: np.array([one["cost"] for one in final if kind_of(one) == kind]) for kind in ("fixed", *FOLLOWED)}
    drawn = {kind: rng.choice(mine, (10_000, len(mine))) for kind, mine in costs.items()}
    rows = []
    for kind, mine in costs.items():
        runs = [one for one in final if kind_of(one) == kind]
        row = [kind, f"{runs[0]['size']:g}" if kind == "fixed" else "", f"{runs[0]['rate']:g}"]
        for mean in (np.median, gmean):
            low, high = np.percentile(mean(drawn[kind], axis=1) / mean(drawn["fixed"], axis=1), (2.5, 97.5))
            ratio = f"{mean(mine) / mean(costs['fixed']):.2f} [{low:.2f}, {high:.2f}]"
            row += [f"{mean(mine):,.0f}", "" if kind == "fixed" else ratio]
        rows.append([*row, f"{np.log(mine).std(ddof=1):.2f}", f"{sum(not one['reached'] for one in runs)} of {len(runs)}"])
    columns = ["batch", "x B_crit", "x rate", "cost, median", "of fixed", "geometric mean", "of fixed", "sd of ln", "missed"]
    print_table(f"{known.rung} to {known.goal:g}, r = B_crit = {known.b_crit:,.0f}", columns, rows)
    r, s_min, e_min = known.b_crit, known.s_min, known.e_min
    plain, root = s_min * r + e_min, 2 * math.sqrt(s_min * r * e_min)
    for head, gain in known.gains.items():
        print(f"predicted from the noise of {head}: gamma {gain:.2f}, {(plain + root * math.sqrt(gain)) / (plain + root):.2f}")


if __name__ == "__main__":
    tyro.cli(main)
