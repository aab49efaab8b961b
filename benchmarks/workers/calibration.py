"""Short measurements of a cluster, from which `rlscale workers` predicts: fleets of Ray actors, the emulator, the learner.

What follows from the readings is in `rlscale.sizing`. All that one command measures is in `measuring`, what it recommends in
`recommendation`.
"""

import itertools
import math
import os
import pickle
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from rlscale.agents.checks import divisors_of
from rlscale.agents.cluster import BusyClusterError, spilled_files
from rlscale.agents.cluster.processes import LostWorkerError, enter_user_folder, pickle_settings
from rlscale.agents.compute import Compute
from rlscale.agents.config import TrainConfig
from rlscale.agents.learning import Learner, arrange_slots, learn_batch
from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout import Fragment, RayFleet, RolloutWorker, WorkerSettings
from rlscale.envs import Task, make_env
from rlscale.sizing import FleetTime, LearnerTime, fit_hand_over, fit_learner, fit_service, fit_throughput, hand_over_seconds
from rlscale.text import tell

__all__ = [
    "FleetReading",
    "Laws",
    "Shape",
    "fit_fleet",
    "fit_updates",
    "measure_emulator",
    "measure_fleet",
    "measure_learner",
    "measured_steps",
    "sample_fragments",
    "timed_environments",
]

ROLLOUT = 32  # most steps of a fragment while measuring: long enough to be sampled as in a run, short enough for minutes
LEAST_ROUNDS = 4
LEARNER_ROUNDS = 2
MOST_STEPS = 256  # of an epoch of a timed update: an optimizer step of a tiny mini-batch takes a millisecond or more
LATE = 2**20 + 1  # an iteration in which no head is measured
PARAMETERS = 8  # of the law: three of a worker, two or three of many, three of the hand-over


@dataclass(frozen=True)
class Shape:
    """A fleet: so many actors, threads (CPUs) of each, and environments of each."""

    actors: int
    threads: int
    environments: int

    def __str__(self) -> str:
        many = f"{self.actors} actor{'s' * (self.actors > 1)}"
        return f"{many} × {self.threads} CPU{'s' * (self.threads > 1)} × {self.environments} environments"


@dataclass(frozen=True)
class FleetReading:
    """What a fleet did, round by round; a round is one fragment of every actor, asked for when the last was complete.

    Attributes:
        shape: of the fleet.
        rollout_length: steps of a fragment.
        seconds: of each round, from parameters that are sent to fragments that are here.
        fragments: seconds that each actor took for its fragment, of each round.
        fragment_bytes: of a round.
        valid: share of the steps that are observations; the others only reset an environment.
    """

    shape: Shape
    rollout_length: int
    seconds: tuple[float, ...]
    fragments: tuple[tuple[float, ...], ...]
    fragment_bytes: int
    valid: float = 1.0

    @property
    def observations(self) -> int:
        """Of one round, the steps included that only reset an environment: they take as long."""
        return self.shape.actors * self.shape.environments * self.rollout_length

    @cached_property
    def median(self) -> float:
        """Seconds of a fragment."""
        return statistics.median(itertools.chain.from_iterable(self.fragments))

    @property
    def rates(self) -> list[float]:
        """Observations per second of each round."""
        return [self.observations / seconds for seconds in self.seconds]


@dataclass(frozen=True)
class Laws:
    """What the iterations of every fleet are predicted from.

    Attributes:
        fleet: how long fragments take.
        learner: how long updates take.
        emulator: observations per second of the environments alone on one CPU.
    """

    fleet: FleetTime
    learner: LearnerTime
    emulator: float


def measure_fleet(config: TrainConfig, task: Task, compute: Compute, shape: Shape, seconds: float) -> FleetReading:
    """Start that fleet, let it sample for so many seconds (four rounds at least, and one before that is not counted), end it.

    Raises:
        BusyClusterError: it does not start.
        LostWorkerError: an actor died.
    """
    settings = fleet_settings(config, task, compute, shape, measured_steps(config))
    weights = flatten_parameters(make_network(task, settings.network, config.seed, settings.width)).numpy()
    rounds: list[float] = []
    fragments: list[tuple[float, ...]] = []
    valid: list[int] = []
    written = set(spilled_files())
    with closing(_start_fleet(settings, shape.actors)) as fleet:
        begin = time.perf_counter()
        while len(rounds) <= LEAST_ROUNDS or time.perf_counter() - begin < seconds:
            started = time.perf_counter()
            fleet.request(weights, len(rounds), shape.actors)
            sampled = [fleet.take() for _ in range(shape.actors)]
            fragments.append(tuple(s.summary.seconds for s in sampled))
            valid.append(sum(s.summary.observations for s in sampled))
            size = sum(_touch(s.fragment) for s in sampled)
            rounds.append(time.perf_counter() - started)
            del sampled
            fleet.release(shape.actors)
            if len(rounds) == 1:
                begin = time.perf_counter()
        if set(spilled_files()) - written:
            slow = f"the object store had no room for {shape}, so Ray wrote fragments to disk and the rate is too low"
            tell(f"rlscale: {slow}. Start this machine's Ray with a larger --object-store-memory")
        if lost := fleet.lost_actors():
            raise LostWorkerError(f"a rollout actor was lost while its fleet was measured ({lost[0].what})")
    steps = shape.actors * shape.environments * settings.rollout_length
    share = statistics.fmean(valid[1:]) / steps
    return FleetReading(shape, settings.rollout_length, tuple(rounds[1:]), tuple(fragments[1:]), size, share)


