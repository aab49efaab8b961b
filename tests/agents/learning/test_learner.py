"""The learner: block gradients add up to the batch gradient, memory settings change nothing, and the noise is what it says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import read_batch, whole_gradient
from making import make_fragment

from rlscale.agents.config import NoiseSettings, TrainConfig, default_config
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import find_task
from rlscale.noise import noise_scale, pool

CPU = torch.device("cpu")
NO_NOISE = NoiseSettings(
    joint_noise_period=0, policy_noise_period=0, value_noise_period=0, entropy_noise_period=0, iteration_noise_period=0
)


def config_for(task, noise=None, **update) -> TrainConfig:
    config = default_config(task)
    plain = {"epochs": 1, "mini_batch": None, "learning_rate": 1e-3, "max_grad_norm": None, "entropy_coef": 0.01}
    # Twelve environments with twelve steps, as `fragments_with_masks` makes them.
    rollout = replace(config.rollout, environments=12, rollout_length=12)
    return replace(config, rollout=rollout, update=replace(config.update, **{**plain, **update}), noise=noise or NoiseSettings())


def fragments_with_masks(workers=2, steps=12, envs=6):
    rng = np.random.default_rng(0)
    return [make_fragment(rng, steps, envs, group=w, reset=rng.random((steps, envs)) < 0.2) for w in range(workers)]


def test_observations_come_in_the_order_asked_for():
    fragments = fragments_with_masks()
    task = find_task("classic/cartpole")
    learner = Learner(config_for(task), task, CPU, False)
    batch = read_batch(learner, fragments)
    frames = np.concatenate([f.frames for f in fragments], axis=1).reshape(-1, 4)
    index = np.random.default_rng(1).permutation(len(frames))
    np.testing.assert_array_equal(batch.observations(Positions.of(index, CPU)).numpy(), frames[index])


@pytest.mark.parametrize("blocks", [2, 5, 8, 12])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_blocks_add_up_to_the_whole_gradient(blocks, chunk):
    task = find_task("classic/cartpole")
    learner = Learner(config_for(task, NoiseSettings(blocks=blocks), chunk=chunk), task, CPU, False)
    batch = read_batch(learner, fragments_with_masks())
    expected = whole_gradient(learner, batch)
    learn_batch(learner, fragments_with_masks(), 0, 0.0)
    torch.testing.assert_close(learner._optimizer.mean, expected, rtol=1e-4, atol=1e-6)


def test_joint_statistics_are_those_of_the_environment_blocks():
    """Each block's |g_k|² and g_k·ĝ against a plain backward pass over that block alone."""
    task = find_task("classic/cartpole")
    settings = NoiseSettings(blocks=4, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)
    learner = Learner(config_for(task, settings, shuffle="environments"), task, CPU, False)
    fragments = fragments_with_masks()
    batch = read_batch(learner, fragments)
    everything = batch.valid.clone()
    expected = {}
    for head in ("joint", "policy", "value", "entropy", "policy_last_layer", "joint_policy_parameters"):
        mean = whole_gradient(learner, batch, head)
        rows = []
        for environments in np.array_split(np.arange(12), 4):
            mine = torch.zeros(batch.steps, 12, dtype=torch.bool)
            mine[:, environments] = True
            batch.valid = everything & mine.reshape(-1)
            g = whole_gradient(learner, batch, head)
            rows.append((float(batch.valid.sum()), float(g @ g), float(g @ mean)))
        batch.valid = everything
        expected[head] = np.array(rows).T
    result = learn_batch(learner, fragments, 0, 0.0)
    for record in result.noise:
        assert record.kind == "rollout"
        size, square, dot = expected[record.head]
        np.testing.assert_array_equal(record.statistics.size, size)
        np.testing.assert_allclose(record.statistics.square, square, rtol=1e-3)
        np.testing.assert_allclose(record.statistics.dot, dot, rtol=1e-3, atol=1e-7)
    assert [r.head for r in result.noise] == [
        "policy",
        "value",
        "entropy",
        "joint",
        "joint_policy_parameters",
        "policy_last_layer",
    ]


