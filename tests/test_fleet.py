"""Workers in this process and as real Ray actors: same seed, same fragments."""

from dataclasses import fields

import numpy as np
import pytest

from agents.fleet import LocalFleet, RayFleet
from agents.fragments import Fragment
from agents.networks import flatten_parameters, make_network
from agents.worker import WorkerSettings
from envs import find_task


def settings_for(task_id, environments=4, length=16, **changes):
    task = find_task(task_id)
    network = "small_cnn" if task.kind == "atari" else "mlp"
    values = dict(bfloat16=False, threads=1, cut_on_life_loss=True, random_first_steps=0, seed=11, generation=0)
    return WorkerSettings(task, environments, length, network, **{**values, **changes})


def weights_for(settings, seed=5):
    return flatten_parameters(make_network(settings.task, settings.network, seed)).numpy()


def same(a: Fragment, b: Fragment) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Fragment) if f.name != "seconds")


@pytest.mark.parametrize("task_id", ["classic/cartpole", "atari/breakout@42", "bandits:ScaledBandit"])
def test_ray_actors_make_the_fragments_that_this_process_makes(ray_instance, task_id):
    import torch

    settings = settings_for(task_id)
    threads = torch.get_num_threads()
    local, remote = LocalFleet(settings, workers=2), RayFleet(settings, actors=2)
    try:
        for version in range(3):
            weights = weights_for(settings, seed=version)
            ours, theirs = local.sample(weights, version), remote.sample(weights, version)
            assert [f.actor for f in theirs] == [0, 1]
            assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
            assert not same(ours[0], ours[1])
    finally:
        remote.close()
        local.close()
        torch.set_num_threads(threads)


def test_frames_from_actors_are_read_where_they_lie(ray_instance):
    settings = settings_for("atari/breakout@42", environments=8, length=32)
    remote = RayFleet(settings, actors=1)
    try:
        fragment = remote.sample(weights_for(settings), 0)[0]
        assert not fragment.frames.flags.writeable
        assert not fragment.frames.flags.owndata
    finally:
        remote.close()


def test_no_two_workers_or_generations_share_a_stream():
    first = LocalFleet(settings_for("classic/cartpole"), workers=2)
    resumed = LocalFleet(settings_for("classic/cartpole", generation=1), workers=1)
    starts = [w._observation for w in (*first._workers, *resumed._workers)]
    assert all(not np.array_equal(a, b) for k, a in enumerate(starts) for b in starts[:k])


def test_state_goes_on_exactly():
    settings = settings_for("classic/acrobot")
    weights = weights_for(settings)
    fleet, other = LocalFleet(settings), LocalFleet(settings)
    fleet.sample(weights, 0)
    state = fleet.get_state()
    expected = fleet.sample(weights, 1)[0]
    other.set_state(state)
    assert same(expected, other.sample(weights, 1)[0])


def test_atari_has_no_state():
    assert LocalFleet(settings_for("atari/pong@42")).get_state() is None