def _start_fleet(settings: WorkerSettings, actors: int) -> RayFleet:
    try:
        return RayFleet(settings, 2 * actors, ahead=actors)
    except BusyClusterError as error:  # it names --actors, which no command that measures fleets has
        mend = "Give fewer, or wait until they are free ('ray status' shows them)"
        raise BusyClusterError("--cpus", error.problem, mend) from error


def measured_steps(config: TrainConfig) -> int:
    """Steps of a fragment of a measured fleet: what comes once a fragment weighs more in short ones."""
    return min(ROLLOUT, config.rollout.rollout_length)


def fleet_settings(config: TrainConfig, task: Task, compute: Compute, shape: Shape, steps: int) -> WorkerSettings:
    """What the actors of such a fleet get."""
    return WorkerSettings(
        task=task,
        environments=shape.environments,
        rollout_length=steps,
        network=config.update.network,
        width=config.update.width,
        bfloat16=compute.acts_in_bfloat16,
        threads=shape.threads,
        cut_on_life_loss=config.rollout.cut_on_life_loss,
        clones=config.rollout.clones,
        random_first_steps=0,
        seed=config.seed,
        workers=shape.actors,
        device=compute.acting.type,
    )


def fit_fleet(readings: Sequence[FleetReading], rollout_length: int) -> FleetTime:
    """The law of all fleets from some: one actor alone gives its service times, several of one thread what they take from
    each other. No fragment is taken to be made faster because more actors work: where the medians say so they are averaged.

    Args:
        readings: of single actors at two numbers of environments or more, and of several actors of one thread each with one of
            these numbers; of many of them with a smaller one as well, to tell messages from bytes.
        rollout_length: of the runs to be predicted.
    """
    alone = [r for r in readings if r.shape.actors == 1]
    several = [r for r in readings if r.shape.threads == 1]
    most = max((r.shape.environments for r in several if r.shape.actors > 1), default=several[0].shape.environments)
    beside = {r.shape.actors: r for r in several if r.shape.environments == most}
    rates = [(n, r.observations / statistics.median(row)) for n, r in beside.items() for row in r.fragments]
    curve = fit_throughput(*zip(*rates, strict=True))
    counts = sorted(beside)
    weights = [n * len(beside[n].fragments) for n in counts]
    medians = dict(zip(counts, isotonic_regression([beside[n].median for n in counts], weights=weights).x.tolist(), strict=True))
    slowdowns = tuple((n, medians[n] / medians[1]) for n in counts)
    took = {r.shape: r.median for r in alone} | {beside[1].shape: medians[1]}
    points = [(r.shape.environments, r.shape.threads, took[r.shape] / r.rollout_length) for r in alone]
    service = fit_service(*zip(*points, strict=True))
    waits = [
        (r.shape.actors, r.fragment_bytes, hand_over_seconds(seconds, row), seconds)
        for r in readings
        for seconds, row in zip(r.seconds, r.fragments, strict=True)
    ]
    spread = tuple(s / r.median for r in readings for row in r.fragments for s in row)
    hand_over = fit_hand_over(*zip(*waits, strict=True))
    per_observation = statistics.median(r.fragment_bytes / r.observations for r in readings)
    law = FleetTime(service, slowdowns, curve, hand_over, spread, per_observation, readings[0].rollout_length)
    scatter, freedom = _scatter(law, readings, len(service.threads), len(counts))
    return replace(law, rollout_length=rollout_length, scatter=scatter, freedom=freedom)


def _scatter(law: FleetTime, readings: Sequence[FleetReading], threads: int, counts: int) -> tuple[float, float]:
    """Standard deviation of ln(rate) of one more reading of another fleet about the law, and its degrees of freedom.

    Every fleet errs in its own way, however long it is measured: the variance is that of the fleets' means, with as many
    degrees of freedom as the parts of a worker's step and the slowdowns leave of the fleets, and that of rounds about their
    mean. Where no fleet is left over it is that of all rounds about the law.
    """
    errors = []
    for r in readings:
        predicted = law.rate(r.shape.actors, r.shape.environments, r.shape.threads).known
        errors.append(np.log(np.array(r.rates) / predicted))
    together = np.concatenate(errors)
    fleets, rounds = len(errors) - (3 if threads > 1 else 2) - (counts - 1), len(together) - len(errors)
    if fleets < 1 or rounds < 1:
        freedom = len(together) - PARAMETERS
        return float(np.sqrt(np.sum(np.square(together)) / max(freedom, 1))), max(freedom, 0)
    between = sum(float(e.mean()) ** 2 for e in errors) / fleets
    within = sum(float(((e - e.mean()) ** 2).sum()) for e in errors) / rounds
    both = between + within
    return math.sqrt(both), both**2 / (between**2 / fleets + within**2 / rounds) if both else rounds  # Satterthwaite's


