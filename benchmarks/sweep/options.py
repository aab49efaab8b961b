"""`SweepOptions`: what a person can say about a sweep, and the plan it makes for a task. Nothing is run here."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rlscale.agents.checks import check_config, require_not_negative, require_positive
from rlscale.agents.config import Budget, NoiseSettings, Rollout, TrainConfig, Update
from rlscale.agents.networks import make_network
from rlscale.envs import Network, Task, find_task
from rlscale.errors import UsageError

from .plan import SweepPlan

__all__ = ["SweepOptions", "make_plan", "parse_sizes"]


@dataclass(frozen=True)
class SweepOptions:
    """Measure the critical batch size of tasks: train at every batch size with several learning rates, fit the frontier."""

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Tasks, for example minatar/breakout; 'rlscale tasks' lists them."""
    batch_sizes: str = "32..32768"
    """Observations per optimizer step: '32..32768' goes in steps of 4, '32..32768x2' in steps of 2, or name them: 128,512."""
    goals: tuple[float, ...] | None = None
    """Mean returns to reach, ascending; None: the task's own."""
    rates: int = 5
    """Learning rates of the coarse grid at every batch size, an octave apart; 1 keeps to its centre and adds none."""
    seeds: int = 3
    """Fresh seeds for the final runs at the chosen learning rate."""
    neighbours: bool = True
    """Make the final runs at the chosen rate's two neighbours as well."""
    observations: int | None = None
    """A run that has spent so many is given up; None: the task's own limit."""
    evaluation_episodes: int | None = None
    """Episodes of one evaluation of a frozen policy; None: 128, or 16 on Atari and EnvPool."""
    noise_batch: int = 2048
    """Batch size whose final runs give the predicted noise scale; the nearest of the sweep's own is taken."""
    learning_rate: float | None = None
    """ε*: the grid of rates is centred on ε*/(1 + B*/B)^α; None: the task's own."""
    rate_batch: float | None = None
    """B* of that centre; None: the task's own."""
    rate_exponent: float = 0.5
    """α of that centre: 1 for SGD, 0.5 to 1 for Adam."""
    random_first_steps: int = 0
    """Up to so many random steps per environment before a run, to set them out of step (football: 500; the paper: 500)."""
    rollout_length: int | None = None
    """Steps of each environment per batch, the same at every batch size; None: the task's own."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of every run."""
    discount: float | None = None
    """Discount factor (gamma); None: the task's own."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    advantage_scale: Literal["batch", "running", "none"] = "running"
    """How advantages are scaled; over a batch would make another algorithm of every batch size where rewards are rare."""
    max_grad_norm: float | None = 0.5
    """Clip the gradient to this norm; None for no clip."""
    network: Network | None = None
    """Policy and value network; None: the task's own."""
    width: int | None = None
    """Units of its hidden dense layers; None: its own."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """As in rlscale train."""
    device: str = "auto"
    """As in rlscale train."""
    seed: int = 0
    """Seed of the runs that choose the rate; the final runs take the next ones."""
    actors: int | None = None
    """Most Ray actors that sample for each run; 0: the run samples itself. None: 1 on Atari and EnvPool, else 0."""
    jobs: int | None = None
    """Runs side by side; 0 runs one at a time in this process, without Ray. None: as many as there are CPUs for."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    out: str = "sweeps"
    """Folder of the sweeps, one folder a task; the same command goes on where it stopped."""
    report: bool = False
    """Write the comparison page when the sweep ends."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Batch sizes from '32..32768', '32..32768x2' or '128,512,2048'; ascending.

    Raises:
        UsageError: it reads as none of them.
    """
    mend = "Write for example 32..32768, 32..32768x2 or 128,512,2048"
    matched = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*(?:x\s*(\d+))?\s*", text)
    if matched:
        first, last, factor = int(matched[1]), int(matched[2]), int(matched[3] or 4)
        if not (0 < first <= last and factor > 1):
            raise UsageError("--batch-sizes", f"{text!r} is no ascending range", mend)
        count = math.floor(math.log(last / first) / math.log(factor) + 1e-9)
        return tuple(first * factor**i for i in range(count + 1))
    try:
        sizes = sorted({int(part.strip()) for part in text.split(",")})
    except ValueError:
        raise UsageError("--batch-sizes", f"{text!r} cannot be read", mend) from None
    if sizes[0] < 1:
        raise UsageError("--batch-sizes", f"{sizes[0]} is not a batch size", mend)
    return tuple(sizes)


