"""From a sweep's frontier and measured rates to a plan of wall time and cost, and to the choice that was asked for.

The arithmetic is in `rlscale.sizing`; what is measured, in `measuring`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlscale.agents.compute import Compute
from rlscale.agents.config import TrainConfig, config_from_dict
from rlscale.agents.idle_options import hides_noise
from rlscale.analysis import compare
from rlscale.envs import Task
from rlscale.errors import UsageError
from rlscale.frontier import Frontier
from rlscale.records import SweepRecord, read_sweep
from rlscale.report.words import warnings
from rlscale.sizing import Choice, CostPlan, FleetTime, LearnerTime, Price, plan
from rlscale.text import format_duration, format_quantity

from .calibration import Shape
from .options import WorkersOptions

__all__ = [
    "Known",
    "check_gpus",
    "choose",
    "find_frontier",
    "gpus_to_act_on",
    "make_plan",
    "price_of",
    "run_of",
    "say_asked",
    "say_beyond",
]

_OFTEN = 0.025  # of the runs: so many on one side of the interval are more than it leaves out


@dataclass(frozen=True)
class Known:
    """What a sweep says.

    Attributes:
        config: of its runs.
        goal: the one to plan for.
        frontier: to that goal.
        rates: chosen learning rate of every batch size that has one; a batch size counts all steps of an iteration.
        valid: observations that such a batch teaches, on which the frontier rests; less than its steps where environments that
            were only reset took some. A size that is not named teaches all of them.
        mini_batches: of one epoch, whatever the batch size.
        pilot_batch: batch size at which PPO-EWMA's average has the age that `config` says; None in records older than averages.
        episode_steps: steps of an environment in an episode, on average over all evaluations; 0 where there were none.
        warnings: sentences on what to take with care.
    """

    config: TrainConfig
    goal: float
    frontier: Frontier
    rates: dict[int, float]
    valid: Mapping[int, float] = field(default_factory=dict)
    mini_batches: int = 1
    pilot_batch: int | None = None
    episode_steps: float = 0.0
    warnings: Sequence[str] = ()


def find_frontier(folder: str, goal: float | None, task: Task) -> Known:
    """The sweep's frontier to the goal to plan for. Batch sizes whose best learning rate is only extrapolated are left out.

    Raises:
        UsageError: no sweep there, of another task, none of whose runs has ended, without a frontier for the goal, or whose
            learning rates reach the best one at no batch size.
    """
    sweep = read_sweep(Path(folder), "--sweep")
    if sweep.task != task.id:
        raise UsageError("--sweep", f"{folder} is of {sweep.task}, not {task.id}", "Name one of this task")
    try:
        compared = compare([sweep], []).sweeps[0]
    except UsageError as error:  # `rlscale compare` says it of its FOLDER
        raise UsageError("--sweep", error.problem, error.mend) from None
    rows = [row for row in compared.rows if goal in (None, row.goal)]
    if not rows:
        goals = ", ".join(f"{row.goal:g}" for row in compared.rows if row.goal is not None)
        raise UsageError("--goal", f"the sweep does not know {goal:g}", f"Its goals are {goals}")
    known = [row for row in rows if row.measured.value is not None]
    if not known:
        reason = rows[-1].measured.reason
        others = any(row.measured.value is not None for row in compared.rows)
        on = "Go on with the sweep without --quick" if rows[-1].quick else "Go on with the sweep, or name another one"
        mend = "Choose another --goal" if others else on
        raise UsageError("--sweep", f"its frontier is not identified: {reason}", mend)
    row = known[-1]
    reached, frontier = row.goal, row.frontier
    assert reached is not None
    assert frontier is not None
    able = (p for p in row.points if not p.missed and p.run.batch_size not in row.provisional)
    points = sorted(able, key=lambda point: point.run.batch_size)
    if not points:
        problem = "the best learning rate of every batch size lies outside those that reached the goal"
        raise UsageError("--sweep", problem, "Add learning rates to the sweep, or choose another --goal")
    said = warnings([row])
    if row.provisional:
        said.append("The plan leaves out the batch sizes that are provisional.")
    if frontier.stuck >= _OFTEN:
        said.append(f"Some {100 * frontier.stuck:.0f}% of the sweep's runs got stuck: such a run takes longer than its interval.")
    return Known(
        config_from_dict(sweep.plan["config"]),
        reached,
        frontier,
        {point.run.batch_size: frontier.best_rate(point.batch_size) for point in points},
        {point.run.batch_size: point.batch_size for point in points},
        sweep.plan.get("mini_batches", 1),
        sweep.plan.get("pilot_batch"),
        _mean_episode(sweep),
        said,
    )


def _mean_episode(sweep: SweepRecord) -> float:
    """Steps of an environment in an episode of the sweep's evaluations, on average; 0.0 where there were none."""
    results = sweep.results.values()
    steps = sum(result.evaluation_steps for result in results)
    episodes = sum(e.episodes for result in results for e in result.evaluations if not e.training)
    return steps / episodes if episodes else 0.0