def test_masked_steps_change_nothing():
    task = find_task("classic/cartpole")
    learner = Learner(config_for(task), task, CPU, False)
    fragments = fragments_with_masks()
    learn_batch(learner, fragments, 0, 0.0)
    before = learner._optimizer.mean.clone()
    changed = []
    for f in fragments:
        frames, action = f.frames.copy(), f.action.copy()
        frames[f.reset], action[f.reset] = 99.0, 1 - action[f.reset]
        changed.append(replace(f, frames=frames, action=action))
    learn_batch(learner, changed, 0, 0.0)
    torch.testing.assert_close(learner._optimizer.mean, before)


def test_the_chunk_bounds_memory_and_changes_no_result():
    task = find_task("atari/breakout@42")
    worker = RolloutWorker(WorkerSettings(task, 8, 16, "small_cnn", False, 1, True, 0, 0), 0)
    fragments = [worker.sample(0)]
    results = []
    for chunk in (5, 4096):
        config = config_for(task, chunk=chunk, network="small_cnn", epochs=2, mini_batch=64)
        learner = Learner(replace(config, rollout=replace(config.rollout, environments=8, rollout_length=16)), task, CPU, False)
        for iteration in range(2):
            result = learn_batch(learner, fragments, iteration, 1e-3)
        results.append((learner.weights(), [n.statistics.square for n in result.noise]))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=2e-4)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=0.02)


