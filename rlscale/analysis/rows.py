"""`Row`: a goal of a sweep, or a single run, with the critical batch size measured for it and what the noise scale predicts.

`rlscale.analysis.comparison` lays the rows of several sweeps and runs side by side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..estimate import Estimate
from ..frontier import Surface
from ..records import RunRecord, SweepRecord, TrialResult, kind_of
from .points import SurfacePoint, fit_points, say_limit, surface_points
from .predictions import ADVISED, ONLY_LOSS, PLAIN, PRIMARY, Prediction, predict, predict_from_run, ratio, shows_value_alone
from .summary import mean_batch

__all__ = ["LEAST_STEPS", "NOISE_STAGES", "Row", "row_of_goal", "row_of_run"]

LEAST_STEPS = 50  # S_min in optimizer steps, below which a goal is shown and not scored: its frontier is mostly transient
PILOT_RUNS = 3  # of a sequential sweep, all of one size, as `rlscale.benchmarks.sweep` makes them, two floors above
NOISE_STAGES = ("noise", "final")  # whose runs give the predicted noise scale; earlier sweeps called them final


@dataclass(frozen=True)
class Row:
    """One goal of one sweep, or one single run.

    Attributes:
        name: the task, with the folder beside it where the task occurs more than once.
        task: name of the task.
        source: folder of the sweep or run.
        goal: mean return to reach; None for a single run, which is taken as a whole.
        measured: B_crit in observations; its `reason` says why where it is not identifiable.
        s_min: fewest optimizer steps.
        e_min: fewest observations.
        frontier: the response surface; None for a single run, and where no run reached the goal.
        points: the runs that it goes through.
        batch_sizes: nominal ones of the points, ascending.
        learning_rates: lowest and highest of the best rates at these sizes; None where there is none.
        inner_steps: optimizer steps in one step S: 1, or those of an iteration of PPO with several.
        predictions: by head and quantity, see `rlscale.analysis.predictions.predict`.
        prediction_batch: batch size of the runs that gave them, in observations per optimizer step.
        provisional: batch sizes whose best learning rate lies outside those tried there and at the sizes beside it.
        notes: what else to know about this row, one sentence each.
        has_policy, has_goals: False for a supervised task, which has one loss; of a run, for a task without goals of its own.
        quick: of a quick sweep, which predicts and measures nothing.
        clones: of each environment, which multiply its noise scale and B_crit.
        reward_noise: standard deviation of what was added to the rewards that are learned from.
    """

    name: str
    task: str
    source: str
    goal: float | None
    measured: Estimate
    s_min: Estimate
    e_min: Estimate
    frontier: Surface | None
    points: tuple[SurfacePoint, ...] = field(repr=False)
    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, float] | None
    inner_steps: int
    predictions: tuple[Prediction, ...]
    prediction_batch: float | None
    provisional: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    has_policy: bool = True
    has_goals: bool = True
    quick: bool = False
    clones: int = 1
    reward_noise: float = 0.0

    def scored(self, least_steps: float = LEAST_STEPS) -> bool:
        """Whether the goal counts for how well the noise scale predicts: B_crit is known, and nothing says `why_not_scored`."""
        return self.measured.value is not None and not self.why_not_scored(least_steps)

    def why_not_scored(self, least_steps: float = LEAST_STEPS) -> list[str]:
        """Why the S_min of a goal is no measurement, one sentence each."""
        reasons = [f"S_min is below {least_steps:g} optimizer steps"] if self.has_few_steps(least_steps) else []
        if self.at_limit:
            runs = f"{self.at_limit} of {len(self.points)} runs {'was' if self.at_limit == 1 else 'were'} at the goal after"
            reasons.append(f"{runs} {say_limit(self.points, self.steps_name)}, so S_min may be that limit")
        return reasons

    def has_few_steps(self, least_steps: float = LEAST_STEPS) -> bool:
        """Whether the goal takes fewer optimizer steps than that, so that its frontier is mostly transient; a run has no goal."""
        return self.goal is not None and (self.s_min.value or 0.0) * self.inner_steps < least_steps

    @property
    def at_limit(self) -> int:
        """Runs that held the goal from the earliest step on that counts."""
        return sum(point.at_limit for point in self.points)

    @property
    def is_too_easy(self) -> bool:
        """Whether a goal has no figure because more than half of the runs hold it at the earliest step that counts.

        The pilot's alone do not say so: they are of one size, and smaller batches may take longer.
        """
        return self.measured.value is None and len(self.points) > PILOT_RUNS and self.at_limit > len(self.points) / 2

    @property
    def uncertain(self) -> int:
        """Crossings that may not have happened: the interval has no upper end. The fit takes them as they stand. A run has 0."""
        if self.goal is None:
            return 0
        found = [point.run.crossing(self.goal) for point in self.points if not point.missed]
        return sum(one is not None and one.interval is not None and math.isinf(one.interval[1]) for one in found)

    @property
    def is_altered(self) -> bool:
        """Whether its environments are not the task's own, so that neither is its B_crit."""
        return self.clones > 1 or self.reward_noise > 0

    def prediction(self, head: str, quantity: str) -> Prediction | None:
        """The prediction of one head and quantity; None where it was not measured."""
        return next((p for p in self.predictions if (p.head, p.quantity) == (head, quantity)), None)

    def predicted(self, head: str, quantity: str) -> Estimate:
        """Its noise scale in observations."""
        found = self.prediction(head, quantity)
        return found.scale if found else Estimate(None, None, "not measured")

    def ratio(self, head: str, quantity: str) -> Estimate:
        """Measured over predicted."""
        return ratio(self.measured, self.predicted(head, quantity))

    @property
    def predictor(self) -> tuple[str, str]:
        """Head and quantity of the prediction shown first: the primary one, the paper's, or that of the only loss there is.

        A single run and a quick sweep, which are no test of a prediction, suggest what `ADVISED` says. Of a quick sweep that
        needs three noise runs, and nothing takes its place before.
        """
        if not self.has_policy:
            return ONLY_LOSS
        if self.quick or (self.goal is None and self.prediction(*ADVISED)):
            return ADVISED
        return PRIMARY if self.prediction(*PRIMARY) else PLAIN

    @property
    def policy_beside(self) -> Estimate | None:
        """The noise scale of the policy's own loss where the joint loss's predicts; None where nothing like it was measured.

        Where the policy's loss was not measured apart, as in a sweep's pilot, that of the joint loss on the policy's parameters.
        """
        beside = (head for head in ("policy", "joint_policy_parameters") if self.prediction(head, "cumulative"))
        head = next(beside, None) if self.predictor in (ADVISED, PRIMARY) else None
        return None if head is None else self.predicted(head, "cumulative")

    @property
    def suggests_nothing(self) -> bool:
        """Whether the noise scale of a single run is mostly its value function's."""
        return self.goal is None and shows_value_alone(self.predicted(*self.predictor), self.policy_beside)

    @property
    def steps_name(self) -> str:
        """What S counts: optimizer steps, or iterations where each makes several of them."""
        return "iterations" if self.inner_steps > 1 else "optimizer steps"

    @property
    def goal_label(self) -> str:
        """The goal for people."""
        return "whole run" if self.goal is None else f"{self.goal:g}"


