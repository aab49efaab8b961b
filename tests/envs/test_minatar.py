"""The vectorized MinAtar games against the original package: same random numbers, same actions, every step compared.

The originals draw from `PlainStream`, so that nothing need be recorded. Random play ends early, so each game is also played by a
simple policy that lasts, and from starts that both sides are given, and the tests count that the rare things happened.
"""

from collections import Counter

import minatar
import numpy as np
import pytest

from rlscale.envs.minatar.base import Streams
from rlscale.envs.minatar.env import GAMES, MinAtarEnv

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
LETTERS = "nlurdf"
MOVES = {"n": (0, 0), "l": (-1, 0), "u": (0, -1), "r": (1, 0), "d": (0, 1), "f": (0, 0)}


class PlainStream:
    """splitmix64 in plain integers: what `Streams` draws for one environment, under the names of `numpy.random.RandomState`."""

    def __init__(self, seed):
        self.state = self.mix((int(seed) + GOLDEN) & WORD)

    @staticmethod
    def mix(word):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
        return word ^ (word >> 31)

    def rand(self, size=None):
        if size is not None:
            return np.array([self.rand() for _ in range(size)])
        self.state = (self.state + GOLDEN) & WORD
        return (self.mix(self.state) >> 11) / 2**53

    def randint(self, low, high=None, size=None):
        if size is not None:
            return np.array([self.randint(low, high) for _ in range(size)])
        if high is None:
            low, high = 0, low
        return low + int(self.rand() * (high - low))


class Match:
    """N environments and N originals, stepped side by side.

    `begin(i, theirs, ours)`, when given, changes the start of environment i on both sides alike; `events` is for counting.
    """

    def __init__(self, game, envs, begin=None):
        self.begin, self.events = begin, Counter()
        seeds = np.arange(envs) * 11 + 5
        self.env = MinAtarEnv(game, envs)
        self.ours = self.env._game
        observation = self.env.reset(seeds)
        self.wrappers = [minatar.Environment(game) for _ in seeds]
        for wrapper, seed in zip(self.wrappers, seeds, strict=True):
            wrapper.random = wrapper.env.random = PlainStream(seed)
            wrapper.reset()
        self.games = [wrapper.env for wrapper in self.wrappers]
        self.minimal = self.wrappers[0].minimal_action_set()
        self.ended = np.zeros(envs, dtype=bool)
        self.compare(observation, np.ones(envs, dtype=bool))

    def step(self, letters):
        chosen = [LETTERS.index(letter) for letter in letters]
        step = self.env.step(np.array([self.minimal.index(action) for action in chosen]))
        assert np.array_equal(step.reset, self.ended)
        assert not step.truncated.any()
        for i, wrapper in enumerate(self.wrappers):
            if step.reset[i]:
                wrapper.reset()
                reward, self.ended[i] = 0, False
            else:
                reward, self.ended[i] = wrapper.act(chosen[i])
            assert (step.reward[i], step.terminated[i]) == (reward, self.ended[i]), f"environment {i}"
        self.compare(step.observation, step.reset)
        self.events["resets"] += int(step.reset.sum())
        return step

    def compare(self, observation, started):
        expected = np.stack([wrapper.state() for wrapper in self.wrappers]).transpose(0, 3, 1, 2)
        same = (observation == expected).all(axis=(1, 2, 3))
        assert same.all(), f"environments {np.flatnonzero(~same)}"
        if self.begin is not None:
            for i in np.flatnonzero(started):
                self.begin(i, self.games[i], self.ours)

    def highest(self, event, values):
        self.events[event] = max(self.events[event], *map(int, values))


def mostly(rng, letter, letters, slips=0.02):
    """`letter`, or with probability `slips` a random one of `letters`."""
    return letters[rng.integers(len(letters))] if rng.random() < slips else letter


def towards(here, aim):
    return "n" if aim == here else "l" if aim < here else "r"


def play(game, seeds, steps, plan):
    """Observations, rewards and flags of `steps` steps under `plan` (steps, N)."""
    env = MinAtarEnv(game, len(seeds))
    history = [(env.reset(np.array(seeds)),)]
    history.extend(tuple(env.step(plan[t])) for t in range(steps))
    return history


