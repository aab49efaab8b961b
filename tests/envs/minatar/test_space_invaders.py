"""Space Invaders against the original.

Random play ends early, so a simple policy that lasts plays too, and the test counts that the rare things happened.
"""

import numpy as np
from minatar_match import MOVES, Match, mostly, towards


def invaders_letter(game, shoots):
    """Step out of the way of bullets, else shoot at the nearest column, or only stay under it."""

    def danger(x):
        return sum((4 - rows) * game.e_bullet_map[9 - rows, x] for rows in (1, 2, 3)) if 0 <= x <= 9 else 100

    risks = {letter: danger(game.pos + MOVES[letter][0]) for letter in "nlr"}
    if risks["n"]:
        return min(risks, key=risks.get)
    if shoots and game.shot_timer == 0 and game.alien_map[:, game.pos].any():
        return "f"
    columns = np.flatnonzero(game.alien_map.any(axis=0))
    letter = towards(game.pos, columns[np.abs(columns - game.pos).argmin()])
    return letter if not risks[letter] else "n"


def test_space_invaders_through_waves():
    rng = np.random.default_rng(4)

    def begin(i, theirs, ours):
        if i % 4 >= 2:  # few aliens, near the end of the ramp
            theirs.alien_map[:4, 2:8] = rng.random((4, 6)) < 0.15
            theirs.alien_map[0, 2] = 1
            theirs.enemy_move_interval = int(rng.integers(6, 9))
            ours.aliens[i], ours.interval[i] = theirs.alien_map, theirs.enemy_move_interval
        if i % 4 == 3:  # more bullets than can be shot
            theirs.f_bullet_map[:] = rng.random((10, 10)) < 0.2
            ours.bullets[i] = theirs.f_bullet_map

    match = Match("space_invaders", 16, begin)
    for _ in range(2000):
        low = np.array([game.alien_map[9].any() for game in match.games])
        ramp = [game.ramp_index for game in match.games]
        aliens = np.array([game.alien_map.sum() for game in match.games])
        step = match.step([mostly(rng, invaders_letter(game, i % 4), "nlrf") for i, game in enumerate(match.games)])
        after = np.array([game.alien_map.sum() for game in match.games])
        match.events["waves"] += int(((after > aliens) & ~step.reset).sum())
        match.events["ramps"] += sum(game.ramp_index > index for game, index in zip(match.games, ramp, strict=True))
        match.events["landed"] += int((step.terminated & low).sum())
        match.events["two at once"] += int((step.reward >= 2).sum())
        match.events["one left"] += int((after == 1).sum())
    assert min(match.events[event] for event in ("waves", "ramps", "landed", "two at once")) >= 10
    assert match.events["waves"] >= match.events["ramps"] + 5  # waves at the highest speed
    assert match.events["one left"] >= 200
