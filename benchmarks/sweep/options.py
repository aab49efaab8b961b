"""`SweepOptions`: what a person can say about a sweep, and the plan it makes for a task. No run is made here."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import tyro

from rlscale.agents.checks import check_config, require_not_negative, require_positive
from rlscale.agents.cluster import connect
from rlscale.agents.cluster.resources import cpus_there
from rlscale.agents.config import Budget, NoiseSettings, Rollout, TrainConfig, Update
from rlscale.agents.memory import PROCESS_BYTES, count_parameters, memory_plan, require_network, require_processes
from rlscale.agents.supervised import SupervisedConfig, SupervisedUpdate
from rlscale.analysis.predictions import FEWEST_POOLED
from rlscale.cpus import usable_cpus
from rlscale.envs import Network, Task, find_task
from rlscale.envs.supervised import SupervisedTask, find_supervised
from rlscale.errors import UsageError

from ..options import MOST_SIZE, check_counts, check_rate_exponent, parse_sizes, refuse_given
from .kinds import SupervisedPlan, TrainingPlan
from .plan import SweepPlan

__all__ = ["SweepOptions", "make_plan", "make_training_plan"]

# Of the options, those that a supervised task knows; the others are about environments, policies or another optimizer.
_SUPERVISED = (
    *("tasks", "data", "interval_ratio", "total_observations", "hours", "batch_sizes", "rates", "seeds", "goals", "pilot_batch"),
    *("noise_runs", "observations", "learning_rate", "rate_batch", "rate_exponent", "warm_up", "device", "seed", "jobs"),
    *("ray_address", "out", "report"),
)
PILOT_BATCH = 640
LEAST_RATE = 1e-30  # one over it the most, of a learning rate and of the batch size that it is for: its powers are numbers still


@dataclass(frozen=True)
class SweepOptions:
    """Measure the critical batch size of tasks: train at several batch sizes and learning rates, fit the frontier.

    Without --batch-sizes the sweep decides itself on one run after another, until B_crit is sharp enough. The same command goes
    on where it stopped; a smaller --interval-ratio or a larger budget extends it, and more --seeds or --batch-sizes a grid.
    """

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Tasks, for example minatar/breakout; 'rlscale tasks' lists them."""
    data: str | None = None
    """Of a supervised task: the file or folder that holds its examples; None: the task's own source, docs/tasks.md."""
    quick: bool = False
    """Predict B_crit from the noise of a few runs, at a tenth of the cost, and measure nothing; docs/beyond.md: how well."""
    interval_ratio: float = 2.0
    """End when the upper end of B_crit's 95% interval is at most so many times the lower one."""
    total_observations: int | None = None
    """End when all runs and their evaluations have taken so many observations; the noise runs come on top."""
    hours: float | None = None
    """End after so many hours with all jobs busy; the noise runs come on top."""
    batch_sizes: str | None = None
    """A plain grid of these sizes: '40..40960' goes in steps of 4, '40..40960x2' in steps of 2, or name them: 80,320,1280."""
    rates: int = 4
    """A grid's learning rates at every batch size, a factor of two apart."""
    seeds: int = 2
    """A grid's seeds at every batch size and rate."""
    goals: tuple[float, ...] | None = None
    """Mean returns to reach, ascending; None: the task's own. The last one that the pilot reaches is sharpened."""
    pilot_batch: int | None = None
    """Batch size of the first runs, which look for the rate and the noise scale; None: 640, or a supervised task's own."""
    noise_runs: int = 8
    """Runs at the end that measure the noise of the policy, value and joint losses, at a batch size near the noise scale and the
    cheapest rate there; with --quick the most, of which four may be enough."""
    observations: int | None = None
    """A run that has spent so many is given up; None: the task's own limit."""
    evaluation_episodes: int | None = None
    """Episodes of one evaluation of a frozen policy; None: the task's own, mostly 64, 16 on Atari and EnvPool."""
    epochs: int = 1
    """Passes over each iteration batch. With more than one, or with mini-batches, S counts iterations (PPO as people run it)."""
    mini_batches: int = 1
    """Optimizer steps in each pass; the batch size is that of the iteration."""
    learning_rate: float | None = None
    """ε*: the first rate at batch size B is ε*/(1 + B*/B)^α; None: the task's own."""
    rate_batch: float | None = None
    """B* of that rate; None: the task's own."""
    rate_exponent: float = 0.5
    """α of that rate: 1 for SGD, 0.5 to 1 for Adam."""
    warm_up: int = 10
    """Optimizer steps (with epochs or mini-batches: iterations) over which every run's rate rises from zero."""
    random_first_steps: int | None = None
    """Up to so many random steps per environment before a run, to set them out of step; None: the task's own, mostly 100, or
    500 on Atari and EnvPool."""
    rollout_length: int | None = None
    """Steps of each environment per batch, the same at every batch size; None: the task's own, mostly 5."""
    reward_noise: float = 0.0
    """An experiment: standard deviation of noise on every reward that is learned from; the advantage scale stays as without."""
    clones: int = 1
    """An experiment: so many copies of every environment in a batch, all alike, which multiply B_crit by as many."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of every run."""
    beta2: float = 0.99
    """Adam: how much of its running mean of squared gradients is kept each step."""
    discount: float | None = None
    """Discount factor (gamma); None: the task's own."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    proximal_average: float | None = None
    """PPO-EWMA: clip about an average of past policies; its center of mass in optimizer steps at --pilot-batch, and in as many
    observations at every other size."""
    advantage_scale: Literal["batch", "running", "none"] = "running"
    """How advantages are scaled; over a batch would make another algorithm of every batch size where rewards are rare."""
    max_grad_norm: float | None = None
    """Clip the gradient to this norm; None for no clip. A clip that binds makes another algorithm of every batch size."""
    network: Network | None = None
    """Policy and value network; None: the task's own."""
    width: int | None = None
    """Units of its hidden dense layers; None: its own."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """As in rlscale train."""
    device: str = "auto"
    """As in rlscale train."""
    seed: int = 0
    """Seed of the first run; the others take the next ones."""
    actors: int | None = None
    """Most Ray actors that sample for each run; 0: the run samples itself. None: 1 on Atari and EnvPool, else 0."""
    jobs: int | None = None
    """Runs side by side; 0 runs one at a time in this process, without Ray. None: as many as there are CPUs for, here or in the
    cluster."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    out: str = "sweeps"
    """Folder of the sweeps, one folder a task."""
    report: bool = False
    """Write the comparison page when the sweep ends."""


