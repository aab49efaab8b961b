"""Fragments: the exact observation comes back from single frames, and masks mark what is no experience."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_fragment

from rlscale.agents.learning.frames import CpuFrames, Positions
from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import find_task, make_env

CPU = torch.device("cpu")


def frames_of(*fragments, stack):
    """The frames of fragments of equally many environments, side by side."""
    each = fragments[0].environments
    owner = np.repeat(np.arange(len(fragments), dtype=np.int32), each)[None]
    return CpuFrames(fragments, owner, np.tile(np.arange(each), len(fragments)), stack)


def at(*positions):
    return Positions.of(np.array(positions, dtype=np.int64), CPU)


def watch(worker):
    """Record what the environments themselves return from now on."""
    group = worker._groups[0]
    seen = [group.observation.copy()]
    step = group.env.step

    def recording(actions):
        result = step(actions)
        seen.append(result.observation.copy())
        return result

    group.env.step = recording
    return seen


@pytest.mark.parametrize(("task_id", "steps"), [("atari/breakout@42", 97), ("atari/boxing", 30)])
def test_stacked_observations_are_restored_bit_for_bit(task_id, steps):
    """Several fragments of a game with lives: across lost lives, game ends, resets and fragment ends."""
    task = find_task(task_id)
    worker = RolloutWorker(WorkerSettings(task, 5, steps, "small_cnn", False, 1, True, 0, 0), 0)
    lives = resets = 0
    for version in range(4):
        seen = watch(worker)
        fragment = worker.sample(version)
        restored = frames_of(fragment, stack=task.frame_stack).observations(at(*range(steps * 5)))
        observation = restored.numpy().reshape(steps, 5, 4, *task.frame_shape)
        assert np.array_equal(observation, np.array(seen[:-1]))
        assert fragment.frames.shape == (steps + 3, 5, *task.frame_shape)
        lives += fragment.terminated.sum()
        resets += fragment.reset.sum()
    if task_id.startswith("atari/breakout"):
        assert resets >= 5
        assert lives >= 4 * resets


@pytest.mark.parametrize("piece", [0, 1 << 40])
def test_restoring_a_part_in_any_order(monkeypatch, piece):
    """Of three fragments; in the order that was asked for, and fragment by fragment where pieces are thought to be dear."""
    monkeypatch.setattr("rlscale.agents.learning.frames.PIECE_BYTES", piece)
    task = find_task("atari/breakout@42")
    worker = RolloutWorker(WorkerSettings(task, 4, 120, "small_cnn", False, 1, True, 0, 1), 0)
    fragments = [worker.sample(version) for version in range(3)]
    frames = frames_of(*fragments, stack=task.frame_stack)
    chosen = np.random.default_rng(0).permutation(1440)[:700]
    whole = [frames_of(fragment, stack=task.frame_stack).observations(at(*range(480))) for fragment in fragments]
    together = torch.cat([part.view(120, 4, 4, *task.frame_shape) for part in whole], dim=1).flatten(0, 1)
    assert torch.equal(frames.observations(at(*chosen)), together[torch.from_numpy(chosen)])


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_stacking_matches_a_slow_stack(stack, steps, envs, seed):
    """Whatever the pattern of resets: an observation shows no frame from before the last reset."""
    rng = np.random.default_rng(seed)
    reset = rng.random((steps, envs)) < 0.3
    frames = rng.integers(1, 255, (stack - 1 + steps, envs, 2, 2)).astype(np.uint8)
    tensors = frames_of(make_fragment(rng, steps, envs, frames=frames, reset=reset), stack=stack)
    for t in range(steps):
        for i in range(envs):
            expected = frames[t : t + stack, i].copy()
            for age in range(1, stack):
                if reset[max(t - age, 0) : t, i].any():
                    expected[stack - 1 - age] = 0
            actual = tensors.observations(at(t * envs + i))[0].numpy()
            np.testing.assert_array_equal(
                actual.reshape(expected.shape) if stack > 1 else actual, expected if stack > 1 else expected[0]
            )


def test_read_only_frames_are_shared_not_copied():
    """Frames come read-only from the object store."""
    fragment = make_fragment(np.random.default_rng(0), 3, 2)
    fragment.frames.flags.writeable = False
    assert frames_of(fragment, stack=1)._frames[0].data_ptr() == fragment.frames.ctypes.data


def test_what_a_worker_records():
    """CartPole: masks after true ends only, behaviour log-probabilities, bootstrap values, returns of finished episodes."""
    task = find_task("classic/cartpole")
    worker = RolloutWorker(WorkerSettings(task, 6, 64, "mlp", False, 1, True, 0, 3), 2)
    running, finished = np.zeros(6), []
    before = np.zeros(6, dtype=bool)
    for version in (7, 8):
        fragment = worker.sample(version)
        assert (fragment.policy_version, fragment.actor, fragment.index) == (version, 2, version - 7)
        ended = fragment.terminated | fragment.truncated
        assert np.array_equal(fragment.reset, np.concatenate([before[None], ended[:-1]]))
        before = ended[-1]
        with torch.no_grad():
            output = worker._network(torch.from_numpy(fragment.frames.reshape(-1, 4)))
            expected = torch.log_softmax(output.policy, -1).gather(1, torch.from_numpy(fragment.action).reshape(-1, 1))
            after = worker._network(torch.from_numpy(worker._groups[2].observation)).value
        np.testing.assert_allclose(fragment.log_prob.reshape(-1), expected[:, 0], atol=1e-5)
        np.testing.assert_allclose(fragment.value.reshape(-1), output.value, atol=1e-5)
        np.testing.assert_allclose(fragment.bootstrap_value, after, atol=1e-5)
        returns = []
        for t in range(64):
            for i in range(6):
                if fragment.reset[t, i]:
                    returns.append(running[i])
                    running[i] = 0
                running[i] += fragment.reward[t, i]
        assert fragment.episode_return.tolist() == returns
        assert fragment.episode_length.tolist() == returns  # reward 1 a step
        finished += returns
    assert len(finished) > 10


def test_actions_follow_the_policy():
    """Frequencies of sampled actions agree with the recorded probabilities."""
    task = find_task("classic/acrobot")
    worker = RolloutWorker(WorkerSettings(task, 64, 128, "mlp", False, 1, True, 0, 0), 0)
    with torch.no_grad():
        worker._network.policy_head.bias.copy_(torch.tensor([2.0, 0.0, -1.0]))
    worker.set_weights(worker._flat.numpy())
    fragment = worker.sample(0)
    expected = torch.softmax(torch.tensor([2.0, 0.0, -1.0]), 0).numpy()
    frequency = np.bincount(fragment.action.reshape(-1), minlength=3) / fragment.action.size
    np.testing.assert_allclose(frequency, expected, atol=0.03)


def test_an_observation_takes_one_frame():
    task = find_task("atari/pong")
    worker = RolloutWorker(WorkerSettings(task, 4, 64, "small_cnn", False, 1, True, 0, 0), 0)
    fragment = worker.sample(0)
    assert fragment.frames.nbytes == 7056 * 4 * (64 + 3)
    assert (fragment.nbytes - fragment.frames.nbytes) / fragment.action.size < 32


def test_environments_hand_out_their_own_memory():
    env = make_env(find_task("atari/pong"), 2)
    first = env.reset(np.array([0, 1]))
    kept = first.copy()
    for _ in range(30):
        env.step(np.zeros(2, dtype=np.int64))
    assert np.array_equal(first, kept)


def test_a_cut_episode_has_no_end():
    """Pendulum's are all cut after 200 steps: what would have followed is worth something."""
    made = RolloutWorker(WorkerSettings(find_task("classic/pendulum"), 3, 200, "mlp", False, 1, True, 0, 0), 0).sample(0)
    assert made.truncated[199].all()
    assert made.truncated.sum() == 3
    assert not made.terminated.any()


def test_a_lost_life_is_no_end_where_it_is_not_asked_for():
    """Breakout has five lives, which random actions lose within 300 steps, but hardly a whole game twice."""
    ends = {}
    for cut in (True, False):
        settings = WorkerSettings(find_task("atari/breakout@42"), 4, 300, "small_cnn", False, 1, cut, 0, 0)
        worker = RolloutWorker(settings, 0)
        made = worker.sample(0)
        worker.close()
        ends[cut] = int(made.terminated.sum())
        if not cut:
            assert made.terminated.sum() <= made.reset.sum() + 4, "an end is followed by a reset"
    assert ends[False] < ends[True] / 2


def test_an_episode_that_began_after_the_random_first_steps_counts_from_its_own_start():
    """Every step of Acrobot pays -1 but the one that ends it above, so that a return is an episode's length or one less."""
    worker = RolloutWorker(WorkerSettings(find_task("classic/acrobot"), 8, 501, "mlp", False, 1, True, 100, 3), 0)
    fragment = worker.sample(0)
    assert len(fragment.episode_return) >= 8
    assert set(fragment.episode_return + fragment.episode_length) <= {0, 1}
