"""`Plan`: the literal, immutable description of a sweep, and the rule that turns results so far into the next runs.

The rule, at every batch size:

1. *coarse*: as many learning rates at every size, an octave apart, centred on ε*/(1 + B*/B)^α, one seed. The centre runs first,
   the largest size's before all: a smaller batch needs no more observations, so it is given up after four times those of the
   next larger one. The other rates are given up after 2.5 times their centre's optimizer steps.
2. while the best rate lies on an edge of the grid, one more beyond that edge, three times at most; a best rate that still lies on
   an edge marks the size *provisional*.
3. *fine*: half an octave to both sides of the best, same seed; again if that makes another rate the best.
4. *final*: S measured on fresh seeds at the chosen rate. The frontier is made of these runs alone: nothing was chosen by
   looking at them. *neighbour*: the same seeds at the chosen rate's two neighbours.

The best rate reaches the last goal in the fewest optimizer steps; where none does, the most goals, then the fewest steps. One
run's ln S is lucky or unlucky by a third, and a rate on the brink of instability may look best by luck: so after the coarse
stage ln S is averaged over the rates within an octave (weights 1, 2/3, 1/3 at distances of 0, ½ and 1 octave), a run that
missed the goal counting with twice the steps it made.

What a run may cost depends only on results named here, never on what else happens to be finished, so a sweep gives the same
result in whatever order its runs end. Nothing is run here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlscale.agents.config import TrainConfig, config_to_dict

from .trial import Trial

__all__ = ["Choice", "Plan"]

MOST_WIDENINGS = 3
MOST_REFINEMENTS = 3
CENTRE_PATIENCE = 4.0  # a size's first run is given up after so many times the observations of the next larger size
PATIENCE = {
    "coarse": 2.5,
    "fine": 2.0,
    "final": 5.0,
    "neighbour": 5.0,
}  # a run is given up after so many times the best known steps
FEWEST_STEPS = 24  # never give up sooner: crossings need a few evaluations on either side


@dataclass(frozen=True)
class Choice:
    """The learning rate of one batch size.

    Attributes:
        rate_index: k of the best rate; None while it is not known, or where no rate reached any goal.
        on_edge: the best rate has no slower or no faster neighbour that was tried.
        complete: every run that the choice rests on is there.
    """

    rate_index: int | None
    on_edge: bool
    complete: bool


@dataclass(frozen=True)
class Plan:
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

    def next_trials(self, results: Mapping[str, dict[str, Any]]) -> list[Trial]:
        """Every trial that can begin, given these results by trial id; runs already there are left out."""
        wanted: list[Trial] = []
        for batch_size in self.batch_sizes:
            wanted += self._of_size(batch_size, results)
        return [trial for trial in wanted if trial.id not in results]

    def trials(self, results: Mapping[str, dict[str, Any]]) -> list[Trial]:
        """Every trial known so far, finished or not."""
        return [trial for batch_size in self.batch_sizes for trial in self._of_size(batch_size, results)]

    def most_trials(self, results: Mapping[str, dict[str, Any]]) -> int:
        """How many runs the sweep will have, as far as can be told now: those known, and those that come after them."""
        known = self.trials(results)
        per_size = len(self.coarse_grid) + 2 * (self.rates > 1) + self._final_runs()
        return sum(max(per_size, sum(t.batch_size == b for t in known)) for b in self.batch_sizes)

    def _final_runs(self) -> int:
        return self.seeds * (3 if self.neighbours and self.rates > 1 else 1)

    def choice(self, batch_size: int, results: Mapping[str, dict[str, Any]]) -> Choice:
        """The learning rate of a batch size, as far as these results tell."""
        tried = [t for t in self._of_size(batch_size, results) if t.stage in ("coarse", "fine")]
        complete = all(t.id in results for t in tried)
        done = {t.rate_index: results[t.id] for t in tried if t.id in results}
        fine = any(t.stage == "fine" for t in tried)
        best = _smoothed_best(done) if fine and complete else _best(done)
        on_edge = best is not None and self.rates > 1 and best in (min(done), max(done))
        return Choice(best, on_edge, complete)

    def _of_size(self, batch_size: int, results: Mapping[str, dict[str, Any]]) -> list[Trial]:
        """Trials of one batch size that these results call for."""
        centre = self._centre(batch_size, results)
        trials = [] if centre is None else [centre]
        if centre is None or centre.id not in results:
            return trials
        reached = _steps_to_last_goal(results[centre.id])
        for k in self.coarse_grid:
            if k:
                trials.append(self._trial("coarse", batch_size, k, 0, reached, centre.id))
        if not _all_in(trials, results):
            return trials
        for _ in range(MOST_WIDENINGS if self.rates > 1 else 0):
            done = {t.rate_index: results[t.id] for t in trials}
            best = _best(done)
            if best is None or min(done) < best < max(done):
                break
            beyond = best - 2 if best == min(done) else best + 2
            by = next(t.id for t in trials if t.rate_index == best)
            trials.append(self._trial("coarse", batch_size, beyond, 0, _steps_to_last_goal(done[best]), by))
            if trials[-1].id not in results:
                return trials
        done = {t.rate_index: results[t.id] for t in trials}
        best = _best(done)
        if best is None:
            return trials  # no rate reached any goal: nothing to refine, and these runs are its censored points
        for _ in range(MOST_REFINEMENTS if self.rates > 1 else 0):
            by = next(t.id for t in trials if t.rate_index == best)
            missing = [k for k in (best - 1, best + 1) if k not in done]
            if not missing:
                break
            trials += [self._trial("fine", batch_size, k, 0, _steps_to_last_goal(done[best]), by) for k in missing]
            if not _all_in(trials, results):
                return trials
            done = {t.rate_index: results[t.id] for t in trials}
            best = _smoothed_best(done)
        by = next(t.id for t in trials if t.rate_index == best)
        for seed in range(1, self.seeds + 1):
            trials.append(self._trial("final", batch_size, best, seed, _steps_to_last_goal(done[best]), by))
        if self.neighbours and self.rates > 1:
            for seed in range(1, self.seeds + 1):
                for k in (best - 1, best + 1):
                    trials.append(self._trial("neighbour", batch_size, k, seed, _steps_to_last_goal(done[best]), by))
        return trials

    def _centre(self, batch_size: int, results: Mapping[str, dict[str, Any]]) -> Trial | None:
        """The first run of a size; None while that of the next larger size has not ended."""
        centre = self._trial("coarse", batch_size, 0, 0, None, None)
        larger = next((size for size in self.batch_sizes if size > batch_size), None)
        if larger is None:
            return centre
        by = self._trial("coarse", larger, 0, 0, None, None).id
        if by not in results:
            return None
        steps = _steps_to_last_goal(results[by])
        if steps is None:
            return centre
        most = math.ceil(CENTRE_PATIENCE * max(steps, FEWEST_STEPS) * larger / batch_size)
        why = f"not there after {most:,} optimizer steps, {CENTRE_PATIENCE:g} times the observations of {by}"
        return replace(centre, most_optimizer_steps=most, limit=why)

    def first_trials(self) -> list[Trial]:
        """The centre of every size, without limits."""
        return [self._trial("coarse", size, 0, 0, None, None) for size in self.batch_sizes]

    def _trial(self, stage: str, batch_size: int, k: int, seed: int, best_steps: float | None, by: str | None) -> Trial:
        most = None if best_steps is None else max(FEWEST_STEPS, math.ceil(PATIENCE[stage] * best_steps))
        return Trial(
            id=f"b{batch_size}-k{k:+d}-s{seed}",
            stage=stage,
            batch_size=batch_size,
            rate_index=k,
            learning_rate=self.learning_rate(batch_size, k),
            seed=self.config.seed + seed,
            most_optimizer_steps=most,
            limit=None if most is None else f"not there after {most:,} optimizer steps, {PATIENCE[stage]:g} times those of {by}",
            measures_noise=stage == "final" and batch_size == self.noise_batch,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for the record."""
        stored: dict[str, Any] = json.loads(json.dumps({**asdict(self), "config": config_to_dict(self.config)}))
        return stored


