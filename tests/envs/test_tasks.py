"""Tasks by name, and the vector environments behind them, against what Gymnasium and ale-py give."""

import gymnasium
import numpy as np
import pytest
from ale_py.roms import get_all_rom_ids
from gymnasium.spaces import Box, Discrete

from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import find_task, list_tasks, make_env
from rlscale.envs.vector import task_of_spaces
from rlscale.errors import UsageError


def play(task_id, seed, steps=60, envs=4, threads=1):
    """Observations, rewards and flags under fixed random actions."""
    task = find_task(task_id)
    env = make_env(task, envs, threads=threads)
    rng = np.random.default_rng(0)
    history = [env.reset(np.arange(envs) + seed)]
    for _ in range(steps):
        history.extend(env.step(rng.integers(0, task.actions, envs)))
    env.close()
    return history


def test_every_game_of_ale_py_is_listed_and_plays():
    names = [listing.id for listing in list_tasks()]
    assert len(names) == len(set(names))
    assert {f"atari/{rom}" for rom in get_all_rom_ids()} <= set(names)
    for task_id in (
        "classic/cartpole",
        "classic/acrobot",
        "atari/pong",
        "atari/montezuma_revenge",
        "atari/pong@42",
        "gym/CartPole-v1",
    ):
        task = find_task(task_id)
        assert task.id == task_id
        env = make_env(task, 2)
        observation = env.reset(np.array([1, 2]))
        assert observation.shape == (2, *task.observation_shape)
        assert observation.dtype == task.frame_dtype
        env.close()


@pytest.mark.parametrize(
    "task_id", ["classic/cartpole", "classic/acrobot", "gym/CartPole-v1", "atari/breakout", "bandits:ScaledBandit"]
)
def test_the_same_seed_gives_the_same_trajectory(task_id):
    first, second, other = play(task_id, 3), play(task_id, 3), play(task_id, 4)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_threads_do_not_change_an_atari_trajectory():
    assert all(np.array_equal(a, b) for a, b in zip(play("atari/breakout", 3), play("atari/breakout", 3, threads=2), strict=True))


def test_acrobot_is_gymnasiums():
    """Step for step, from the same states, through ends, for 600 steps of 3 acrobots."""
    env = make_env(find_task("classic/acrobot"), 3)
    env.reset(np.array([5]))
    ours = env._env
    originals = [gymnasium.make("Acrobot-v1").unwrapped for _ in range(3)]
    for i, original in enumerate(originals):
        original.reset()
        original.state = ours.state[:, i].copy()
    rng = np.random.default_rng(0)
    ends = resets = 0
    for _ in range(600):
        # Pump energy: torque along the second joint's velocity reaches the goal, random torques hardly do.
        actions = np.where(rng.random(3) < 0.2, rng.integers(0, 3, 3), 1 + np.sign(ours.state[3]).astype(int))
        step = env.step(actions)
        for i, original in enumerate(originals):
            if step.reset[i]:
                resets += 1
                original.state = ours.state[:, i].copy()
                assert step.reward[i] == 0
                assert not step.terminated[i]
                assert np.abs(original.state).max() <= 0.1
                continue
            observation, reward, terminated, _, _ = original.step(int(actions[i]))
            np.testing.assert_allclose(step.observation[i], observation, atol=1e-4)
            assert (step.reward[i], step.terminated[i]) == (reward, terminated)
            ends += terminated
            original.state = ours.state[:, i].copy()  # rounding would drift apart over hundreds of chaotic steps
    assert ends > 5
    assert resets >= ends - 3


def test_classic_episodes_are_cut_at_500_steps():
    env = make_env(find_task("classic/acrobot"), 2)
    env.reset(np.array([0]))
    for _ in range(499):
        assert not env.step(np.ones(2, dtype=np.int64)).truncated.any()
    assert env.step(np.ones(2, dtype=np.int64)).truncated.all()
    assert env.step(np.ones(2, dtype=np.int64)).reset.all()


def test_a_lost_life_cuts_the_return_without_a_reset():
    """Breakout: five lives a game; every end but a game's last is followed by a real step."""
    task = find_task("atari/breakout")
    cut, whole = make_env(task, 4, cut_on_life_loss=True), make_env(task, 4, cut_on_life_loss=False)
    seeds, rng = np.arange(4), np.random.default_rng(0)
    assert np.array_equal(cut.reset(seeds), whole.reset(seeds))
    ends, games = np.zeros(4), np.zeros(4)
    before = None
    for _ in range(800):
        action = rng.integers(0, task.actions, 4)
        a, b = cut.step(action), whole.step(action)
        assert np.array_equal(a.observation, b.observation)
        assert np.array_equal(a.reward, b.reward)
        assert np.array_equal(a.reset, b.reset)
        if before is not None:  # what the emulator itself calls a game's end is exactly what the next step resets
            assert np.array_equal(a.reset, before)
        before = b.terminated | b.truncated
        ends += a.terminated
        games += a.reset
        assert not (a.terminated & a.reset).any()
        assert (a.reward[a.reset] == 0).all()
    assert games.sum() > 8
    assert (ends >= 5 * games).all()
    assert (ends < 5 * (games + 1)).all()


