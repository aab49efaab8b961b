"""Seaquest against the original.

Random play ends early, so a simple policy that lasts plays too, and the tests count that the rare things happened.
"""

import numpy as np
from minatar_match import MOVES, Match, mostly


def seaquest_letter(game):
    """Collect divers out of the way of enemies, shoot along the row, come up when full or short of oxygen."""
    home = game.diver_count >= 6 or (game.oxygen < 60 and game.diver_count != 0)

    def cost(letter):
        dx, dy = MOVES[letter]
        x, y = min(max(game.sub_x + dx, 0), 9), min(max(game.sub_y + dy, 0), 8)
        cost = 300.0 if y == 0 and not home and not game.surface else 0.0
        for thing_x, thing_y, rightwards, *timers in game.e_fish + game.e_subs + game.e_bullets:
            if thing_y == y:
                ahead = (x - thing_x) if rightwards else (thing_x - x)
                cost += ({0: 100, 1: 40, 2: 4} if timers else {0: 100, 1: 60, 2: 20}).get(ahead, 0)
                faces = thing_x != game.sub_x and game.sub_or == (thing_x > game.sub_x)
                cost -= 10 * bool(letter == "f" and timers and faces and game.shot_timer == 0)
        if home:
            return cost + y
        if game.divers:
            return cost + min(abs(diver[0] - x) + abs(diver[1] - y) for diver in game.divers)
        return cost + abs(y - 4) + abs(x - 5) / 2

    return min("fnlurd", key=cost)


def seaquest_match(begin, steps, slips):
    """A match under `seaquest_letter`, and what happened in it."""
    match, rng = Match("seaquest", 16, begin), np.random.default_rng(5)
    ours, events = match.ours, match.events
    strike, run_into = ours._strike, ours._run_into_bullets

    def count_strike(struck, place, slot, which, reward):
        hit = np.where(ours.is_sub[place, which], "subs shot", "fish shot")[struck]
        events.update(hit.tolist())
        shares = (ours.enemy[:, which] == ours.enemy[place, which]) & (ours.enemy[:, which] != 0)
        events["shot one of several in a cell"] += int((shares.sum(axis=0) > 1)[struck].sum())
        strike(struck, place, slot, which, reward)

    def count_run_into(which, here, reward):
        events["ran into bullets"] += which.size
        run_into(which, here, reward)

    ours._strike, ours._run_into_bullets = count_strike, count_run_into
    for _ in range(steps):
        before = [(game.surface, game.diver_count, game.oxygen) for game in match.games]
        step = match.step([mostly(rng, seaquest_letter(game), "nlurdf", slips) for game in match.games])
        for i, (game, (surfaced, divers, oxygen)) in enumerate(zip(match.games, before, strict=True)):
            if step.reset[i]:
                continue
            if game.surface and not surfaced:
                events[f"surfaced with {divers}"] += 1
                events["points for six"] += int(step.reward[i]) if divers == 6 else 0
            events["surfaced empty"] += bool(step.terminated[i] and game.sub_y == 0 and divers == 0)
            events["out of oxygen"] += bool(step.terminated[i] and oxygen <= 0)
            events["dived again with -1"] += game.diver_count == -1 and not game.surface
        match.highest("ramp", (game.ramp_index for game in match.games))
        match.highest("enemies", (len(game.e_fish) + len(game.e_subs) for game in match.games))
    return match


def test_seaquest_with_full_boats():
    """No help: the policy alone collects six divers again and again, and reaches the end of the ramp."""
    match = seaquest_match(None, 3000, 0.02)
    events = match.events
    assert events["resets"] >= 30
    assert events["surfaced with 6"] >= 50
    assert events["points for six"] >= 200
    assert min(events[f"surfaced with {divers}"] for divers in (2, 3, 4, 5)) >= 5
    assert min(events["fish shot"], events["subs shot"], events["ran into bullets"]) >= 50
    assert events["ramp"] >= 15


