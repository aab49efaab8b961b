"""What a user is told whose Gymnasium environment cannot be made."""

import sys

import gymnasium
import numpy as np
import pytest

from rlscale.envs import find_task, make_env
from rlscale.errors import UsageError


class Speechless(gymnasium.Env):
    """Fails without a word."""

    def __init__(self):
        raise NotImplementedError


@pytest.fixture
def registered(monkeypatch):
    """Gymnasium's table, which is as it was after the test."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    return gymnasium.registry


def test_an_error_without_a_message_is_told_by_its_name(registered):
    gymnasium.register("Speechless-v0", Speechless)
    with pytest.raises(UsageError) as refusal:
        find_task("gym/Speechless-v0")
    assert refusal.value.problem == "Gymnasium cannot make 'Speechless-v0': NotImplementedError"


def test_a_module_of_the_current_folder_registers_its_environments(registered, tmp_path, monkeypatch):
    (tmp_path / "my_walks.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('my/Walk-v0', CartPoleEnv, max_episode_steps=7)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    task = find_task("gym/my_walks:my/Walk-v0")
    env = make_env(task, 2, threads=1, cut_on_life_loss=False)
    env.reset(np.arange(2))
    assert [bool(env.step(np.array([step % 2] * 2)).truncated[0]) for step in range(7)] == [False] * 6 + [True]


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "reason"), [("Pusher-v4", "only supported on `mujoco<3`"), ("HalfCheetah-v3", "gymnasium-robotics")]
)
def test_where_the_simulator_is_installed_gymnasiums_reason_is_told(name, reason):
    pytest.importorskip("mujoco", minversion="3")
    with pytest.raises(UsageError) as refusal:
        find_task(f"gym/{name}")
    assert refusal.value.problem.startswith(f"Gymnasium cannot make '{name}': ")
    assert reason in refusal.value.problem
    assert "\n" not in str(refusal.value)


def test_the_simulator_s_steps_for_each_observation_are_known():
    pytest.importorskip("mujoco", minversion="3")
    assert find_task("gym/HalfCheetah-v5").frame_skip == 5
    assert find_task("gym/CartPole-v1").frame_skip == 1


@pytest.mark.parametrize(("own", "steps"), [(None, 1), ((2, 5), 1), (4.0, 1), (np.int64(4), 4)])
def test_what_an_environment_means_by_frame_skip_is_its_own_business(registered, own, steps):
    """It stands in the manifest, which holds whole numbers."""

    class Skips(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)
        frame_skip = own

    gymnasium.register("Skips-v0", Skips)
    found = find_task("gym/Skips-v0").frame_skip
    assert (type(found), found) == (int, steps)


@pytest.mark.parametrize("name", ["NormalizeObservation", "NormalizeReward"])
@pytest.mark.parametrize("registers", ["its entry point", "its additional wrappers"])
def test_registered_wrappers_that_scale_by_what_they_have_seen_are_refused(registered, name, registers):
    wrapper = getattr(gymnasium.wrappers, name)
    if registers == "its entry point":
        gymnasium.register("Scaled-v0", lambda: wrapper(gymnasium.make("CartPole-v1")))
    else:
        spec = wrapper(gymnasium.make("CartPole-v1")).spec
        gymnasium.register("Scaled-v0", spec.entry_point, additional_wrappers=spec.additional_wrappers)
    with pytest.raises(UsageError, match=f"TASK: gym/Scaled-v0 uses {name}, whose statistics"):
        find_task("gym/Scaled-v0")
