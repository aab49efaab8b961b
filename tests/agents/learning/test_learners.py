"""Several learners make the update of one; a stream makes that of a batch that is held; a loss is told and saved."""

from dataclasses import replace

import numpy as np
import pytest
import ray
import torch
from batches import InThreads, read_batch
from making import make_fragment

from rlscale.agents.checks import check_config
from rlscale.agents.cluster.processes import LostWorkerError, pickle_settings
from rlscale.agents.config import NoiseSettings, Rollout, TrainConfig, default_config
from rlscale.agents.learning.batch import arrange_slots
from rlscale.agents.learning.blocks import share_of_columns
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import LearnerActor, RemoteLearners, learn_batch
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.noise import noise_scale

CPU = torch.device("cpu")
TASK = find_task("classic/cartpole")
STEPS = 6


def config_for(learners=1, environments=32, noise=None, **update) -> TrainConfig:
    config = default_config(TASK)
    plain = {"epochs": 1, "mini_batch": None, "threads": 1, "advantage_scale": "running", "learners": learners}
    every = NoiseSettings(blocks=8, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)
    rollout = Rollout(environments=environments, rollout_length=STEPS)
    config = replace(config, rollout=rollout, update=replace(config.update, **{**plain, **update}), noise=noise or every)
    check_config(config)
    return config


def fragments_of(rng, groups=4, environments=8, rounds=1):
    """Groups of environments that take turns, with masks, and with one block twice as noisy so that blocks can be told apart."""
    return [
        make_fragment(rng, STEPS, environments, group=group, reset=rng.random((STEPS, environments)) < 0.2)
        for _ in range(rounds)
        for group in range(groups)
    ]


def same_result(one, other, rtol=2e-4):
    """Same figures and the same statistics of the same blocks."""
    assert (one.observations, one.optimizer_steps, one.learning_rate) == (
        other.observations,
        other.optimizer_steps,
        other.learning_rate,
    )
    assert one.explained_variance == pytest.approx(other.explained_variance, rel=1e-5, abs=1e-6)
    assert one.figures == pytest.approx(other.figures, rel=rtol, abs=1e-5)
    mine, theirs = (
        {(n.head, n.kind, n.optimizer_step, metric): getattr(n, metric) for n in r.noise for metric in ("statistics", "adam")}
        for r in (one, other)
    )
    assert mine.keys() == theirs.keys()
    assert {"joint", "policy_last_layer", "joint_policy_parameters"} <= {head for head, *_ in mine}
    for key, a in mine.items():
        b = theirs[key]
        assert (a is None) == (b is None), key
        if a is None:
            continue
        np.testing.assert_array_equal(a.block, b.block)
        np.testing.assert_array_equal(a.size, b.size)
        np.testing.assert_allclose(a.square, b.square, rtol=rtol)
        np.testing.assert_allclose(a.dot, b.dot, rtol=rtol, atol=rtol * np.abs(a.square).max())
        if key[0] == "joint":
            assert noise_scale(a).trace_cov == pytest.approx(noise_scale(b).trace_cov, rel=1e-3)
            assert noise_scale(a).grad_sq == pytest.approx(noise_scale(b).grad_sq, rel=1e-3, abs=1e-3 * a.square.max())


CASES = [
    pytest.param({}, 1, id="one step of the whole batch"),
    pytest.param({"epochs": 2, "mini_batch": 16 * STEPS, "shuffle": "environments"}, 1, id="mini-batches of environments"),
    pytest.param({"epochs": 2, "mini_batch": 48, "shuffle": "transitions"}, 1, id="shuffled transitions"),
    pytest.param({"advantage_scale": "batch", "optimizer": "rmsprop"}, 3, id="three rounds, advantages of the batch"),
]
# Every case is tested with threads, which share a batch as processes do; processes add the transport alone.
_, _, SHUFFLED, ROUNDS = CASES
IN_PROCESSES = [
    pytest.param(*SHUFFLED.values, 2, id="shuffled, 2"),
    *(pytest.param(*ROUNDS.values, count, id=f"three rounds, {count}", marks=pytest.mark.long) for count in (2, 4)),
]


