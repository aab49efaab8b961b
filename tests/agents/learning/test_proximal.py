"""PPO-EWMA: the averaged policy against a slow reference, what the loss makes of it, and the rules for another batch size."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import read_batch
from making import make_fragment

from rlscale.agents.checks import check_config
from rlscale.agents.config import NoiseSettings, Rollout, TrainConfig, default_config
from rlscale.agents.learning import Learner, RemoteLearners, learn_batch
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.losses import ppo_losses
from rlscale.agents.learning.proximal import AveragedPolicy
from rlscale.agents.networks import Categorical, make_network
from rlscale.agents.train import train
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records import read_run

CPU = torch.device("cpu")
TASK = find_task("classic/cartpole")
STEPS, ENVS = 6, 32
EVERY = NoiseSettings(blocks=8, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)


def config_for(rollout=None, **update) -> TrainConfig:
    base = default_config(TASK)
    plain = {"epochs": 1, "mini_batch": 8 * STEPS, "shuffle": "environments", "advantage_scale": "running", "threads": 1}
    config = replace(
        base,
        rollout=replace(Rollout(environments=ENVS, rollout_length=STEPS), **(rollout or {})),
        update=replace(base.update, **{**plain, "proximal_average": 3.0, **update}),
        noise=EVERY,
    )
    check_config(config)
    return config


def fragments(seed):
    rng = np.random.default_rng(seed)
    return [make_fragment(rng, STEPS, ENVS // 4, group=group, reset=rng.random((STEPS, ENVS // 4)) < 0.2) for group in range(4)]


def averages(decay, history):
    """Σ_j β^(k-j) θ_j / Σ_j β^(k-j), in float64, term by term."""
    weights = decay ** np.arange(len(history) - 1, -1, -1.0)
    return weights @ np.array(history, dtype=np.float64) / weights.sum()


def visited(learner, monkeypatch):
    """The parameters at the start and after every optimizer step of the learner, as they come."""
    history, step = [learner.weights()], learner._optimizer.step

    def follow(*arguments):
        step(*arguments)
        history.append(learner.weights())

    monkeypatch.setattr(learner._optimizer, "step", follow)
    return history


@pytest.mark.parametrize("age", [0.0, 0.5, 8.0])
def test_the_average_is_that_of_all_parameters_so_far(age):
    """By hand for an age of 1, β = 1/2: (4 θ_2 + 2 θ_1 + θ_0) / 7 after two steps. An age of 0 is the latest alone."""
    network = make_network(TASK, "mlp", 0)
    average = AveragedPolicy(network, age)
    rng = np.random.default_rng(0)
    history = [np.concatenate([p.detach().numpy().reshape(-1) for p in network.parameters()])]
    for _ in range(20):
        history.append(rng.normal(size=len(history[0])).astype(np.float32))
        average.add(torch.from_numpy(history[-1]))
        found = torch.cat([p.detach().reshape(-1) for p in average.network.parameters()])
        np.testing.assert_allclose(found, averages(age / (1 + age), history), atol=2e-6)
    by_hand = AveragedPolicy(network, 1.0)
    for parameters in history[1:3]:
        by_hand.add(torch.from_numpy(parameters))
    expected = (4 * history[2] + 2 * history[1] + history[0]) / 7
    np.testing.assert_allclose(by_hand.get_state()["parameters"], expected, atol=1e-6)


def test_the_age_is_the_center_of_mass():
    """Of a parameter that is the number of its step, the average lags by its age; the paper's β of 0.889 lags by 8."""
    network = make_network(TASK, "mlp", 0)
    for age in (2.0, 8.0):
        average = AveragedPolicy(network, age)
        ones = torch.ones_like(average.get_state()["parameters"])
        for step in range(1, 301):
            average.add(step * ones)
        assert float(average.get_state()["parameters"].mean()) == pytest.approx(300 - age, abs=1e-3)
    assert average._decay == pytest.approx(0.889, abs=5e-4)


def test_the_loss_of_three_policies_by_hand():
    """π = 0.5, proximal 0.4, behaviour 0.25: the ratio 1.25 is clipped to 1.2 about the proximal policy, whose weight is 1.6.

    A gain of A = 1 is min(2, 1.2 · 1.6) = 1.92, and nothing pushes further; a loss of A = -1 is -2 and does.
    """
    logits = torch.zeros(2, 2, requires_grad=True)
    losses = ppo_losses(
        policy=Categorical(logits),
        value=torch.zeros(2),
        action=torch.zeros(2, dtype=torch.int64),
        behaviour_log_prob=torch.full((2,), math.log(0.25)),
        advantage=torch.tensor([1.0, -1.0]),
        value_target=torch.zeros(2),
        clip=0.2,
        value_coef=0.0,
        entropy_coef=0.0,
        proximal_log_prob=torch.full((2,), math.log(0.4)),
    )
    assert losses.policy.tolist() == pytest.approx([-1.92, 2.0])
    (gradient,) = torch.autograd.grad(losses.policy.sum(), logits)
    # d(0.5 / 0.25) by the first logit is 4 · π (1 - π) = 1.
    np.testing.assert_allclose(gradient, [[0, 0], [1, -1]], atol=1e-6)


