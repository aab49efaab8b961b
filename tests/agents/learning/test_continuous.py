"""Updates of a policy with continuous actions: on one and on several learners, held, streamed, lagged, and from a state."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import InThreads, read_batch, whole_gradient
from making import make_fragment

from rlscale.agents.config import NoiseSettings, TrainConfig, default_config
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.envs import BoxActions, find_task
from rlscale.noise import noise_scale

CPU = torch.device("cpu")
TASK = replace(find_task("classic/pendulum"), actions=BoxActions((-1.0, -np.inf), (1.0, np.inf)))  # two actions, to tell apart
STEPS, GROUPS, ENVIRONMENTS = 6, 2, 8


def config_for(learners=1, lag=0, **update) -> TrainConfig:
    config = default_config(TASK)
    plain = {"epochs": 1, "mini_batch": None, "threads": 1, "advantage_scale": "running", "entropy_coef": 0.02}
    noise = NoiseSettings(blocks=8, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)
    rollout = replace(config.rollout, environments=GROUPS * ENVIRONMENTS, rollout_length=STEPS, lag=lag)
    return replace(
        config, rollout=rollout, update=replace(config.update, **{**plain, **update, "learners": learners}), noise=noise
    )


def fragments_of(rng):
    shape = STEPS, ENVIRONMENTS
    return [
        make_fragment(rng, *shape, features=3, actions=TASK.actions, group=group, reset=rng.random(shape) < 0.2)
        for group in range(GROUPS)
    ]


def statistics_of(result):
    return {(n.head, n.kind, metric): getattr(n, metric) for n in result.noise for metric in ("statistics", "adam")}


@pytest.mark.parametrize("head", ["joint", "policy_last_layer", "joint_policy_parameters"])
def test_blocks_add_up_to_the_whole_gradient(head):
    """The weighted mean of the block gradients is one plain backward pass over the batch; its norm is what statistics say."""
    learner, fragments = Learner(config_for(max_grad_norm=None), TASK, CPU, False), fragments_of(np.random.default_rng(0))
    expected = whole_gradient(learner, read_batch(learner, fragments), head)
    learner.scale_square = None
    result = learn_batch(learner, fragments, 0, 0.0)
    if head == "joint":
        torch.testing.assert_close(learner._optimizer.mean, expected, rtol=1e-4, atol=1e-6)
    (found,) = (n.statistics for n in result.noise if n.head == head)
    assert found.size @ found.dot / found.size.sum() == pytest.approx(float(expected @ expected), rel=1e-4)


def test_the_entropy_of_a_gaussian_has_no_noise():
    """It is the same at every observation: its gradient is 1 in each log σ, for every block."""
    learner = Learner(config_for(), TASK, CPU, False)
    (found,) = (n for n in learn_batch(learner, fragments_of(np.random.default_rng(0)), 0, 0.0).noise if n.head == "entropy")
    noise = noise_scale(found.statistics)
    assert noise.grad_sq == pytest.approx(2.0, rel=1e-5)
    assert noise.trace_cov == pytest.approx(0.0, abs=1e-4)


CASES = [
    pytest.param({}, id="one step of the whole batch"),
    pytest.param({"epochs": 2, "mini_batch": 48, "shuffle": "transitions"}, id="shuffled transitions"),
]


@pytest.mark.parametrize("update", CASES)
def test_two_learners_make_the_update_of_one(update):
    """In threads: with processes there is the same transport whatever the actions are."""
    rng = np.random.default_rng(0)
    one = Learner(config_for(**update), TASK, CPU, False)
    two = InThreads(config_for(2, **update), TASK)
    for iteration in range(3):
        fragments = fragments_of(rng)
        results = [learn_batch(one, fragments, iteration, 1e-2), two.learn_batch(fragments, iteration, 1e-2)]
        assert results[0].figures == pytest.approx(results[1].figures, rel=2e-4, abs=1e-5)
        mine, theirs = map(statistics_of, results)
        assert mine.keys() == theirs.keys()
        assert {"policy", "value", "entropy", "joint"} <= {head for head, *_ in mine}
        for key, a in mine.items():
            if a is not None:
                np.testing.assert_allclose(a.square, theirs[key].square, rtol=2e-4, atol=1e-9)
    for learner in two.learners:
        np.testing.assert_allclose(learner.weights(), one.weights(), rtol=1e-3, atol=2e-5)
    deviations = one.network.policy_head.bias[2:]
    assert (deviations.abs() > 1e-3).all(), "the deviations are learned"


def test_a_stream_teaches_what_a_held_batch_does():
    rng, results = np.random.default_rng(0), []
    fragments = [fragments_of(rng) for _ in range(3)]
    for stream in (False, True):
        learner = Learner(config_for(stream=stream, advantage_scale="none"), TASK, CPU, False)
        results.append([learn_batch(learner, f, i, 1e-2).figures for i, f in enumerate(fragments)] + [learner.weights()])
    for held, streamed in zip(results[0][:-1], results[1][:-1], strict=True):
        assert held == pytest.approx(streamed, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(results[0][-1], results[1][-1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_state_goes_on_to_the_last_bit(lag):
    rng = np.random.default_rng(0)
    fragments = [fragments_of(rng) for _ in range(4)]
    settings = config_for(lag=lag, epochs=2, mini_batch=48)
    one = Learner(settings, TASK, CPU, False)
    for iteration in (0, 1):
        learn_batch(one, fragments[iteration], iteration, 1e-2)
    other = Learner(settings, TASK, CPU, False)
    other.set_state(one.get_state())
    for iteration in (2, 3):
        figures = [learn_batch(learner, fragments[iteration], iteration, 1e-2).figures for learner in (one, other)]
        assert figures[0] == figures[1]
    assert np.array_equal(one.weights(), other.weights())
