"""Which actor holds which group: exact books."""

import numpy as np

from rlscale.agents.rollout.assignment import GroupAssignment


def test_groups_are_dealt_out_in_turn():
    assignment = GroupAssignment(5, 2, generation=3)
    assert assignment.groups_of(0) == [0, 2, 4]
    assert assignment.generation == [3] * 5
    assert assignment.groups_of(1) == [1, 3]


def test_the_groups_of_a_lost_actor_go_to_whoever_holds_the_fewest():
    assignment = GroupAssignment(8, 4, generation=0)
    assignment.share_out(assignment.groups_of(3), [0, 1])
    assignment.share_out(assignment.groups_of(2), [1, 0, 7])
    assert [len(assignment.groups_of(actor)) for actor in (0, 1, 7)] == [3, 3, 2]
    assert assignment.generation == [0] * 8


def test_a_newcomer_gets_its_share_from_the_fullest():
    assignment = GroupAssignment(8, 2, generation=0)
    moved = assignment.make_room(5, [0, 1, 5])
    assert [len(assignment.groups_of(actor)) for actor in (0, 1, 5)] == [3, 3, 2]
    assert moved == [(6, 0), (7, 1)]
    assert assignment.make_room(5, [0, 1, 5]) == []
    assert GroupAssignment(2, 2, 0).make_room(9, [0, 1]) == []  # nothing to gain


def test_whatever_happens_every_group_is_some_actors_and_a_newcomer_has_its_share():
    rng = np.random.default_rng(0)
    for _ in range(50):
        groups = int(rng.integers(1, 12))
        actors = list(range(int(rng.integers(1, 5))))
        assignment = GroupAssignment(groups, len(actors), generation=0)
        numbers = iter(range(len(actors), 1000))
        for _ in range(30):
            if rng.random() < 0.5 and len(actors) > 1:
                lost = actors.pop(int(rng.integers(len(actors))))
                assignment.share_out(assignment.groups_of(lost), actors)
            else:
                actors.append(next(numbers))
                assignment.make_room(actors[-1], actors)
                held = [len(assignment.groups_of(actor)) for actor in actors]
                assert len(assignment.groups_of(actors[-1])) >= max(held) - 1
            assert set(assignment.actor_of) <= set(actors)