def _say_none_reached(runs: Sequence[TrialResult]) -> str:
    """What would help where no run reached a goal: more observations only where those ran out.

    A sweep with other goals, another rate or more observations is another one, so it needs a folder of its own.
    """
    said = "no run reached this goal"
    if any(run.state == "budget" for run in runs):
        return f"{said}: give them more observations (--observations) and another --out"
    if any(run.state == "hopeless" for run in runs):
        return (
            f"{said}, and none for want of observations: name a lower goal (--goals) or another learning rate (--learning-rate), "
            "and another --out"
        )
    return f"{said}, every one failed: mend what their errors say, then type the same command again"


def row_of_goal(record: SweepRecord, name: str, goal: float) -> Row:
    """The row of one goal of a sweep that has results: the surface through its runs, and what its noise runs predict."""
    runs = list(record.results.values())
    points = surface_points(runs, goal)
    reached = [point for point in points if not point.missed]
    if reached:
        frontier = fit_points(points, stopped=record.plan["batch_sizes"] is None)
        measured, s_min, e_min = frontier.b_crit, frontier.s_min, frontier.e_min
        problem, _, mend = (measured.reason or "").partition(": ")
        if mend.startswith("add"):  # the command that goes on with the sweep chooses the sizes
            measured = replace(measured, reason=problem)
    else:
        frontier = None
        measured = s_min = e_min = Estimate(None, None, _say_none_reached(runs))
    quick = bool(record.plan.get("quick"))
    if quick and reached:
        measured = s_min = e_min = Estimate(None, None, "a quick sweep predicts and measures nothing")
    best = {} if frontier is None else _best_rates(frontier, reached)
    predictions, prediction_batch = _predict(record, goal)
    notes = []
    missed = len(points) - len(reached)
    if missed and reached:
        known = "" if quick else "; the fit knows only that more steps are needed"
        notes.append(f"{missed} of {len(points)} runs missed the goal{known}")
    planned = record.plan.get("noise_batch")
    if prediction_batch is not None and planned not in (None, prediction_batch):
        notes.append(f"noise scale from batch size {prediction_batch:,}, since none to this goal was measured at {planned:,}")
    update = record.plan["config"].get("update", {})
    inner_steps = update.get("epochs", 1) * record.plan.get("mini_batches", 1)
    memory = _memory(update)
    if s_min.value is not None and s_min.value * inner_steps < memory / 4:  # "far below": less than 22% is filled by then
        notes.append(
            f"S_min is far below the {memory:,.0f} steps over which {update.get('optimizer', 'adam')} averages: it may be the "
            "optimizer's own transient"
        )
    return Row(
        name=name,
        task=record.task,
        source=str(record.folder),
        goal=goal,
        measured=measured,
        s_min=s_min,
        e_min=e_min,
        frontier=frontier,
        points=tuple(points),
        batch_sizes=tuple(sorted({point.run.batch_size for point in points})),
        learning_rates=(min(best.values()), max(best.values())) if best else None,
        inner_steps=inner_steps,
        predictions=predictions,
        prediction_batch=prediction_batch,
        provisional=_provisional(best, reached),
        notes=tuple(notes),
        has_policy=kind_of(record.plan["config"]) != "supervised",
        quick=quick,
        **_interventions(record.plan["config"]),
    )