def block_gradient(learner, batch, proximal):
    """Reference: the joint gradient over all valid observations, clipped about those log-probabilities."""
    u = learner._config.update
    everything = Positions.of(np.arange(batch.steps * batch.environments), CPU)
    output = learner.network(batch.observations(everything))
    losses = ppo_losses(
        policy=learner.network.distribution(output.policy),
        value=output.value,
        action=batch.action,
        behaviour_log_prob=batch.log_prob,
        advantage=batch.advantage,
        value_target=batch.target,
        clip=u.clip,
        value_coef=u.value_coef,
        entropy_coef=u.entropy_coef,
        proximal_log_prob=proximal,
    )
    grads = torch.autograd.grad(losses.joint[batch.valid].mean(), list(learner.network.parameters()))
    return torch.cat([g.reshape(-1) for g in grads]), float(losses.clip_fraction[batch.valid].mean())


@pytest.mark.parametrize("lag", [0, 1])
def test_a_step_is_clipped_about_the_average(lag, monkeypatch):
    """Of every parameter vector that the run has had, whatever policy acted; the noise is that of the same loss."""
    learner = Learner(config_for({"lag": lag}, mini_batch=None, max_grad_norm=None), TASK, CPU, False)
    history = visited(learner, monkeypatch)
    reference = make_network(TASK, "mlp", 0)
    for iteration in range(4):
        batch = read_batch(learner, fragments(iteration))
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(averages(0.75, history).astype(np.float32)), list(reference.parameters())
        )
        everything = Positions.of(np.arange(batch.steps * batch.environments), CPU)
        output = reference(batch.observations(everything))
        proximal = reference.distribution(output.policy).log_prob(batch.action).detach()
        expected, clipped = block_gradient(learner, batch, proximal)
        result = learner._learn_held(batch, 0.05)
        torch.testing.assert_close(learner._optimizer.mean, expected, rtol=1e-3, atol=1e-5)
        assert result.figures["clip_fraction"] == pytest.approx(clipped, abs=1e-6)
        joint = next(n.statistics for n in result.noise if n.head == "joint")
        assert float(joint.size @ joint.dot) / joint.size.sum() == pytest.approx(float(expected @ expected), rel=1e-3)
    assert clipped > 0.1  # of the first step's policies nothing is: the case would say nothing


def test_no_average_is_the_decoupled_loss_of_the_newest_policy(monkeypatch):
    """At an age of 0 every ratio is 1: no clip binds, and the gradient is that of the importance weights alone."""
    learner = Learner(config_for(proximal_average=0.0, max_grad_norm=None), TASK, CPU, False)
    free = Learner(config_for(proximal_average=None, clip=None, max_grad_norm=None), TASK, CPU, False)
    for iteration in range(3):
        result = learn_batch(learner, fragments(iteration), iteration, 0.01)
        learn_batch(free, fragments(iteration), iteration, 0.01)
        assert result.figures["clip_fraction"] == 0
    np.testing.assert_allclose(learner.weights(), free.weights(), rtol=1e-4, atol=1e-5)
    assert result.figures["approx_kl"] > 1e-3


def test_bfloat16_averages_in_float32(monkeypatch):
    learner = Learner(config_for(), TASK, CPU, True)
    history = visited(learner, monkeypatch)
    for iteration in range(3):
        learn_batch(learner, fragments(iteration), iteration, 0.01)
    assert len(history) == 13  # four steps an iteration
    np.testing.assert_allclose(learner._average.get_state()["parameters"], averages(0.75, history), atol=1e-6)
    # The weights that autocast keeps in bfloat16 are dropped before the average changes.
    batch = read_batch(learner, fragments(9))
    gradients = learner._gradients
    everything = Positions.of(np.arange(12), CPU)
    seen = gradients._forward(learner._average.network, batch.observations(everything)).policy
    learner._average.add(torch.zeros_like(learner.parameters))
    assert not torch.equal(gradients._forward(learner._average.network, batch.observations(everything)).policy, seen)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_state_goes_on_exactly(optimizer):
    config = config_for(optimizer=optimizer, tuned_batch=192)
    one, two = Learner(config, TASK, CPU, False), Learner(config, TASK, CPU, False)
    learn_batch(one, fragments(0), 0, 0.01)
    state = one.get_state()
    kept = state["average"]["parameters"].clone()
    learn_batch(one, fragments(1), 1, 0.01)
    assert torch.equal(state["average"]["parameters"], kept), "later steps change the checkpoint"
    two.set_state(state)
    learn_batch(two, fragments(1), 1, 0.01)
    np.testing.assert_array_equal(one.weights(), two.weights())
    ones, twos = one.get_state()["average"], two.get_state()["average"]
    assert torch.equal(ones["parameters"], twos["parameters"])
    assert ones["weight"] == twos["weight"]


