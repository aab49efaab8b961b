"""A fleet that is told to have more or fewer actors while it works: every fragment still comes, in its order, and none twice."""

import os
import signal
import time

import numpy as np
import pytest
import ray
from fleets import settings_for, weights_for

from rlscale.agents.rollout.ray_fleet import RayFleet

pytestmark = pytest.mark.timed


@pytest.fixture
def fleet(ray_of_four):
    """One actor, eight groups and four CPUs."""
    settings = settings_for("classic/cartpole", groups=8)
    made = RayFleet(settings, 32, actors=1, grows=True)
    made.resize(1)
    yield made
    made.close()


@pytest.fixture
def weights():
    return weights_for(settings_for("classic/cartpole"))


def take(fleet, fragments=8):
    taken = [fleet.take().fragment for _ in range(fragments)]
    fleet.release(fragments)
    return taken


def iterate_until(fleet, weights, actors, taken):
    """Whole iterations until that many actors work, and one more."""
    deadline = time.monotonic() + 60
    while fleet.actors != actors:
        assert time.monotonic() < deadline
        fleet.request(weights, 0, 8)
        taken.extend(take(fleet))
    fleet.request(weights, 0, 8)
    taken.extend(take(fleet))


def answers(handle):
    try:
        ray.get(handle.__ray_call__.remote(lambda actor: True), timeout=20)
    except ray.exceptions.RayError:
        return False
    return True


def held(fleet):
    """Groups that each actor holds, by its number, in the books and in its own process."""
    books = {number: fleet._assignment.groups_of(number) for number in fleet._actors.working}
    own = {
        number: sorted(ray.get(handle.__ray_call__.remote(lambda actor: list(actor._worker._groups))))
        for number, handle in fleet._actors.working.items()
    }
    assert own == books
    return books


