"""All that one command measures: the emulator, a few fleets, updates, and the fleets that check the predictions.

How each of them is measured is in `calibration`; which fleets, in `recommendation`.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console

from rlscale.agents.compute import Compute
from rlscale.agents.config import MOST_BLOCKS, TrainConfig
from rlscale.envs import Task
from rlscale.sizing import iteration

from ..steps import Steps
from .calibration import (
    FleetReading,
    Laws,
    Shape,
    fit_fleet,
    fit_updates,
    measure_emulator,
    measure_fleet,
    measure_learner,
    measured_steps,
    sample_fragments,
    timed_environments,
)
from .kept import KeptFleets
from .recommendation import whole_groups

__all__ = ["Measuring", "Readings", "check_laws", "held_out"]

MOST_HELD_OUT = 12
SMALL_ROUNDS = 4  # updates from a small batch, which are short


@dataclass(frozen=True)
class Readings:
    """What was measured."""

    fleets: list[FleetReading]
    learning: list[dict[str, Any]]  # as of `measure_learner`
    emulator: float  # observations per second of the environments alone on one CPU

    def fit(self, rollout_length: int) -> Laws:
        """What they say of runs with that rollout length."""
        return Laws(fit_fleet(self.fleets, rollout_length), fit_updates(self.learning), self.emulator)


@dataclass(frozen=True)
class Measuring:
    """How one command measures.

    Attributes:
        config, task, compute: of the runs.
        seconds: that each fleet is measured for, at least.
        console: for what is under way.
        kept: earlier readings, which are not made again; new ones are added.
        mini_batches: of an epoch of an update; None: of the configured size.
        smallest: the smallest batch whose time is asked for; None: nobody asks for that of a small one.
    """

    config: TrainConfig
    task: Task
    compute: Compute
    seconds: float
    console: Console
    kept: KeptFleets
    mini_batches: int | None = None
    smallest: int | None = None

    @property
    def way(self) -> str:
        """What decides how long an update takes, as text: readings of the learner are used again where it is the same."""
        same = replace(self.config.update, learning_rate=0.0)
        behind = self.config.rollout.lag > 0  # then an update of several steps begins with a pass of its own
        return json.dumps([asdict(same), asdict(self.config.noise), self.mini_batches, self.smallest, behind], sort_keys=True)

    def missing(self, shapes: Sequence[Shape]) -> int:
        """How many measurements `measure` will make."""
        fleets = sum(shape not in self.kept.fleets for shape in shapes)
        return fleets + (self.kept.emulator is None) + (self.way not in self.kept.learning)

    def measure(self, shapes: Sequence[Shape]) -> Readings:
        """The emulator, those fleets, and updates."""
        with Steps(self.console, self.missing(shapes)) as steps:
            emulator = self.kept.emulator
            if emulator is None:
                steps.begin(f"the emulator alone, {self.task.cost.alone} environments")
                emulator = self.kept.keep_emulator(measure_emulator(self.task, self.task.cost.alone, self.seconds))
            fleets = self._fleets(shapes, steps)
            learning = self.kept.learning.get(self.way)
            if learning is None:
                steps.begin("the learner")
                learning = self.kept.keep_learning(self.way, self._updates())
        return Readings(fleets, learning, emulator)

    def measure_held_out(self, shapes: Sequence[Shape]) -> list[FleetReading]:
        """Fleets that were not used for the fit."""
        with Steps(self.console, sum(shape not in self.kept.fleets for shape in shapes)) as steps:
            return self._fleets(shapes, steps, "held out: ")

    def _fleets(self, shapes: Sequence[Shape], steps: Steps, what: str = "") -> list[FleetReading]:
        for shape in shapes:
            if shape not in self.kept.fleets:
                steps.begin(f"{what}{shape}")
                self.kept.keep(measure_fleet(self.config, self.task, self.compute, shape, self.seconds))
        return [self.kept.fleets[shape] for shape in shapes]

    def _updates(self) -> list[dict[str, Any]]:
        """Updates in so many mini-batches an epoch, or in those of the configured size.

        That of the smallest batch whose time is asked for is measured as well, and of a small one in many blocks: what does not
        grow with the batch hardly shows in large ones.
        """
        config, task, compute, clones = self.config, self.task, self.compute, self.config.rollout.clones
        environments = whole_groups(timed_environments(config, task, self.mini_batches), clones)
        fragments = sample_fragments(config, task, compute, environments, 2)
        several = config.update.mini_batch is None and self.mini_batches is None
        blocks = 8 if several else None
        learning = [measure_learner(config, task, compute, fragments[:n], blocks, self.mini_batches) for n in (1, 2)]
        if several:
            learning.append(measure_learner(config, task, compute, fragments, MOST_BLOCKS))
        if self.smallest is not None:
            length = measured_steps(config)
            fewest = config.noise.step_blocks(self.smallest, max(self.smallest // config.rollout.rollout_length, 1), equal=False)
            for environments, most in ((self.smallest // length, fewest), (MOST_BLOCKS, MOST_BLOCKS)):
                few = sample_fragments(config, task, compute, whole_groups(environments, clones), 1, length)
                blocks = most if several else None
                learning.append(measure_learner(config, task, compute, few, blocks, self.mini_batches, SMALL_ROUNDS))
        return learning


def held_out(grid: Sequence[Shape], fitted: Sequence[FleetReading], chosen: Shape) -> list[Shape]:
    """The fleets that check the predictions: of those that were not used for the fit some, and the recommended one."""
    before = [reading.shape for reading in fitted]
    left = [shape for shape in grid if shape not in before]
    if len(left) > MOST_HELD_OUT:
        picked = np.random.default_rng(0).choice(len(left), MOST_HELD_OUT, replace=False)
        left = [shape for i, shape in enumerate(left) if i in picked or shape == chosen]
    return left


def check_laws(
    config: TrainConfig, laws: Laws, fitted: Sequence[FleetReading], readings: Sequence[FleetReading], chosen: Shape
) -> dict[str, Any]:
    """Errors of the predictions of fleets that were not used for the fit, and the chosen fleet against the best of all.

    Only sampling is measured. The best is that of whole iterations, with the learner's predicted time.
    """
    measuring = replace(laws.fleet, rollout_length=readings[0].rollout_length)
    measured = {reading.shape: statistics.median(reading.rates) for reading in (*fitted, *readings)}
    rows: list[dict[str, Any]] = []
    for reading in readings:
        s = reading.shape
        predicted = measuring.rate(s.actors, s.environments, s.threads)
        error = predicted.known / measured[s] - 1
        rows.append({"shape": asdict(s), "predicted": asdict(predicted), "measured": measured[s], "error": error})
    errors = [abs(float(row["error"])) for row in rows]
    whole = {}  # observations per second, sampling as measured and learning as predicted
    for shape, rate in measured.items():
        batch = shape.actors * shape.environments * laws.fleet.rollout_length
        blocks = config.noise.step_blocks(batch, shape.actors * shape.environments, equal=False)
        whole[shape] = batch / iteration(batch, rate, laws.learner.seconds(batch, blocks), lag=config.rollout.lag).seconds
    best = max(whole, key=lambda shape: whole[shape])
    return {
        "held_out": [asdict(reading) for reading in readings],
        "rows": rows,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "best_measured": {"shape": asdict(best), "rate": measured[best]},
        "recommended_of_best": whole[chosen] / whole[best],
    }
