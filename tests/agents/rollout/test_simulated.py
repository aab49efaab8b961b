"""`RayFleet` on a simulated Ray, which can be stopped between any two calls: orders of events that real processes seldom take.

What must hold is that of test_recovery.py, where the processes are real: where environments can be saved, every fragment is the
undisturbed fleet's, bit for bit and in order; where they cannot, none comes twice and each is what its generation makes.
"""

import random
import sys
from dataclasses import fields

import numpy as np
import pytest
from fleets import SimulatedRay, settings_for, weights_for

import rlscale.agents.rollout.actors
import rlscale.agents.rollout.ray_fleet
import rlscale.agents.rollout.worker
from rlscale.agents.cluster import BusyClusterError
from rlscale.agents.cluster.processes import LostWorkerError
from rlscale.agents.rollout.fleet import LocalFleet
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.rollout.ray_fleet import RayFleet
from rlscale.agents.rollout.worker import RolloutWorker

GROUPS = 6
LATE = 6  # seconds, after which a fleet that grows looks for CPUs again
SETTINGS = settings_for("classic/cartpole", environments=2, length=3, groups=GROUPS)
WEIGHTS = [weights_for(SETTINGS, seed) for seed in range(4)]
SCHEDULES, EVENTS = 20, 60


@pytest.fixture
def start(monkeypatch):
    def starting(cpus, seed=0, nodes=("a",), kind=SimulatedRay):
        cluster = kind(cpus, seed, nodes)
        monkeypatch.setattr(rlscale.agents.rollout.actors, "free_places", lambda cpus: max(cluster.free(), 0) // cpus)
        monkeypatch.setitem(sys.modules, "ray", cluster)
        for module in (rlscale.agents.rollout.actors, rlscale.agents.rollout.ray_fleet):
            monkeypatch.setattr(module, "time", cluster)
        return cluster

    return starting


class SlowCopies(SimulatedRay):
    """Answers take two seconds to copy. As in Ray, a `get` whose time is up forgets what it has copied, a `wait` does not."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.left = {}

    def get(self, answers, timeout=None):
        left = max((self.left.get(a, 2.0) for a in answers), default=0.0) if isinstance(answers, list) else 0.0
        if timeout is None or timeout >= left:
            return super().get(answers, timeout)
        self.now += timeout
        raise self.exceptions.GetTimeoutError

    def wait(self, answers, num_returns=1, timeout=None, fetch_local=True):
        ready, _ = super().wait(answers, num_returns, timeout, fetch_local)
        if fetch_local:
            self.now += timeout
            self.left |= {a: self.left.get(a, 2.0) - timeout for a in ready}
            ready = [a for a in ready if self.left[a] <= 0]
        return ready, [a for a in answers if a not in ready]


def test_a_fragment_that_is_copied_slowly_arrives(start):
    cluster = start(2, nodes=("a", "b"), kind=SlowCopies)
    fleet = RayFleet(SETTINGS, 2, ahead=GROUPS)
    request(fleet, 0)
    begun = cluster.now
    take(fleet, GROUPS)
    assert cluster.now - begun < 20
    assert fleet.lost_actors() == []


@pytest.fixture
def unsavable(monkeypatch):
    """Environments of which no state can be had, as Atari's."""
    monkeypatch.setattr(rlscale.agents.rollout.worker._Group, "get_state", lambda self: None)


def equal(a, b):
    told = [f.name for f in fields(Fragment) if f.name not in ("seconds", "actor", "policy_version")]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in told)


