"""The toy tasks against Gymnasium's own environments, step for step."""

from itertools import count

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text import blackjack as original_blackjack
from sklearn.datasets import load_digits

from rlscale.envs import find_task, list_tasks, make_env
from rlscale.envs.toy.blackjack import BlackjackVectorEnv
from rlscale.envs.toy.bsuite import CatchVectorEnv, UmbrellaVectorEnv
from rlscale.envs.toy.table import TableVectorEnv

TABLES = {
    "frozenlake": (dict(id="FrozenLake-v1", is_slippery=True), 100),
    "frozenlake8x8": (dict(id="FrozenLake8x8-v1", is_slippery=True), 200),
    "cliffwalking": (dict(id="CliffWalking-v1"), 200),
    "taxi": (dict(id="Taxi-v3"), 200),
}


class Fixed:
    """A generator whose numbers are given."""

    def __init__(self, numbers):
        self.numbers = numbers

    def random(self, size):
        return np.broadcast_to(self.numbers, size)


def vector_env(name, envs):
    return make_env(find_task(f"toy/{name}"), envs)._env


@pytest.mark.parametrize("name", TABLES)
def test_every_transition_is_gymnasiums(name):
    """Every state and action, with a number from the middle of every outcome's share."""
    options, _ = TABLES[name]
    table = gymnasium.make(**options).unwrapped.P
    cells = [
        (state, action, sum(o[0] for o in outcomes[:i]) + outcome[0] / 2, outcome)
        for state, row in table.items()
        for action, outcomes in row.items()
        for i, outcome in enumerate(outcomes)
    ]
    env = vector_env(name, len(cells))
    env.reset(seed=0)
    env.state = np.array([cell[0] for cell in cells])
    env._np_random = Fixed(np.array([cell[2] for cell in cells]))
    observation, reward, terminated, _, _ = env.step(np.array([cell[1] for cell in cells]))
    assert observation.tolist() == [cell[3][1] for cell in cells]
    np.testing.assert_allclose(reward, [cell[3][2] for cell in cells])
    assert terminated.tolist() == [cell[3][3] for cell in cells]


@pytest.mark.parametrize("number", [0.0, np.nextafter(1.0, 0.0)])
def test_the_smallest_and_the_largest_number_draw_an_outcome_that_exists(number):
    """A table of three outcomes of a third each: their sum in floating point is not 1."""
    env = vector_env("frozenlake", 1)
    env.reset(seed=0)
    env._np_random = Fixed(np.array([number]))
    env.state = np.array([14])  # beside the goal
    expected = gymnasium.make("FrozenLake-v1", is_slippery=True).unwrapped.P[14][2][0 if number == 0 else 2]
    observation, reward, terminated, _, _ = env.step(np.array([2]))
    assert (observation[0], reward[0], terminated[0]) == (expected[1], expected[2], expected[3])


@pytest.mark.parametrize("name", TABLES)
def test_starts_are_gymnasiums(name):
    options, _ = TABLES[name]
    wanted = gymnasium.make(**options).unwrapped.initial_state_distrib
    starts, _ = vector_env(name, 60_000).reset(seed=1)
    found = np.bincount(starts, minlength=len(wanted)) / len(starts)
    assert (found[wanted == 0] == 0).all()
    np.testing.assert_allclose(found, wanted, atol=5 * np.sqrt(wanted.max() / len(starts)))


@pytest.mark.parametrize("name", TABLES)
def test_episodes_are_cut_at_the_limit(name):
    _, limit = TABLES[name]
    env = make_env(find_task(f"toy/{name}"), 1)
    env.reset(np.array([0]))
    env._env.np_random.bit_generator.state = np.random.default_rng(0).bit_generator.state
    still = {"frozenlake": None, "frozenlake8x8": None, "cliffwalking": 0, "taxi": 4}[
        name
    ]  # up at the left edge; an illegal pickup
    if still is None:
        env._env._next[:] = np.arange(len(env._env._next))[:, None, None]
        env._env._ends[:] = False
        still = 0
    for _ in range(limit - 1):
        assert not env.step(np.array([still])).truncated[0]
    assert env.step(np.array([still])).truncated[0]
    step = env.step(np.array([still]))
    assert step.reset[0]
    assert step.reward[0] == 0
    assert not step.truncated[0]


