"""EnvPool's environments through `PoolEnv`, against EnvPool's own arrays. Skipped where the extra `envpool` is not installed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary

from rlscale.agents.rollout.worker import RolloutWorker, WorkerSettings
from rlscale.envs import envpool as envpool_module
from rlscale.envs import find_task
from rlscale.envs.envpool import PoolEnv, _layout
from rlscale.errors import UsageError

RUNGS = ("football/1_vs_1_easy", "football/5_vs_5", "football/11_vs_11_easy_stochastic")


@pytest.fixture
def envpool():
    return pytest.importorskip("envpool")


def spaces_of(name):
    task = find_task(f"pool/{name}")
    return task.frame_shape, task.frame_dtype, task.actions


def pool(name, num_envs, threads=1):
    return PoolEnv(name, num_envs, threads=threads), spaces_of(name)[2]


def play(name, seeds, steps, threads=1, columns=slice(None)):
    """Observations, rewards and flags under fixed random actions; `columns` picks whose actions."""
    env, actions = pool(name, len(seeds), threads)
    drawn = np.random.default_rng(0).integers(0, actions, (steps, 4))[:, columns]
    history = [env.reset(np.array(seeds))]
    for action in drawn[:, : len(seeds)]:
        history.extend(env.step(action))
    env.close()
    return history


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("name", "spaces"),
    [
        ("CartPole-v1", ((4,), "float32", 2)),
        ("Catch-v0", ((50,), "float32", 3)),
        ("Blackjack-v1", ((3,), "float32", 2)),
        ("FrozenLake-v1", ((16,), "float32", 4)),
        ("Play2048-v1", ((496,), "uint8", 4)),
        ("Pong-v5", ((4, 84, 84), "uint8", 6)),
        ("football/1_vs_1_easy", ((4, 72, 96), "uint8", 19)),
    ],
)
def test_observations_are_what_the_task_says(envpool, name, spaces):
    frame_shape, dtype, actions = spaces
    assert spaces_of(name) == spaces
    env, _ = pool(name, 2)
    observation = env.reset(np.array([0, 2**31 - 1]))
    step = env.step(np.array([0, actions - 1]))
    for seen in (observation, step.observation):
        assert (seen.shape, seen.dtype) == ((2, *frame_shape), dtype)
        assert seen.flags.c_contiguous
        assert seen.flags.writeable
    assert [array.dtype for array in step[1:]] == [np.float32, bool, bool, bool]
    assert all(array.shape == (2,) for array in step[1:])
    assert env.get_state() is None
    with pytest.raises(NotImplementedError):
        env.set_state({})
    env.close()
    env.close()


@pytest.mark.parametrize(("name", "steps"), [("CartPole-v1", 60), ("Breakout-v5", 60), ("football/1_vs_1_easy", 40)])
def test_an_environment_depends_on_its_own_seed_only(envpool, name, steps):
    together = play(name, (9, 3), steps)
    assert equal(together, play(name, (9, 3), steps, threads=2))
    assert not equal(together, play(name, (10, 4), steps))
    assert equal([array[1:2] for array in together], play(name, (3,), steps, columns=slice(1, 2)))


def test_a_second_reset_starts_from_the_new_seeds(envpool):
    env, _ = pool("CartPole-v1", 2)
    first = env.reset(np.array([1, 2]))
    env.step(np.array([0, 1]))
    assert not np.array_equal(env.reset(np.array([3, 4])), first)
    assert np.array_equal(env.reset(np.array([1, 2])), first)
    env.close()


def test_later_steps_leave_an_observation_alone(envpool):
    for name in ("CartPole-v1", "Pong-v5"):
        env, actions = pool(name, 2)
        seen = [env.reset(np.array([1, 2]))]
        copies = [seen[0].copy()]
        for t in range(20):
            seen.append(env.step(np.full(2, t % actions)).observation)
            copies.append(seen[-1].copy())
        assert equal(seen, copies)
        env.close()


@pytest.mark.parametrize(("name", "steps", "truncates"), [("CartPole-v1", 400, False), ("MountainCar-v0", 450, True)])
def test_every_end_is_followed_by_one_masked_step(envpool, name, steps, truncates):
    """The mask against ends counted here; CartPole's rewards count its steps, so that none of them is masked."""
    env, actions = pool(name, 3)
    env.reset(np.array([1, 2, 3]))
    rng = np.random.default_rng(0)
    before, ends, length = np.zeros(3, dtype=bool), 0, np.zeros(3)
    for _ in range(steps):
        step = env.step(rng.integers(0, actions, 3))
        assert np.array_equal(step.reset, before)
        assert (step.reward[step.reset] == 0).all()
        assert (step.reward[~step.reset] != 0).all()
        before = step.terminated | step.truncated
        assert not (before & step.reset).any()
        length = np.where(step.reset, 0, length + 1)
        assert not step.truncated.any() or set(length[step.truncated]) == {200}
        assert step.truncated.any() <= truncates
        ends += before.sum()
    assert ends >= (6 if truncates else 30)
    env.close()