def _best_rates(surface: Surface, reached: Sequence[SurfacePoint]) -> dict[int, float]:
    """The best rate at every batch size where a run reached the goal; while there is no surface, that of the fastest run."""
    sizes = {point.run.batch_size: point.batch_size for point in reached}
    if surface.fitted is not None:
        return {size: surface.best_rate(batch_size) for size, batch_size in sizes.items()}
    fastest = {size: min((p for p in reached if p.run.batch_size == size), key=lambda p: p.steps) for size in sizes}
    return {size: point.run.learning_rate for size, point in fastest.items()}


def _provisional(best: dict[int, float], reached: Sequence[SurfacePoint]) -> tuple[int, ...]:
    """Batch sizes whose best rate lies more than an octave outside those that reached the goal there and at the sizes beside it.

    Rates are taken relative to the best one of their size, since the surface ties the sizes together.
    """
    sizes, found = sorted(best), []
    for number, size in enumerate(sizes):
        near = sizes[max(number - 1, 0) : number + 2]
        off = [point.run.learning_rate / best[at] for point in reached if (at := point.run.batch_size) in near]
        if not min(off) / 2 <= 1 <= 2 * max(off):
            found.append(size)
    return tuple(found)


def _predict(record: SweepRecord, goal: float) -> tuple[tuple[Prediction, ...], int | None]:
    """From the runs that were made to measure the noise; while there is none, from those that measured it on the way."""
    made_for_it = [run for run in record.results.values() if run.stage in NOISE_STAGES and (run.noise or run.noise_sums)]
    chosen = made_for_it if any(run.noise for run in made_for_it) else [run for run in record.results.values() if run.noise]
    if not chosen:
        return (), None
    return predict(chosen, goal, record.plan.get("noise_batch") or chosen[0].batch_size)


def _memory(update: dict[str, Any]) -> float:
    """Steps over which the optimizer averages.

    Of squared gradients 1/(1 - β₂), or 100 for RMSProp; of gradients 1/(1 - momentum) for SGD.
    """
    if update.get("optimizer") == "sgd":
        return 1 / (1 - update["momentum"])
    return 100.0 if update.get("optimizer") == "rmsprop" else 1 / (1 - update.get("beta2", 0.999))


def _interventions(config: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to the task's own environments, as a `Row` says it."""
    rollout = config.get("rollout", {})
    return {"clones": int(rollout.get("clones") or 1), "reward_noise": float(rollout.get("reward_noise") or 0.0)}


def row_of_run(run: RunRecord, name: str | None = None) -> Row:
    """The row of a single run, by its folder's name or another: what its noise predicts, and no measurement."""
    nothing = Estimate(None, None, "a single run gives a prediction and no measurement")
    predictions, config = predict_from_run(run), run.manifest["config"]
    rates = [rate for rate in (row.get("learning_rate") for row in run.rows) if rate is not None]
    return Row(
        name=f"{run.manifest['task']['id']} (run {name or run.name})",
        task=run.manifest["task"]["id"],
        source=str(run.folder),
        goal=None,
        measured=nothing,
        s_min=nothing,
        e_min=nothing,
        frontier=None,
        points=(),
        batch_sizes=(),
        learning_rates=(min(rates), max(rates)) if rates else None,
        inner_steps=1,
        predictions=predictions,
        prediction_batch=mean_batch(run) if predictions else None,
        notes=() if predictions else ("no rollout noise of a head was measured in it",),
        has_policy=kind_of(config) != "supervised",
        has_goals=bool(run.manifest["task"]["goals"]),
        **_interventions(config),
    )