@pytest.mark.parametrize(("update", "rounds", "learners"), IN_PROCESSES)
def test_several_learners_make_the_update_of_one(ray_of_four, update, rounds, learners):
    """Parameters, optimizer state, figures and noise of three iterations; four fragments straddle two or four learners."""
    rng = np.random.default_rng(0)
    one = Learner(config_for(**update), TASK, CPU, False)
    several = RemoteLearners(config_for(learners, **update), TASK, CPU, False, threads=1)
    try:
        for iteration in range(3):
            fragments = fragments_of(rng, rounds=rounds)
            same_result(learn_batch(one, fragments, iteration, 1e-3), learn_batch(several, fragments, iteration, 1e-3))
            np.testing.assert_allclose(several.weights(), one.weights(), rtol=1e-3, atol=2e-5)
        states = ray.get([actor.get_state.remote() for actor in several._actors])
        for state in states[1:]:  # every learner has made exactly the same steps
            assert torch.equal(state["parameters"], states[0]["parameters"])
        assert several.optimizer_steps == one.optimizer_steps > 0
    finally:
        several.close()


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize(("update", "rounds"), CASES)
def test_shares_of_a_batch_make_the_update_of_the_whole(update, rounds, learners):
    """Parameters, figures and noise of three iterations. Of four fragments a learner reads its share, or all if shuffled."""
    rng = np.random.default_rng(0)
    one, several = Learner(config_for(**update), TASK, CPU, False), InThreads(config_for(learners, **update), TASK)
    for iteration in range(3):
        fragments = fragments_of(rng, rounds=rounds)
        same_result(learn_batch(one, fragments, iteration, 1e-3), several.learn_batch(fragments, iteration, 1e-3))
        for learner in several.learners:
            np.testing.assert_allclose(learner.weights(), one.weights(), rtol=1e-3, atol=2e-5)
            np.testing.assert_array_equal(learner.weights(), several.learners[0].weights())
    assert several.learners[0].optimizer_steps == one.optimizer_steps > 0


def test_mini_batches_of_resets_are_skipped_by_all_learners():
    """A step with a zero gradient would still move Adam by its momentum, and count."""
    settings = {"mini_batch": 4, "shuffle": "transitions", "max_grad_norm": None}
    one = Learner(config_for(environments=8, **settings), TASK, CPU, False)
    two = InThreads(config_for(2, environments=8, **settings), TASK)
    rng = np.random.default_rng(9)
    for iteration in range(3):
        fragments = [make_fragment(rng, STEPS, 8, reset=rng.random((STEPS, 8)) < 0.7)]
        alone = learn_batch(one, fragments, iteration, 1e-3)
        shared = two.learn_batch(fragments, iteration, 1e-3)
        assert shared.optimizer_steps == alone.optimizer_steps
        assert shared.figures == pytest.approx(alone.figures, rel=2e-4, abs=1e-5)
        for learner in two.learners:
            np.testing.assert_allclose(learner.weights(), one.weights(), rtol=1e-3, atol=2e-5)
    assert 0 < one.optimizer_steps < 3 * 12  # some were skipped


@pytest.mark.long
def test_several_learners_stream_as_one(ray_of_four):
    """A running scale begins with the run's first fragment, which the second learner does not learn from."""
    rng = np.random.default_rng(1)
    one = Learner(config_for(advantage_scale="running", stream=True), TASK, CPU, False)
    several = RemoteLearners(config_for(2, advantage_scale="running", stream=True), TASK, CPU, False, threads=1)
    try:
        for iteration in range(3):
            fragments = fragments_of(rng, rounds=2)
            slots = arrange_slots([fragment.group for fragment in fragments], 8, learners=1 + (iteration > 0))
            alone, shared = (learn_batch(who, fragments, iteration, 1e-3, slots) for who in (one, several))
            same_result(alone, shared)
            np.testing.assert_allclose(several.weights(), one.weights(), rtol=1e-3, atol=2e-5)
    finally:
        several.close()


