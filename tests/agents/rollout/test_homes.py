"""Which actor holds which group: exact books, and no generation of a group twice."""

import numpy as np

from rlscale.agents.rollout.assignment import Homes


def test_groups_are_dealt_out_in_turn():
    homes = Homes(5, 2, generation=3)
    assert homes.held() == [{0: 3, 2: 3, 4: 3}, {1: 3, 3: 3}]
    assert homes.held_by(1) == [1, 3]


def test_the_groups_of_a_lost_actor_go_to_whoever_holds_the_fewest():
    homes = Homes(8, 4, generation=0)
    homes.share_out(homes.held_by(3), [0, 1])
    homes.share_out(homes.held_by(2), [1, 0, 7])
    assert [len(homes.held_by(actor)) for actor in (0, 1, 7)] == [3, 3, 2]
    assert homes.generation == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_newcomer_gets_its_share_from_the_fullest():
    homes = Homes(8, 2, generation=0)
    moved = homes.make_room(5, [0, 1, 5])
    assert [len(homes.held_by(actor)) for actor in (0, 1, 5)] == [3, 3, 2]
    assert moved == [(6, 0), (7, 1)]
    assert homes.generation == [0, 0, 0, 0, 0, 0, 1, 1]
    assert homes.make_room(5, [0, 1, 5]) == []
    assert Homes(2, 2, 0).make_room(9, [0, 1]) == []  # nothing to gain


def test_whatever_happens_no_generation_of_a_group_comes_twice_and_none_is_lost():
    rng = np.random.default_rng(0)
    for _ in range(50):
        groups = int(rng.integers(1, 12))
        actors = list(range(int(rng.integers(1, 5))))
        homes = Homes(groups, len(actors), generation=0)
        seen = {(group, 0) for group in range(groups)}
        numbers = iter(range(len(actors), 1000))
        for _ in range(30):
            before = list(homes.generation)
            if rng.random() < 0.5 and len(actors) > 1:
                lost = actors.pop(int(rng.integers(len(actors))))
                homes.share_out(homes.held_by(lost), actors)
            else:
                actors.append(next(numbers))
                homes.make_room(actors[-1], actors)
                held = [len(homes.held_by(actor)) for actor in actors]
                assert len(homes.held_by(actors[-1])) >= max(held) - 1
            assert set(homes.home) <= set(actors)
            made = {(g, homes.generation[g]) for g in range(groups) if homes.generation[g] != before[g]}
            assert not made & seen
            seen |= made