@pytest.mark.parametrize(
    ("environments", "mini_batch", "shuffle", "kind", "blocks"),
    [
        (32, None, "auto", "rollout", 8),
        (32, 8 * 16, "auto", "rollout", 8),
        (32, 4 * 16, "auto", "mini-batch", 8),
        (32, 4 * 16, "environments", "rollout", 4),
        (4, None, "auto", "mini-batch", 8),
        (32, 64 // 4 * 2, "auto", "mini-batch", 8),
        (32, None, "transitions", "mini-batch", 8),
    ],
)
def test_shuffled_transitions_are_labelled_mini_batch_noise(environments, mini_batch, shuffle, kind, blocks):
    task = find_task("classic/cartpole")
    config = config_for(task, mini_batch=mini_batch, shuffle=shuffle, epochs=2)
    config = replace(config, rollout=replace(config.rollout, environments=environments, rollout_length=16))
    learner = Learner(config, task, CPU, False)
    result = learn_batch(learner, [make_fragment(np.random.default_rng(0), 16, environments)], 0, 1e-3)
    joint = [n for n in result.noise if n.head == "joint"]
    if kind == "mini-batch":
        assert joint.pop(0).kind == "rollout"  # of the whole iteration batch
    steps = environments * 16 // config.mini_batch
    assert len(joint) == steps  # every step of the first epoch, none of the second
    assert [n.optimizer_step for n in joint] == list(range(steps))
    assert learner.optimizer_steps == 2 * steps
    assert {n.kind for n in joint} == {kind}
    assert {len(n.statistics.size) for n in joint} == {blocks}
    assert {n.kind for n in result.noise if n.head == "policy"} == {"rollout"}


def test_the_joint_noise_of_an_iteration_is_that_of_its_environments_at_the_parameters_it_starts_from():
    """Shuffled mini-batches leave it as it is: the same statistics as of one step on the whole batch."""
    task = find_task("classic/cartpole")
    settings = replace(NO_NOISE, blocks=4)
    inner = replace(settings, iteration_noise_period=1)
    several = Learner(config_for(task, inner, epochs=3, mini_batch=36, shuffle="transitions"), task, CPU, False)
    one = Learner(config_for(task, replace(settings, joint_noise_period=1), shuffle="environments"), task, CPU, False)
    found = learn_batch(several, fragments_with_masks(), 0, 1e-3).noise[0]
    (expected,) = [n for n in learn_batch(one, fragments_with_masks(), 0, 1e-3).noise if n.head == "joint"]
    assert (found.head, found.kind, found.optimizer_step) == ("joint", "rollout", 0)
    np.testing.assert_array_equal(found.statistics.size, expected.statistics.size)
    np.testing.assert_allclose(found.statistics.square, expected.statistics.square, rtol=1e-4)
    np.testing.assert_allclose(found.statistics.dot, expected.statistics.dot, rtol=1e-4)


def test_every_optimizer_step_has_the_same_size():
    """24 environments in steps of 12: eight blocks would not fit, six or twelve do."""
    task = find_task("classic/cartpole")
    config = config_for(task, mini_batch=12 * 16)
    config = replace(config, rollout=replace(config.rollout, environments=24, rollout_length=16))
    learner = Learner(config, task, CPU, False)
    batch = read_batch(learner, [make_fragment(np.random.default_rng(0), 16, 24)])
    for _, blocks in learner._blocks.of_mini_batches(batch):
        assert sum(len(block) for block in blocks) == 12 * 16
        assert len(blocks) == 12


def test_blocks_keep_their_environments_over_updates_and_every_observation_is_used_once():
    task = find_task("classic/cartpole")
    config = config_for(task, mini_batch=8 * 16, epochs=3)
    config = replace(config, rollout=replace(config.rollout, environments=32, rollout_length=16))
    learner = Learner(config, task, CPU, False)
    batch = read_batch(learner, [make_fragment(np.random.default_rng(0), 16, 32)])
    owners = {}
    for _ in range(4):
        used = []
        for names, blocks in learner._blocks.of_mini_batches(batch):
            for name, block in zip(names, blocks, strict=True):
                used.extend(block.tolist())
                assert owners.setdefault(int(name), set((block % 32).tolist())) == set((block % 32).tolist())
        assert sorted(used) == list(range(512))


def test_periods_of_the_heads():
    task = find_task("classic/cartpole")
    settings = replace(NO_NOISE, policy_noise_period=2, value_noise_period=3)
    learner = Learner(config_for(task, settings), task, CPU, False)
    fragments = fragments_with_masks()
    measured = [[n.head for n in learn_batch(learner, fragments, iteration, 0.0).noise] for iteration in range(7)]
    assert measured == [["policy", "value"], [], ["policy"], ["value"], ["policy"], [], ["policy", "value"]]


def test_noise_is_measured_densely_at_first():
    """So that a run of a minute says something; the periods nest, so that evenly spaced measurements can be chosen later."""
    settings = NoiseSettings()
    due = [iteration for iteration in range(140) if settings.due("policy", iteration, 4)]
    assert due == [*range(8), *range(8, 16, 2), *range(16, 32, 4), *range(32, 64, 8), *range(64, 128, 16), 128]
    assert [i for i in range(700) if settings.due("value", i, 1)][-3:] == [448, 512, 640]
    assert [i for i in range(2000) if settings.due("value", i, 1)][-3:] == [1664, 1792, 1920]
    chosen = replace(settings, policy_noise_period=5, entropy_noise_period=0)
    assert [i for i in range(20) if chosen.due("policy", i, 4)] == [0, 5, 10, 15]
    assert not any(chosen.due("entropy", i, 4) for i in range(200))


def test_shuffled_mini_batches_leave_the_joint_loss_its_rollout_noise():
    """By default it is measured on the whole iteration batch where mini-batches hold too few environments."""
    task = find_task("classic/cartpole")
    learner = Learner(config_for(task, NoiseSettings(), mini_batch=36, shuffle="transitions"), task, CPU, False)
    found = learn_batch(learner, fragments_with_masks(), 0, 1e-3).noise
    assert {(n.head, n.kind) for n in found} >= {("joint", "rollout"), ("joint", "mini-batch"), ("policy", "rollout")}


def test_measuring_changes_no_update():
    task = find_task("classic/cartpole")
    fragments = fragments_with_masks()
    weights = []
    for settings in (
        NoiseSettings(),
        NO_NOISE,
    ):
        learner = Learner(config_for(task, settings, max_grad_norm=0.5), task, CPU, False)
        for iteration in range(3):
            learn_batch(learner, fragments, iteration, 1e-3)
        weights.append(learner.weights())
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-5)