def test_rewards_are_raw_and_the_learner_gets_their_sign():
    task = find_task("atari/space_invaders")
    worker = RolloutWorker(WorkerSettings(task, 2, 200, "small_cnn", False, 1, True, 0, 0), 0)
    fragment = worker.sample(0)
    assert fragment.reward.max() >= 5
    assert np.array_equal(fragment.clipped_reward, np.sign(fragment.reward))


def test_random_first_steps_set_environments_out_of_step():
    task = find_task("atari/pong")

    def phases(most):
        worker = RolloutWorker(WorkerSettings(task, 8, 4, "small_cnn", False, 1, True, most, 0), 0)
        return worker._groups[0].env._episode_frames

    assert np.ptp(phases(0)) <= 30  # only the no-op starts
    spread = phases(100)
    assert np.ptp(spread) > 150
    assert spread.max() <= 100 * 4 + 40


def test_random_first_steps_elsewhere():
    worker = RolloutWorker(WorkerSettings(find_task("classic/cartpole"), 8, 4, "mlp", False, 1, True, 50, 0), 0)
    assert len(set(worker._groups[0]._length.tolist())) > 1


@pytest.mark.parametrize(
    ("task_id", "different"),
    [("toy/umbrella", 8), ("toy/catch", 7), ("toy/cliffwalking", 25), ("toy/taxi", 25), ("minatar/freeway", 25)],
)
def test_random_first_steps_set_episodes_of_one_length_out_of_step(task_id, different):
    task = find_task(task_id)
    worker = RolloutWorker(WorkerSettings(task, 64, 4, task.network, False, 1, True, 100, 0), 0)
    group = worker._groups[0]
    assert len(set(group._length.tolist())) >= different
    if task_id.startswith("toy/"):
        assert np.array_equal(group._length, group.env._env.steps)
    else:
        assert np.array_equal(group._length, 2500 - group.env._game.time_left)


@pytest.mark.parametrize(
    ("task_id", "pixels"),
    [
        ("atari/pong@42", True),
        ("gym/CarRacing-v3", True),
        ("minatar/breakout", False),
        ("toy/digits", False),
        ("classic/cartpole", False),
        ("gym/CartPole-v1", False),
        ("gym/Taxi-v3", False),
    ],
)
def test_a_task_says_whether_it_shows_pixels(task_id, pixels):
    if task_id == "gym/CarRacing-v3":
        pytest.importorskip("Box2D")
    assert find_task(task_id).pixels == pixels


@pytest.mark.parametrize(
    ("observation", "pixels"),
    [
        (Box(0, 255, (2, 2, 3), np.uint8), True),
        (Box(0, 254, (2, 2, 3), np.uint8), False),
        (Box(0, 1, (2, 2, 3), np.uint8), False),
        (Box(0, np.array([1, 255], np.uint8), (2,), np.uint8), False),  # another number is small
        (Box(0, 255, (2, 2, 3), np.float32), False),
        (Discrete(256), False),
    ],
)
def test_bytes_with_bounds_of_0_and_255_are_pixels(observation, pixels):
    assert task_of_spaces("games:make", observation, Discrete(2), make_env=make_env).pixels == pixels


@pytest.mark.parametrize(
    ("task_id", "words"),
    [
        ("atari/pnog", "atari/pong"),
        ("pong", "atari/pong"),
        ("atari/Pong-v5", "atari/pong"),
        ("classic/carpole", "classic/cartpole"),
        ("zzz", "rlscale tasks"),
        ("atari/pong@12", "between 36 and 210"),
        ("atari/pong@big", "not a number"),
        ("atari/pong@" + 5000 * "9", "5,000 digits is out of range. Choose between 36 and 210"),
        ("gym/NoSuchEnv-v0", "NoSuchEnv"),
        ("bandits:Switches", "MultiDiscrete actions. Only Discrete actions, or a Box"),
        ("bandits:WholeNumbers", "Box actions of type int64"),
        ("no_such_module:make", "cannot import 'no_such_module'"),
        ("bandits:nothing", "has no 'nothing'"),
        ("bandits:broken", "no such simulator"),
        ("bandits:np.ones", "has no 'np.ones'"),
        ("collections:OrderedDict", "failed"),
        ("builtins:list", "failed"),
        ("builtins:str", "returned str"),
    ],
)
def test_unknown_tasks_are_refused_in_one_line(task_id, words):
    with pytest.raises(UsageError) as caught:
        find_task(task_id)
    assert caught.value.field == "TASK"
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
