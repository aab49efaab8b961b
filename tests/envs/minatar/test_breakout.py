"""Breakout against the original.

Random play ends early, so a simple policy that lasts plays too, and the test counts that the rare things happened.
"""

import numpy as np
from minatar_match import Match, mostly, towards


def test_breakout_through_new_walls():
    rng = np.random.default_rng(1)

    def begin(i, theirs, ours):
        if i % 2:  # a wall with few bricks left
            theirs.brick_map[1:4] = rng.random((3, 10)) < 0.15
            ours.bricks[i] = theirs.brick_map

    match = Match("breakout", 16, begin)
    for _ in range(3000):
        letters = []
        for game in match.games:
            ahead = game.ball_x + (1 if game.ball_dir in (1, 2) else -1)
            aim = game.ball_x if game.ball_y == 8 and rng.random() < 0.5 else min(max(ahead, 0), 9)
            letters.append(mostly(rng, towards(game.pos, aim), "nlr"))
        bricks = [game.brick_map.sum() for game in match.games]
        headings = [game.ball_dir for game in match.games]
        step = match.step(letters)
        for i, game in enumerate(match.games):
            if step.reset[i]:
                continue
            match.events["new walls"] += bool(game.brick_map.sum() > bricks[i])
            turned = headings[i] ^ game.ball_dir if game.ball_y == 8 and game.last_y == 8 else 0
            match.events["met straight"] += turned in (1, 3)
            match.events["met at the corner"] += turned == 2
            match.events["flew through"] += bool(game.strike and not step.reward[i])
    assert match.events["new walls"] >= 10
    assert min(match.events[event] for event in ("met straight", "met at the corner", "flew through", "resets")) >= 50