@pytest.mark.parametrize(("groups", "learners"), [(8, 2), (12, 4), (5, 2), (7, 3), (3, 1)])
def test_successive_fragments_of_a_stream_are_those_of_different_learners(groups, learners):
    """In order of columns the first learner would read the first half of them, one by one, and the second wait for it."""
    slots = arrange_slots([*range(groups), *range(groups)], 6, learners)
    assert sorted(slot.columns.start for slot in slots) == sorted(2 * [6 * place for place in range(groups)])
    assert [slot.columns for slot in slots[:groups]] == [slot.columns for slot in slots[groups:]]
    assert [slot.environment for slot in slots] == 2 * [6 * group for group in range(groups)]
    shares = [
        share_of_columns(config_for(learners, environments=6 * groups, stream=True), r, 6 * groups) for r in range(learners)
    ]
    readers = [
        {r for r, share in enumerate(shares) if slot.columns.start < share.stop and share.start < slot.columns.stop}
        for slot in slots
    ]
    assert set.union(*readers[:learners]) == set(range(learners)), "all have something to do at once"
    if groups % learners == 0:
        assert [readers[k] for k in range(groups)] == [{k % learners} for k in range(groups)]


@pytest.mark.long
def test_a_stream_of_few_environments_is_shared_out_by_them(ray_of_four):
    """Four would be shuffled transitions if the batch were held; each observation is learned from once, in rollout blocks."""
    rng = np.random.default_rng(8)
    one = Learner(config_for(environments=4, stream=True), TASK, CPU, False)
    several = RemoteLearners(config_for(2, environments=4, stream=True), TASK, CPU, False, threads=1)
    try:
        for iteration in range(2):
            fragments = fragments_of(rng, groups=2, environments=2)
            alone, shared = learn_batch(one, fragments, iteration, 1e-3), learn_batch(several, fragments, iteration, 1e-3)
            same_result(alone, shared)
            assert shared.observations == sum(int((~f.reset).sum()) for f in fragments)
            assert {n.kind for n in alone.noise} == {"rollout"}
    finally:
        several.close()


def test_a_learner_that_failed_at_a_fragment_makes_no_update_without_it(monkeypatch):
    """Nobody waits for the last fragments of an iteration, and an earlier iteration's gradients would be used in their place."""
    monkeypatch.setattr(LearnerActor, "_add_over_learners", lambda self, total: None)  # the other learner adds nothing
    settings = pickle_settings((config_for(2, stream=True), TASK, "cpu", False, 1), TASK)
    learner, fragments = LearnerActor(settings, ".", 0), fragments_of(np.random.default_rng(5))
    slots = arrange_slots([fragment.group for fragment in fragments], 8)
    before = learner.weights()
    for _ in range(2):
        learner.begin(slots, 0)
        learner.accept(fragments[0], slots[0])
        with pytest.raises((ValueError, RuntimeError)) as failed:
            learner.accept(replace(fragments[1], action=fragments[1].action[:, :3]), slots[1])
        with pytest.raises((ValueError, RuntimeError)) as told:
            learner.finish(1e-3, 2)
        assert told.value is failed.value
        np.testing.assert_array_equal(learner.weights(), before)
    learner.begin(slots, 0)
    for fragment, slot in zip(fragments, slots, strict=True):
        learner.accept(fragment, slot)
    learner.finish(1e-3, 4)
    assert (learner.weights() != before).any()


def test_a_learner_that_lacks_a_fragment_makes_no_update_without_it(monkeypatch):
    """Ray does not call `accept` with a fragment that it cannot fetch, and `finish` would not know of it."""
    monkeypatch.setattr(LearnerActor, "_add_over_learners", lambda self, total: None)
    settings = pickle_settings((config_for(2), TASK, "cpu", False, 1), TASK)
    learner, fragments = LearnerActor(settings, ".", 0), fragments_of(np.random.default_rng(5))
    slots = arrange_slots([fragment.group for fragment in fragments], 8)
    before = learner.weights()
    learner.begin(slots, 0)
    learner.accept(fragments[0], slots[0])
    with pytest.raises(LostWorkerError, match="could not fetch 1 of the 2 fragments"):
        learner.finish(1e-3, 2)
    np.testing.assert_array_equal(learner.weights(), before)