def test_blackjack_is_gymnasiums(monkeypatch):
    """The same cards, 3,000 hands under random actions: the same observations, rewards and ends."""
    env, original = BlackjackVectorEnv(1), gymnasium.make("Blackjack-v1").unwrapped
    dealt = np.random.default_rng(0)
    ours, theirs = [], []

    def draw(number):
        cards = original_blackjack.deck[dealt.integers(0, 13)] if number == 1 else None
        if number != 1:
            assert number == 0
            return np.zeros(0, dtype=np.int64)
        ours.append(cards)
        return np.array([cards])

    monkeypatch.setattr(env, "draw", draw)
    monkeypatch.setattr(original_blackjack, "draw_card", lambda _: theirs.pop(0))

    def row(total, card, ace):
        expected = np.zeros(45, dtype=np.float32)
        expected[[total, 32 + card, 43 + ace]] = 1
        return expected

    observation, _ = env.reset(seed=0)
    actions = np.random.default_rng(1)
    aces = 0
    rewards = set()
    for hand in count(1):
        theirs[:] = ours
        ours.clear()
        seen, _ = original.reset()
        assert theirs == []
        assert np.array_equal(observation[0], row(*seen))
        aces += seen[2]
        ended = False
        while not ended:
            action = int(actions.random() < 0.5)
            observation, reward, terminated, truncated, _ = env.step(np.array([action]))
            theirs[:] = ours
            ours.clear()
            seen, expected, ended, _, _ = original.step(action)
            assert theirs == []
            assert np.array_equal(observation[0], row(*seen))
            assert (reward[0], terminated[0], truncated[0]) == (expected, ended, False)
        rewards.add(float(reward[0]))
        if hand == 3000:
            break
        observation, reward, terminated, _, _ = env.step(np.array([0]))  # a reset, which draws the dealer's cards for nothing
        assert (reward[0], terminated[0]) == (0, False)
        del ours[:-4]
    assert rewards == {-1.0, 0.0, 1.0}
    assert aces > 100


def test_many_tables_of_blackjack_pay_what_one_pays():
    """Sticking from 17 on: the mean reward of our tables and of Gymnasium's agree within five standard errors."""
    env = BlackjackVectorEnv(2000)
    observation, _ = env.reset(seed=0)
    ends, total, square = 0, 0.0, 0.0
    while ends < 60_000:
        actions = (observation[:, :32].argmax(1) < 17).astype(np.int64)
        observation, reward, terminated, _, _ = env.step(actions)
        ends += int(terminated.sum())
        total += float(reward[terminated].sum())
        square += float((reward[terminated] ** 2).sum())
    original = gymnasium.make("Blackjack-v1").unwrapped
    original.reset(seed=0)
    rewards = []
    for _ in range(6000):
        seen, _ = original.reset()
        ended = False
        while not ended:
            seen, reward, ended, _, _ = original.step(int(seen[0] < 17))
        rewards.append(reward)
    error = np.std(rewards) * np.sqrt(1 / 6000 + 1 / ends)
    assert abs(total / ends - np.mean(rewards)) < 5 * error
    assert square / ends == pytest.approx(np.mean(np.square(rewards)), abs=0.03)


def test_digits_are_one_step_each_and_pay_for_their_names():
    env = vector_env("digits", 500)
    observation, _ = env.reset(seed=0)
    images, names = load_digits(return_X_y=True)
    at = [int(np.flatnonzero((images == row * 16).all(1))[0]) for row in observation]
    guesses = np.where(np.arange(500) % 2, names[at], (names[at] + 1) % 10)
    _, reward, terminated, truncated, _ = env.step(guesses)
    assert reward.tolist() == (np.arange(500) % 2).tolist()
    assert terminated.all()
    assert not truncated.any()
    following, reward, terminated, _, _ = env.step(guesses)
    assert not terminated.any()
    assert (reward == 0).all()
    assert not np.array_equal(following, observation)