def test_seaquest_in_crowds():
    """Starts no episode has: many enemies, several in a cell; any number of divers; little oxygen."""
    rng = np.random.default_rng(6)

    def begin(i, theirs, ours):
        theirs.e_spawn_speed, theirs.move_speed = int(rng.integers(1, 4)), int(rng.integers(2, 6))
        theirs.e_spawn_timer, theirs.diver_count = 1, int(rng.integers(-1, 7))
        theirs.oxygen = int(rng.integers(1, 201))
        ours.spawn_speed[i], ours.move_speed[i] = theirs.e_spawn_speed, theirs.move_speed
        ours.spawn_timer[i], ours.aboard[i], ours.oxygen[i] = 1, theirs.diver_count, theirs.oxygen
        if i % 2:  # wait at the surface, where nothing meets the player, until the sea is full
            theirs.d_spawn_timer = int(rng.integers(0, 31))
            ours.diver_spawn_timer[i] = theirs.d_spawn_timer

    events = seaquest_match(begin, 2000, 0.1).events
    assert events["enemies"] >= 25
    assert min(events["fish shot"], events["subs shot"], events["ran into bullets"]) >= 100
    assert events["shot one of several in a cell"] >= 30
    assert min(events[f"surfaced with {divers}"] for divers in (-1, 1, 2, 3, 4, 5, 6)) >= 10
    assert events["dived again with -1"] >= 500
    assert min(events["surfaced empty"], events["out of oxygen"]) >= 5


def test_seaquest_from_any_arrangement():
    """Short episodes that begin in the thick of it: who is hit or taken up where several meet."""
    rng = np.random.default_rng(11)

    def begin(i, theirs, ours):
        def some(most):
            return range(int(rng.integers(0, most + 1)))

        def cell():
            return int(rng.integers(2, 6)), int(rng.random() < 0.2) + 1

        def codes(things):
            return [16 * y + x + 1 for x, y, *_ in things]

        def headings(things):
            return [1 if thing[2] else -1 for thing in things]

        theirs.sub_x, theirs.sub_y = int(rng.integers(1, 9)), int(rng.integers(1, 3))
        theirs.oxygen, theirs.diver_count, theirs.move_speed = 5, int(rng.integers(4, 7)), 2
        theirs.surface = False
        theirs.f_bullets = [[*cell(), bool(rng.random() < 0.5)] for _ in some(2)]
        theirs.shot_timer = 10 * bool(theirs.f_bullets)  # there never are three
        theirs.divers = [[*cell(), bool(rng.random() < 0.5), int(rng.integers(0, 3))] for _ in some(2)]
        enemies = [[*cell(), bool(rng.random() < 0.5), int(rng.integers(0, 2)), int(rng.integers(0, 11))] for _ in some(4)]
        is_sub = [bool(rng.random() < 0.5) for _ in enemies]
        theirs.e_subs = [list(enemy) for enemy, sub in zip(enemies, is_sub, strict=True) if sub]
        theirs.e_fish = [enemy[:4] for enemy, sub in zip(enemies, is_sub, strict=True) if not sub]

        ours.x[i], ours.y[i], ours.oxygen[i], ours.aboard[i] = theirs.sub_x, theirs.sub_y, 5, theirs.diver_count
        ours.move_speed[i], ours.surfaced[i], ours.shot_timer[i] = 2, False, theirs.shot_timer
        newest_first = theirs.f_bullets[::-1]
        ours.bullet[: len(newest_first), i] = codes(newest_first)
        ours.bullet_heading[: len(newest_first), i] = headings(newest_first)
        newest_first = theirs.divers[::-1]
        ours.diver[: len(newest_first), i] = codes(newest_first)
        ours.diver_heading[: len(newest_first), i] = headings(newest_first)
        ours.diver_timer[: len(newest_first), i] = [diver[3] for diver in newest_first]
        places = rng.permutation(4)[: len(enemies)]
        ours.enemy[places, i] = codes(enemies)
        ours.enemy_heading[places, i] = headings(enemies)
        ours.enemy_timer[places, i] = [enemy[3] for enemy in enemies]
        ours.reload[places, i] = [enemy[4] for enemy in enemies]
        ours.is_sub[places, i] = is_sub
        ours.born[places, i], ours.age[i] = np.arange(len(enemies)), 10

    match = Match("seaquest", 32, begin)
    for _ in range(1000):
        match.step(rng.choice(list("nlrf"), 32))
    assert match.events["resets"] >= 3000
