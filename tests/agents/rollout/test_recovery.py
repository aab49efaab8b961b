"""Actors and nodes that are lost, hang, or come while a fleet works: real processes killed and stopped, real Ray nodes.

Everything that is asked for comes, in its order, and nothing twice. Where environments can be saved, it is what would have come
without the loss; what is made afresh follows from (seed, generation, group).
"""

import os
import signal
import time
from dataclasses import fields

import numpy as np
import pytest
import ray
import torch
from fleets import settings_for, weights_for
from ray.cluster_utils import Cluster

import rlscale.agents.rollout.actors
from rlscale.agents.rollout.fleet import LocalFleet
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.rollout.ray_fleet import RayFleet
from rlscale.agents.rollout.worker import RolloutWorker

pytestmark = pytest.mark.timed


def process_of(fleet, actor):
    return ray.get(fleet._actors.working[actor].__ray_call__.remote(lambda actor: os.getpid()))


def take(fleet, fragments):
    taken = [fleet.take().fragment for _ in range(fragments)]
    fleet.release(fragments)
    return taken


def identities(fragments):
    return [(f.group, f.generation, f.index) for f in fragments]


def made_by(settings, weights, group, generation, fragments=1):
    """What any worker makes as that group's first fragments of that generation."""
    threads = torch.get_num_threads()
    worker = RolloutWorker(settings, 0, {group: generation})
    try:
        worker.set_weights(weights)
        return [worker.sample(0, group) for _ in range(fragments)]
    finally:
        worker.close()
        torch.set_num_threads(threads)


def undisturbed(settings, *batches):
    """What comes of so many fragments by these weights, batch after batch, where nothing is ever lost or moved."""
    threads = torch.get_num_threads()
    fleet = LocalFleet(settings)
    try:
        for version, (weights, fragments) in enumerate(batches):
            fleet.request(weights, version, fragments)
        return [fleet.take().fragment for _, fragments in batches for _ in range(fragments)]
    finally:
        fleet.close()
        torch.set_num_threads(threads)


def equal(a: Fragment, b: Fragment) -> bool:
    """But for who made it, by which policy version, and when."""
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name))
        for f in fields(Fragment)
        if f.name not in ("seconds", "actor", "policy_version")
    )


@pytest.fixture
def make_fleet():
    """Fleets that are closed at the end."""
    made = []

    def make(*arguments, **keywords):
        made.append(RayFleet(*arguments, **keywords))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


CAN_BE_SAVED, CANNOT = "classic/cartpole", "gym/MountainCar-v0"