def fit_updates(learning: Sequence[dict[str, Any]]) -> LearnerTime:
    """The learner's law from its readings."""
    points = [(r["batch_size"], r["blocks"] or 1, s) for r in learning for s in r["seconds"]]
    return fit_learner(*zip(*points, strict=True))


def measure_emulator(task: Task, environments: int, seconds: float) -> float:
    """Observations per second of the environments alone on one CPU of the cluster, under random actions."""
    import ray

    run = ray.remote(num_cpus=1)(emulate)
    return float(ray.get(run.remote(pickle_settings((task, environments, seconds), task), os.getcwd())))


def emulate(settings: bytes, folder: str) -> float:
    """In a Ray process of its own: steps environments and does nothing else."""
    enter_user_folder(folder)
    task, environments, seconds = pickle.loads(settings)
    generator = np.random.default_rng(0)
    with closing(make_env(task, environments, threads=1)) as env:
        env.reset(np.arange(environments))
        steps, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            env.step(task.random_actions(generator, environments))
            steps += 1
    return environments * steps / elapsed


def sample_fragments(
    config: TrainConfig, task: Task, compute: Compute, environments: int, count: int, steps: int = ROLLOUT
) -> list[Fragment]:
    """So many successive fragments of the same environments, made in this process.

    Learning from them as if each had environments of its own takes the same time, and those of Atari are dear to make.
    """
    settings = fleet_settings(config, task, compute, Shape(1, compute.threads, environments), steps)
    with closing(RolloutWorker(settings, 0)) as worker:
        return [worker.sample(0) for _ in range(count)]


def timed_environments(config: TrainConfig, task: Task, mini_batches: int | None = None) -> int:
    """Environments of a fragment with which an update is timed: the task's many, or fewer where mini-batches are tiny.

    Args:
        config: how to learn.
        task: what is sampled.
        mini_batches: of an epoch; None: of the configured size.
    """
    if mini_batches is not None or config.update.mini_batch is None:
        return task.cost.many
    return min(task.cost.many, max(MOST_STEPS * config.update.mini_batch // ROLLOUT, task.cost.few))


def measure_learner(
    config: TrainConfig,
    task: Task,
    compute: Compute,
    fragments: Sequence[Fragment],
    blocks: int | None,
    mini_batches: int | None = None,
    rounds: int = LEARNER_ROUNDS,
) -> dict[str, Any]:
    """Seconds of updates from a batch of these fragments, as configured; one before them is not counted.

    They are updates from late in a run, when the noise of single heads is measured rarely: none of these measures it, unless a
    run always does. Where the mini-batch does not divide this batch, the nearest that does is timed.

    Args:
        config: how to learn.
        task: what was sampled.
        compute: where to learn, and in which precision.
        fragments: of one rollout length; each counts as that of environments of its own.
        blocks: of an update; None as configured.
        mini_batches: of an epoch; None: of the configured size.
        rounds: updates that are counted.
    """
    environments = sum(f.environments for f in fragments)
    rollout = replace(config.rollout, environments=environments, rollout_length=fragments[0].steps, batch_size=None)
    configured = replace(config, rollout=rollout)
    mini_batch = config.update.mini_batch if mini_batches is None else configured.batch // mini_batches
    if mini_batch is not None:
        configured = replace(configured, update=replace(config.update, mini_batch=_dividing(configured, mini_batch)))
    if blocks is not None:
        configured = replace(configured, noise=replace(config.noise, blocks=blocks))
    learner = Learner(configured, task, compute.device, compute.bfloat16)
    slots = arrange_slots(range(len(fragments)), fragments[0].environments)
    seconds = []
    for turn in range(rounds + 1):
        begin = time.perf_counter()
        learn_batch(learner, fragments, LATE + turn, config.update.learning_rate, slots)
        seconds.append(time.perf_counter() - begin)
    return {"batch_size": configured.batch, "blocks": blocks, "seconds": seconds[1:]}


def _dividing(config: TrainConfig, wanted: int) -> int:
    """The mini-batch nearest to the wanted one, as a ratio, of those that divide the batch; of whole environments where a run
    shuffles these."""
    unit = config.rollout.rollout_length if config.update.shuffle == "environments" else 1
    return min((unit * d for d in divisors_of(config.batch // unit)), key=lambda size: abs(math.log(size / wanted)))


def _touch(fragment: Fragment) -> int:
    """Read a byte of every page, so that the fragment is really here; its size."""
    flat = fragment.frames.reshape(-1).view(np.uint8)
    flat[::4096].sum()
    return fragment.nbytes