def _all_in(trials: list[Trial], results: Mapping[str, dict[str, Any]]) -> bool:
    return all(trial.id in results for trial in trials)


def _steps_to_last_goal(result: dict[str, Any]) -> float | None:
    """S to the last goal; None for a run that did not get there."""
    return _steps_to(result, -1)


def _smoothed_best(done: Mapping[int, dict[str, Any]]) -> int:
    """k of the best rate by ln S averaged over the rates within an octave; only rates that came as far as any may win."""
    best = _best(done)
    assert best is not None
    goals = _reached(done[best])

    def log_steps(k: int) -> float:
        steps = _steps_to(done[k], goals - 1)
        return math.log(steps if steps is not None else 2 * max(done[k]["optimizer_steps"], 1))

    def score(k: int) -> tuple[float, int]:
        near = [other for other in done if abs(other - k) <= 2 and done[other]["goals"]]
        weight = {other: 1 - abs(other - k) / 3 for other in near}
        mean = sum(weight[other] * log_steps(other) for other in near) / sum(weight.values())
        return mean, abs(k)

    return min((k for k in done if _reached(done[k]) == goals), key=score)


def _reached(result: dict[str, Any]) -> int:
    """How many goals the run reached."""
    return sum(goal["optimizer_steps"] is not None for goal in result["goals"])


def _steps_to(result: dict[str, Any], goal: int) -> float | None:
    """S to the goal of that number; None for a run that did not get there."""
    steps: float | None = result["goals"][goal]["optimizer_steps"] if result["goals"] else None
    return steps


def _best(done: Mapping[int, dict[str, Any]]) -> int | None:
    """k of the best rate: most goals, then fewest steps to the last of them, then nearest to the centre."""

    def rank(k: int) -> tuple[float, float, int]:
        steps = [goal["optimizer_steps"] for goal in done[k]["goals"] if goal["optimizer_steps"] is not None]
        return (-len(steps), steps[-1] if steps else math.inf, abs(k))

    reached = [k for k in done if rank(k)[0] < 0]
    return min(reached, key=rank, default=None)
