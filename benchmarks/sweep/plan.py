"""`SweepPlan`: the literal, immutable description of a sweep, and the rule that turns results so far into the next trials.

The rule, at every batch size:

1. *coarse*: as many learning rates at every size, an octave apart, centred on ε*/(1 + B*/B)^α, one seed. The centre runs first,
   the largest size's before all: a smaller batch needs no more observations, so its centre is given up after four times the
   observations of the next larger one's. The other rates are given up after 2.5 times their centre's optimizer steps.
2. while the best rate lies on an edge of the grid, one more beyond that edge, three times at most; a best rate that still lies on
   an edge marks the size *provisional*.
3. *fine*: half an octave to both sides of the best, same seed; again if that makes another rate the best.
4. *final*: S measured on fresh seeds at the chosen rate. The frontier is made of these runs alone: nothing was chosen by
   looking at them. *neighbour*: the same seeds at the chosen rate's two neighbours.

`rlscale.analysis.rates.choose_rate` says which rate is the best. What a trial may cost depends only on results named here, never
on what else happens to be finished, so a sweep gives the same result in whatever order its trials end. Nothing is run here.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlscale.agents.config import TrainConfig, config_to_dict
from rlscale.analysis.rates import CHOOSING_STAGES, RateChoice, choose_rate
from rlscale.records import Trial, TrialResult

__all__ = ["SweepPlan"]

MOST_WIDENINGS = 3
MOST_REFINEMENTS = 3
CENTRE_PATIENCE = 4.0  # a size's first trial is given up after so many times the observations of the next larger size's
PATIENCE = {"coarse": 2.5, "fine": 2.0, "final": 5.0, "neighbour": 5.0}  # others after so many times the best known steps
FEWEST_STEPS = 24  # never give up sooner: crossings need a few evaluations on either side

Results = Mapping[str, TrialResult]  # by trial id


@dataclass(frozen=True)
class SweepPlan:
    """A sweep of one task.

    Attributes:
        config: settings of every run; batch size, learning rate and seed are put in per trial. `config.update.learning_rate` is
            ε*.
        batch_sizes: B, ascending; multiples of the rollout length.
        goals: mean returns, ascending.
        rates: learning rates of the coarse grid.
        rate_batch: B* of the grid's centre ε*/(1 + B*/B)^α.
        rate_exponent: α.
        seeds: fresh seeds of the final stage.
        neighbours: whether the final stage measures the chosen rate's neighbours too.
        episodes: of one evaluation.
        most_observations: a run that has spent so many is given up.
        noise_batch: the batch size whose final runs give the predicted noise scale, fixed before anything is looked at.
    """

    config: TrainConfig
    batch_sizes: tuple[int, ...]
    goals: tuple[float, ...]
    rates: int
    rate_batch: float
    rate_exponent: float
    seeds: int
    neighbours: bool
    episodes: int
    most_observations: int
    noise_batch: int

    def learning_rate(self, batch_size: int, rate_index: int) -> float:
        """ε*/(1 + B*/B)^α times 2^(k/2)."""
        centre = self.config.update.learning_rate / (1 + self.rate_batch / batch_size) ** self.rate_exponent
        return float(f"{centre * 2 ** (rate_index / 2):.4g}")

    @property
    def coarse_grid(self) -> list[int]:
        """k of the coarse learning rates; an even number of them has one more below the centre."""
        below = self.rates // 2
        return [2 * (i - below) for i in range(self.rates)]

    def config_of(self, trial: Trial) -> TrainConfig:
        """Settings of one trial's run."""
        config, period = self.config, int(trial.measures_noise)
        environments = trial.batch_size // config.rollout.rollout_length
        # As many actors as were asked for, or as the environments can be dealt to.
        actors = max(n for n in range(config.actors + 1) if n == 0 or environments % n == 0)
        return replace(
            config,
            seed=trial.seed,
            rollout=replace(config.rollout, environments=environments, actors=actors),
            update=replace(config.update, learning_rate=trial.learning_rate),
            noise=replace(
                config.noise,
                joint_noise_period=period,
                policy_noise_period=period,
                value_noise_period=period,
                entropy_noise_period=0,
            ),
        )

    def next_trials(self, results: Results) -> list[Trial]:
        """Every trial that can begin, given these results; those that have ended are left out."""
        return [trial for trial in self.trials(results) if trial.id not in results]

    def trials(self, results: Results) -> list[Trial]:
        """Every trial known so far, ended or not."""
        return [trial for batch_size in self.batch_sizes for trial in self._of_size(batch_size, results)]

    def most_trials(self, results: Results) -> int:
        """How many trials the sweep will have, as far as can be said now: those known, and those that come after them."""
        known = self.trials(results)
        searching = self.rates > 1
        per_size = self.rates + 2 * searching + self.seeds * (3 if self.neighbours and searching else 1)
        return sum(max(per_size, sum(t.batch_size == b for t in known)) for b in self.batch_sizes)

    def choice(self, batch_size: int, results: Results) -> RateChoice:
        """The best learning rate of a batch size so far; it lies on no edge while a trial that it rests on has not ended."""
        trials = [t for t in self._of_size(batch_size, results) if t.stage in CHOOSING_STAGES]
        tried = [results[t.id] for t in trials if t.id in results]
        choice = choose_rate(tried)
        return choice if len(tried) == len(trials) else replace(choice, on_edge=False)

    def _of_size(self, batch_size: int, results: Results) -> list[Trial]:
        """Trials of one batch size that these results call for."""
        centre = self._centre(batch_size, results)
        if centre is None or centre.id not in results:
            return [] if centre is None else [centre]

        def at(stage: str, rate_index: int, limited_by: TrialResult, seed: int = 0) -> Trial:
            return self._trial(stage, batch_size, rate_index, seed, limited_by)

        def all_ended() -> bool:
            return all(trial.id in results for trial in trials)

        def choose() -> RateChoice:
            return choose_rate([results[trial.id] for trial in trials])

        trials = [centre] + [at("coarse", k, results[centre.id]) for k in self.coarse_grid if k]
        if not all_ended():
            return trials
        for _ in range(MOST_WIDENINGS):
            choice = choose()
            if choice.best is None or not choice.on_edge:
                break
            outwards = 2 if choice.best.rate_index == max(trial.rate_index for trial in trials) else -2
            trials.append(at("coarse", choice.best.rate_index + outwards, choice.best))
            if not all_ended():
                return trials
        best = choose().best
        if best is None:
            return trials  # no rate reached any goal: nothing to refine, and these runs are its censored points
        for _ in range(MOST_REFINEMENTS if self.rates > 1 else 0):
            known = [trial.rate_index for trial in trials]
            between = [k for k in (best.rate_index - 1, best.rate_index + 1) if k not in known]
            if not between:
                break
            trials += [at("fine", k, best) for k in between]
            if not all_ended():
                return trials
            best = choose().best or best
        seeds = range(1, self.seeds + 1)
        trials += [at("final", best.rate_index, best, seed) for seed in seeds]
        if self.neighbours and self.rates > 1:
            trials += [at("neighbour", best.rate_index + side, best, seed) for seed in seeds for side in (-1, 1)]
        return trials

    def _centre(self, batch_size: int, results: Results) -> Trial | None:
        """The first trial of a size; None while that of the next larger size has not ended."""
        centre = self._trial("coarse", batch_size, 0, 0)
        larger = next((size for size in self.batch_sizes if size > batch_size), None)
        if larger is None:
            return centre
        before = results.get(self._trial("coarse", larger, 0, 0).id)
        if before is None:
            return None
        if before.steps_to_last_goal is None:
            return centre
        most = math.ceil(CENTRE_PATIENCE * max(before.steps_to_last_goal, FEWEST_STEPS) * larger / batch_size)
        why = f"not there after {most:,} optimizer steps, {CENTRE_PATIENCE:g} times the observations of {before.id}"
        return replace(centre, most_optimizer_steps=most, limit=why)

    def first_trials(self) -> list[Trial]:
        """The centre of every size, without limits."""
        return [self._trial("coarse", size, 0, 0) for size in self.batch_sizes]

    def _trial(self, stage: str, batch_size: int, k: int, seed: int, limited_by: TrialResult | None = None) -> Trial:
        """A trial; it is given up after so many times the optimizer steps that another one needed to the last goal."""
        most = limit = None
        if limited_by is not None and limited_by.steps_to_last_goal is not None:
            most = max(FEWEST_STEPS, math.ceil(PATIENCE[stage] * limited_by.steps_to_last_goal))
            limit = f"not there after {most:,} optimizer steps, {PATIENCE[stage]:g} times those of {limited_by.id}"
        return Trial(
            id=f"b{batch_size}-k{k:+d}-s{seed}",
            stage=stage,
            batch_size=batch_size,
            rate_index=k,
            learning_rate=self.learning_rate(batch_size, k),
            seed=self.config.seed + seed,
            most_optimizer_steps=most,
            limit=limit,
            measures_noise=stage == "final" and batch_size == self.noise_batch,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for the record."""
        stored: dict[str, Any] = json.loads(json.dumps({**asdict(self), "config": config_to_dict(self.config)}))
        return stored