def make_plan(task_id: str, options: SweepOptions) -> SweepPlan:
    """The plan of one task's sweep.

    Raises:
        UsageError: an unknown task, or options that cannot work.
    """
    task = find_task(task_id)
    usual = task.sweep
    length = options.rollout_length or usual.rollout_length
    observations = options.observations or usual.observations
    sizes = parse_sizes(options.batch_sizes)
    goals = task.goals if options.goals is None else tuple(options.goals)
    _check(task, options, sizes, goals, length)
    most_actors = 0 if options.jobs == 0 else usual.actors
    config = TrainConfig(
        task=task.id,
        seed=options.seed,
        rollout=Rollout(
            environments=sizes[0] // length,
            rollout_length=length,
            actors=most_actors if options.actors is None else options.actors,
            random_first_steps=options.random_first_steps,
        ),
        update=Update(
            epochs=1,
            mini_batch=None,
            shuffle="environments",
            optimizer=options.optimizer,
            learning_rate=options.learning_rate or usual.learning_rate,
            discount=task.discount if options.discount is None else options.discount,
            gae_lambda=options.gae_lambda,
            entropy_coef=options.entropy_coef,
            max_grad_norm=options.max_grad_norm,
            advantage_scale=options.advantage_scale,
            network=options.network or task.network,
            width=options.width,
            precision=options.precision,
            device=options.device,
            threads=1 if options.device in ("auto", "cpu") else 0,
        ),
        noise=NoiseSettings(blocks=32),
        budget=Budget(observations=observations),
    )
    plan = SweepPlan(
        config=config,
        batch_sizes=sizes,
        goals=goals,
        rates=options.rates,
        rate_batch=usual.rate_batch if options.rate_batch is None else options.rate_batch,
        rate_exponent=options.rate_exponent,
        seeds=options.seeds,
        neighbours=options.neighbours,
        episodes=options.evaluation_episodes or usual.episodes,
        most_observations=observations,
        noise_batch=min(sizes, key=lambda size: (abs(math.log(size / options.noise_batch)), size)),
    )
    for trial in plan.first_trials():
        check_config(plan.config_of(trial))
    make_network(task, config.update.network, 0, config.update.width)
    return plan


def _check(task: Task, options: SweepOptions, sizes: tuple[int, ...], goals: tuple[float, ...], length: int) -> None:
    if not goals:
        problem = f"{task.id} has no goals of its own" if options.goals is None else "none was named"
        raise UsageError("--goals", problem, "Name returns to reach, for example --goals 10 20")
    if any(not math.isfinite(goal) for goal in goals) or sorted(set(goals)) != list(goals):
        raise UsageError("--goals", f"{' '.join(map(str, goals))} are not ascending", "Name each once, the lowest first")
    if length < 1:
        raise UsageError("--rollout-length", f"{length} is not a positive number", "Give one above zero")
    wrong = [size for size in sizes if size % length]
    if wrong:
        raise UsageError(
            "--batch-sizes",
            f"{wrong[0]} is no whole number of environments with {length} steps each",
            f"Use multiples of {length}, or change --rollout-length",
        )
    require_positive(
        {
            "rates": options.rates,
            "observations": options.observations,
            "learning-rate": options.learning_rate,
            "evaluation-episodes": options.evaluation_episodes,
            "noise-batch": options.noise_batch,
            "rate-batch": options.rate_batch,
        }
    )
    require_not_negative(
        {
            "seeds": options.seeds,
            "jobs": options.jobs,
            "actors": options.actors,
            "random-first-steps": options.random_first_steps,
            "rate-exponent": options.rate_exponent,
        }
    )
    if options.jobs == 0:
        for flag, given in (("--actors", options.actors), ("--ray-address", options.ray_address)):
            if given:
                raise UsageError(flag, "with --jobs 0 there is no Ray", "Leave it out, or give --jobs 1 or more")
    if options.evaluation_episodes == 1:
        raise UsageError("--evaluation-episodes", "one episode has no standard error", "Give at least 2; 128 is the default")
