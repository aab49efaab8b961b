"""Workers in this process and as real Ray actors: same seed, same fragments."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from fleets import settings_for, weights_for

from rlscale.agents.rollout.fleet import LocalFleet
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.rollout.ray_fleet import RayFleet


def same(a: Fragment, b: Fragment) -> bool:
    """Whether two fragments are alike, whichever actor made them."""
    names = {f.name for f in fields(Fragment)} - {"seconds", "actor"}
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def sample(fleet, weights, version, fragments):
    """So many fragments, read back and given up."""
    fleet.request(weights, version, fragments)
    taken = [fleet.take() for _ in range(fragments)]
    fleet.release(fragments)
    return [s.fragment for s in taken]


@pytest.mark.parametrize(
    "task_id",
    ["atari/breakout@42", *(pytest.param(task_id, marks=pytest.mark.long) for task_id in ("classic/cartpole", "bandits:Lever"))],
)
def test_ray_actors_make_the_fragments_that_this_process_makes(ray_of_four, task_id):
    """Two workers of two groups each; and the third iteration is asked for before the second is taken."""
    settings = settings_for(task_id, workers=2, groups=2)
    threads = torch.get_num_threads()
    local, remote = LocalFleet(settings), RayFleet(settings, most_fragments=3)
    try:
        taken = {}
        for name, fleet in (("local", local), ("remote", remote)):
            taken[name] = sample(fleet, weights_for(settings, seed=0), 0, 4 if name == "local" else 2)
            if name == "remote":
                taken[name] += sample(fleet, weights_for(settings, seed=0), 0, 2)
            fleet.request(weights_for(settings, seed=1), 1, 4)
            fleet.request(weights_for(settings, seed=2), 2, 4)
            for _ in range(8):
                taken[name].append(fleet.take().fragment)
                fleet.release(1)
        assert [(f.group, f.actor, f.policy_version) for f in taken["remote"][-8:]] == [
            (group, group % 2, version) for version in (1, 2) for group in range(4)
        ]
        assert all(same(a, b) for a, b in zip(taken["local"], taken["remote"], strict=True))
        assert not any(same(taken["local"][0], other) for other in taken["local"][1:])
        for fragment in taken["remote"]:  # frames are read where the actor has put them
            assert not fragment.frames.flags.writeable
            assert not fragment.frames.flags.owndata
    finally:
        remote.close()
        local.close()
        torch.set_num_threads(threads)


def test_no_two_groups_or_generations_share_a_stream():
    weights = weights_for(settings_for("classic/cartpole"))
    first = LocalFleet(settings_for("classic/cartpole", workers=2, groups=2))
    resumed = LocalFleet(settings_for("classic/cartpole", generation=1))
    starts = [f.frames[0] for f in sample(first, weights, 0, 4) + sample(resumed, weights, 0, 1)]
    assert all(not np.array_equal(a, b) for k, a in enumerate(starts) for b in starts[:k])


def test_state_goes_on_exactly():
    """With fragments asked for and not made yet, as a run with a lag leaves them."""
    settings = settings_for("classic/acrobot", groups=2)
    weights = weights_for(settings)
    fleet, other = LocalFleet(settings), LocalFleet(settings)
    sample(fleet, weights, 0, 3)
    fleet.request(weights_for(settings, seed=9), 1, 2)
    state = fleet.get_state()
    expected = [fleet.take().fragment for _ in range(2)]
    other.set_state(state)
    assert all(same(f, other.take().fragment) for f in expected)
    assert [f.group for f in expected] == [1, 0]


@pytest.mark.parametrize(
    ("ends", "goes_on"),
    [
        (LocalFleet, LocalFleet),
        (LocalFleet, RayFleet),
        (RayFleet, LocalFleet),
        pytest.param(RayFleet, RayFleet, marks=pytest.mark.long),
    ],
)
def test_either_fleet_goes_on_from_what_the_other_gave(ray_of_four, ends, goes_on):
    """Also with fragments asked for and not taken yet, and others of those taken since."""
    settings = settings_for("minatar/breakout", workers=2, groups=2)
    weights = [weights_for(settings, seed=seed) for seed in range(3)]
    made = {LocalFleet: LocalFleet, RayFleet: lambda settings: RayFleet(settings, 12)}
    undisturbed, before = LocalFleet(settings), made[ends](settings)
    try:
        for fleet in (undisturbed, before):
            sample(fleet, weights[0], 0, 5)
            fleet.request(weights[1], 1, 2)
            fleet.request(weights[2], 2, 4)
            fleet.take()
        state = before.get_state()
    finally:
        before.close()
    after = made[goes_on](replace(settings, generation=3))  # of the environments that are there before
    try:
        after.set_state(state)
        after.request(weights[0], 3, 3)
        undisturbed.request(weights[0], 3, 3)
        expected, came = ([fleet.take().fragment for _ in range(8)] for fleet in (undisturbed, after))
        assert [f.policy_version for f in came] == [1, 2, 2, 2, 2, 3, 3, 3]
        assert all(same(a, b) for a, b in zip(expected, came, strict=True))
    finally:
        after.close()


def test_atari_has_no_state():
    assert LocalFleet(settings_for("atari/pong@42")).get_state() is None
