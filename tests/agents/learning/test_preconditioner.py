"""Adam's metric against first principles, and the learner's noise in it against plain gradients of every block."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import read_batch, whole_gradient
from making import make_fragment

from rlscale.agents.config import NoiseSettings, TrainConfig, default_config
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.preconditioner import adam_metric
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.agents.networks import make_network, policy_columns
from rlscale.envs import find_task
from rlscale.noise import noise_scale

CPU = torch.device("cpu")
HEADS = ("policy", "value", "joint", "joint_policy_parameters")
BLOCKS, STEPS = 4, 6


# --- P itself ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fused", "amsgrad"), [(False, False), (True, False), (False, True)])
def test_adam_steps_by_its_metric_times_the_first_moment(fused, amsgrad):
    """Without a first moment the step after so many is -ε P g, where P is read once the step is made; before, one step ago.

    AMSGrad divides by the largest v so far.
    """
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.zeros(7))
    optimizer = torch.optim.Adam([parameter], lr=0.5, betas=(0.0, 0.9), eps=1e-2, fused=fused, amsgrad=amsgrad)
    assert adam_metric([optimizer], [parameter]) is None
    v = most = np.zeros(7)
    for step in range(1, 6):
        before, parameter.grad = parameter.detach().clone(), torch.randn(7, generator=generator)
        optimizer.step()
        v = 0.9 * v + 0.1 * parameter.grad.double().numpy() ** 2
        most = np.maximum(most, v) if amsgrad else v
        metric = adam_metric([optimizer], [parameter])
        assert metric.dtype == torch.float32
        np.testing.assert_allclose(metric, 1 / (np.sqrt(most / (1 - 0.9**step)) + 1e-2), rtol=1e-5)
        torch.testing.assert_close(before - parameter.detach(), 0.5 * metric * parameter.grad, rtol=1e-5, atol=1e-7)


def test_the_metric_has_the_order_that_is_asked_for():
    """Several parameters of several groups, one after another and flat."""
    a, b = torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([{"params": [a], "eps": 1.0}, {"params": [b], "eps": 0.5}], betas=(0.9, 0.99))
    a.grad, b.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0, 7.0])
    optimizer.step()  # v̂ is g² now
    expected = [1 / 5.5, 1 / 6.5, 1 / 7.5, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    torch.testing.assert_close(adam_metric([optimizer], [b, a]), torch.tensor(expected))
    again = torch.optim.Adam([{"params": [a]}, {"params": [b]}])
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(adam_metric([again], [b, a]), adam_metric([optimizer], [b, a]))
    apart = torch.optim.Adam([a], eps=1.0, betas=(0.9, 0.99)), torch.optim.Adam([b], eps=0.5, betas=(0.9, 0.99))
    for one in apart:
        one.step()
    torch.testing.assert_close(adam_metric(apart, [b, a]), torch.tensor(expected))
    assert adam_metric(apart[:1], [b, a]) is None, "the other's parameters are nobody's"
    assert adam_metric((apart[0], torch.optim.SGD([b], lr=1.0)), [b, a]) is None


def test_a_parameter_without_a_gradient_does_not_take_the_metric_away():
    """A network may have parts that no loss uses; one that the optimizer does not have is another matter."""
    used, unused, foreign = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = torch.optim.Adam([used, unused], eps=1.0)
    assert adam_metric([optimizer], [used, unused]) is None
    used.grad = torch.tensor([1.0, 3.0])
    optimizer.step()
    torch.testing.assert_close(adam_metric([optimizer], [unused, used]), torch.tensor([1.0, 1.0, 1 / 2, 1 / 4]))
    assert adam_metric([optimizer], [used, foreign]) is None


def test_other_optimizers_have_no_metric():
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    for optimizer in (torch.optim.SGD([parameter], lr=0.1, momentum=0.9), torch.optim.RMSprop([parameter])):
        optimizer.step()
        assert adam_metric([optimizer], [parameter]) is None


# --- the policy's parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "ranges"), [("classic/cartpole", 2), ("minatar/breakout", 1)])
def test_the_policys_columns_are_those_of_its_trunk_and_head(task, ranges):
    found = find_task(task)
    network = make_network(found, found.network, 0)
    names = np.concatenate([np.full(p.numel(), name.split(".")[0]) for name, p in network.named_parameters()])
    columns = policy_columns(network)
    assert len(columns) == ranges
    inside = np.concatenate([np.arange(len(names))[part] for part in columns])
    np.testing.assert_array_equal(inside, np.flatnonzero((names == "trunk") | (names == "policy_head")))


# --- in the learner ----------------------------------------------------------------------------------------------------


def config_for(task="classic/cartpole", environments=12, steps=STEPS, **update) -> TrainConfig:
    config = default_config(find_task(task))
    plain = {"epochs": 1, "mini_batch": None, "learning_rate": 1e-2, "advantage_scale": "none", "entropy_coef": 0.1}
    noise = NoiseSettings(blocks=BLOCKS, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)
    rollout = replace(config.rollout, environments=environments, rollout_length=steps)
    return replace(config, rollout=rollout, update=replace(config.update, **{**plain, **update}), noise=noise)


def make_learner(config) -> Learner:
    return Learner(config, find_task(config.task), CPU, False)


def fragments_for(rng, environments=12, steps=STEPS):
    reset = rng.random((steps, environments // 2)) < 0.2
    return [make_fragment(rng, steps, environments // 2, group=group, reset=reset) for group in range(2)]


class Reference:
    """Adam by its formulas in float64: v of the gradients that the optimizer was given, and P before the next step."""

    def __init__(self, parameters: int) -> None:
        self.v, self.steps = np.zeros(parameters), 0

    def take(self, learner) -> None:
        self.v = 0.999 * self.v + 0.001 * learner._optimizer.mean.double().numpy() ** 2
        self.steps += 1

    def metric(self) -> np.ndarray:
        return 1 / (np.sqrt(self.v / (1 - 0.999**self.steps)) + 1e-5)


def expected_statistics(learner, fragments, iteration, metric):
    """{head: (plain, in the metric)}, each (3, K): the sizes, |g_k|² and g_k·ĝ from a backward pass of each block alone."""
    batch = read_batch(learner, fragments, iteration)
    everything = batch.valid.clone()
    inside = torch.zeros(len(metric), dtype=torch.bool)
    for columns in policy_columns(learner.network):
        inside[columns] = True
    found = {}
    for head in HEADS:
        p = metric[inside.numpy()] if head == "joint_policy_parameters" else metric
        batch.valid = everything
        mean = whole_gradient(learner, batch, head).double().numpy()
        rows = []
        for environments in np.array_split(np.arange(batch.environments), BLOCKS):
            mine = torch.zeros(batch.steps, batch.environments, dtype=torch.bool)
            mine[:, environments] = True
            batch.valid = everything & mine.reshape(-1)
            g = whole_gradient(learner, batch, head).double().numpy()
            rows.append((int(batch.valid.sum()), g @ g, g @ mean, g @ (p * g), g @ (p * mean)))
        size, *four = np.array(rows).T
        found[head] = (size, *four[:2]), (size, *four[2:])
    return found


def matches(statistics, expected):
    size, square, dot = expected
    np.testing.assert_array_equal(statistics.size, size)
    np.testing.assert_allclose(statistics.square, square, rtol=1e-3)
    np.testing.assert_allclose(statistics.dot, dot, rtol=1e-3, atol=1e-4 * np.abs(square).max())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("width", [8, 64])
def test_every_head_in_adams_metric(stream, width):
    """Four updates; the metric is absent in the first and Adam's own, before the update, in every other one."""
    rng = np.random.default_rng(0)
    learner = make_learner(config_for(stream=stream, width=width))
    reference = Reference(len(learner.parameters))
    for iteration in range(4):
        fragments = fragments_for(rng)
        plain = make_learner(config_for(width=width))  # held, to compute references with
        plain.set_state(learner.get_state())
        expected = expected_statistics(plain, fragments, iteration, reference.metric() if iteration else reference.v)
        found = {record.head: record for record in learn_batch(learner, fragments, iteration, 1e-2).noise}
        assert set(found) == {*HEADS, "entropy", "policy_last_layer"}
        assert {head for head, record in found.items() if record.adam is not None} == (set(HEADS) if iteration else set())
        for head in HEADS:
            matches(found[head].statistics, expected[head][0])
            if iteration:
                matches(found[head].adam, expected[head][1])
        reference.take(learner)


