"""Freeway against the original.

Random play ends early, so a simple policy that lasts plays too, and the test counts that the rare things happened.
"""

import numpy as np
from minatar_match import Match, mostly


def test_freeway_with_many_crossings():
    match, rng = Match("freeway", 16), np.random.default_rng(3)
    for _ in range(2600):
        rows = [game.pos for game in match.games]
        step = match.step([mostly(rng, "u", "nud", 0.1 if i % 2 else 0.4) for i in range(16)])
        match.events["crossings"] += int(step.reward.sum())
        hit = [2 <= row < 9 and game.pos == 9 for row, game in zip(rows, match.games, strict=True)]
        match.events["hits"] += int((hit & (step.reward == 0) & ~step.reset).sum())
    assert match.events["resets"] == 16
    assert min(match.events["crossings"], match.events["hits"]) >= 200