def test_all_are_listed_and_saved():
    names = [listing.id for listing in list_tasks() if listing.id.startswith("toy/")]
    assert len(names) == 11
    for name in names:
        task = find_task(name)
        env, actions = make_env(task, 8), np.random.default_rng(0)
        first = env.reset(np.array([3]))
        assert first.shape == (8, *task.observation_shape)
        assert first.dtype == task.frame_dtype
        for _ in range(30):
            env.step(actions.integers(0, task.actions, 8))
        other = make_env(task, 8)
        other.set_state(env.get_state())
        for _ in range(30):
            chosen = actions.integers(0, task.actions, 8)
            assert all(np.array_equal(a, b) for a, b in zip(env.step(chosen), other.step(chosen), strict=True))


def test_a_table_that_gymnasium_makes_with_options_has_them():
    slippery = TableVectorEnv(1, "FrozenLake-v1", 100, is_slippery=True)
    sure = TableVectorEnv(1, "FrozenLake-v1", 100, is_slippery=False)
    assert slippery._below.shape[-1] == 3
    assert sure._below.shape[-1] == 1


def test_catch_by_its_rules():
    """Every start and 200 random walks of the paddle, each stepped by hand as well."""
    env = CatchVectorEnv(200)
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=3)
    ball, paddle = env.state[:, 1].copy(), np.full(200, 2)
    assert set(ball) == set(range(5))
    assert (ball == seen[:, :5].argmax(1)).all()
    for step in range(1, 10):
        action = rng.integers(0, 3, 200)
        paddle = np.array([min(max(at + move - 1, 0), 4) for at, move in zip(paddle, action, strict=True)])
        seen, reward, terminated, truncated, _ = env.step(action)
        board = np.zeros((200, 10, 5))
        for i in range(200):
            board[i, step, ball[i]] = board[i, 9, paddle[i]] = 1
        np.testing.assert_array_equal(seen, board.reshape(200, 50))
        np.testing.assert_array_equal(reward, np.where(paddle == ball, 1, -1) if step == 9 else 0)
        assert terminated.all() == (step == 9)
        assert not truncated.any()
    seen, reward, *_ = env.step(rng.integers(0, 3, 200))
    assert (reward == 0).all()
    assert (env.state[:, 0] == 0).all()
    assert (env.state[:, 2] == 2).all()
    assert (seen.sum(1) == 2).all()


def test_umbrella_by_its_rules():
    env = UmbrellaVectorEnv(4000)
    seen, _ = env.reset(seed=4)
    needed = seen[:, 0].copy()
    first = np.random.default_rng(0).integers(0, 2, 4000)
    for step in range(1, 11):
        before = seen
        seen, reward, terminated, truncated, _ = env.step(first if step == 1 else 1 - first)
        np.testing.assert_array_equal(seen[:, 0], needed)
        np.testing.assert_array_equal(seen[:, 1], first)
        np.testing.assert_allclose(seen[:, 2], 1 - step / 10, atol=1e-6)
        assert abs((seen[:, 3:] != before[:, 3:]).mean() - 0.5) < 0.02, "the distractors are drawn anew"
        assert set(np.unique(reward)) == {-1, 1}
        if step < 10:
            assert abs(reward.mean()) < 5 / np.sqrt(4000)
            assert abs(np.corrcoef(reward, first)[0, 1]) < 5 / np.sqrt(4000), "only the last reward depends on what was done"
        assert terminated.all() == (step == 10)
        assert not truncated.any()
    np.testing.assert_array_equal(reward, np.where(first == needed, 1, -1))
    seen, reward, *_ = env.step(first)
    assert (reward == 0).all()
    assert (seen[:, 2] == 1).all()
    assert abs(seen[:, :2].mean() - 0.5) < 0.03
