"""One trial: training episodes that lag, transient policies, and where a run ends."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest

from rlscale.agents.learning import NoiseRecord
from rlscale.agents.rollout.evaluate import Evaluation
from rlscale.analysis.points import surface_points
from rlscale.benchmarks.sweep.design import RunSoFar
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.sweep.plan import run_so_far
from rlscale.benchmarks.sweep.trial import Advance, TrainingCourse, _noise_sums, run_trial
from rlscale.noise import BlockStatistics, NotFiniteError
from rlscale.records import Trial
from rlscale.records.run import read_run

TRIAL = Trial("run-004", "span", 640, None, 0.01, 0, None, None, False, None)


@dataclass
class Learner:
    """A learning curve that is known: a policy's mean return after S steps, reached step by step in every episode.

    An episode is `length` steps S long, and its return is the mean over its steps of what the policies of these steps deserve,
    with noise of its own. So it is known exactly by how much the episodes that finish are late.

    Attributes:
        length: of an episode, in steps S.
        finished: episodes that finish in a step.
        every: so many steps have one with episodes that finish.
    """

    length: float
    finished: int = 8
    every: int = 1
    spread: float = 3.0
    seed: int = 0
    steps: int = 0
    evaluated: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)

    @staticmethod
    def deserved(steps):
        """Climbs from 0 to 10, and through 5 at S = 150."""
        return 10 / (1 + (150 / np.maximum(steps, 1e-9)) ** 2)

    def advance(self):
        self.steps += 1
        began = max(self.steps - self.length, 0.0)
        expected = self.deserved(np.linspace(began, self.steps, 50)).mean()
        count = self.finished if self.steps > self.length and self.steps % self.every == 0 else 0
        returns = expected + self.spread * self.rng.standard_normal(max(count, 1))
        return Advance(640 * self.steps, [], count, float(returns.mean()), self.length)

    def weights(self):
        return np.array([self.steps])

    def evaluate(self, weights, optimizer_steps):
        self.evaluated.append(optimizer_steps)
        return Evaluation(self.deserved(weights[0]) + self.spread * self.rng.standard_normal(64), 64, 0, 0.0)

    def close(self, state, reason):
        pass


def run(course, goals=(5.0,), trial=TRIAL, most=10**9, **more):
    return run_trial(trial, goals=goals, most_observations=most, make_course=lambda: course, **more)


def test_a_run_of_iterations_reaches_a_goal_before_the_tenth():
    """0.02 is deserved after 6.7 steps."""
    (late,), (soon,) = (run(Learner(100.0, spread=0.0), (0.02,), inner_steps=inner).goals for inner in (1, 12))
    assert (late.optimizer_steps, late.interval) == (pytest.approx(10.0), (0.0, pytest.approx(10.0)))
    assert soon.optimizer_steps == pytest.approx(150 / math.sqrt(10 / 0.02 - 1), rel=0.02)


@pytest.mark.parametrize("length", [0.5, 4.0, 16.0])
def test_what_is_left_of_the_lag_of_training_episodes_is_less_than_two_percent(length):
    """An episode of 16 steps is late by 8, more than 5% of the 150 at which the goal is reached."""
    courses = [Learner(length, seed=seed) for seed in range(20)]
    results = [run(course) for course in courses]
    found = [math.log(result.goals[0].optimizer_steps / 150) for result in results]
    assert abs(np.mean(found)) < 0.02
    assert all(max(course.evaluated) < 150 for course in courses), "no policy beside the goal was evaluated"
    assert all(any(e.training for e in result.evaluations) for result in results)


@pytest.mark.parametrize(("length", "finished"), [(30.0, 8), (400.0, 8), (4.0, 0)])
def test_long_or_missing_episodes_leave_the_evaluations_to_frozen_policies(length, finished):
    course = Learner(length, finished)
    result = run(course)
    assert result.goals[0].optimizer_steps == pytest.approx(150, rel=0.1)
    assert not any(e.training for e in result.evaluations if e.optimizer_steps <= 150)
    assert len(course.evaluated) >= len(result.evaluations) / 2


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length", [2.5, 4.0, 6.0])
def test_no_stretch_of_a_run_goes_unseen_where_few_episodes_finish(length, every):
    """An environment or two: the episodes lag little, and too few finish within 12% of the steps to stand for a policy."""
    result = run(Learner(length, finished=1, every=every))
    seen = [e.optimizer_steps for e in result.evaluations if e.optimizer_steps >= 10]
    assert max(after / before for before, after in pairwise(seen)) < 1.45
    assert result.goals[0].optimizer_steps == pytest.approx(150, rel=0.2)


def test_the_error_of_training_episodes_is_that_of_their_mean():
    """128 episodes of spread 3 have a mean with a standard error of 0.27, seen from the scatter between steps."""
    (result,) = (run(Learner(0.5, finished=16, seed=seed)) for seed in (1,))
    errors = [e.return_error * math.sqrt(e.episodes) for e in result.evaluations if e.training]
    assert np.mean(errors) == pytest.approx(3.0, rel=0.15)


@dataclass
class Plateau(Learner):
    """Levels off at −0.10 with episodes of ±1, as Blackjack; an evaluation has 16,384 of them."""

    spread: float = 1.0

    @staticmethod
    def deserved(steps):
        return -0.10 - 0.4 * np.exp(-np.asarray(steps) / 40)

    def evaluate(self, weights, optimizer_steps):
        self.evaluated.append(optimizer_steps)
        return Evaluation(self.deserved(weights[0]) + self.spread * self.rng.standard_normal(16_384), 16_384, 0, 0.0)


@pytest.mark.parametrize("finished", [1, 20])
def test_few_training_episodes_do_not_find_a_goal_that_is_not_reached(finished):
    """24 episodes have a standard error of 0.2, five times the distance to a goal of −0.06; an evaluation's is 0.008."""
    trial = replace(TRIAL, most_optimizer_steps=3000)
    results = {
        episodes: [run(Plateau(0.5, finished, seed=seed), (-0.06,), trial, episodes=episodes) for seed in range(5)]
        for episodes in (0, 16_384)
    }
    found = {episodes: sum(r.goals[0].optimizer_steps is not None for r in some) for episodes, some in results.items()}
    assert found[16_384] == 0
    assert finished > 1 or found[0] >= 3, "which the test would miss otherwise"
    assert all(e.episodes >= 4096 for r in results[16_384] for e in r.evaluations)


