"""Continuous actions: Pendulum beside Gymnasium's, bounds on the way to an environment, and what needs an extra."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import BoxActions, find_task, list_tasks, make_env
from rlscale.envs.actions import actions_of_space
from rlscale.envs.vector import VectorTaskEnv, task_of_spaces
from rlscale.errors import UsageError


def test_pendulum_is_gymnasiums():
    """Step for step, through two ends, with torques beyond the bounds."""
    env = make_env(find_task("classic/pendulum"), 3)
    env.reset(np.array([5]))
    ours = env._env
    originals = [gymnasium.make("Pendulum-v1").unwrapped for _ in range(3)]
    for i, original in enumerate(originals):
        original.reset()
        original.state = ours.state[:, i].copy()
    rng = np.random.default_rng(0)
    cuts, turns = 0, 0.0
    for t in range(1, 405):
        actions = rng.normal(0, 3, (3, 1)).astype(np.float32)
        step = env.step(actions)
        assert not step.terminated.any()
        assert step.truncated.all() == (t % 201 == 200), "200 steps, and one that resets"
        assert step.reset.all() == (t % 201 == 0)
        cuts += step.truncated.all()
        for i, original in enumerate(originals):
            if step.reset[i]:
                assert step.reward[i] == 0
                assert (np.abs(ours.state[:, i]) <= [np.pi, 1.0]).all()
            else:
                observation, reward, *_ = original.step(actions[i])
                np.testing.assert_allclose(step.observation[i], observation, atol=1e-5)
                assert step.reward[i] == pytest.approx(reward, rel=1e-5, abs=1e-6)
            original.state = ours.state[:, i].copy()
        turns = max(turns, np.abs(ours.state[0]).max())
    assert cuts == 2
    assert turns > np.pi, "angles beyond a turn were met"


def test_pendulums_can_be_set_out_of_step_and_saved():
    task = find_task("classic/pendulum")
    worker = RolloutWorker(WorkerSettings(task, 16, 4, "mlp", False, 1, True, 200, 0), 0)
    assert len(set(worker._groups[0]._length.tolist())) > 8
    assert worker._groups[0]._length.tolist() == worker._groups[0].env._env.steps.tolist()
    env, other = make_env(task, 4), make_env(task, 4)
    rng = np.random.default_rng(0)
    env.reset(np.arange(4))
    for _ in range(150):
        env.step(task.random_actions(rng, 4))
    other.set_state(env.get_state())
    for _ in range(100):
        actions = task.random_actions(rng, 4)
        assert all(np.array_equal(a, b) for a, b in zip(env.step(actions), other.step(actions), strict=True))


def test_gymnasiums_environments_are_restarted_one_by_one():
    """Each from its own seed, while the others go on as they would have."""
    task, rng = find_task("gym/Pendulum-v1"), np.random.default_rng(0)
    assert task.actions == BoxActions((-2.0,), (2.0,))
    env, other = make_env(task, 3), make_env(task, 3)
    assert np.array_equal(env.reset(np.arange(3)), other.reset(np.arange(3)))
    for _ in range(5):
        actions = task.random_actions(rng, 3)
        step = env.step(actions)
        assert np.array_equal(other.step(actions).observation, step.observation)
    observation = env.restart(np.array([False, True, False]), np.array([7, 8, 9]))
    assert np.array_equal(observation[[0, 2]], step.observation[[0, 2]])
    assert np.array_equal(observation[1], make_env(task, 1).reset(np.array([8]))[0])
    ends = [env.step(task.random_actions(rng, 3)).truncated for _ in range(200)]
    assert [int(np.argmax([end[i] for end in ends])) for i in range(3)] == [194, 199, 194]


class Recorder(VectorEnv):
    """Keeps the actions that it gets."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, space):
        self.num_envs, self.single_action_space, self.single_observation_space = 2, space, Box(-1, 1, (1,), np.float32)

    def step(self, actions):
        self.got = actions
        return np.zeros((2, 1)), np.zeros(2), np.zeros(2, dtype=bool), np.zeros(2, dtype=bool), {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_clipped_only_on_their_way_to_the_environment(dtype):
    """To bounds of their own, none where a bound is infinite; in the shape and type of the environment's space."""
    low = np.array([[-1, 0, -np.inf], [-np.inf, 0.1, -4]], dtype=dtype)
    high = np.array([[1, 0.3, np.inf], [0, np.inf, -3]], dtype=dtype)
    space = Box(low, high, dtype=dtype)
    env = Recorder(space)
    task = task_of_spaces("x:y", env.single_observation_space, space, make_env=None)
    assert len(task.actions) == 6
    actions = np.array([[5, 5, 5, 5, 5, 5], [-5] * 6], dtype=np.float32)
    VectorTaskEnv(task, env, one_seed=True).step(actions)
    assert np.array_equal(env.got, np.array([[[1, 0.3, 5], [0, 5, -3]], [[-1, 0, -5], [-5, 0.1, -4]]], dtype=dtype))
    assert (env.got.dtype, env.got.shape) == (dtype, (2, 2, 3))
    assert space.contains(env.got[0])
    assert space.contains(env.got[1])
    assert (actions[0] == 5).all(), "what is learned from stays as it was drawn"


def test_a_fragment_holds_the_actions_as_they_were_drawn():
    """Beyond the bounds ±2 as well, with their log-probabilities; what is learned from is a fiftieth of the reward."""
    task = find_task("classic/pendulum")
    worker = RolloutWorker(WorkerSettings(task, 32, 64, "mlp", False, 1, True, 0, 0), 0)
    fragment = worker.sample(0)
    assert (fragment.action.dtype, fragment.action.shape) == (np.float32, (64, 32, 1))
    assert np.abs(fragment.action).max() > 3
    assert fragment.action.std() == pytest.approx(1.0, abs=0.05)
    z = fragment.action[..., 0] - 0.0
    np.testing.assert_allclose(fragment.log_prob, -0.5 * z**2 - 0.5 * np.log(2 * np.pi), atol=0.1)  # the mean is nearly 0
    np.testing.assert_allclose(fragment.clipped_reward, 0.02 * fragment.reward, rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gymnasium.spaces.MultiBinary(3), "MultiBinary actions"),
        (gymnasium.spaces.MultiDiscrete([2, 3]), "MultiDiscrete actions"),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)]), "Tuple actions"),
        (Box(0, 255, (2,), np.uint8), "Box actions of type uint8"),
        (Box(0, 1, (0,), np.float32), "Box actions of shape (0,)"),
    ],
)
def test_other_actions_are_refused_in_one_line(space, words):
    with pytest.raises(UsageError, match="Only Discrete actions, or a Box of floating-point numbers") as caught:
        actions_of_space("x:y", space)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_gymnasium_has_of_mujoco_and_box2d_is_listed_once():
    names = [listing.id for listing in list_tasks()]
    assert {"gym/HalfCheetah-v5", "gym/Humanoid-v5", "gym/LunarLanderContinuous-v3", "gym/BipedalWalker-v3"} <= set(names)
    assert not [name for name in names if name.startswith("gym/HalfCheetah-v") and name != "gym/HalfCheetah-v5"]


@pytest.mark.parametrize(
    ("name", "missing", "extra"), [("HalfCheetah-v5", "mujoco", "mujoco"), ("LunarLanderContinuous-v3", "Box2D", "box2d")]
)
def test_a_missing_simulator_is_one_line_with_the_extra_to_install(monkeypatch, name, missing, extra):
    for module in [m for m in sys.modules if m.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=rf"^TASK: gym/{name} needs .*Install it: pip install 'rlscale\[{extra}\]'$"):
        find_task(f"gym/{name}")