def test_a_learner_keeps_the_state_before_an_update_until_the_next_one(monkeypatch):
    monkeypatch.setattr(LearnerActor, "_add_over_learners", lambda self, total: None)
    settings = pickle_settings((config_for(2), TASK, "cpu", False, 1), TASK)
    learner, fragments = LearnerActor(settings, ".", 0), fragments_of(np.random.default_rng(5))
    slots = arrange_slots([fragment.group for fragment in fragments], 8)
    for steps in range(2):
        parameters = learner.weights()
        learner.begin(slots, steps)
        for fragment, slot in zip(fragments[:2], slots[:2], strict=True):
            learner.accept(fragment, slot)
        learner.finish(1e-3, 2)
        before, after = learner.get_state(before=True), learner.get_state()
        assert (before["optimizer_steps"], after["optimizer_steps"]) == (steps, steps + 1)
        np.testing.assert_array_equal(before["parameters"].numpy(), parameters)
        np.testing.assert_array_equal(after["parameters"].numpy(), learner.weights())
        assert (parameters != learner.weights()).any()


def lose():
    raise OSError("the node that held the fragment is gone")


def test_the_state_before_an_iteration_outlives_the_learners_where_they_could_not_be_asked(ray_of_four, monkeypatch):
    """As where NCCL adds up: a learner that waits for a dead one answers nothing. Here all of them are dead."""
    monkeypatch.setattr("rlscale.agents.learning.remote_learners.group_backend", lambda device: "nccl")
    rng = np.random.default_rng(6)
    learners = RemoteLearners(config_for(2), TASK, CPU, bfloat16=False, threads=1)
    try:
        learn_batch(learners, fragments_of(rng), 0, 1e-3)
        before = learners.get_state()
        fragments = fragments_of(rng)
        slots = arrange_slots([fragment.group for fragment in fragments], fragments[0].environments)
        learners.begin(slots, 1)
        ray.get(learners._kept)
        for actor in learners._actors:
            ray.kill(actor)
        with pytest.raises(LostWorkerError, match="died in iteration 1"):
            learners.finish(1e-3)
        kept = learners.get_state()
    finally:
        learners.close()
    assert kept["optimizer_steps"] == before["optimizer_steps"] == 1
    assert torch.equal(kept["parameters"], before["parameters"])