@pytest.mark.parametrize("task", [CAN_BE_SAVED, pytest.param(CANNOT, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", ["died", pytest.param("hung", marks=pytest.mark.long)])
def test_in_the_middle_of_a_batch(ray_instance, make_fleet, fault, task):
    """Two actors of two groups; one never answers what it was asked for, and is killed, or left as it is until the bound."""
    settings = settings_for(task, workers=2, groups=2)
    weights = weights_for(settings)
    fleet = make_fleet(settings, 12, straggler_seconds=3.0 if fault == "hung" else None)
    fleet.request(weights, 0, 4)
    before = take(fleet, 4)
    victim = process_of(fleet, 1)
    os.kill(victim, signal.SIGSTOP)  # it makes nothing from here on
    fleet.request(weights, 1, 8)
    first = take(fleet, 1)
    if fault == "died":
        os.kill(victim, signal.SIGKILL)
    rest = take(fleet, 7)
    if task == CAN_BE_SAVED:
        expected = undisturbed(settings, (weights, 4), (weights, 8))
        assert identities(before + first + rest) == identities(expected)
        assert all(equal(a, b) for a, b in zip(before + first + rest, expected, strict=True))
    else:
        assert identities(before + first + rest) == [
            *((group, 0, 0) for group in range(4)),
            *((0, 0, 1), (1, 1, 0), (2, 0, 1), (3, 1, 0)),
            *((0, 0, 2), (1, 1, 1), (2, 0, 2), (3, 1, 1)),
        ]
        for group in (1, 3):
            again = [f for f in first + rest if f.group == group]
            assert all(equal(a, b) for a, b in zip(again, made_by(settings, weights, group, 1, 2), strict=True))
            assert not any(np.array_equal(again[0].frames[0], f.frames[0]) for f in before)
    assert [f.policy_version for f in before + first + rest] == [0] * 4 + [1] * 8
    assert [f.actor for f in first + rest] == [0, 2, 0, 2] * 2
    (loss,) = fleet.lost_actors()
    assert (loss.what, loss.actor, loss.groups, loss.fragments, loss.replaced_by) == (fault, 1, [1, 3], 4, 2)
    assert 0 < loss.recovery_seconds < 120
    assert loss.afresh == ([] if task == CAN_BE_SAVED else [1, 3])
    assert fleet.lost_actors() == []
    assert (fleet.actors, fleet.generation) == (2, int(task == CANNOT))
    deadline = time.monotonic() + 30
    while b"RolloutActor" in command_of(victim):  # also one that does not hear
        assert time.monotonic() < deadline
        time.sleep(0.1)


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.mark.long
def test_both_actors_at_once_and_again(ray_instance, make_fleet):
    """Losses over different fragments are no reason to end, however many there are."""
    settings = settings_for("classic/cartpole", workers=2)
    weights = weights_for(settings)
    fleet = make_fleet(settings, 4)
    taken = []
    for version in range(2):
        for actor in list(fleet._actors.working):
            os.kill(process_of(fleet, actor), signal.SIGKILL)
        fleet.request(weights, version, 4)
        taken += take(fleet, 4)
    expected = undisturbed(settings, (weights, 8))
    assert all(equal(a, b) for a, b in zip(taken, expected, strict=True))
    losses = fleet.lost_actors()
    assert sorted(loss.actor for loss in losses) == [0, 1, 2, 3]
    assert all(loss.what == "died" and loss.recovery_seconds is not None for loss in losses)


@pytest.mark.long
def test_all_that_hang_are_found_in_one_wait(ray_instance, make_fleet):
    settings = settings_for("classic/cartpole", workers=2)
    fleet = make_fleet(settings, 4, straggler_seconds=3.0)
    for actor in (0, 1):
        os.kill(process_of(fleet, actor), signal.SIGSTOP)
    fleet.request(weights_for(settings), 0, 4)
    assert identities(take(fleet, 4)) == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]
    one, other = fleet.lost_actors()
    assert one.what == other.what == "hung"
    assert one.noticed == other.noticed


@pytest.mark.long
@pytest.mark.parametrize("task", [CAN_BE_SAVED, CANNOT])
def test_an_actor_lost_after_its_groups_had_moved_away(ray_instance, make_fleet, task):
    """What it still had to make for groups that are elsewhere by now is made there, and in order."""
    settings = settings_for(task, groups=4)
    weights = weights_for(settings)
    fleet = make_fleet(settings, 8, grows=True)
    victim = process_of(fleet, 0)
    os.kill(victim, signal.SIGSTOP)
    fleet.request(weights, 0, 4)
    fleet._actors.start()
    deadline = time.monotonic() + 60
    while fleet.actors < 2:
        assert time.monotonic() < deadline
        fleet._grow()
    fleet.request(weights, 1, 4)
    os.kill(victim, signal.SIGKILL)
    taken = take(fleet, 8)
    if task == CAN_BE_SAVED:
        assert all(equal(a, b) for a, b in zip(taken, undisturbed(settings, (weights, 8)), strict=True))
    else:
        assert identities(taken) == [(0, 1, 0), (1, 1, 0), (2, 2, 0), (3, 2, 0), (0, 1, 1), (1, 1, 1), (2, 2, 1), (3, 2, 1)]
    assert [f.policy_version for f in taken] == [0] * 4 + [1] * 4
    (loss,) = fleet.lost_actors()
    assert (loss.actor, loss.groups, loss.fragments, loss.replaced_by) == (0, [0, 1, 2, 3], 8, 2)
    assert [f.actor for f in taken] == [2, 2, 1, 1] * 2


def occupy():
    """An actor of somebody else's that takes the next CPU that is free."""

    class Somebody:
        def ready(self):
            return True

    return ray.remote(Somebody).options(num_cpus=1).remote()


@pytest.mark.long
def test_no_room_for_a_replacement(ray_instance, make_fleet, monkeypatch):
    """Someone else takes the lost actor's CPU: the survivor takes its groups, until there is room for an actor again."""
    monkeypatch.setattr(rlscale.agents.rollout.actors, "REPLACE_SECONDS", 3)
    settings = settings_for(CANNOT, workers=2, groups=2)
    weights = weights_for(settings)
    fleet = make_fleet(settings, 4)
    blocker = occupy()
    os.kill(process_of(fleet, 1), signal.SIGKILL)
    ray.get(blocker.ready.remote(), timeout=60)
    fleet.request(weights, 0, 4)
    taken = take(fleet, 4)
    assert [f.actor for f in taken] == [0, 0, 0, 0]
    assert identities(taken) == [(0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 1, 0)]
    (loss,) = fleet.lost_actors()
    assert (loss.groups, loss.replaced_by, fleet.actors) == ([1, 3], None, 1)
    ray.kill(blocker)
    deadline = time.monotonic() + 60
    while fleet.actors < 2:
        assert time.monotonic() < deadline
        fleet.request(weights, 1, 4)
        taken += take(fleet, 4)
    fleet.request(weights, 2, 4)
    last = take(fleet, 4)
    assert [f.actor for f in last] == [0, 0, 2, 2]
    assert [f.generation for f in last] == [0, 1, 1, 2]
    assert len(set(identities(taken + last))) == len(taken + last)
    assert fleet.lost_actors() == []


@pytest.mark.long
def test_environments_that_take_long_to_make(ray_instance, make_fleet, monkeypatch, capsys):
    """An actor has so many seconds to start; to make thousands of environments takes longer, at the start and afterwards."""
    for module in ("actors", "ray_fleet"):
        monkeypatch.setattr(f"rlscale.agents.rollout.{module}.START_SECONDS", 20)
    settings = settings_for("bandits:SlowToMake", workers=1, groups=2)
    fleet = make_fleet(settings, 2, straggler_seconds=1.0)
    assert "rollout workers have been making their environments, 8 each, for 20 s" in capsys.readouterr().err
    fleet.request(weights_for(settings), 0, 2)
    assert identities(take(fleet, 2)) == [(0, 0, 0), (1, 0, 0)]
    assert fleet._actors.making_seconds >= 24
    fleet._to_make.add(0)
    fleet.request(weights_for(settings), 1, 1)
    assert fleet._bound(fleet._requests[0]) >= 5 * 24


@pytest.mark.long
def test_whoever_has_much_to_do_does_not_hang(ray_instance, make_fleet, monkeypatch):
    """The survivor has more before it than it can make within the bound. As long as fragments come it is left in peace."""
    monkeypatch.setattr(rlscale.agents.rollout.actors, "REPLACE_SECONDS", 1)
    monkeypatch.setattr("rlscale.agents.rollout.ray_fleet.START_SECONDS", 0)
    settings = settings_for("bandits:SlowBandit", workers=2, groups=2)
    fleet = make_fleet(settings, 8, straggler_seconds=3.0)
    blocker = occupy()
    os.kill(process_of(fleet, 1), signal.SIGKILL)
    ray.get(blocker.ready.remote(), timeout=60)
    try:
        fleet.request(weights_for(settings), 0, 8)
        taken = take(fleet, 8)
    finally:
        ray.kill(blocker)
    assert {f.actor for f in taken} == {0}
    assert [loss.actor for loss in fleet.lost_actors()] == [1]


def test_a_mistake_in_an_environment_is_not_repeated(ray_instance, make_fleet):
    settings = settings_for("bandits:MistakenBandit")
    fleet = make_fleet(settings, 1)
    fleet.request(weights_for(settings), 0, 1)
    with pytest.raises(ZeroDivisionError):
        fleet.take()
    assert fleet.lost_actors() == []


@pytest.fixture
def cluster(own_ray):
    """A Ray cluster of one node with one CPU, joined by this process."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 128 << 20})
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.long
@pytest.mark.parametrize("task", [CAN_BE_SAVED, CANNOT])
def test_nodes_come_and_go(cluster, make_fleet, monkeypatch, task):
    """A node joins: an actor starts there and takes its share of the groups. The node dies with fragments not taken yet."""
    monkeypatch.setattr(rlscale.agents.rollout.actors, "REPLACE_SECONDS", 3)
    monkeypatch.setattr("rlscale.agents.rollout.ray_fleet.LOOK_SECONDS", 0)
    settings = settings_for(task, environments=64, length=128, groups=4)
    weights = weights_for(settings)
    fleet = make_fleet(settings, 8, grows=True)
    taken = []

    def iterate():
        fleet.request(weights, 0, 4)
        taken.extend(take(fleet, 4))

    def until(actors):
        deadline = time.monotonic() + 120
        while fleet.actors != actors:
            assert time.monotonic() < deadline
            iterate()
        iterate()

    iterate()
    assert fleet.actors == 1
    node = cluster.add_node(num_cpus=1, object_store_memory=128 << 20)
    until(actors=2)
    newcomer = max(f.actor for f in taken)
    assert [f.actor for f in taken[-4:]].count(newcomer) == 2
    assert {f.generation for f in taken[-4:]} == ({0} if task == CAN_BE_SAVED else {0, 1})
    assert fleet.lost_actors() == []

    fleet.request(weights, 1, 4)
    answers = [part for request in fleet._requests for part in (request.summary, request.fragment, request.state)]
    ray.wait(answers, num_returns=len(answers), timeout=60, fetch_local=False)  # made, and still there
    cluster.remove_node(node)
    taken.extend(take(fleet, 4))
    (loss,) = fleet.lost_actors()
    assert (loss.what, loss.actor, len(loss.groups), loss.fragments, loss.replaced_by) == ("node lost", newcomer, 2, 2, None)
    assert fleet.actors == 1
    assert [f.group for f in taken] == [0, 1, 2, 3] * (len(taken) // 4)
    assert len(set(identities(taken))) == len(taken)
    assert [f.generation for f in taken[-4:]].count(2) == (0 if task == CAN_BE_SAVED else 2)

    cluster.add_node(num_cpus=1, object_store_memory=128 << 20)
    until(actors=2)
    assert len(set(identities(taken))) == len(taken)
    if task == CAN_BE_SAVED:
        assert all(equal(a, b) for a, b in zip(taken, undisturbed(settings, (weights, len(taken))), strict=True))
        return
    for group, generation in {(f.group, f.generation) for f in taken}:
        here = next(f for f in taken if (f.group, f.generation) == (group, generation))
        assert equal(here, made_by(settings, weights, group, generation)[0])
    starts = [f.frames[0] for f in taken if f.index == 0]
    assert all(not np.array_equal(a, b) for k, a in enumerate(starts) for b in starts[:k])