def test_a_trial_ends_at_its_last_goal_and_says_what_it_knows_of_the_others():
    trial = Trial("run-004", "span", 640, None, 0.01, 0, None, None, False, last_goal=5.0)
    result = run(Learner(1.0), (2.0, 5.0, 9.0), trial)
    assert result.state == "finished"
    assert [goal.optimizer_steps is not None for goal in result.goals] == [True, True, False]
    assert 150 < result.goals[2].not_before < 250
    assert result.optimizer_steps < 150 * 1.5


@dataclass
class Transient(Learner):
    """Passes the goal with one policy, after 2 and again after 40 steps, and keeps it from 150 on."""

    def evaluate(self, weights, optimizer_steps):
        lucky = optimizer_steps in (2, 40)
        return Evaluation(np.full(64, 8.0 if lucky else float(optimizer_steps >= 150) * 6) + 0.1 * np.arange(64) / 64, 64, 0, 0.0)


def test_with_an_inner_loop_a_step_is_an_iteration_and_its_noise_that_of_the_iteration_batch(tmp_path):
    """Three epochs of four mini-batches: twelve optimizer steps in each S, one measurement at the parameters it starts from."""
    plan = make_plan("classic/cartpole", SweepOptions(tasks=("classic/cartpole",), epochs=3, mini_batches=4, jobs=0))
    (trial,) = plan.next_trials({})
    course = TrainingCourse(plan.config_of(trial), episodes=8, folder=tmp_path / "run", command=[])
    steps = [course.advance() for _ in range(3)]
    course.close("finished", None)
    rows = read_run(tmp_path / "run").rows
    assert [row["optimizer_steps"] for row in rows] == [12, 24, 36]
    for number, step in enumerate(steps):
        (joint,) = [n for n in step.noise if (n.head, n.kind) == ("joint", "rollout")]
        assert joint.optimizer_step == number
        assert joint.statistics.size.sum() == rows[number]["batch_observations"], "all of the iteration batch"
    assert [step.observations for step in steps] == [row["observations"] for row in rows]
    lengths = [(row["episode_length_mean"] or 0.0) / plan.config.rollout.rollout_length for row in rows]
    assert any(lengths)
    assert [step.episode_steps for step in steps] == lengths