def test_noise_is_measured_before_clipping():
    task = find_task("classic/cartpole")
    fragments = fragments_with_masks()
    squares = []
    for limit in (None, 1e-6):
        learner = Learner(config_for(task, max_grad_norm=limit), task, CPU, False)
        result = learn_batch(learner, fragments, 0, 1e-3)
        squares.append(next(n for n in result.noise if n.head == "joint").statistics.square)
        assert result.figures["gradient_norm"] > 1e-3
    np.testing.assert_allclose(squares[0], squares[1])
    assert float(torch.linalg.vector_norm(learner._optimizer.mean)) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(("optimizer", "scale"), [("adam", "batch"), ("rmsprop", "running")])
def test_state_goes_on_exactly(optimizer, scale):
    task = find_task("classic/cartpole")
    config = config_for(task, optimizer=optimizer, advantage_scale=scale, epochs=2, mini_batch=24, shuffle="transitions")
    fragments = fragments_with_masks()
    one, two = Learner(config, task, CPU, False), Learner(config, task, CPU, False)
    learn_batch(one, fragments, 0, 1e-3)
    two.set_state(one.get_state())
    for learner in (one, two):
        learn_batch(learner, fragments, 1, 1e-3)
    np.testing.assert_array_equal(one.weights(), two.weights())
    assert one.scale_square == two.scale_square


def test_the_optimizer_is_torchs():
    """One Adam step on the flat vector equals torch.optim.Adam on the network's own parameters."""
    task = find_task("classic/cartpole")
    learner = Learner(config_for(task), task, CPU, False)
    batch = read_batch(learner, fragments_with_masks())
    gradient, before = whole_gradient(learner, batch), torch.from_numpy(learner.weights())
    reference = torch.nn.Parameter(before.clone())
    reference.grad = gradient
    torch.optim.Adam([reference], lr=1e-3, eps=1e-5).step()
    learn_batch(learner, fragments_with_masks(), 0, 1e-3)
    np.testing.assert_allclose(learner.weights(), reference.detach(), atol=1e-6)
    stored = torch.cat([p.detach().reshape(-1) for p in learner.network.parameters()])
    np.testing.assert_array_equal(stored, learner.weights())


def test_bfloat16_gradients_agree_with_float32():
    task = find_task("atari/pong")
    worker = RolloutWorker(WorkerSettings(task, 4, 32, "nature_cnn", False, 2, True, 0, 0), 0)
    fragments = [worker.sample(0)]
    means = []
    config = config_for(task, NoiseSettings(policy_noise_period=0, value_noise_period=0, iteration_noise_period=0))
    config = replace(config, rollout=replace(config.rollout, environments=4, rollout_length=32))
    for bfloat16 in (False, True):
        learner = Learner(config, task, CPU, bfloat16)
        learn_batch(learner, fragments, 0, 0.0)
        means.append(learner._optimizer.mean.clone())
    assert float(torch.cosine_similarity(*means, dim=0)) > 0.999
    assert float(means[1].norm() / means[0].norm()) == pytest.approx(1, abs=0.02)


# --- case 6: a bandit through the whole pipeline -----------------------------------------------------------------------


ONE_IN_TEN = (np.log(0.9), np.log(0.1))  # logits of π(1) = p = 0.1