def same(first, second):
    return all(np.array_equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def test_the_tables_are_the_originals():
    assert tuple(GAMES) == ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
    for game in GAMES:
        original = minatar.Environment(game)
        assert (GAMES[game].channels, GAMES[game].actions) == (original.state_shape()[2], len(original.minimal_action_set()))


@pytest.mark.parametrize("game", GAMES)
def test_random_play_is_the_originals(game):
    match, rng = Match(game, 16), np.random.default_rng(0)
    letters = [LETTERS[action] for action in match.minimal]
    for _ in range(2600 if game == "freeway" else 1500):  # Freeway's episodes last 2,501 steps
        match.step(rng.choice(letters, 16))
    assert match.events["resets"] >= 16


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


@pytest.mark.parametrize("game", GAMES)
def test_a_seed_is_a_course_in_any_company(game):
    rng = np.random.default_rng(7)
    plan = rng.integers(0, GAMES[game].actions, (300, 5))
    seeds = [3, 14, 15, 92, 2**31 - 1]
    together = play(game, seeds, 300, plan)
    assert same(together, play(game, seeds, 300, plan))
    for i in (0, 4):
        alone = play(game, seeds[i : i + 1], 300, plan[:, i : i + 1])
        assert same(alone, [tuple(array[i : i + 1] for array in entry) for entry in together])
    other = play(game, [seed + 1 for seed in seeds], 300, plan)
    assert not any(same([(entry[0][i],) for entry in together], [(entry[0][i],) for entry in other]) for i in range(5))


@pytest.mark.parametrize("game", GAMES)
def test_resetting_starts_anew(game):
    """Whatever was played before, the last action included."""
    rng = np.random.default_rng(8)
    plan = rng.integers(0, GAMES[game].actions, (200, 4))
    env = MinAtarEnv(game, 4)
    runs = []
    for _ in range(2):
        history = [(env.reset(np.arange(4)),)]
        history.extend(tuple(env.step(row)) for row in plan)
        runs.append(history)
    assert same(*runs)
    env.close()


@pytest.mark.parametrize("game", GAMES)
def test_a_saved_game_goes_on_exactly(game):
    rng = np.random.default_rng(9)
    plan = rng.integers(0, GAMES[game].actions, (900, 6))
    env = MinAtarEnv(game, 6)
    env.reset(np.arange(6))
    for row in plan[:500]:
        env.step(row)
    state = env.get_state()
    first = [tuple(env.step(row)) for row in plan[500:]]
    env.set_state(state)
    second = [tuple(env.step(row)) for row in plan[500:]]
    fresh = MinAtarEnv(game, 6)
    fresh.set_state(state)
    third = [tuple(fresh.step(row)) for row in plan[500:]]
    assert same(first, second)
    assert same(first, third)


@pytest.mark.parametrize("game", GAMES)
def test_ends_reset_on_the_next_step(game):
    """That step ignores its action, gives nothing, and touches no other environment; observations are never reused."""
    rng = np.random.default_rng(10)
    env, other = MinAtarEnv(game, 8), MinAtarEnv(game, 8)
    env.reset(np.arange(8))
    other.reset(np.arange(8))
    ended, ends, kept = np.zeros(8, dtype=bool), 0, []
    for _ in range(2600 if game == "freeway" else 400):
        chosen = rng.integers(0, GAMES[game].actions, 8)
        step = env.step(chosen)
        twin = other.step(np.where(ended, (chosen + 1) % GAMES[game].actions, chosen))
        assert same([tuple(step)], [tuple(twin)])
        assert np.array_equal(step.reset, ended)
        assert not step.reward[ended].any()
        assert not step.terminated[ended].any()
        assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype) == (np.float32, bool, bool)
        assert (step.observation.dtype, step.observation.shape) == (np.uint8, (8, GAMES[game].channels, 10, 10))
        ended = step.terminated
        ends += int(ended.sum())
        kept = [*kept[-3:], (step.observation, step.observation.copy())]
        assert all(np.array_equal(now, then) for now, then in kept)
    assert ends >= 8


def test_streams_are_even_and_unrelated():
    streams = Streams(2000)
    streams.seed(np.arange(2000))
    draws = np.stack([streams.uniform(slice(None)) for _ in range(200)])
    assert draws.min() >= 0
    assert draws.max() < 1
    counts, _ = np.histogram(draws, 64, (0, 1))
    expected = draws.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # 63 ± 11
    # Standard errors of these correlations are 0.0016.
    assert abs(np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]) < 0.008
    assert abs(np.corrcoef(draws[:, 1:].ravel(), draws[:, :-1].ravel())[0, 1]) < 0.008
    assert np.unique(draws).size == draws.size