def test_a_single_transient_policy_never_ends_a_run():
    result = run(Transient(400.0))
    assert result.goals[0].optimizer_steps == pytest.approx(150, rel=0.1)


class Flat:
    """A course of 640 observations a step whose policies return nothing."""

    def __init__(self):
        self.steps = 0

    def advance(self):
        self.steps += 1
        return Advance(640 * self.steps, [])

    def weights(self):
        return np.zeros(1)

    def evaluate(self, weights, optimizer_steps):
        return Evaluation(np.zeros(8), 8, 0, 0.0)

    def close(self, state, reason):
        pass


def test_a_run_is_given_up_at_its_most_steps_and_by_its_budget():
    trial = Trial("run-004", "span", 640, None, 0.01, 0, 60, "too slow", False, None)
    found = run_trial(trial, goals=(5.0,), most_observations=10**9, make_course=Flat)
    assert (found.state, found.reason, found.optimizer_steps) == ("hopeless", "too slow", 60)
    found = run_trial(replace(trial, most_optimizer_steps=None), goals=(5.0,), most_observations=64_000, make_course=Flat)
    assert (found.state, found.optimizer_steps) == ("budget", 100)


@dataclass
class Diverging(Learner):
    """Diverges in its fourth step, before a policy is kept."""

    def advance(self):
        if self.steps == 3:
            raise NotFiniteError("the gradient is not finite")
        return super().advance()


def test_a_run_that_diverges_at_once_is_one_that_missed_its_goals():
    """None counts as reached before the tenth step, and the choice of rates counts what such runs cost."""
    found = run(Diverging(1.0), (2.0, 5.0))
    assert (found.state, found.optimizer_steps, found.evaluations) == ("hopeless", 3, ())
    assert [(goal.optimizer_steps, goal.not_before) for goal in found.goals] == [(None, 10)] * 2
    assert run_so_far(TRIAL, found, 5.0) == RunSoFar(640, 0.01, math.inf, 6400, 0)
    (point,) = surface_points([found], 5.0)
    assert (point.missed, point.observations) == (True, 6400)


def test_the_sums_of_a_run_s_windows():
    """The preregistered predictor is made of them: means over five optimizer steps, plain and in Adam's metric."""

    def of_trace(trace):
        return BlockStatistics([25] * 4, [1 + trace / 25] * 4, [1 + trace / 100] * 4)

    records = [
        NoiseRecord("joint", "rollout", step, of_trace(10.0 if step < 5 else 30.0), None if step == 0 else of_trace(2.0))
        for step in range(10)
    ]
    records.append(NoiseRecord("joint", "mini-batch", 3, of_trace(999.0)))
    plain, adam = _noise_sums(records)
    assert (plain.metric, plain.trace_cov, plain.updates) == ("plain", pytest.approx((10.0, 30.0)), (5, 5))
    assert (adam.metric, adam.trace_cov, adam.updates) == ("adam", pytest.approx((2.0, 2.0)), (4, 5))
