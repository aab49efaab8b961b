"""Evaluations of frozen policies: every episode once, whatever its length, and no lag."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout import evaluate
from rlscale.agents.rollout.evaluate import Evaluator
from rlscale.envs import find_task, make_env


def weights_of(task, *, logits=None):
    """Parameters of the task's network; with `logits`, a policy that does not look at the observation."""
    network = make_network(task, "mlp", 0)
    flat = flatten_parameters(network)
    if logits is not None:
        network.policy_head.weight.data.zero_()
        network.policy_head.bias.data.copy_(torch.tensor(logits))
    return flat.numpy().copy()


def evaluator(task, episodes=64, seed=0):
    return Evaluator(task, "mlp", None, episodes=episodes, bfloat16=False, seed=seed, threads=1)


def test_every_environment_counts_one_episode_although_short_ones_could_finish_often():
    """Episodes of 1 step return 1, of 20 steps return 20, by a coin: the mean is 10.5, that of finished episodes is not."""
    task = find_task("bandits:Episodes")
    evaluation = evaluator(task, episodes=4000).evaluate(weights_of(task), 1)
    assert sorted(set(evaluation.returns)) == [1.0, 20.0]
    assert evaluation.returns.mean() == pytest.approx(10.5, abs=4 * 9.5 / np.sqrt(4000))
    assert evaluation.steps == evaluation.returns.sum(), "an episode returns its length, and nothing else is counted"
    evaluated = evaluation.at(7)
    assert (evaluated.optimizer_steps, evaluated.episodes) == (7, 4000)
    assert evaluated.return_error == pytest.approx(9.5 / np.sqrt(4000), rel=0.02)


def test_actions_are_drawn_from_the_policy():
    """A bandit whose reward is its action: the mean return is the probability of action 1."""
    task = find_task("bandits:Bandit")
    logits = [0.0, np.log(3.0)]
    evaluation = evaluator(task, episodes=4000).evaluate(weights_of(task, logits=logits), 1)
    assert evaluation.returns.mean() == pytest.approx(0.75, abs=0.03)
    assert set(evaluation.returns) <= {0.0, 1.0}


def test_continuous_actions_are_drawn_from_the_policy():
    """A lever whose reward is the action, N(0.5, 0.2²): the returns have that mean and deviation."""
    task = find_task("bandits:Lever")
    returns = evaluator(task, episodes=4000).evaluate(weights_of(task, logits=[0.5, np.log(0.2)]), 1).returns
    assert returns.mean() == pytest.approx(0.5, abs=4 * 0.2 / np.sqrt(4000))
    assert returns.std() == pytest.approx(0.2, rel=0.05)


def test_the_same_policy_and_key_give_the_same_returns_and_other_keys_others():
    task = find_task("classic/cartpole")
    weights = weights_of(task)
    judge = evaluator(task)
    first, other, again = (judge.evaluate(weights, key).returns for key in (5, 6, 5))
    assert (first == again).all()
    assert (first == evaluator(task).evaluate(weights, 5).returns).all()
    assert (first != other).any()
    assert (first != evaluator(task, seed=1).evaluate(weights, 5).returns).any()


def test_an_episode_without_an_end_is_cut_and_counted(monkeypatch):
    monkeypatch.setattr(evaluate, "LONGEST_EPISODE", 5)
    task = find_task("classic/cartpole")
    evaluation = evaluator(task).evaluate(weights_of(task), 1)
    assert evaluation.unfinished == 64
    assert set(evaluation.returns) == {5.0}


def test_a_lost_life_does_not_end_the_evaluation_of_a_game():
    task = find_task("atari/breakout@42")
    judge = Evaluator(task, "small_cnn", None, episodes=4, bfloat16=False, seed=0, threads=2)
    flat = flatten_parameters(make_network(task, "small_cnn", 0)).numpy().copy()
    evaluation = judge.evaluate(flat, 1)
    assert evaluation.unfinished == 0
    assert evaluation.steps > 4 * 100, "a random policy loses its first life within some 30 steps, its five not before 100"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_environments_whose_episodes_are_over_are_stepped_no_more(monkeypatch, threads):
    """Episodes of 1 or of 20 steps, which return their lengths; each environment alone on a thread."""
    task = find_task("bandits:Episodes")
    task = replace(task, cost=replace(task.cost, together=1))
    stepped = []

    def counted(task, num_envs, **settings):
        env = make_env(task, num_envs, **settings)
        step = env.step
        env.step = lambda actions: stepped.append(num_envs) or step(actions)
        return env

    monkeypatch.setattr(evaluate, "make_env", counted)
    evaluation = Evaluator(task, "mlp", None, episodes=32, bfloat16=False, seed=0, threads=threads).evaluate(weights_of(task), 1)
    assert set(evaluation.returns) == {1.0, 20.0}
    assert evaluation.steps == evaluation.returns.sum()
    groups = [evaluation.returns[first : first + threads] for first in range(0, 32, threads)]
    assert sum(stepped) == sum(len(group) * max(group) for group in groups)


def test_a_game_is_the_same_whether_it_is_stepped_alone_or_beside_others():
    """And the next evaluation goes on with the emulators' own generators: it depends on the one before, and on no clock."""
    task = find_task("atari/breakout@42")
    together = replace(task, cost=replace(task.cost, together=None))
    weights = flatten_parameters(make_network(task, "small_cnn", 0)).numpy().copy()
    found = []
    for which in (task, together, task):
        judge = Evaluator(which, "small_cnn", None, episodes=3, bfloat16=False, seed=0, threads=1)
        found.append([(list(e.returns), e.steps) for e in (judge.evaluate(weights, 1), judge.evaluate(weights, 1))])
        judge.close()
    assert found[0][0] == found[1][0]
    assert found[0] == found[2]
    assert found[0][0] != found[0][1]


def test_one_episode_has_no_standard_error():
    with pytest.raises(ValueError, match="at least two"):
        evaluator(find_task("classic/cartpole"), episodes=1)


def test_a_cut_ends_an_episode(monkeypatch):
    """Pendulum has no other end."""
    task = find_task("classic/pendulum")
    monkeypatch.setattr(evaluate, "LONGEST_EPISODE", 600)
    judge = Evaluator(task, "mlp", None, episodes=3, bfloat16=False, seed=0, threads=1)
    found = judge.evaluate(flatten_parameters(make_network(task, "mlp", 0)).numpy().copy(), 1)
    judge.close()
    assert (found.steps, found.unfinished) == (3 * 200, 0)