def test_the_noise_scale_from_single_observations():
    """One observation a block: tr(PΣ) and GᵀPG from the gradient of every observation, by `torch.func`."""
    rng = np.random.default_rng(1)
    config = config_for(environments=24, steps=1, width=5)
    config = replace(config, noise=replace(config.noise, blocks=24))
    learner = make_learner(config)

    def fragments():
        return [make_fragment(rng, 1, 12, group=group) for group in range(2)]

    learn_batch(learner, fragments(), 0, 1e-2)
    metric = adam_metric([learner._optimizer._torch], [learner.parameters]).double()
    mine = fragments()
    batch = read_batch(learner, mine, 1)
    values = {name: p.detach().double() for name, p in learner.network.named_parameters()}
    observations = batch.observations(Positions.of(np.arange(24), CPU))

    def value_loss(values, observation, target):
        output = torch.func.functional_call(learner.network, values, (observation[None],))
        return 0.5 * (output.value[0] - target) ** 2

    learner.network.double()
    per_observation = torch.func.vmap(torch.func.grad(value_loss), in_dims=(None, 0, 0))(
        values, observations.double(), batch.target.double()
    )
    g = torch.cat([x.reshape(24, -1) for x in per_observation.values()], 1)
    fresh = make_learner(config)
    fresh.set_state(learner.get_state())
    (record,) = [r for r in learn_batch(fresh, mine, 1, 1e-2).noise if r.head == "value"]
    trace = float((metric * g.var(0)).sum())
    noise = noise_scale(record.adam)
    assert noise.trace_cov == pytest.approx(trace, rel=1e-3)
    assert noise.grad_sq == pytest.approx(float((metric * g.mean(0) ** 2).sum()) - trace / 24, rel=1e-3)