def test_a_restart_leaves_the_others_alone(envpool):
    alone, _ = pool("CartPole-v1", 3)
    env, _ = pool("CartPole-v1", 3)
    which, seeds = np.array([False, True, False]), np.array([1, 2, 3])
    first = alone.reset(seeds)
    assert np.array_equal(env.reset(seeds), first)
    for t in range(5):
        before = env.step(np.full(3, t % 2)).observation
        expected = alone.step(np.full(3, t % 2)).observation
    assert np.array_equal(env.restart(~np.ones(3, dtype=bool), seeds), before)
    after = env.restart(which, seeds)
    assert np.array_equal(after[~which], expected[~which])
    assert (np.abs(after[which]) <= 0.05).all()
    assert not np.array_equal(after[which], before[which])
    step, other = env.step(np.zeros(3, dtype=np.int64)), alone.step(np.zeros(3, dtype=np.int64))
    assert np.array_equal(step.observation[~which], other.observation[~which])
    assert not step.reset.any()
    env.close()
    alone.close()


@pytest.mark.parametrize(("name", "pool_id"), [("football/5_vs_5", "gfootball/5_vs_5-v1"), ("Breakout-v5", "Breakout-v5")])
def test_images_have_their_channels_first(envpool, name, pool_id):
    raw = envpool.make(pool_id, "gymnasium", num_envs=2, num_threads=1, seed=[7, 8])
    env, actions = pool(name, 2)
    theirs, ours = raw.reset()[0], env.reset(np.array([7, 8]))
    rng = np.random.default_rng(0)
    for t in range(20):
        if name == "Breakout-v5":
            assert np.array_equal(ours, theirs)
        else:
            assert theirs.shape[1:] == (72, 96, 4)
            assert all(np.array_equal(ours[:, channel], theirs[..., channel]) for channel in range(4))
            if t == 0:  # our team, theirs, the ball, the player we move: one pixel each
                assert np.array_equal((ours > 0).sum(axis=(2, 3)), [[5, 5, 1, 1]] * 2)
        action = rng.integers(0, actions, 2)
        result = raw.step(action)
        step = env.step(action)
        theirs, ours = result[0], step.observation
        assert equal(step[1:4], result[1:4])
    raw.close()
    env.close()


def test_a_state_becomes_one_hot(envpool):
    raw = envpool.make("Taxi-v3", "gymnasium", num_envs=3, num_threads=1, seed=[1, 2, 3])
    env, actions = pool("Taxi-v3", 3)
    theirs, ours = raw.reset()[0], env.reset(np.array([1, 2, 3]))
    for t in range(10):
        assert np.array_equal(ours.argmax(axis=1), theirs.reshape(-1))
        assert (ours.sum(axis=1) == 1).all()
        theirs, ours = raw.step(np.full(3, t % actions))[0], env.step(np.full(3, t % actions)).observation
    env.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # of the bounds that EnvPool gives its own environment here
@pytest.mark.parametrize("name", ["Pendulum-v1", "HalfCheetah-v4"])
def test_continuous_actions_are_clipped_to_their_bounds(envpool, name):
    """EnvPool's own environments, given actions that were clipped by hand, beside ours, given them as they were drawn."""
    raw = envpool.make(name, "gymnasium", num_envs=2, num_threads=1, seed=[7, 8])
    env, actions = pool(name, 2)
    assert np.array_equal(raw.reset()[0].reshape(2, -1).astype(np.float32), env.reset(np.array([7, 8])))
    rng, beyond = np.random.default_rng(0), 0
    for _ in range(20):
        drawn = rng.normal(0, 3, (2, len(actions))).astype(np.float32)
        clipped = drawn.clip(actions.low, actions.high)
        beyond += (clipped != drawn).sum()
        theirs, ours = raw.step(clipped.astype(env._env.action_space.dtype)), env.step(drawn)
        assert np.array_equal(theirs[0].reshape(2, -1).astype(np.float32), ours.observation)
        assert np.array_equal(theirs[1].astype(np.float32), ours.reward)
    assert beyond > 10
    raw.close()
    env.close()


