"""`SweepPlan`: the literal description of a sweep, and the rule that turns results so far into the next trials.

A *grid* names its batch sizes: every size is tried at the same number of learning rates, an octave apart about
ε*/(1 + B*/B)^α, each with the same seeds. A *sequential* sweep names none: `design.next_run` decides on one run after another, by
the last goal that the pilot reached, until B_crit's interval is sharp enough or a budget is spent. A run is decided on when one
of the J jobs is free, from all results that there are; once it has begun it stays as it was decided. Both kinds end with *noise*
runs: at the batch size nearest the noise scale that was measured so far, of those at which the goal is well within a run's
budget, and at the rate there that takes the fewest expected steps, those of runs that fail counted. A *quick* sweep has the pilot
and noise runs alone.

A sweep can be extended: what was decided stays as it is recorded, and a plan that asks for more goes on from there. Nothing is
run here: how a trial is set up and begun is the business of the two kinds of plan, in `kinds`.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rlscale.agents.config import FEWEST_BLOCKS, TrainConfig
from rlscale.agents.supervised import SupervisedConfig
from rlscale.analysis.predictions import ADVISED, predict
from rlscale.estimate import Estimate
from rlscale.records import Trial, TrialResult

from . import design
from .design import Candidate, Known, RunSoFar, fit_known, nearest_size, next_run, noise_run, rounded
from .trial import Course

__all__ = ["WIDE", "SweepPlan", "hours_more", "run_so_far"]

WIDE = 20.0  # upper over lower end of an interval, above which it does not say how long a sweep will take
FEWEST_STEPS = 24  # never give up sooner: crossings need a few evaluations on either side
MOST_PARTS = 2**15  # of a sequential sweep's largest size: environments, or examples
QUICK_RATIO = 4.0  # of the upper to the lower end of its prediction: a factor of two either way
QUICK_GROWTH = 4  # its noise runs have the pilot's batch size, or one at most so many times as large
NOISE_ROOM = 3.0  # a noise run's budget, over the observations that are expected of it: seeds scatter
NOISE_SEEDS = 10_000  # added to the seeds of the noise runs, which no other run has

Results = Mapping[str, TrialResult]  # by trial id
Begun = Mapping[str, Trial]
NONE_BEGUN: Begun = {}


@dataclass(frozen=True)
class SweepPlan(ABC):
    """A sweep of one task, of either kind.

    Attributes:
        config: settings of every run; batch size, learning rate and seed are put in per trial. `config.update.learning_rate` is
            ε*.
        goals: mean returns, ascending.
        batch_sizes: B of a grid, ascending; multiples of `least_batch`. None: the sweep is sequential.
        rates: learning rates of a grid at every size.
        seeds: of a grid at every rate.
        rate_batch: B* of the first rate ε*/(1 + B*/B)^α.
        rate_exponent: α.
        mini_batches: optimizer steps of one epoch over the iteration batch; B is the iteration batch, and S counts iterations.
        pilot_batch: batch size of the pilot; in a grid the runs nearest to it measure the noise that the noise runs' size
            follows.
        noise_runs: runs that measure the noise of the policy, value and joint losses, when all others have ended.
        interval_ratio: of the upper to the lower end of B_crit's interval, at which a sequential sweep ends.
        total_observations: at which a sequential sweep ends, evaluations counted; None for no such limit.
        hours: of all jobs together over their number, which another session of the sweep may change, at which a sequential sweep
            ends; None for no such limit.
        jobs: J, runs side by side.
        episodes: of one evaluation; of a supervised task, held-out examples.
        most_observations: a run that has spent so many is given up.
        quick: end with the pilot and the noise runs, of which the first `design.QUICK_RUNS` may be enough.
    """

    config: TrainConfig | SupervisedConfig
    goals: tuple[float, ...]
    batch_sizes: tuple[int, ...] | None
    rates: int
    seeds: int
    rate_batch: float
    rate_exponent: float
    mini_batches: int
    pilot_batch: int
    noise_runs: int
    interval_ratio: float
    total_observations: int | None
    hours: float | None
    jobs: int
    episodes: int
    most_observations: int
    quick: bool
    # Decisions by their number and that of the results that they know; a plan object is asked about one growing set of results.
    _decided: dict[tuple[int, int], Trial | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    # --- what the two kinds of plan say ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def least_batch(self) -> int:
        """The smallest batch size, of which every other one is a multiple."""

    @property
    @abstractmethod
    def inner_steps(self) -> int:
        """Optimizer steps in one step S."""

    @property
    @abstractmethod
    def rollout_cpus(self) -> int:
        """CPUs of the Ray actors that each run has beside it; 0 where it has none."""

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What the record says of the task."""

    @abstractmethod
    def begin(self, trial: Trial, folder: Path, command: list[str]) -> Course:
        """Begin the run of a trial, with its record in `folder`; `command` is what the user typed."""

    # --- sizes and rates ------------------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every batch size that a run may have, ascending."""
        if self.batch_sizes is not None:
            return self.batch_sizes
        return tuple(self.least_batch * 2**j for j in range(max(1, MOST_PARTS // self.mini_batches).bit_length()))

    def learning_rate(self, batch_size: int, rate_index: int = 0) -> float:
        """ε*/(1 + B*/B)^α times 2^(k/2)."""
        centre = self.config.update.learning_rate / (1 + self.rate_batch / batch_size) ** self.rate_exponent
        return rounded(centre * 2 ** (rate_index / 2))

    # --- which trials ------------------------------------------------------------------------------------------------------

    def next_trials(self, results: Results, begun: Begun = NONE_BEGUN) -> list[Trial]:
        """Every trial that can begin or has begun, given these results; those that have ended are left out.

        Args:
            results: of the trials that ended.
            begun: trials that have begun, ended or not, which stay as they were decided.
        """
        return [trial for trial in self.trials(results, begun) if trial.id not in results]

    def trials(self, results: Results, begun: Begun = NONE_BEGUN) -> list[Trial]:
        """Every trial known so far, ended or not."""
        trials, more = self._sequence(results, begun) if self.batch_sizes is None else (self._grid(), False)
        if more or any(trial.id not in results for trial in trials):
            return trials
        return trials + self._noise_trials(results)

    def _grid(self) -> list[Trial]:
        """Seed by seed, the centre of the rates first, the largest size first: what ended early says most."""
        assert self.batch_sizes is not None
        offsets = sorted((2 * (i - self.rates // 2) for i in range(self.rates)), key=abs)
        measured = nearest_size(self.batch_sizes, self.pilot_batch)
        return [
            Trial(
                id=f"b{size}-k{k:+d}-s{seed}",
                stage="grid",
                batch_size=size,
                rate_index=k,
                learning_rate=self.learning_rate(size, k),
                seed=self.config.seed + seed,
                most_optimizer_steps=None,
                limit=None,
                measures_noise=size == measured and k == 0,
                last_goal=None,
            )
            for seed in range(self.seeds)
            for k in offsets
            for size in reversed(self.batch_sizes)
        ]

    def _sequence(self, results: Results, begun: Begun) -> tuple[list[Trial], bool]:
        """The runs decided on so far in their order, and whether another decision is still to come."""
        trials: list[Trial] = []
        while True:
            number = len(trials)
            decided: Trial | None = results.get(_name(number)) or begun.get(_name(number))
            if decided is None:
                known = {trial.id: results[trial.id] for trial in trials if trial.id in results}
                pending = number - len(known)
                if pending >= self.jobs or any(trial.id not in known for trial in trials[: _awaits(number)]):
                    return trials, True
                if (number, len(known)) not in self._decided:  # a fit takes a while, and this is asked twice a second
                    self._decided[number, len(known)] = self._decide(trials, known)
                decided = self._decided[number, len(known)]
                if (
                    decided is None
                ):  # what seems to be enough is looked at again when all have ended, which may widen the interval
                    return trials, pending > 0
            trials.append(decided)

    def _decide(self, trials: list[Trial], known: Results) -> Trial | None:
        """The next run, from the results of those that ended; None where the sweep has all that it was asked for."""
        piloting = len(trials) < design.PILOT_RUNS
        goal = self.target(known)
        if not piloting and (self.quick or goal is None or self.is_spent(known) or len(trials) >= design.MOST_RUNS):
            return None
        candidate = next_run(
            [run_so_far(trial, known.get(trial.id), self.goals[-1] if piloting or goal is None else goal) for trial in trials],
            pilot_size=nearest_size(self.sizes, self.pilot_batch),
            pilot_rate=self.learning_rate(nearest_size(self.sizes, self.pilot_batch)),
            noise_scale=self.noise_scale(known),
            sizes=self.sizes,
            most_observations=self.most_observations,
            ratio=self.interval_ratio,
        )
        if candidate is None:
            return None
        most, limit = _limit(candidate)
        return Trial(
            id=_name(len(trials)),
            stage=candidate.stage,
            batch_size=candidate.batch_size,
            rate_index=None,
            learning_rate=candidate.learning_rate,
            seed=self.config.seed + len(trials),
            most_optimizer_steps=most,
            limit=limit,
            measures_noise=piloting,
            last_goal=None if piloting else goal,
        )

    def _noise_trials(self, results: Results) -> list[Trial]:
        """None where too few runs reached a goal for a best rate.

        A grid that is extended may reach a later goal. The noise runs to the goal before end there, so others are made.
        """
        if not self.noise_runs:
            return []
        goal = self.target(results)
        made = [result for result in results.values() if result.stage == "noise"]
        there = [result for result in made if None in (goal, result.last_goal) or result.last_goal == goal]
        earlier = len(made) - len(there)
        names = _noise_names(earlier + self.noise_runs)[earlier:]
        if self.quick and self._few_are_enough(results):
            names = names[: design.QUICK_RUNS]
        like: Trial | None = there[0] if there else None
        if like is None:  # else what was made before the sweep was extended stays, and the others are like it
            found = self._noise_run(results, goal)
            if found is None:
                return []
            most, limit = _limit(found)
            like = Trial("", found.stage, found.batch_size, None, found.learning_rate, 0, most, limit, True, goal)
        first = self.config.seed + NOISE_SEEDS
        settings = {name: getattr(like, name) for name in Trial.__dataclass_fields__}
        return [Trial(**{**settings, "id": name, "seed": first + number}) for number, name in enumerate(names, earlier)]

    def _noise_run(self, results: Results, goal: float | None) -> Candidate | None:
        """What the noise runs are; None where too few runs reached a goal."""
        known = None if self.quick else self.known(results)
        pilot = [] if goal is None else [run_so_far(result, result, goal) for result in self._pilot(results)]
        if self.quick and pilot:
            # Two environments or so show no noise, and large batches cost much while little is known.
            least = pilot[0].batch_size
            size = nearest_size(self.sizes, min(max(self.noise_scale(results) or least, least), QUICK_GROWTH * least))
        elif known is not None:
            # A run that spends its budget on the way says nothing of the noise up to the goal.
            # One of few environments shows no noise between them.
            least = FEWEST_BLOCKS * self.least_batch // self.mini_batches
            able = [size for size in self.sizes if size >= least] or self.sizes[-1:]
            affordable = [size for size in able if NOISE_ROOM * size * known.steps(size) <= self.most_observations]
            size = nearest_size(affordable or able[:1], self.noise_scale(results) or known.b_crit)
        else:
            return None
        return noise_run(known, pilot, size)

    def _pilot(self, results: Results) -> list[TrialResult]:
        """Its runs that ended, in their order."""
        return [results[name] for name in map(_name, range(design.PILOT_RUNS)) if name in results]

    def _few_are_enough(self, results: Results) -> bool:
        """Whether the first noise runs predict sharply enough; true while they have not all ended."""
        first = [results[name] for name in _noise_names(design.QUICK_RUNS) if name in results]
        if len(first) < design.QUICK_RUNS:
            return True
        low, high = self._predicted(first).interval or (0.0, math.inf)
        return high <= QUICK_RATIO * low

    # --- what the results say ----------------------------------------------------------------------------------------------

    def target(self, results: Results) -> float | None:
        """The goal that is sharpened: the last one that a run of the pilot, or of a grid, reached; None before there is one."""
        most = max((len(r.reached) for r in results.values() if r.stage in ("pilot", "grid")), default=0)
        return self.goals[most - 1] if most else None

    def noise_scale(self, results: Results) -> float | None:
        """Of the joint loss up to the target, in observations, from the fastest run that resolves it; None where none does."""
        goal = self.target(results)
        runs = [r for r in results.values() if r.stage in ("pilot", "grid") and goal is not None and r.steps_to(goal)]
        for run in sorted(runs, key=lambda run: run.steps_to(goal or 0.0) or math.inf):
            for noise in run.noise:
                if (noise.head, noise.quantity, noise.goal) == ("joint", "cumulative", goal) and noise.scale.value is not None:
                    return noise.scale.value
        return None

    def predicted(self, results: Results) -> Estimate:
        """B_crit at the target as the noise runs predict it; what a quick sweep is for."""
        goal = self.target(results)
        return self._predicted([result for result in results.values() if result.stage == "noise" and result.last_goal == goal])

    def _predicted(self, runs: list[TrialResult]) -> Estimate:
        goal = runs[0].last_goal if runs else None
        nothing = Estimate(None, None, "too few noise runs have ended")
        if goal is None:
            return nothing
        predictions, _ = predict(runs, goal, runs[0].batch_size)
        return next((found.scale for found in predictions if (found.head, found.quantity) == ADVISED), nothing)

    def known(self, results: Results) -> Known | None:
        """The surface of the target through all results; None while too few runs reached it."""
        goal = self.target(results)
        if goal is None:
            return None
        runs = [run_so_far(result, result, goal) for result in results.values()]
        return fit_known([run for run in runs if not run.pending])

    def hours_to_go(self, results: Results, factor: float) -> float | None:
        """Hours that a sequential sweep is expected to take from here, noise runs included.

        Args:
            results: of the runs that ended, in that order.
            factor: of the upper to the lower end of B_crit's interval, as it is after them.

        Returns:
            None for a factor above twenty, which tells nothing yet, for one that is as small as is wanted, and where no run
            sharpens any more: a budget is spent, or the run that ended last is a noise run. Those that a sweep had before it was
            extended, as one that was quick, are not made again.
        """
        stages = [r.stage for r in results.values()]
        if not self.interval_ratio < factor <= WIDE or stages[-1:] == ["noise"] or self.is_spent(results):
            return None
        hours = [r.hours(self.jobs) for r in results.values() if r.stage != "noise"]
        noise = sum(hours) / len(hours) * max(0, self.noise_runs - stages.count("noise"))
        return hours_more(sum(hours), factor, self.interval_ratio) + noise

    def is_spent(self, results: Results) -> bool:
        """Whether these results have used up one of the sweep's budgets, of which noise runs take nothing."""
        observations = sum(r.observations + r.evaluation_steps for r in results.values() if r.stage != "noise")
        return observations >= (self.total_observations or math.inf) or self.hours_left(results) <= 0

    def hours_left(self, results: Results) -> float:
        """Of `--hours`, of which noise runs take nothing; infinite without."""
        return (self.hours or math.inf) - sum(r.hours(self.jobs) for r in results.values() if r.stage != "noise")

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for the record."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return json.loads(json.dumps({**values, "config": asdict(self.config)}))


def _name(number: int) -> str:
    """Of the run that was decided on as the so-manieth, from 0."""
    return f"run-{number + 1:03d}"


def _noise_names(number: int) -> list[str]:
    return [f"noise-{k + 1}" for k in range(number)]


def _awaits(number: int) -> int:
    """How many of the first runs must have ended before the decision with that number."""
    # The pilot's other rates are given up by what its first took.
    return min(number, 1) if number < design.PILOT_RUNS else design.PILOT_RUNS


def hours_more(spent: float, factor: float, ratio: float) -> float:
    """Hours until B_crit's interval shrinks from a factor to a ratio, after so many: they go with 1 / (its width in ln B_crit).

    How well this foretold the ladder's sweeps is in docs/frontier.md.
    """
    return spent * (math.log(factor) / math.log(ratio) - 1)


def run_so_far(trial: Trial, result: TrialResult | None, goal: float) -> RunSoFar:
    """A trial as the choice of the next run sees it; `result` is None while it is under way."""
    steps = observations = math.nan
    crossing = None if result is None else result.crossing(goal)
    if crossing is not None and crossing.optimizer_steps is not None:
        steps, observations = crossing.optimizer_steps, crossing.optimizer_steps * trial.batch_size
    elif crossing is not None and crossing.not_before:
        steps, observations = math.inf, crossing.not_before * trial.batch_size
    return RunSoFar(trial.batch_size, trial.learning_rate, steps, observations, trial.seed)


def _limit(run: design.Candidate) -> tuple[int | None, str | None]:
    """The steps after which a run is given up, and what that limit was derived from."""
    if math.isinf(run.most_steps):
        return None, None
    most = math.ceil(run.most_steps)
    if most < FEWEST_STEPS:
        return FEWEST_STEPS, f"not there after {FEWEST_STEPS:,} steps, the fewest after which a run is given up"
    return most, f"not there after {most:,} steps, {design.PATIENCE[run.stage]:g} times those expected"