def test_the_metric_moves_with_every_mini_batch():
    """Three steps of the first epoch: none, then that of one step, then that of two."""
    learner = make_learner(config_for(epochs=2, mini_batch=4 * STEPS, shuffle="environments"))
    found = [r for r in learn_batch(learner, fragments_for(np.random.default_rng(2)), 0, 1e-2).noise if r.head == "joint"]
    assert [(r.optimizer_step, r.adam is None) for r in found] == [(0, True), (1, False), (2, False)]


def test_other_optimizers_measure_the_plain_noise_alone():
    learner = make_learner(config_for(optimizer="rmsprop"))
    rng = np.random.default_rng(3)
    for iteration in range(2):
        noise = learn_batch(learner, fragments_for(rng), iteration, 1e-2).noise
        assert {r.head for r in noise} == {*HEADS, "entropy", "policy_last_layer"}
        assert all(r.adam is None for r in noise)


def test_a_resumed_learner_has_the_same_metric():
    rng = np.random.default_rng(4)
    learner = make_learner(config_for())
    learn_batch(learner, fragments_for(rng), 0, 1e-2)
    again = make_learner(config_for())
    again.set_state(learner.get_state())
    fragments = fragments_for(rng)
    mine, theirs = (learn_batch(x, fragments, 1, 1e-2).noise for x in (learner, again))
    for one, other in zip(mine, theirs, strict=True):
        assert (one.head, one.adam is None) == (other.head, other.adam is None)
        if one.adam is not None:
            np.testing.assert_array_equal(one.adam.square, other.adam.square)
            np.testing.assert_array_equal(one.adam.dot, other.adam.dot)