def test_learners_go_on_from_a_state_and_do_without_no_fragment(ray_of_four):
    rng = np.random.default_rng(2)
    one = Learner(config_for(), TASK, CPU, False)
    learn_batch(one, fragments_of(rng), 0, 1e-3)
    several = RemoteLearners(config_for(2), TASK, CPU, False, threads=1)
    try:
        several.set_state(one.get_state())
        fragments = fragments_of(rng)
        same_result(learn_batch(one, fragments, 1, 1e-3), learn_batch(several, fragments, 1, 1e-3))
        torch.testing.assert_close(several.get_state()["parameters"], one.get_state()["parameters"], rtol=1e-3, atol=2e-5)
        before, slots = several.weights(), arrange_slots([fragment.group for fragment in fragments], 8)
        several.begin(slots, 2)
        lost = ray.remote(lose).options(num_cpus=0)
        for number, slot in enumerate(slots):  # each learner reads two of the four fragments
            several.accept(lost.remote() if number in (0, 3) else fragments[number], slot)
        with pytest.raises(LostWorkerError, match=r"learner [01] could not fetch 1 of the 2 fragments"):
            several.finish(1e-3)
        np.testing.assert_array_equal(several.get_state()["parameters"].numpy(), before)
    finally:
        several.close()


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_stream_teaches_what_a_held_batch_does(groups, rounds):
    """Same blocks, same statistics of every head, same step, whatever the fragments; nothing of a fragment is kept."""
    rng = np.random.default_rng(3)
    held, streamed = (Learner(config_for(advantage_scale="none", stream=stream), TASK, CPU, False) for stream in (False, True))
    for iteration in range(3):
        fragments = fragments_of(rng, groups, 32 // groups, rounds)
        same_result(learn_batch(held, fragments, iteration, 1e-3), learn_batch(streamed, fragments, iteration, 1e-3))
        np.testing.assert_allclose(streamed.weights(), held.weights(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("tuned_batch", "kept"), [(None, 0.99), (4 * 32 * STEPS, 0.99**0.25)])
def test_a_streamed_batch_is_scaled_by_the_iterations_before_it(tuned_batch, kept):
    """The first by its first fragment, for want of any other; then the running square goes on as that of a held batch."""
    rng = np.random.default_rng(4)
    learner = Learner(config_for(stream=True, tuned_batch=tuned_batch), TASK, CPU, False)
    held = Learner(config_for(), TASK, CPU, False)
    first = fragments_of(rng)
    read_batch(held, first[:1])
    alone = held.scale_square
    learn_batch(learner, first, 0, 1e-3)
    held.scale_square = None
    read_batch(held, first)
    whole = held.scale_square
    assert learner.scale_square == pytest.approx(kept * alone + (1 - kept) * whole)
    before = learner.scale_square
    second = fragments_of(rng)
    learn_batch(learner, second, 1, 1e-3)
    held.scale_square = None
    read_batch(held, second)
    assert learner.scale_square == pytest.approx(kept * before + (1 - kept) * held.scale_square)


def test_rounds_continue_a_column():
    """A batch of three rounds is that of one fragment three times as long, if values at the seams agree."""
    rng = np.random.default_rng(5)
    whole = make_fragment(rng, 3 * STEPS, 8)
    truncated = whole.truncated.copy()
    truncated[STEPS - 1 :: STEPS] = True  # what a fragment's end does to the sum over later rewards
    whole = replace(whole, truncated=truncated)
    parts = []
    for turn in range(3):
        at = slice(turn * STEPS, (turn + 1) * STEPS)
        cut = {n: getattr(whole, n)[at] for n in ("frames", "action", "reward", "clipped_reward", "terminated", "reset")}
        cut |= {n: getattr(whole, n)[at] for n in ("log_prob", "value")}
        following = whole.value[(turn + 1) * STEPS] if turn < 2 else whole.bootstrap_value
        parts.append(replace(whole, **cut, truncated=np.zeros((STEPS, 8), dtype=bool), bootstrap_value=following))
    learner = Learner(config_for(environments=8, advantage_scale="batch"), TASK, CPU, False)
    one, other = read_batch(learner, [whole]), read_batch(learner, parts)
    for name in ("advantage", "target", "action", "log_prob", "valid"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-5)
    where = Positions.of(rng.permutation(3 * STEPS * 8), CPU)
    assert torch.equal(one.observations(where), other.observations(where))
    assert one.moments.explained_variance == pytest.approx(other.moments.explained_variance, abs=1e-6)


def test_the_scale_of_advantages():
    """Over valid observations only: zero mean and unit deviation, or the running mean square."""
    rng = np.random.default_rng(6)
    fragment = fragments_of(rng, 1, 8)[0]
    for scale in ("batch", "running", "none"):
        learner = Learner(config_for(environments=8, advantage_scale=scale), TASK, CPU, False)
        batch = read_batch(learner, [fragment])
        used = batch.advantage[batch.valid].double()
        if scale == "none":
            plain = used
        elif scale == "batch":
            assert float(used.mean()) == pytest.approx(0, abs=1e-6)
            assert float(used.std(correction=0)) == pytest.approx(1, rel=1e-5)
        else:
            assert float(used.square().mean()) == pytest.approx(1, rel=1e-5)
    learner = Learner(config_for(environments=8), TASK, CPU, False)
    learner.scale_square = 9.0
    read_batch(learner, [fragment])
    assert learner.scale_square == pytest.approx(0.99 * 9 + 0.01 * float(plain.square().mean()), rel=1e-5)


def test_warm_up_rises_step_by_step():
    rng = np.random.default_rng(7)
    config = config_for(warm_up=8, epochs=1, mini_batch=16 * STEPS, shuffle="environments")
    learner = Learner(config, TASK, CPU, False)
    rates = [learn_batch(learner, fragments_of(rng), i, 0.8).learning_rate for i in range(6)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])  # two steps an iteration


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learners": 3}, "--learners: 32 environments do not divide over 3 learners"),
        ({"learners": 4, "mini_batch": 10 * STEPS, "shuffle": "environments"}, "--mini-batch: 60 does not divide"),
        ({"learners": 4, "mini_batch": 2 * STEPS, "shuffle": "environments"}, "the 2 environments of a mini-batch"),
        ({"stream": True, "epochs": 2}, "--stream: a batch that is freed"),
        ({"stream": True, "advantage_scale": "batch"}, "--stream: advantages cannot be normalized"),
    ],
)
def test_what_cannot_be_shared_or_streamed(changes, message):
    with pytest.raises(UsageError, match=message):
        config_for(**changes)
