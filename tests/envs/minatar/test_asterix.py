"""Asterix against the original.

Random play ends early, so a simple policy that lasts plays too, and the test counts that the rare things happened.
"""

import numpy as np
from minatar_match import MOVES, Match, mostly


def asterix_letter(game):
    """Go for the nearest gold, out of the way of enemies."""

    def cost(letter):
        dx, dy = MOVES[letter]
        x, y = min(max(game.player_x + dx, 0), 9), min(max(game.player_y + dy, 1), 8)
        danger, gold = 0, 20
        for thing_x, thing_y, rightwards, is_gold in filter(None, game.entities):
            if is_gold:
                gold = min(gold, abs(thing_x - x) + abs(thing_y - y))
            elif thing_y == y:
                ahead = (x - thing_x) if rightwards else (thing_x - x)
                danger += {0: 100, 1: 50, 2: 5}.get(ahead, 0)
        return danger + gold

    return min("nlurd", key=cost)


def test_asterix_up_the_ramp():
    def begin(i, theirs, ours):
        if i % 2:  # as late in the ramp
            theirs.spawn_speed, theirs.move_speed, theirs.ramp_index = 2, 2, 7
            ours.spawn_speed[i], ours.move_speed[i], ours.ramp_index[i] = 2, 2, 7

    match, rng = Match("asterix", 16, begin), np.random.default_rng(2)
    for _ in range(3000):
        full = [all(game.entities) and game.spawn_timer == 0 for game in match.games]
        step = match.step([mostly(rng, asterix_letter(game), "nlurd") for game in match.games])
        match.events["no row free"] += int((full & ~step.reset).sum())
        match.events["gold"] += int(step.reward.sum())
        match.highest("ramp", (game.ramp_index for game in match.games[::2]))
        match.events["fastest"] += sum(game.spawn_speed == game.move_speed == 1 for game in match.games)
    assert match.events["resets"] >= 100
    assert match.events["gold"] >= 500
    assert match.events["ramp"] >= 8
    assert match.events["no row free"] >= 20
    assert match.events["fastest"] >= 20
