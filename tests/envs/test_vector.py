"""Environments of a few arrays are restarted one by one and go on with other random numbers; how forked ones are closed."""

import gc
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from rlscale.envs import find_task, list_tasks, make_env
from rlscale.envs.vector import VectorTaskEnv

RESTARTABLE = [*(listing.id for listing in list_tasks() if listing.id.startswith("toy/")), "classic/acrobot", "classic/pendulum"]


# One that draws in every step or so.
CHANCE = [
    "minatar/breakout",
    "minatar/asterix",
    "minatar/seaquest",
    "toy/umbrella",
    "toy/frozenlake",
    "toy/blackjack",
    "toy/2048",
]


@pytest.mark.parametrize("task_id", [*RESTARTABLE, *CHANCE[:3]])
def test_what_is_drawn_from_here_on_follows_from_the_seeds_alone(task_id):
    """The state stays: what follows differs by nothing but chance, and not at all with the same seeds."""
    task, rng = find_task(task_id), np.random.default_rng(0)
    env = make_env(task, 32)
    env.reset(np.arange(32))
    for _ in range(20):
        env.step(task.random_actions(rng, 32))
    state, actions = env.get_state(), [task.random_actions(rng, 32) for _ in range(40)]

    def course(seeds):
        env.set_state(state)
        env.draw_from(seeds)
        return np.array([env.step(chosen).observation for chosen in actions])

    first, again, other = course(np.arange(32)), course(np.arange(32)), course(np.arange(100, 132))
    assert np.array_equal(first, again)
    if task_id in CHANCE:
        assert not np.array_equal(first, other)


@pytest.mark.parametrize("task_id", RESTARTABLE)
def test_one_environment_is_restarted_and_the_others_stay_where_they_are(task_id):
    task, rng = find_task(task_id), np.random.default_rng(0)
    env = make_env(task, 4)
    env.reset(np.array([3]))
    for _ in range(5):
        step = env.step(task.random_actions(rng, 4))
    before = env.get_state()
    seen = step.observation.copy()
    untouched = env.restart(np.zeros(4, dtype=bool), np.arange(4))
    assert np.array_equal(untouched, seen)
    which = np.array([False, True, False, True])
    observation = env.restart(which, np.arange(4))
    after = env.get_state()
    states = [saved["state"] if task_id.startswith("toy/") else saved["state"].T for saved in (before, after)]
    assert np.array_equal(states[0][~which], states[1][~which])
    assert np.array_equal(observation[~which], seen[~which])
    assert (observation.shape, observation.dtype) == (seen.shape, seen.dtype)
    assert np.array_equal(after["steps"], np.where(which, 0, before["steps"]))
    assert np.array_equal(after["ended"], before["ended"] & ~which)
    assert np.array_equal(step.observation, seen), "what was given before is not written into"
    other = make_env(task, 4)
    other.set_state(after)
    for t in range(30):
        actions = task.random_actions(rng, 4)
        step = env.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(step, other.step(actions), strict=True))
        if t == 0:
            assert np.array_equal(step.reset, after["ended"]), "no step only resets what was restarted"


def test_a_restarted_episode_has_its_whole_length():
    """Catch ends after nine steps, whatever is done."""
    env = make_env(find_task("toy/catch"), 3)
    env.reset(np.array([0]))
    for _ in range(9):
        step = env.step(np.ones(3, dtype=np.int64))
    assert step.terminated.all()
    env.restart(np.array([False, True, False]), np.arange(3))
    steps = [env.step(np.ones(3, dtype=np.int64)) for _ in range(10)]
    assert [int(np.argmax([one.terminated[i] for one in steps])) + 1 for i in range(3)] == [10, 9, 10]
    assert [int(sum(one.reset[i] for one in steps)) for i in range(3)] == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting")
@pytest.mark.parametrize("within_a_step", [False, True])
def test_environments_whose_own_processes_have_ended_are_closed_without_a_traceback(within_a_step, monkeypatch):
    """As after SIGTERM to the whole group while the policy learns for long: a second attempt, at the end, would be printed."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    forked = AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    env = VectorTaskEnv(find_task("classic/cartpole"), forked, one_seed=False)
    env.reset(np.arange(2))
    if within_a_step:
        forked.step_async(np.zeros(2, dtype=np.int64))
    for process in forked.processes:
        process.kill()
        process.join()
    env.close()
    del env, forked, process
    gc.collect()
    assert unraisable == []