def run_of(config: TrainConfig, shape: Shape, known: Known | None) -> TrainConfig:
    """The run of that fleet; with a sweep, in as many mini-batches an epoch as its runs, and with an average as old in
    observations."""
    rollout = replace(
        config.rollout,
        actors=shape.actors,
        actor_cpus=shape.threads,
        environments=shape.actors * shape.environments,
        batch_size=None,
    )
    run = replace(config, rollout=rollout)
    if known is None:
        return run
    mini_batch = run.update.mini_batch if known.mini_batches == 1 else run.batch // known.mini_batches
    age = run.update.proximal_average
    if age is not None and known.pilot_batch is not None:
        age *= known.pilot_batch / run.batch
    return replace(run, update=replace(run.update, mini_batch=mini_batch, proximal_average=age))


def make_plan(known: Known, law: FleetTime, learner: LearnerTime, price: Price, cpus: int, lag: int) -> CostPlan:
    """Wall time and cost of the sweep's batch sizes on every number of one-CPU workers that their environments divide over,
    in whole groups of clones.

    Raises:
        UsageError: no batch size has an environment for a worker.
    """
    choices: list[Choice] = []
    for size in known.rates:
        environments, rest = divmod(size, law.rollout_length)
        if rest:
            continue
        clones = known.config.rollout.clones
        if hides_noise(run_of(known.config, Shape(1, 1, environments), known)):
            continue  # `rlscale train` refuses such a run
        try:
            made = plan(
                known.frontier,
                law,
                learner,
                price,
                batch_sizes=[size],
                workers=[n for n in range(1, min(cpus, environments) + 1) if environments % (n * clones) == 0],
                lag=lag,
                blocks=known.config.noise.step_blocks(size, environments, equal=False),
                valid=known.valid,
            )
        except ValueError as error:
            raise UsageError("--sweep", str(error), "Plan with another sweep") from None
        choices += made.choices
    if not choices:
        problem = f"none of its batch sizes can be trained with in rollouts of {law.rollout_length} steps"
        raise UsageError("--sweep", problem, "Plan with another sweep")
    return CostPlan(tuple(choices))


def check_gpus(options: WorkersOptions, compute: Compute) -> None:
    """Refuse a price of GPUs that nobody works on, and GPUs without one where CPUs have a price.

    Raises:
        UsageError: names the option and the mend.
    """
    on_gpu = [who for who, where in (("the learner", compute.device), ("acting", compute.acting)) if where.type != "cpu"]
    if options.price_gpu_hour and not on_gpu:
        mend = "Leave it out, or give the --device that is hired"
        raise UsageError("--price-gpu-hour", "the learner works on a CPU here", mend)
    if options.price_cpu_hour is not None and options.price_gpu_hour is None and on_gpu:
        mend = "Give it, 0 where it is in the CPU's price, or --device cpu"
        raise UsageError("--price-gpu-hour", f"{on_gpu[0]} takes a GPU, which has no price yet", mend)


def gpus_to_act_on(compute: Compute, there: float) -> int:
    """GPUs that actors are given beside the learner's: half of those that there are; none where both share the only one.

    Args:
        compute: of the command.
        there: GPUs that Ray knows.
    """
    if compute.acting.type == "cpu":
        return 0
    return int(there) // 2 if compute.device.type != "cpu" else max(int(there) // 2, 1)