def bandit_noise(task_id, *, steps, baseline, shuffle="environments", rounds, policy=ONE_IN_TEN):
    """Noise of the policy loss from environments through fragments, blocks and loss.

    The policy head gives `policy` and the value head `baseline`, whatever is observed.
    """
    task, environments = find_task(task_id), 256
    config = config_for(
        task,
        replace(NO_NOISE, joint_noise_period=1, blocks=environments, policy_noise_period=1),
        advantage_scale="none",
        shuffle=shuffle,
        value_coef=0.0,
        entropy_coef=0.0,
        clip=0.2,
        network="mlp",
    )
    config = replace(config, rollout=replace(config.rollout, environments=environments, rollout_length=2 * steps))
    learner = Learner(config, task, CPU, False)
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.zero_()
        learner.network.policy_head.bias.copy_(torch.tensor(policy))
        learner.network.value_head.bias.copy_(torch.tensor([baseline]))
    measured = {"policy": [], "joint": []}
    for iteration in range(rounds):
        # Fresh environments each time: their factors never change, so the same ones would be drawn only once.
        worker = RolloutWorker(WorkerSettings(task, environments, 2 * steps, "mlp", False, 1, True, 0, seed=iteration), 0)
        worker.set_weights(learner.weights())
        result = learn_batch(learner, [worker.sample(iteration)], iteration, 0.0)
        assert result.observations == environments * steps  # every second step only resets
        for record in result.noise:
            if record.head in measured:
                measured[record.head].append(record)
    return {head: (pool([r.statistics for r in records]), records[0].kind) for head, records in measured.items()}


@pytest.mark.parametrize(("baseline", "truth"), [(0.0, 9.0), (0.1, 1 / 0.09 - 4)])
def test_bandit_policy_noise(baseline, truth):
    """1/p - 1 without a baseline, 1/(p(1-p)) - 4 with b = p."""
    noise, kind = bandit_noise("bandits:Bandit", steps=16, baseline=baseline, rounds=10)["policy"]
    assert kind == "rollout"
    assert noise.b_simple == pytest.approx(truth, rel=0.1)
    assert noise.interval[0] < truth < noise.interval[1]


@pytest.mark.parametrize(("deviation", "rounds"), [(0.5, 8), (1.0, 20), (2.0, 20)])
def test_bandit_with_continuous_actions(deviation, rounds):
    """2 + 10 σ²: reward a = μ + σz, V = μ. The gradient of -A log π is -z² in μ and -σ (z³ - z) in log σ.

    Their means are -1 and 0, their variances 2 and 10 σ²; nothing else depends on the policy's parameters, all others being 0.
    """
    noise, _ = bandit_noise("bandits:Lever", steps=16, baseline=0.3, rounds=rounds, policy=(0.3, np.log(deviation)))["policy"]
    assert noise.b_simple == pytest.approx(2 + 10 * deviation**2, rel=0.1)


@pytest.mark.parametrize(("steps", "rounds", "truth"), [(8, 20, 26.0), (32, 20, 50.0)])
def test_bandit_with_environments_that_differ(steps, rounds, truth):
    """Reward x c, c ∈ {0, 2} fixed per environment: environment blocks see 2(1/p - 1) + T."""
    noise, _ = bandit_noise("bandits:ScaledBandit", steps=steps, baseline=0.0, rounds=rounds)["policy"]
    assert noise.b_simple == pytest.approx(truth, rel=0.12)


def test_shuffled_transitions_cannot_see_that_environments_differ():
    """2/p - 1 = 19 whatever T is, and the label says that it is another statistic."""
    both = bandit_noise("bandits:ScaledBandit", steps=32, baseline=0.0, shuffle="transitions", rounds=15)
    shuffled, kind = both["joint"]
    assert kind == "mini-batch"
    assert shuffled.b_simple == pytest.approx(19, rel=0.12)
    assert both["policy"][1] == "rollout"
    assert both["policy"][0].b_simple > 35  # 2(1/p - 1) + 32 = 50


def test_estimates_of_one_update_are_those_of_the_record():
    task = find_task("classic/cartpole")
    learner = Learner(config_for(task), task, CPU, False)
    record = next(n for n in learn_batch(learner, fragments_with_masks(), 0, 0.0).noise if n.head == "joint")
    noise = noise_scale(record.statistics)
    assert noise.blocks == 8
    assert noise.observations == sum(int((~f.reset).sum()) for f in fragments_with_masks())