def make_plan(task_id: str, options: SweepOptions) -> SweepPlan:
    """The plan of one task's sweep; the task's name decides of which kind it is.

    Raises:
        UsageError: an unknown task, or options that cannot work.
    """
    supervised = find_supervised(task_id)
    return make_training_plan(task_id, options) if supervised is None else _supervised_plan(supervised, options)


def make_training_plan(task_id: str, options: SweepOptions) -> TrainingPlan:
    """The plan of a task with environments.

    Raises:
        UsageError: as `make_plan`.
    """
    if options.data is not None:
        raise UsageError("--data", f"{task_id} has an environment and no examples", "Leave it out")
    task = find_task(task_id)
    usual = task.sweep
    length = options.rollout_length or usual.rollout_length
    observations = options.observations or usual.observations
    shared = _shared(task, options)
    sizes = shared["batch_sizes"]
    if sizes is not None:
        _check_grid(options, sizes, length)
    most_actors = 0 if options.jobs == 0 else usual.actors
    first_steps = usual.random_first_steps if options.random_first_steps is None else options.random_first_steps
    config = TrainConfig(
        task=task.id,
        seed=options.seed,
        rollout=Rollout(
            environments=sizes[0] // length if sizes else options.clones,
            rollout_length=length,
            actors=most_actors if options.actors is None else options.actors,
            random_first_steps=first_steps,
            reward_noise=options.reward_noise,
            clones=options.clones,
        ),
        update=Update(
            epochs=options.epochs,
            mini_batch=None,
            shuffle="environments" if options.mini_batches == 1 else "transitions",
            optimizer=options.optimizer,
            learning_rate=options.learning_rate or usual.learning_rate,
            beta2=options.beta2,
            warm_up=options.warm_up * options.epochs * options.mini_batches,
            discount=task.discount if options.discount is None else options.discount,
            gae_lambda=options.gae_lambda,
            entropy_coef=options.entropy_coef,
            proximal_average=options.proximal_average,
            max_grad_norm=options.max_grad_norm,
            advantage_scale=options.advantage_scale,
            network=options.network or task.network,
            width=options.width,
            precision=options.precision,
            device=options.device,
            threads=0 if options.jobs == 0 and options.device not in ("auto", "cpu") else 1,
        ),
        noise=NoiseSettings(blocks=32),
        budget=Budget(observations=observations),
    )
    plan = TrainingPlan(
        **shared,
        config=config,
        rate_batch=usual.rate_batch if options.rate_batch is None else options.rate_batch,
        mini_batches=options.mini_batches,
        pilot_batch=options.pilot_batch or PILOT_BATCH,
        episodes=options.evaluation_episodes or usual.episodes,
        most_observations=observations,
    )
    if options.jobs is None:
        plan = replace(plan, jobs=max(1, plan.jobs // max(1, plan.rollout_cpus)))
    runs = [plan.config_of(trial) for trial in plan.next_trials({})]
    for run in runs:
        check_config(run)
    if options.ray_address is None:
        largest = max(runs, key=lambda run: run.batch)
        require_network(largest, task)
        try:
            memory_plan(largest, task)
        except UsageError as error:
            if sizes is None or error.field != "--environments":
                raise
            raise UsageError("--batch-sizes", error.problem, "Use smaller ones") from error
    else:  # the cluster's machines may have more memory
        count_parameters(config, task)
    return plan


def _supervised_plan(task: SupervisedTask, options: SweepOptions) -> SupervisedPlan:
    others = [name for name in vars(options) if name not in _SUPERVISED]
    problem = f"{task.id} is learned from examples, by SGD with momentum, and has no such setting"
    refuse_given(options, others, problem, "Leave it out")
    shared = _shared(task, options)
    for size in shared["batch_sizes"] or ():
        if size % task.length:
            raise UsageError(
                "--batch-sizes", f"{size} is no multiple of an example's {task.length} observations", "Use multiples"
            )
    goals = shared["goals"]
    if goals[-1] > (1 if task.objective == "classify" else 0):
        kind = "an accuracy, at most 1" if task.objective == "classify" else "minus a loss, so at most 0"
        raise UsageError("--goals", f"{goals[-1]:g} is out of reach: a goal of {task.id} is {kind}", "Name lower ones")
    if task.objective == "classify" and goals[0] <= 0:
        raise UsageError("--goals", f"{goals[0]:g} is no accuracy above 0, as a goal of {task.id} is", "Name higher ones")
    _, held_out = task.load(options.data)  # here, so that missing data are noticed before anything is made
    return SupervisedPlan(
        **shared,
        config=SupervisedConfig(
            task=task.id,
            data=options.data,
            seed=options.seed,
            update=SupervisedUpdate(
                learning_rate=options.learning_rate or task.learning_rate, warm_up=options.warm_up, device=options.device
            ),
        ),
        rate_batch=task.rate_batch if options.rate_batch is None else options.rate_batch,
        mini_batches=1,
        pilot_batch=options.pilot_batch or task.pilot_batch,
        episodes=len(held_out),
        most_observations=options.observations or task.observations,
    )


def _shared(task: Task | SupervisedTask, options: SweepOptions) -> dict[str, Any]:
    """What a plan of either kind takes from the options, checked."""
    sizes = None if options.batch_sizes is None else parse_sizes(options.batch_sizes)
    goals = task.goals if options.goals is None else tuple(options.goals)
    _check(task.id, options, goals)
    if sizes is not None:
        problem = "a grid makes all of its runs"
        refuse_given(options, ("total_observations", "hours"), problem, "Leave out --batch-sizes, or name fewer")
        refuse_given(options, ("interval_ratio",), problem, "Leave it out, or leave out --batch-sizes")
    else:
        problem = "without --batch-sizes the sweep chooses every run's rate, and takes a fresh seed for each"
        refuse_given(options, ("rates", "seeds"), problem, "Leave it out; a smaller --interval-ratio makes more runs")
    return {
        "goals": goals,
        "batch_sizes": sizes,
        "rates": options.rates,
        "seeds": options.seeds,
        "rate_exponent": options.rate_exponent,
        "noise_runs": options.noise_runs,
        "interval_ratio": options.interval_ratio,
        "total_observations": options.total_observations,
        "hours": options.hours,
        "quick": options.quick,
        "jobs": _cpus(options) if options.jobs is None else max(options.jobs, 1),
    }


def _cpus(options: SweepOptions) -> int:
    """Of this machine, or of the cluster, which is joined for the sweep."""
    if options.ray_address is None:
        return usable_cpus()
    connect(options.ray_address, 1)
    return cpus_there()


def _check(task_id: str, options: SweepOptions, goals: tuple[float, ...]) -> None:
    if not goals:
        problem = f"{task_id} has no goals of its own" if options.goals is None else "none was named"
        raise UsageError("--goals", problem, "Name returns to reach, for example --goals 10 20")
    if any(not math.isfinite(goal) for goal in goals) or sorted(set(goals)) != list(goals):
        raise UsageError("--goals", f"{' '.join(map(str, goals))} are not ascending", "Name each once, the lowest first")
    positive = (
        *("rates", "seeds", "rollout_length", "observations", "total_observations", "hours", "learning_rate"),
        *("evaluation_episodes", "epochs", "mini_batches", "pilot_batch", "clones", "rate_batch", "proximal_average"),
    )
    require_positive({name.replace("_", "-"): getattr(options, name) for name in positive})
    check_counts(options)
    require_not_negative(
        {
            "seed": options.seed,
            "noise-runs": options.noise_runs,
            "warm-up": options.warm_up,
            "jobs": options.jobs,
            "actors": options.actors,
            "random-first-steps": options.random_first_steps,
            "reward-noise": options.reward_noise,
        }
    )
    check_rate_exponent(options.rate_exponent)
    for name in ("learning_rate", "rate_batch"):
        if not LEAST_RATE <= (getattr(options, name) or 1.0) <= 1 / LEAST_RATE:
            problem = f"with {getattr(options, name):g} no rate at any size could be learned with"
            raise UsageError(f"--{name.replace('_', '-')}", problem, "Give the task's own order of magnitude")
    if (options.rollout_length or 1) > MOST_SIZE:
        raise UsageError("--rollout-length", f"{options.rollout_length:,} is too large", "Give for example 64")
    if options.quick:
        _check_quick(options)
    if not 1 < options.interval_ratio < math.inf:
        raise UsageError(
            "--interval-ratio", f"{options.interval_ratio} is not above 1", "Give for example 2, or 4 for a quick look"
        )
    if options.jobs == 0:
        for flag, given in (("--actors", options.actors), ("--ray-address", options.ray_address)):
            if given:
                raise UsageError(flag, "with --jobs 0 there is no Ray", "Leave it out, or give --jobs 1 or more")
    if options.jobs and options.ray_address is None:
        require_processes("--jobs", options.jobs, PROCESS_BYTES["actor"])
    if options.optimizer != "adam" and options.beta2 != SweepOptions.beta2:
        raise UsageError("--beta2", f"{options.optimizer} has none", "Leave it out, or give --optimizer adam as well")
    if options.evaluation_episodes == 1:
        raise UsageError("--evaluation-episodes", "one episode has no standard error", "Give at least 2; 64 is the default")


def _check_quick(options: SweepOptions) -> None:
    if options.batch_sizes is not None:
        raise UsageError("--quick", "a grid makes all of its runs", "Leave out --quick or --batch-sizes")
    problem = "a quick sweep ends after its pilot and noise runs"
    refuse_given(options, ("interval_ratio", "total_observations", "hours"), problem, "Leave it out, or --quick")
    if options.epochs > 1 or options.mini_batches > 1:
        raise UsageError(
            "--quick",
            "how well the noise predicts is known for one optimizer step a batch alone",
            "Leave out --epochs and --mini-batches, or --quick",
        )
    if options.noise_runs < FEWEST_POOLED:
        raise UsageError(
            "--noise-runs",
            f"{options.noise_runs} are too few to predict from",
            f"Give at least {FEWEST_POOLED}; 8 is the default",
        )


def _check_grid(options: SweepOptions, sizes: tuple[int, ...], length: int) -> None:
    each = length * options.mini_batches * options.clones
    wrong = [size for size in sizes if size % each]
    if wrong:
        kind = f"with {length} steps each" + (f" for {options.mini_batches} mini-batches" if options.mini_batches > 1 else "")
        kind += f" and {options.clones} clones" if options.clones > 1 else ""
        raise UsageError(
            "--batch-sizes",
            f"{wrong[0]} is no whole number of environments {kind}",
            f"Use multiples of {each}, or change --rollout-length",
        )
