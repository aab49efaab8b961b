"""Which fleets could be used, which few are measured, and which one is recommended, with the command that uses it.

How fleets are measured is in `calibration`; what is done with the answer, in `run`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlscale.agents.cluster import store_bytes
from rlscale.agents.config import NoiseSettings, Rollout, TrainConfig, Update, default_config
from rlscale.agents.idle_options import hides_noise
from rlscale.agents.memory import store_room
from rlscale.agents.setup import can_begin
from rlscale.envs import Task, find_task
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.sizing import Choice, CostPlan, FleetTime, Iteration, iteration

from ..options import flag_of
from .calibration import Laws, Shape
from .options import WorkersOptions
from .plan import Known, run_of

__all__ = [
    "CLOSE",
    "Recommendation",
    "candidates",
    "flags_that_differ",
    "gain_of_twice",
    "predict",
    "recommend",
    "shape_of",
    "that_fit",
    "to_measure",
    "train_command",
    "whole_groups",
]

_THREADS = 1, 2, 4  # of an actor
CLOSE = 0.98  # of the best predicted rate: nearer to it, fewer environments are worth more than what is left


@dataclass(frozen=True)
class Recommendation:
    """What to run.

    Attributes:
        shape: the fleet.
        rate: observations per second of sampling, predicted.
        batch_size: observations of an iteration.
        iteration: one of the run's, predicted.
        shares: of an iteration's time, by what takes it: emulator, inference, waiting, transfer, learner. At lag 1 the learner
            works beside the others, and all of them together are more than 1.
        doubled: as of `gain_of_twice`; None as well for a fleet that is only predicted.
        command: as it can be typed; empty for a fleet that is only predicted.
    """

    shape: Shape
    rate: Estimate
    batch_size: int
    iteration: Iteration
    shares: dict[str, float]
    doubled: float | None = None
    command: list[str] = field(default_factory=list)

    @property
    def end_to_end(self) -> float:
        """Observations per second, learning included."""
        return self.batch_size / self.iteration.seconds


def candidates(task: Task, cpus: int, nodes: Sequence[int] | None = None, clones: int = 1) -> list[Shape]:
    """The grid: every fleet that could be recommended.

    Args:
        task: to be trained.
        cpus: that actors may use.
        nodes: free CPUs of each node of a cluster; None: all are one machine's.
        clones: copies of every environment, all with the same actor.
    """
    sizes = sorted({whole_groups(task.cost.few * 2**k, clones) for k in range(12) if task.cost.few * 2**k <= task.cost.most})
    counts = sorted({c for c in (*range(1, 9), *(2**k for k in range(16)), cpus) if c <= cpus})
    room = {t: _room(t, cpus, nodes) for t in _THREADS}
    return [Shape(n, t, e) for t, most in room.items() for n in sorted({*counts, most}) if 0 < n <= most for e in sizes]


def to_measure(task: Task, cpus: int, nodes: Sequence[int] | None = None, clones: int = 1) -> list[Shape]:
    """The few fleets that the others are predicted from; arguments as of `candidates`."""
    few, many, most = (whole_groups(count, clones) for count in (task.cost.few, task.cost.many, task.cost.most))
    if most == few:  # more clones than an actor usually has environments; one size tells nothing of another
        most *= 2
    alone = [Shape(1, t, e) for t in _THREADS if _room(t, cpus, nodes) for e in (few, many)] + [Shape(1, 1, most)]
    counts = {2**k for k in range(1, 16)} | {cpus} | ({3} if cpus < 8 else set())
    beside = [Shape(n, 1, many) for n in sorted(counts) if 1 < n <= cpus]
    return alone + beside + [Shape(s.actors, 1, few) for s in beside[-1:]]


def whole_groups(environments: int, clones: int) -> int:
    """So many environments, or the few more that make whole groups of clones."""
    return math.ceil(environments / clones) * clones


def _room(threads: int, cpus: int, nodes: Sequence[int] | None) -> int:
    """Actors that find room, node by node: the CPUs of an actor are all of one."""
    if nodes is None or threads == 1:  # those of one CPU fit wherever one is free
        return cpus // threads
    return min(cpus // threads, sum(free // threads for free in nodes))


def recommend(
    options: WorkersOptions,
    config: TrainConfig,
    task: Task,
    laws: Laws,
    grid: Sequence[Shape],
    known: Known | None = None,
) -> Recommendation:
    """Of the fleets that come near the best predicted rate of whole iterations, the one with the fewest environments, then the
    fewest CPUs, then the fewest actors.

    Where the learner is the limit many fleets come near it, and a small one is recommended.

    Raises:
        UsageError: none of them can train the task.
    """
    possible = [shape for shape in grid if fits(options, config, task, shape, known)]
    if not possible:
        raise UsageError("--cpus", "no fleet of these CPUs can train the task within memory", "Give more, or a smaller task")
    found = {shape: predict(config, task, laws, shape) for shape in possible}
    best = max(one.end_to_end for one in found.values())
    near = [one for one in found.values() if one.end_to_end >= CLOSE * best]
    chosen = min(near, key=lambda one: (*_size(one.shape), -one.end_to_end))
    return replace(chosen, doubled=gain_of_twice(laws.fleet, chosen), command=train_command(options, config, chosen.shape, known))


def _size(shape: Shape) -> tuple[int, int, int]:
    return shape.actors * shape.environments, shape.actors * shape.threads, shape.actors


def predict(config: TrainConfig, task: Task, laws: Laws, shape: Shape) -> Recommendation:
    """What an iteration of one fleet should take, and what takes it."""
    law, lag = laws.fleet, config.rollout.lag
    batch = shape.actors * shape.environments * law.rollout_length
    rate = law.rate(shape.actors, shape.environments, shape.threads)
    learning = laws.learner.seconds(batch, config.noise.step_blocks(batch, shape.actors * shape.environments, equal=False))
    one = iteration(batch, rate.known, learning, lag=lag)
    working = law.working_seconds(shape.actors, shape.environments, shape.threads)
    emulated = shape.environments // config.rollout.clones * law.rollout_length
    emulating = min(emulated / (laws.emulator * (shape.threads if task.cost.threaded else 1)), working)
    lost = max(one.sampling_seconds - working, 0.0)
    waiting = min(max(law.slowest_seconds(shape.actors, shape.environments, shape.threads) - working, 0.0), lost)
    parts = {"emulator": emulating, "inference": working - emulating, "waiting": waiting, "transfer": lost - waiting}
    parts["learner"] = learning
    total = one.seconds if lag else sum(parts.values())
    shares = {name: seconds / total for name, seconds in parts.items()}
    return Recommendation(shape, rate, batch, one, shares)


def gain_of_twice(law: FleetTime, found: Recommendation) -> float | None:
    """How many times as many observations per second twice the workers make, each with as many CPUs and environments.

    An observation is learned from in the same time. None where the readings do not say how fast so many sample.
    """
    try:
        rate = law.rate(2 * found.shape.actors, found.shape.environments, found.shape.threads)
    except ValueError:
        return None
    now = found.iteration
    then = iteration(2 * found.batch_size, rate.known, 2 * now.learning_seconds, lag=now.staleness)
    return 2 * now.seconds / then.seconds


def fits(options: WorkersOptions, config: TrainConfig, task: Task, shape: Shape, known: Known | None = None) -> bool:
    """Whether a run with that fleet passes the checks that `rlscale train` makes, memory included."""
    run = run_of(config, shape, known)
    rollout, update = run.rollout, run.update
    store = None
    if options.ray_address is not None:
        store = store_room(store_bytes(1, shape.actors, shape.threads, stream=update.stream, lag=rollout.lag))
    return can_begin(run, task, store) and not hides_noise(run)


def shape_of(choice: Choice, rollout_length: int) -> Shape:
    """The workers of a choice."""
    return Shape(choice.workers, 1, round(choice.batch_size / rollout_length / choice.workers))


def that_fit(options: WorkersOptions, config: TrainConfig, task: Task, made: CostPlan, known: Known) -> CostPlan:
    """The choices of a plan whose runs could begin, as of `fits`.

    Raises:
        UsageError: there is none.
    """
    steps = config.rollout.rollout_length
    choices = tuple(choice for choice in made.choices if fits(options, config, task, shape_of(choice, steps), known))
    if not choices:
        mend = "Plan where there is more of it, or with another sweep"
        raise UsageError("--sweep", "none of its batch sizes fits into memory here", mend)
    return CostPlan(choices)


# What a command says by itself, and what of a sweep's rollouts changes what is learned.
_OWN: dict[str, Any] = {"learning_rate": 0.0, "device": "auto", "threads": 0}
_PLAYED = ("cut_on_life_loss", "random_first_steps", "reward_noise", "clones")


def flags_that_differ(settings: Update | Rollout | NoiseSettings, usual: Update | Rollout | NoiseSettings) -> list[str]:
    """The flags of those settings that are not the usual ones.

    Not β₂ of an optimizer that has none: sweeps store it all the same.
    """
    differ = {name: value for name, value in vars(settings).items() if value != getattr(usual, name)}
    if isinstance(settings, Update) and settings.optimizer != "adam":
        differ.pop("beta2", None)
    return [word for name, value in differ.items() for word in flag_of(name, value)]


def train_command(
    options: WorkersOptions, config: TrainConfig, shape: Shape, known: Known | None = None, choice: Choice | None = None
) -> list[str]:
    """What to type to train so: with the task's own settings, or as the sweep's runs; for a choice of its plan, to the goal."""
    words = ["rlscale", "train", config.task, "--actors", str(shape.actors), "--actor-cpus", str(shape.threads)]
    words += ["--environments", str(shape.actors * shape.environments)]
    if known is not None:
        usual = default_config(find_task(config.task))
        words += ["--rollout-length", str(config.rollout.rollout_length)]
        if choice is not None:
            # To the goal, so that the plan can be checked; a run that takes twice the planned observations is given up. The plan
            # is to a frozen policy's return; the command waits for finished episodes, of which every environment makes two more.
            most = 2 * round(choice.observations + shape.actors * shape.environments * known.episode_steps)
            words += ["--goal", f"{known.goal:g}", "--observations", str(most)]
        # Of a batch that the sweep did not try, the rate of the nearest one that it did: beyond those, nobody has looked.
        batch = shape.actors * shape.environments * config.rollout.rollout_length
        nearest = min(known.rates, key=lambda size: abs(math.log(size / batch)))
        words += ["--learning-rate", f"{known.rates[nearest]:.4g}"]
        words += flags_that_differ(replace(run_of(config, shape, known).update, **_OWN), replace(usual.update, **_OWN))
        words += flags_that_differ(
            replace(usual.rollout, **{name: getattr(config.rollout, name) for name in _PLAYED}), usual.rollout
        )
        words += flags_that_differ(config.noise, usual.noise)
    for flag, given, standard in (
        ("--ray-address", options.ray_address, None),
        ("--lag", options.lag, 0),
        ("--actor-device", options.actor_device, "cpu"),
        ("--device", options.device, "auto"),
    ):
        if given != standard:
            words += [flag, str(given)]
    return words