class Undisturbed:
    """The fragments of a run whose iteration batches are one of every group, by their number; made when asked for."""

    def __init__(self):
        self._fleet, self._made = LocalFleet(SETTINGS), []

    def __getitem__(self, number):
        while len(self._made) <= number:
            if len(self._made) % GROUPS == 0:
                request(self._fleet, len(self._made) // GROUPS)
            self._made.append(self._fleet.take().fragment)
        return self._made[number]


class FromItsBeginning:
    """Fragments of groups that are made afresh after every loss, by group, generation and index."""

    def __init__(self):
        self._made = {}

    def check(self, fragment):
        """It is what its group makes with that generation's seeds, given the same policies; none of it depends on the actor."""
        key = fragment.group, fragment.generation
        if key not in self._made:
            self._made[key] = RolloutWorker(SETTINGS, 0, {fragment.group: fragment.generation})
        worker = self._made[key]
        while True:
            worker.use_policy(WEIGHTS[fragment.policy_version % 4], fragment.policy_version)
            made = worker.sample(fragment.policy_version, fragment.group)
            if made.index == fragment.index:
                assert equal(made, fragment)
                return
            assert made.index < fragment.index


def request(fleet, version):
    fleet.request(WEIGHTS[version % 4], version, GROUPS)


def take(fleet, fragments):
    taken = []
    for _ in range(fragments):
        taken.append(fleet.take().fragment)
        fleet.release(1)
    return taken


class Schedule:
    """A run at whose fleet a seed throws what can happen: deaths, hangs, lost nodes, moves, and a checkpoint resumed from.

    Args:
        start: the cluster, see there.
        seed: draws everything.
        check: called with the number of each fragment and the fragment.
        resumes: whether the environments can be saved.
    """

    def __init__(self, start, seed, check, resumes):
        self.random = random.Random(seed)
        self.cluster = start(self.random.choice([2, 3, 5]), seed, self.random.choice([("a",), ("a", "b")]))
        self.grows = self.random.random() < 0.7
        self.check, self.resumes = check, resumes
        self.version = self.taken = self.ahead = self.losses = 0
        self.latest = {}
        self.fleet = self.make()

    def make(self):
        room, straggler = self.random.choice([6, 12, 18]), self.random.choice([None, 5.0])
        actors = self.random.choice([1, 2])
        return RayFleet(SETTINGS, room, actors=actors, grows=self.grows, straggler_seconds=straggler)

    def run(self):
        likely = {"request": 20, "take": 35, "lose": 10, "lose_node": 3, "resize": 7, "wait": 15, "cpus": 3, "resume": 3}
        for event in self.random.choices(list(likely), list(likely.values()), k=EVENTS):
            getattr(self, event)()
            self.losses += len(self.fleet.lost_actors())

    def request(self):
        if self.ahead < 2:
            request(self.fleet, self.version)
            self.version, self.ahead = self.version + 1, self.ahead + 1

    def take(self):
        if self.ahead:
            (fragment,) = take(self.fleet, 1)
            assert (fragment.group, fragment.policy_version) == (self.taken % GROUPS, self.taken // GROUPS)
            assert (fragment.generation, fragment.index) > self.latest.get(fragment.group, (-1, -1))
            self.latest[fragment.group] = fragment.generation, fragment.index
            self.check(self.taken, fragment)
            self.taken += 1
            self.ahead -= self.taken % GROUPS == 0

    def lose(self):
        working = list(self.fleet._actors.working.values())
        for actor in self.random.sample(working, min(len(working), self.random.choice([1, 1, 2]))):
            if self.random.random() < 0.7:
                actor.die()
            else:
                actor.hangs = True
        self.cluster.cpus = max(self.cluster.cpus + self.random.choice([0, 0, -1, 1]), 1)

    def lose_node(self):
        if len(self.cluster.alive) > 1:
            self.cluster.lose_node(self.random.choice(self.cluster.alive))

    def resize(self):
        if self.grows:
            self.fleet.resize(self.random.choice([1, 2, 3, 4]))

    def wait(self):
        self.cluster.let_work(self.random.choice([1, 3, 10]))
        self.cluster.now += self.random.choice([0, LATE])

    def cpus(self):
        self.cluster.cpus = max(1, self.cluster.cpus + self.random.choice([-1, 1, 1]))

    def resume(self):
        if self.resumes and (state := self.fleet.get_state()) is not None:
            self.fleet.close()
            self.fleet = self.make()
            self.fleet.set_state(state)
            self.latest = {}  # fragments that were under way are made again


def run_all(start, check, resumes):
    """Runs of many seeds; how many ended as they may, because nobody was left, and how many actors were lost."""
    ended = losses = 0
    for seed in range(SCHEDULES):
        try:
            schedule = Schedule(start, seed, check(), resumes)
            schedule.run()
            losses += schedule.losses
        except (LostWorkerError, BusyClusterError):
            ended += 1
        except Exception as error:
            error.add_note(f"schedule {seed}")
            raise
    return ended, losses


def test_environments_that_can_be_saved_leave_no_trace_of_what_happened(start):
    undisturbed = Undisturbed()

    def check():
        def same(number, fragment):
            assert equal(fragment, undisturbed[number])

        return same

    ended, losses = run_all(start, check, resumes=True)
    assert ended < SCHEDULES / 4
    assert losses > SCHEDULES


def test_environments_that_cannot_be_saved_begin_afresh_whatever_happened(start, unsavable):
    def check():
        known = FromItsBeginning()
        return lambda number, fragment: known.check(fragment)

    ended, losses = run_all(start, check, resumes=False)
    assert ended < SCHEDULES / 4
    assert losses > SCHEDULES


def test_both_actors_of_a_group_that_moves_are_lost_at_once(start, unsavable):
    """With a batch under way a new actor takes groups over; then one machine takes both down, as the one's fragments come."""
    cluster = start(cpus=2)
    fleet = RayFleet(SETTINGS, 2 * GROUPS, actors=1, grows=True)
    request(fleet, 0)
    cluster.now += LATE
    fleet._grow()
    cluster.actors[-1].work()  # it starts
    request(fleet, 1)
    assert {request.actor for request in fleet._requests} == {0, 1}
    for actor in cluster.actors:
        actor.die()
    taken = take(fleet, 2 * GROUPS)
    assert [f.group for f in taken] == [*range(GROUPS)] * 2
    assert {loss.actor for loss in fleet.lost_actors()} == {0, 1}


def test_an_actor_that_leaves_and_then_stays_keeps_nothing_of_others(start):
    """It had handed its groups over and was still to make fragments when another was lost, so that it is needed again."""
    cluster = start(cpus=4)
    fleet = RayFleet(SETTINGS, 4 * GROUPS, actors=1, grows=True)
    fleet.resize(3)
    for version in range(4):
        request(fleet, version)
        take(fleet, GROUPS)
        cluster.now += LATE
    assert fleet.actors == 3
    request(fleet, 4)
    cluster.now += LATE
    fleet.resize(2)
    request(fleet, 5)
    (leaving,) = fleet._leaving
    lost = min(set(fleet._actors.working) - {leaving, 0})
    fleet._actors.working[lost].die()
    take(fleet, 2 * GROUPS)
    for version in range(6, 12):
        cluster.now += LATE
        request(fleet, version)
        take(fleet, GROUPS)
    cluster.let_work(1000)
    assert leaving in fleet._actors.working
    for number, actor in fleet._actors.working.items():
        assert sorted(actor.instance._worker._groups) == fleet._assignment.groups_of(number)


def test_one_that_starts_late_at_the_beginning_changes_nothing(start):
    """Another program was quicker to take its CPU: its groups are made by the others as they would have been by itself."""
    cluster = start(cpus=1)
    fleet = RayFleet(SETTINGS, GROUPS, actors=2, grows=True)
    assert fleet.actors == 1
    assert fleet.get_state() is None  # of groups that nobody has made yet
    undisturbed = Undisturbed()
    for version in range(3):
        request(fleet, version)
        for number, fragment in enumerate(take(fleet, GROUPS), GROUPS * version):
            assert equal(fragment, undisturbed[number])
        cluster.cpus = 2
        cluster.now += LATE
    assert fleet.actors == 2
    assert fleet.generation == 0


def test_actors_that_go_on_from_what_a_hung_one_owes_are_not_blamed(start):
    """Three newcomers take groups over while the first actor is amid a batch, and it alone stands still."""
    cluster = start(cpus=1)
    fleet = RayFleet(SETTINGS, 4 * GROUPS, actors=1, grows=True)
    request(fleet, 0)
    take(fleet, GROUPS)
    cluster.now += LATE
    request(fleet, 1)
    cluster.cpus = 4
    cluster.now += LATE
    fleet._grow()
    for actor in cluster.actors[1:]:
        actor.work()
    request(fleet, 2)
    assert {one.actor for one in fleet._requests if one.follows} == {1, 2, 3}
    cluster.actors[0].hangs = True
    undisturbed = Undisturbed()
    for number, fragment in enumerate(take(fleet, 2 * GROUPS), GROUPS):
        assert equal(fragment, undisturbed[number])
    assert [(one.what, one.actor) for one in fleet.lost_actors()] == [("hung", 0)]


def test_a_group_that_was_made_afresh_may_move_before_its_first_fragment(start, monkeypatch):
    """It goes on with the environments that it was given: the generation in a checkpoint is that of the state beside it."""
    monkeypatch.setattr(rlscale.agents.rollout.ray_fleet, "SAME_STRIKES", 0)
    cluster = start(cpus=1)
    fleet = RayFleet(SETTINGS, 4 * GROUPS, actors=1, grows=True)
    request(fleet, 0)
    take(fleet, GROUPS - 1)
    lose_the_first(fleet, cluster)  # over the last group's fragment, once too often here
    cluster.cpus = 2
    cluster.now += LATE
    fleet._grow()
    cluster.actors[-1].work()
    request(fleet, 1)
    assert fleet._assignment.actor_of[GROUPS - 1] == 2
    request(fleet, 2)
    known = FromItsBeginning()
    last = take(fleet, 1 + 2 * GROUPS)[::GROUPS]
    for fragment in last:
        known.check(fragment)
    assert [(f.group, f.generation, f.index) for f in last] == [(GROUPS - 1, 1, index) for index in range(3)]
    assert fleet.get_state()["generations"] == [0] * (GROUPS - 1) + [1]


def lose_the_first(fleet, cluster):
    """The actor of the fragment that is next dies, and the fleet sees it."""
    number = fleet._requests[0].actor
    fleet._actors.working[number].die()
    fleet._replace(fleet._find_dead(number, cluster.exceptions.ActorDiedError()))


def test_the_loss_that_ends_a_run_is_told_too(start):
    cluster = start(cpus=1)
    fleet = RayFleet(SETTINGS, GROUPS, actors=1)
    request(fleet, 0)
    for _ in range(5):
        lose_the_first(fleet, cluster)
    with pytest.raises(LostWorkerError, match="6 in a row"):
        lose_the_first(fleet, cluster)
    assert [loss.actor for loss in fleet.lost_actors()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("losses", [3, 4])
def test_a_fragment_that_is_lost_again_and_again_is_made_afresh(start, losses):
    """Made the same way it might end every actor. Only the group that was lost over it begins anew."""
    cluster = start(cpus=1)
    fleet, undisturbed = RayFleet(SETTINGS, 2 * GROUPS, actors=1), Undisturbed()
    request(fleet, 0)
    take(fleet, GROUPS)
    request(fleet, 1)
    for _ in range(losses):
        lose_the_first(fleet, cluster)
    first, *others = take(fleet, GROUPS)
    told = [(loss.groups, loss.afresh) for loss in fleet.lost_actors()]
    assert told == [([*range(GROUPS)], [])] * 3 + [([*range(GROUPS)], [0])] * (losses - 3)
    assert all(equal(fragment, undisturbed[GROUPS + fragment.group]) for fragment in others)
    if losses == 3:
        assert equal(first, undisturbed[GROUPS])
    else:
        assert (first.generation, first.index) == (1, 0)
        worker = RolloutWorker(SETTINGS, 0, {0: 1})
        worker.set_weights(WEIGHTS[1])
        assert equal(first, worker.sample(1, 0))


def test_nobody_is_left(start, capsys):
    """Others have taken the lost one's CPU. The run waits for room, says so once, and ends."""
    cluster = start(cpus=1)
    fleet = RayFleet(SETTINGS, GROUPS, actors=1)
    request(fleet, 0)
    fleet._actors.working[0].die()
    cluster.cpus = 0
    with pytest.raises(LostWorkerError, match=r"a rollout worker died .* none is left, and there was no room for another"):
        fleet.take()
    (line,) = capsys.readouterr().err.splitlines()
    wait = f"{rlscale.agents.rollout.actors.LAST_SECONDS} s"
    assert line == f"rlscale: all rollout workers are lost. Waiting {wait} for room for another; the run goes on then"


def test_actors_wait_when_there_is_no_room(start):
    """More fragments wanted than there is room for: never more than two exist until one is given up."""
    start(cpus=1)
    fleet = RayFleet(SETTINGS, 2, actors=1)
    request(fleet, 0)
    for taken in range(GROUPS):
        assert len(fleet._requests) + fleet._held <= 2
        assert fleet.take().fragment.group == taken
        if taken == 1:
            with pytest.raises(RuntimeError, match="room is held"):
                fleet.take()
        if taken:
            fleet.release(1)
