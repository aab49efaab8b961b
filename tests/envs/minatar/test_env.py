"""What all games have in common: seeds, resets, saved states, and the streams of random numbers."""

import numpy as np
import pytest

from rlscale.envs.minatar.base import Streams
from rlscale.envs.minatar.env import GAMES, MinAtarEnv


def play(game, seeds, steps, plan):
    """Observations, rewards and flags of `steps` steps under `plan` (steps, N)."""
    env = MinAtarEnv(game, len(seeds))
    history = [(env.reset(np.array(seeds)),)]
    history.extend(tuple(env.step(plan[t])) for t in range(steps))
    return history


def same(first, second):
    return all(np.array_equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


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
def test_one_environment_is_restarted_from_its_own_seed(game):
    """As if it were alone, while the others go on as they would have, and so after saving."""
    rng = np.random.default_rng(11)
    plan = rng.integers(0, GAMES[game].actions, (400, 5))
    env, other = MinAtarEnv(game, 5), MinAtarEnv(game, 5)
    env.reset(np.arange(5))
    other.reset(np.arange(5))
    for row in plan[:200]:
        assert same([tuple(env.step(row))], [tuple(other.step(row))])
    env._ended[[1, 2]] = other._ended[[1, 2]] = True  # one that has ended is restarted too, and so is the other by its next step
    which, seeds = np.array([False, True, False, True, False]), np.arange(20, 25)
    alone = [MinAtarEnv(game, 1), MinAtarEnv(game, 1)]
    first = [one.reset(seeds[i : i + 1])[0] for one, i in zip(alone, (1, 3), strict=True)]
    now = other._game.observation()
    observation = env.restart(which, seeds)
    assert np.array_equal(observation[which], first)
    assert np.array_equal(observation[~which], now[~which])
    saved = MinAtarEnv(game, 5)
    saved.set_state(env.get_state())
    for row in plan[200:]:
        step, untouched = env.step(row), other.step(row)
        assert same([tuple(step)], [tuple(saved.step(row))])
        assert same([tuple(part[~which] for part in step)], [tuple(part[~which] for part in untouched)])
        lone = [one.step(row[i : i + 1]) for one, i in zip(alone, (1, 3), strict=True)]
        assert same([tuple(part[which] for part in step)], [tuple(map(np.concatenate, zip(*lone, strict=True)))])
    nothing = env.restart(np.zeros(5, dtype=bool), seeds)
    assert np.array_equal(nothing, step.observation)


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
    streams.seed(np.arange(2000), np.ones(2000, dtype=bool))
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
