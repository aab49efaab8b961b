"""The noise at a checkpoint: Hessian-vector products against the dense Hessian, and nothing that learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import read_batch, whole_gradient
from making import make_fragment

from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.learning import Learner, arrange_slots, learn_batch
from rlscale.agents.learning.frozen import FrozenLearner, hessian_products, pooled
from rlscale.envs import find_task
from rlscale.noise import pool

CPU = torch.device("cpu")
STEPS, ENVS = 6, 16


def config(**changes) -> TrainConfig:
    base = default_config(find_task("classic/cartpole"))
    rollout = replace(base.rollout, environments=ENVS, rollout_length=STEPS)
    update = replace(base.update, epochs=1, mini_batch=None, width=5, clip=0.2, advantage_scale="running", **changes)
    return replace(base, rollout=rollout, update=update)


def fragments(seed):
    """One fragment whose behaviour policy is the uniform one, with some masked steps."""
    rng = np.random.default_rng(seed)
    return [make_fragment(rng, STEPS, ENVS, reset=rng.random((STEPS, ENVS)) < 0.1)]


def trained(settings):
    """A learner after three updates, so that Adam has a metric and the heads have gradients."""
    learner = Learner(settings, find_task(settings.task), CPU, bfloat16=False)
    for seed in range(3):
        made = fragments(seed)
        learn_batch(learner, made, seed, 0.05)
    return learner


@pytest.mark.parametrize("chunk", [7, 1000])
def test_products_are_those_of_the_dense_hessian(chunk):
    settings = config(chunk=chunk)
    learner = trained(settings)
    batch = read_batch(learner, fragments(9))
    settings_without_clip = replace(settings, update=replace(settings.update, clip=None))
    learner._config = settings_without_clip
    count = len(learner.parameters)
    rows = []
    for index in range(count):  # by central differences of the whole gradient
        step = torch.zeros(count)
        step[index] = 1e-2
        with torch.no_grad():
            learner.parameters += step
        up = whole_gradient(learner, batch)
        with torch.no_grad():
            learner.parameters -= 2 * step
        down = whole_gradient(learner, batch)
        with torch.no_grad():
            learner.parameters += step
        rows.append((up - down) / 2e-2)
    hessian = torch.stack(rows)
    vectors = torch.randn(3, count, generator=torch.Generator().manual_seed(0))
    found = hessian_products(learner, batch, vectors)
    torch.testing.assert_close(found, vectors @ hessian.T, rtol=0.02, atol=0.02 * float(found.abs().max()))


def frozen(settings, state):
    learner = FrozenLearner(settings, find_task(settings.task), CPU, bfloat16=False)
    learner.set_state(state)
    return learner


def measure(learner, seed):
    slots = arrange_slots([0], ENVS)
    learner.begin(slots, seed)
    for fragment, slot in zip(fragments(seed), slots, strict=True):
        learner.accept(fragment, slot)
    return learner.measure()


def test_it_measures_what_a_learner_would_and_changes_nothing():
    settings = config()
    state = trained(settings).get_state()
    learner = frozen(settings, state)
    before = learner.get_state()
    first, none = measure(learner, 20)
    second, hessian = measure(learner, 21)
    assert none is None
    assert hessian is not None
    after = learner.get_state()
    assert torch.equal(before["parameters"], after["parameters"])
    assert before["scale_square"] == after["scale_square"]
    torch.testing.assert_close(before["optimizer"], after["optimizer"])

    reference = Learner(settings, find_task(settings.task), CPU, bfloat16=False)
    reference.set_state(state)
    result = learn_batch(reference, fragments(20), 0, 0.0)
    (joint,) = [n for n in result.noise if n.head == "joint"]
    mine = pooled([first], "joint")
    # The blocks differ in number; the batch gradient, and so the sum of n_k g_k·ĝ, does not.
    assert (mine[0].size * mine[0].dot).sum() == pytest.approx((joint.statistics.size * joint.statistics.dot).sum(), rel=1e-4)
    assert {record.head for record in second} == {"policy", "value", "joint", "joint_policy_parameters"}


def test_the_statistics_in_the_hessian_are_those_of_the_batch_before():
    settings = config()
    state = trained(settings).get_state()
    learner = frozen(settings, state)
    measure(learner, 30)
    _, hessian = measure(learner, 31)
    reference = Learner(settings, find_task(settings.task), CPU, bfloat16=False)
    reference.set_state(state)
    earlier, batch = read_batch(reference, fragments(30)), read_batch(reference, fragments(31))
    gradient = whole_gradient(reference, batch)
    (product,) = hessian_products(reference, earlier, gradient[None])
    sizes = hessian.joint.size
    along = float((sizes * hessian.joint.dot).sum() / sizes.sum())  # ĝ·Hĝ
    assert along == pytest.approx(float(gradient @ product), rel=0.05)
    assert along != pytest.approx(float(gradient @ hessian_products(reference, batch, gradient[None])[0]), rel=0.01)
    # Of the policy's parameters, what is left of H once the value's are held.
    part = torch.zeros_like(gradient)
    for columns in reference._optimizer._policy_columns:
        part[columns] = 1.0
    (block,) = hessian_products(reference, earlier, (part * gradient)[None])
    of_policy = hessian.policy_parameters
    along = float((of_policy.size * of_policy.dot).sum() / of_policy.size.sum())
    assert along == pytest.approx(float((part * gradient) @ block), rel=0.02)


def test_pooled_takes_one_head_and_metric():
    settings = config()
    learner = frozen(settings, trained(settings).get_state())
    records = [measure(learner, seed)[0] for seed in range(40, 44)]
    plain, adam = pooled(records, "joint"), pooled(records, "joint", adam=True)
    assert len(plain) == len(adam) == 4
    assert pool(plain).trace_cov != pool(adam).trace_cov
    assert pooled(records, "entropy") == []