@pytest.mark.long
def test_more_and_fewer(fleet, weights):
    taken = []
    iterate_until(fleet, weights, 1, taken)
    handles = []
    for actors in (3, 4, 2, 3, 1):
        fleet.resize(actors)
        iterate_until(fleet, weights, actors, taken)
        handles.append(dict(fleet._actors.working))
        sizes = sorted(map(len, held(fleet).values()))
        assert sum(sizes) == 8
        assert sizes[-1] - sizes[0] <= 1
    assert [f.group for f in taken] == list(range(8)) * (len(taken) // 8)
    assert len({(f.group, f.generation, f.index) for f in taken}) == len(taken)
    assert fleet.lost_actors() == []
    ever = {number: handle for some in handles for number, handle in some.items()}
    assert [number for number, handle in ever.items() if answers(handle)] == [0]
    deadline = time.monotonic() + 30
    while ray.available_resources()["CPU"] < 3:  # those that left gave their CPUs back
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long
def test_one_that_starts_late_keeps_no_group_that_is_another_s_now(ray_of_four, weights, monkeypatch):
    """Its groups went to the actor that was there, and it would hold their environments for the whole run."""

    class Other:
        def here(self):
            return True

    monkeypatch.setattr("rlscale.agents.rollout.actors.START_SECONDS", 12)
    other = ray.remote(Other).options(num_cpus=3).remote()
    ray.get(other.here.remote())
    late = RayFleet(settings_for("classic/cartpole", groups=8), 32, actors=2, grows=True)
    try:
        assert late.actors == 1
        ray.kill(other)
        iterate_until(late, weights, 2, [])
        assert [len(groups) for groups in held(late).values()] == [4, 4]
    finally:
        late.close()


@pytest.mark.long
def test_one_that_leaves_first_makes_what_it_was_asked_for(fleet, weights):
    """Its fragments under way are neither lost nor made twice, and the next ones of its groups go on from there elsewhere."""
    taken = []
    fleet.resize(2)
    iterate_until(fleet, weights, 2, taken)
    before = held(fleet)
    newest = max(before)
    fleet.request(weights, 1, 8)
    fleet.resize(1)
    fleet.request(weights, 2, 8)  # queues behind
    assert fleet.actors == 1
    assert newest in fleet._actors.working
    first, second = take(fleet), take(fleet)
    assert newest not in fleet._actors.working
    assert [(f.group, f.policy_version) for f in first + second] == [(g, v) for v in (1, 2) for g in range(8)]
    assert {f.group for f in first if f.actor == newest} == set(before[newest])
    assert {f.actor for f in second} == {0}
    for group in range(8):
        assert (second[group].generation, second[group].index) == (0, first[group].index + 1)
        ended = first[group].reset[-1] | first[group].terminated[-1] | first[group].truncated[-1]
        went_on = np.abs(second[group].frames[0] - first[group].frames[-1]).max(axis=1) < 0.5  # CartPole moves in small steps
        assert (went_on | ended).all()
    assert fleet.lost_actors() == []


@pytest.mark.long
@pytest.mark.parametrize("victim", ["the one that leaves", "the one that stays"])
def test_a_loss_while_one_leaves(fleet, weights, victim):
    """Everything comes in its order; the fleet returns to the wanted number."""
    taken = []
    fleet.resize(2)
    iterate_until(fleet, weights, 2, taken)
    number = max(fleet._actors.working) if victim == "the one that leaves" else 0
    process = ray.get(fleet._actors.working[number].__ray_call__.remote(lambda actor: os.getpid()))
    os.kill(process, signal.SIGSTOP)  # it makes nothing from here on
    fleet.request(weights, 1, 8)
    fleet.resize(1)
    fleet.request(weights, 2, 8)
    os.kill(process, signal.SIGKILL)
    taken += take(fleet, 16)
    assert [f.group for f in taken] == list(range(8)) * (len(taken) // 8)
    assert len({(f.group, f.generation, f.index) for f in taken}) == len(taken)
    (loss,) = fleet.lost_actors()
    assert (loss.what, loss.actor) == ("died", number)
    iterate_until(fleet, weights, 1, taken)
    assert len(fleet._actors.working) == 1
    assert sum(map(len, held(fleet).values())) == 8


@pytest.mark.long
def test_more_than_there_is_room_for(fleet, weights):
    """Four CPUs: so many start, and once they have started, the fleet says that it is short of others."""
    taken = []
    assert not fleet.short
    fleet.resize(8)
    fleet.request(weights, 0, 8)
    assert (fleet.actors, fleet._actors.starting, fleet.short) == (1, 3, False)  # nobody knows yet
    taken += take(fleet)
    iterate_until(fleet, weights, 4, taken)
    assert fleet.short
    fleet.resize(2)
    assert not fleet.short
    iterate_until(fleet, weights, 2, taken)
    assert not fleet.short


@pytest.mark.long
def test_those_that_never_find_room_hold_nothing_up(fleet, weights, monkeypatch):
    """Others took CPUs that were free: the fleet is short of four, has any other number, and ends those that come too late."""
    monkeypatch.setattr("rlscale.agents.rollout.actors.free_places", lambda cpus: 7 // cpus)
    monkeypatch.setattr("rlscale.agents.rollout.ray_fleet.START_SECONDS", 1)
    monkeypatch.setattr("rlscale.agents.rollout.ray_fleet.LOOK_SECONDS", 0)
    taken = []

    def iterate_while(condition):
        deadline = time.monotonic() + 60
        while condition():
            assert time.monotonic() < deadline
            fleet.request(weights, 0, 8)
            taken.extend(take(fleet))

    fleet.resize(8)
    iterate_until(fleet, weights, 4, taken)
    assert fleet._actors.starting == 4
    iterate_while(lambda: not fleet.short)
    fleet.resize(2)
    iterate_until(fleet, weights, 2, taken)
    assert not fleet.short
    iterate_while(lambda: fleet._actors.starting)  # two CPUs are free, and those that waited for them start
    assert fleet.actors == 2
    assert [len(groups) for groups in held(fleet).values()] == [4, 4]
    assert [f.group for f in taken] == list(range(8)) * (len(taken) // 8)
    assert fleet.lost_actors() == []