def test_names(envpool):
    for rung in RUNGS:
        assert spaces_of(rung) == spaces_of(f"g{rung}-v1") == ((4, 72, 96), "uint8", 19)
        assert find_task(f"pool/g{rung}-v1").id == f"pool/{rung}"
    assert find_task("pool/Pong-v5").id == "pool/Pong-v5"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pong", "pool/Pong-v5"),
        ("CartPole-v9", "pool/CartPole-v1"),
        ("football/1_vs_1_eazy", "pool/football/1_vs_1_easy"),
        ("gfootball/5_vs_6-v1", "pool/football/5_vs_5"),
        ("zzzzzzzz", "EnvPool's documentation"),
        ("MiniGrid-Empty-5x5-v0", "Dict observations"),
        ("Chess-v1", "2 players"),
        ("VizdoomCustom-v1", "cannot make"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(envpool, name, words):
    with pytest.raises(UsageError) as caught:
        spaces_of(name)
    assert caught.value.field == "TASK"
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("observation", "pixels"),
    [
        (Box(0, 255, (12, 12, 3), np.uint8), True),
        (Box(0, 255, (128,), np.uint8), True),
        (Box(0, 1, (4, 10, 10), np.uint8), False),
        (Box(0, 255, (12, 12, 3), np.float32), False),
        (MultiBinary(20), False),
        (Discrete(256), False),
    ],
)
def test_bytes_with_bounds_of_0_and_255_are_pixels(monkeypatch, observation, pixels):
    """Of a stand-in for EnvPool, which need not be installed."""
    spec = SimpleNamespace(observation_space=observation, action_space=Discrete(2), config=SimpleNamespace(max_num_players=1))
    stand_in = SimpleNamespace(list_all_envs=lambda: ["Some-v0"], make_spec=lambda _: spec)
    monkeypatch.setitem(sys.modules, "envpool", stand_in)
    _layout.cache_clear()
    try:
        assert find_task("pool/Some-v0").pixels == pixels
    finally:
        _layout.cache_clear()


@pytest.mark.parametrize("use", [lambda: spaces_of("CartPole-v1"), lambda: spaces_of(RUNGS[0])])
def test_without_envpool_the_mend_is_its_installation(monkeypatch, use):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UsageError, match=r"Install it: pip install 'rlscale\[envpool\]'$") as caught:
        use()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [ImportError("No module named 'dm_env'", name="dm_env"), FileNotFoundError("could not find tasks.json\nin two places")],
)
def test_an_envpool_that_is_not_whole_says_what_it_lacks(monkeypatch, error):
    """Without a package that it needs it has no module, without one of its assets no file."""

    def broken(_):
        raise error

    monkeypatch.setattr(envpool_module, "import_module", broken)
    said = str(error).splitlines()[0]
    with pytest.raises(UsageError, match=f"^TASK: EnvPool cannot be imported: {said}. Install it: pip install"):
        spaces_of("CartPole-v1")


@pytest.mark.parametrize("name", ["pool/CartPole-v1", "pool/football/1_vs_1_easy"])
def test_a_task_of_that_name_is_found_and_sampled(name):
    pytest.importorskip("envpool")
    task = find_task(name)
    assert find_task(task.id) == task
    worker = RolloutWorker(WorkerSettings(task, 2, 4, "mlp", False, 1, True, 3, 0), 0)
    fragment = worker.sample(0)
    assert fragment.frames.shape == (4, 2, *task.frame_shape)
    assert fragment.frames.dtype == task.frame_dtype
    worker.close()


@pytest.mark.parametrize(("name", "megabytes"), [("football/5_vs_5", 40), ("CartPole-v1", 0)])
def test_the_memory_of_a_football_environment_is_counted(monkeypatch, name, megabytes):
    layout = SimpleNamespace(frame_shape=(4, 72, 96), dtype="uint8", actions=19, pixels=True)
    monkeypatch.setattr(envpool_module, "_find", lambda name: name)
    monkeypatch.setattr(envpool_module, "_layout", lambda pool_id: layout)
    assert find_task(f"pool/{name}").cost.memory_bytes == megabytes << 20