def test_a_run_without_an_average_can_begin_one(monkeypatch):
    """From its present parameters on; and one that gives it up goes on without."""
    plain = Learner(config_for(proximal_average=None), TASK, CPU, False)
    learn_batch(plain, fragments(0), 0, 0.01)
    state = plain.get_state()
    assert state["average"] is None
    del state["average"]  # as an earlier version wrote it
    learner = Learner(config_for(), TASK, CPU, False)
    learner.set_state(state)
    np.testing.assert_array_equal(learner.get_state()["average"]["parameters"], plain.weights())
    history = visited(learner, monkeypatch)
    learn_batch(learner, fragments(1), 1, 0.01)
    np.testing.assert_allclose(learner.get_state()["average"]["parameters"], averages(0.75, history), atol=1e-6)
    plain.set_state(learner.get_state())
    assert plain.get_state()["average"] is None


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
def test_several_learners_average_as_one(ray_of_four, stream):
    changes = {"mini_batch": None, "advantage_scale": "none"} if stream else {}
    one = Learner(config_for(**changes), TASK, CPU, False)
    several = RemoteLearners(config_for(learners=2, stream=stream, **changes), TASK, CPU, False, threads=1)
    try:
        for iteration in range(3):
            expected = learn_batch(one, fragments(iteration), iteration, 0.01)
            found = learn_batch(several, fragments(iteration), iteration, 0.01)
            assert found.figures == pytest.approx(expected.figures, rel=2e-3, abs=1e-4)
        torch.testing.assert_close(
            several.get_state()["average"]["parameters"], one.get_state()["average"]["parameters"], rtol=1e-3, atol=5e-5
        )
    finally:
        several.close()


# --- another batch size ------------------------------------------------------------------------------------------------------


def test_the_rules_for_a_quarter_of_the_batch():
    """c = 4: Adam's betas to the power of 1/4, warm-up and the average's center of mass times 4 (paper); ε by √c."""
    config = config_for(tuned_batch=4 * 8 * STEPS, beta2=0.99, warm_up=5)
    assert config.batch_divisor == 4
    learner = Learner(config, TASK, CPU, False)
    (group,) = learner._optimizer._torch.param_groups
    assert group["betas"] == pytest.approx((0.9**0.25, 0.99**0.25))
    assert group["eps"] == pytest.approx(2e-5)
    assert learner._optimizer._warm_up == 20
    decay = learner._average._decay
    assert 1 / (1 - decay) - 1 == pytest.approx(4 * 3)
    learn_batch(learner, fragments(0), 0, 0.01)
    first = learner.scale_square
    learn_batch(learner, fragments(1), 1, 0.01)
    alone = Learner(config, TASK, CPU, False)
    read_batch(alone, fragments(1))
    kept = 0.99**0.25
    assert learner.scale_square == pytest.approx(kept * first + (1 - kept) * alone.scale_square)
    rmsprop = Learner(config_for(tuned_batch=4 * 8 * STEPS, optimizer="rmsprop"), TASK, CPU, False)
    (group,) = rmsprop._optimizer._torch.param_groups
    assert (group["alpha"], group["eps"]) == pytest.approx((0.99**0.25, 2e-5))


def test_the_rate_follows_the_root_of_the_batch(tmp_path):
    """Whatever is masked: the two batch sizes are nominal ones."""
    config = config_for(tuned_batch=4 * 8 * STEPS, learning_rate=0.01)
    train(replace(config, budget=replace(config.budget, observations=400)), tmp_path / "run", command=[])
    assert [row["learning_rate"] for row in read_run(tmp_path / "run").rows] == pytest.approx([0.005] * 3)


def test_at_the_batch_that_settings_were_found_at_nothing_changes():
    weights = []
    for tuned in (None, 8 * STEPS):
        learner = Learner(config_for(tuned_batch=tuned, warm_up=3), TASK, CPU, False)
        for iteration in range(2):
            learn_batch(learner, fragments(iteration), iteration, 0.01)
        weights.append(learner.weights())
    np.testing.assert_array_equal(*weights)


def test_a_resumed_run_has_its_own_settings():
    """Of Adam too: those that the checkpoint's run had are not taken over."""
    before, after = (Learner(config_for(beta2=beta2), TASK, CPU, False) for beta2 in (0.999, 0.9))
    learn_batch(before, fragments(0), 0, 0.01)
    after.set_state(before.get_state())
    assert after._optimizer._torch.param_groups[0]["betas"] == (0.9, 0.9)


@pytest.mark.parametrize(
    ("rollout", "update", "message"),
    [
        ({}, {"clip": None}, "--proximal-average: without a clip nothing depends on the proximal policy"),
        ({}, {"proximal_average": -1.0}, "--proximal-average: -1.0 is not zero or more"),
        ({}, {"proximal_average": math.inf}, "--proximal-average: inf is not finite"),
        ({}, {"tuned_batch": 0}, "--tuned-batch: 0 is not a positive number"),
        ({}, {"tuned_batch": 256, "lr_rule": "sqrt"}, "--tuned-batch: --lr-rule sqrt would scale the learning rate a second"),
        (
            {"batch_size": "adaptive", "fragment_environments": 8},
            {"tuned_batch": 256, "mini_batch": None, "proximal_average": None},
            "--tuned-batch: an adaptive batch has no size",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(rollout, update, message):
    with pytest.raises(UsageError, match=message):
        config_for(rollout, **update)
