"""Which actor holds which group: exact books, and no generation of a group twice."""

import numpy as np

from agents.placement import Placement


def test_groups_are_dealt_out_in_turn():
    placement = Placement(5, 2, generation=3)
    assert placement.held() == [{0: 3, 2: 3, 4: 3}, {1: 3, 3: 3}]
    assert placement.held_by(1) == [1, 3]


def test_the_groups_of_a_lost_actor_go_to_whoever_holds_the_fewest():
    placement = Placement(8, 4, generation=0)
    placement.share_out(placement.held_by(3), [0, 1])
    placement.share_out(placement.held_by(2), [1, 0, 7])
    assert [len(placement.held_by(actor)) for actor in (0, 1, 7)] == [3, 3, 2]
    assert placement.generation == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_newcomer_gets_its_share_from_the_fullest():
    placement = Placement(8, 2, generation=0)
    moved = placement.make_room(5, [0, 1, 5])
    assert [len(placement.held_by(actor)) for actor in (0, 1, 5)] == [3, 3, 2]
    assert moved == [(6, 0), (7, 1)]
    assert placement.generation == [0, 0, 0, 0, 0, 0, 1, 1]
    assert placement.make_room(5, [0, 1, 5]) == []
    assert Placement(2, 2, 0).make_room(9, [0, 1]) == []  # nothing to gain


def test_whatever_happens_no_generation_of_a_group_comes_twice_and_none_is_lost():
    rng = np.random.default_rng(0)
    for _ in range(50):
        groups = int(rng.integers(1, 12))
        actors = list(range(int(rng.integers(1, 5))))
        placement = Placement(groups, len(actors), generation=0)
        seen = {(group, 0) for group in range(groups)}
        numbers = iter(range(len(actors), 1000))
        for _ in range(30):
            before = list(placement.generation)
            if rng.random() < 0.5 and len(actors) > 1:
                lost = actors.pop(int(rng.integers(len(actors))))
                placement.share_out(placement.held_by(lost), actors)
            else:
                actors.append(next(numbers))
                placement.make_room(actors[-1], actors)
                held = [len(placement.held_by(actor)) for actor in actors]
                assert len(placement.held_by(actors[-1])) >= max(held) - 1
            assert set(placement.home) <= set(actors)
            made = {(g, placement.generation[g]) for g in range(groups) if placement.generation[g] != before[g]}
            assert not made & seen
            seen |= made