def price_of(options: WorkersOptions, compute: Compute, beside: float, offered: float, gpus: float) -> Price:
    """What is hired: a CPU for every worker, and for the learner a GPU and a CPU, or as many CPUs as it has threads.

    Workers that take turns with a learner on its CPUs have those for nothing; at lag 1 both work at once. Those that act on GPUs
    have the ones that rlscale gives them.

    Args:
        options, compute: of the command.
        beside: part of the workers that is on the learner's machine.
        offered: CPUs that there are for workers; `--cpus` may ask for more of this machine.
        gpus: that Ray knows.
    """
    on_gpu = compute.device.type != "cpu"
    learner_cpus = 1.0 if on_gpu else float(compute.threads)
    return Price(
        cpu_hour=1.0 if options.price_cpu_hour is None else options.price_cpu_hour,
        gpu_hour=options.price_gpu_hour or 0.0,
        learner_cpus=learner_cpus,
        learner_gpus=float(on_gpu),
        acting_gpus=gpus_to_act_on(compute, gpus),
        beside=beside if not on_gpu and options.lag == 0 else 0.0,
        most_cpus=max(offered, options.cpus or 0) + (0.0 if beside else learner_cpus),
    )


def choose(made: CostPlan, deadline: float | None, budget: float | None, *, currency: bool) -> Choice:
    """The cheapest plan within the deadline, the fastest within the budget, or else the fastest of all.

    Raises:
        UsageError: none meets what was asked; says which comes nearest.
    """
    able = [c for c in made.choices if c.seconds <= (deadline or math.inf) and c.cost <= (math.inf if budget is None else budget)]
    if able and deadline is not None:
        return min(able, key=lambda c: (c.cost, c.seconds))
    if able:
        return min(able, key=lambda c: (c.seconds, c.cost))
    fastest, cheapest = made.fastest(), made.cheapest()
    assert fastest is not None
    assert cheapest is not None
    unit = "" if currency else " CPU hours"
    fast = f"the fastest takes {format_duration(fastest.seconds)} and costs {format_quantity(fastest.cost)}{unit}"
    cheap = f"the cheapest costs {format_quantity(cheapest.cost)}{unit} and takes {format_duration(cheapest.seconds)}"
    if deadline is not None and budget is not None:
        raise UsageError("--deadline", f"no plan meets it and the budget: {fast}, {cheap}", "Give more of one")
    if deadline is not None:
        raise UsageError("--deadline", f"no plan ends within {format_duration(deadline)}: {fast}", "Give more time, or more CPUs")
    raise UsageError("--budget", f"no plan costs so little: {cheap}", "Give more")


def say_beyond(shape: Shape, choice: Choice, fleets: Sequence[Shape], learned: Sequence[float]) -> str | None:
    """What of a plan lies outside of what was measured; None where nothing does.

    Args:
        shape: the workers of the plan.
        choice: the plan.
        fleets: that were measured.
        learned: the iteration batches with which the learner was timed.
    """
    tried, beyond = [fleet.environments for fleet in fleets], []
    if not min(tried) <= shape.environments <= max(tried):
        beyond.append(f"{shape.environments:,} environments a worker where {min(tried):,} to {max(tried):,} were measured")
    if choice.batch_size > max(learned):
        beyond.append(f"a batch of {choice.batch_size:,.0f} where the learner was timed with up to {max(learned):,.0f}")
    if not beyond:
        return None
    return f"The plan has {' and '.join(beyond)}: its time follows from the fitted laws, and its interval is no wider for it"


def say_asked(deadline: float | None, budget: float | None) -> str:
    """What the choice is the best of; arguments as of `choose`."""
    limits = [] if deadline is None else [f"ends within {format_duration(deadline)}"]
    limits += [] if budget is None else [f"costs at most {budget:,.10g}"]
    best = "the fastest" if deadline is None else "the cheapest"
    return f"{best} that {' and '.join(limits)}" if limits else best
