"""What a user is told whose own module cannot be used."""

import os
import pickle
import sys

import numpy as np
import pytest

from rlscale.agents.cluster.processes import pickle_settings
from rlscale.benchmarks.cli import main
from rlscale.envs import find_task, make_env
from rlscale.errors import UsageError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of the user's own, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_error_within_a_module_is_told_as_it_is(here):
    (here / "games_of_mine.py").write_text("import math\n\nmath.no_such_function()\n\n\ndef make(num_envs):\n    pass\n")
    with pytest.raises(UsageError) as refusal:
        find_task("games_of_mine:make")
    assert refusal.value.problem == "importing 'games_of_mine' failed: module 'math' has no attribute 'no_such_function'"


def test_a_file_with_the_name_of_an_installed_module_is_told_from_it(here):
    (here / "this.py").write_text("def make(num_envs):\n    pass\n")
    with pytest.raises(UsageError) as refusal:
        find_task("this:make")
    assert refusal.value.problem == f"module 'this' ({os.path.dirname(os.__file__)}/this.py) has no 'make'"
    assert refusal.value.mend == "Write module:name; if that is another file than yours, give yours another name"


def test_a_module_without_a_file_is_told_as_well(here):
    (here / "folder").mkdir()
    for name, place in (("builtins", "built-in"), ("folder", "no file")):
        with pytest.raises(UsageError) as refusal:
            find_task(f"{name}:make")
        assert refusal.value.problem == f"module {name!r} ({place}) has no 'make'"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return gym.make_vec('CartPole-v1', 4)", "crowd:make(1) returned 4 environments"),
        ("raise RuntimeError('boom\\nsecond line')", "crowd:make(1) failed: RuntimeError: boom"),
    ],
)
def test_what_a_callable_does_wrong_is_one_line(here, body, problem):
    (here / "crowd.py").write_text(f"import gymnasium as gym\n\n\ndef make(num_envs):\n    {body}\n")
    with pytest.raises(UsageError) as refusal:
        find_task("crowd:make")
    assert refusal.value.problem == problem


def test_a_callable_that_fails_for_several_leaves_no_run(here, capsys):
    """A folder with a failed run of no checkpoint could neither be gone on with nor be used again."""
    body = (
        "if n > 1:\n        raise RuntimeError('one alone')\n    return gym.make_vec('CartPole-v1', n, vectorization_mode='sync')"
    )
    (here / "lonely.py").write_text(f"import gymnasium as gym\n\n\ndef make(n):\n    {body}\n")
    assert main(["train", "lonely:make", "--environments", "4", "--threads", "1", "--run", "mine"]) == 2
    said = capsys.readouterr().err
    assert said == "rlscale: TASK: lonely:make(4) failed: RuntimeError: one alone. Mend the callable\n"
    assert not (here / "mine").exists()


def test_a_sync_vector_env_is_restarted_one_by_one(here):
    """As a `gym/` task is, so that `--random-first-steps` sets episodes of one length out of step."""
    body = "from gymnasium.vector import SyncVectorEnv\n    return SyncVectorEnv([lambda: gym.make('Pendulum-v1')] * num_envs)"
    (here / "swing.py").write_text(f"import gymnasium as gym\n\n\ndef make(num_envs):\n    {body}\n")
    task = find_task("swing:make")
    env = make_env(task, 3)
    env.reset(np.arange(3))
    step = env.step(task.random_actions(np.random.default_rng(0), 3))
    observation = env.restart(np.array([False, True, False]), np.array([7, 8, 9]))
    assert (observation == step.observation).all(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("del self.single_observation_space", "without single_observation_space"),
        ("del self.single_action_space", "without single_action_space"),
        ("del self.num_envs", "without num_envs"),
        ("self.single_observation_space = gym.spaces.Box(0, 1, (0,))", "observations of shape \\(0,\\)"),
    ],
)
def test_environments_that_do_not_say_what_they_are(here, body, problem):
    begin = "import bandits\nimport gymnasium as gym\n\n\nclass Make(bandits.Bandit):\n    def __init__(self, num_envs):\n"
    (here / "vague.py").write_text(f"{begin}        super().__init__(num_envs)\n        {body}\n")
    with pytest.raises(UsageError, match=f"TASK: vague:Make .*{problem}"):
        find_task("vague:Make")


BROKEN = {
    "def __init__(self, num_envs): super().__init__(min(num_envs, 3))": r"\(4\) returned 3 environments",
    "def reset(self, **given): return super().reset(**given)[0]": "reset returned ndarray, not 2 values",
    "def reset(self, **given): return np.ones((4, 3)), {}": r"observations of shape \(4, 3\) in step 0, not \(4, 2\)",
    "def step(self, actions): return super().step(actions)[:4]": "step returned 4 values, not 5",
    "def _observation(self): return np.ones((4, 2 + self._ended[0]))": r"observations of shape \(4, 3\) in step 1, not \(4, 2\)",
    "def _observation(self): return [[1.0, 2.0]] * 3 + [[1.0]]": "observations of several shapes in step 0",
    "def step(self, actions): o, r, *rest = super().step(actions); return o, r[:, None], *rest": r"rewards of shape \(4, 1\)",
    "def step(self, actions): o, r, t, *rest = super().step(actions); return o, r, t[0], *rest": r"ends of shape \(\) in step 1",
    "def step(self, actions): o, r, t, u, i = super().step(actions); return o, r, t, None, i": r"cuts of shape \(\) in step 1",
}


@pytest.mark.parametrize("body", BROKEN)
def test_environments_that_break_the_contract(here, body):
    (here / "broken.py").write_text(f"import bandits\nimport numpy as np\n\n\nclass Make(bandits.Bandit):\n    {body}\n")
    with pytest.raises(UsageError, match=f"TASK: broken:Make.*{BROKEN[body]}"):
        play(find_task("broken:Make"))


SINGLE = {
    "def reset(self, seed=None, options=None): return np.zeros(2, np.float32)": "reset returned ndarray, not 2 values",
    "def reset(self): return np.zeros(2, np.float32), {}": "reset failed: TypeError: .*seed",
    "def reset(self, seed=None): return np.zeros(2, np.float32), {}": "reset failed: TypeError: .*options",
    "def reset(self, seed=None, options=None): return np.zeros(2, complex), {}": "reset gave observations of type complex",
    "def reset(self, seed=None, options=None): return np.zeros(3), {}": r"reset gave an observation of shape \(3,\), its",
    "def step(self, action): return np.zeros(2, np.float32), 0.0, False, {}": "step returned 4 values, not 5",
    "def step(self, action): return np.zeros(3), 0.0, False, False, {}": r"step gave an observation of shape \(3,\)",
    "def step(self, action): return np.zeros(2), np.zeros(1), False, False, {}": r"step gave reward of shape \(1,\)",
    "def step(self, action): return [][0]": "step failed: IndexError: list index out of range",
}


@pytest.mark.parametrize("body", SINGLE)
def test_a_class_of_environments_that_breaks_the_contract(here, body):
    """Gymnasium's vector environment would answer with an error of NumPy's that names neither the task nor what is wrong."""
    (here / "single.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom gymnasium.spaces import Box, Discrete\n\n\n"
        "class Walk(gymnasium.Env):\n    observation_space = Box(-1, 1, (2,))\n    action_space = Discrete(2)\n\n"
        "    def reset(self, seed=None, options=None): return np.zeros(2, np.float32), {}\n\n"
        "    def step(self, action): return np.zeros(2, np.float32), 0.0, False, False, {}\n\n\n"
        f"class Broken(Walk):\n    {body}\n"
    )
    assert find_task("single:Walk").frame_shape == (2,)
    with pytest.raises(UsageError, match=f"TASK: single:Broken: {SINGLE[body]}"):
        find_task("single:Broken")


@pytest.mark.parametrize("info", ["{'legal': np.zeros(self.steps)}", "{'x': 'word' if self.steps % 3 else 1.5}", "None"])
def test_infos_may_be_of_any_kind(here, info):
    """Nobody reads them. Gymnasium's vector environment makes arrays of them, of the shape and type of the first."""
    (here / "informed.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom gymnasium.spaces import Box, Discrete\n\n\n"
        "class Walk(gymnasium.Env):\n    observation_space = Box(-1, 1, (2,))\n    action_space = Discrete(2)\n\n"
        "    def reset(self, seed=None, options=None):\n        self.steps = 0\n        return np.zeros(2, np.float32), {}\n\n"
        "    def step(self, action):\n        self.steps += 1\n"
        f"        return np.zeros(2, np.float32), 1.0, self.steps == 5, False, {info}\n"
    )
    task = find_task("informed:Walk")
    env = make_env(task, 3)
    env.reset(np.arange(3))
    for number in range(14):
        if number == 2:
            env.restart(np.array([False, True, False]), np.arange(3))
        step = env.step(np.zeros(3, dtype=np.int64))
    assert step.reset.tolist() == [False, True, False], "out of step with the others"
    assert step.reward.tolist() == [1.0, 0.0, 1.0]
    env.close()


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("NormalizeObservation(SyncVectorEnv([one] * n))", "NormalizeObservation"),
        ("RecordEpisodeStatistics(NormalizeReward(SyncVectorEnv([one] * n)))", "NormalizeReward"),
        ("SyncVectorEnv([lambda: gymnasium.wrappers.NormalizeReward(one())] * n)", "NormalizeReward"),
        ("AsyncVectorEnv([lambda: gymnasium.wrappers.NormalizeObservation(one())] * n)", "NormalizeObservation"),
        ("RecordEpisodeStatistics(SyncVectorEnv([one] * n))", None),
        ("RecordEpisodeStatistics(AsyncVectorEnv([one] * n))", None),
    ],
)
def test_wrappers_that_scale_by_what_they_have_seen_are_refused(here, made, name):
    """An evaluation has environments of its own, whose statistics would be others than those that were learned with."""
    (here / "scaled.py").write_text(
        "import gymnasium\nfrom gymnasium.vector import AsyncVectorEnv, SyncVectorEnv\n"
        "from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics\n\n\n"
        "def one(): return gymnasium.make('CartPole-v1')\n\n\n"
        f"def make(n): return {made}\n"
    )
    if name is None:
        assert find_task("scaled:make").frame_shape == (4,)
        return
    with pytest.raises(UsageError, match=f"TASK: scaled:make uses {name}, whose statistics"):
        find_task("scaled:make")


SPACED = {
    ("Box(0, 255, (2,), np.uint8)", "np.full((4, 2), 0.5, np.float32)"): r"gave the observation 0\.5 in step 0, no byte",
    ("Box(0, 255, (2,), np.uint8)", "np.full((4, 2), 300)"): "gave the observation 300 in step 0, no byte",
    ("Box(0, 255, (2,), np.uint8)", "np.full((4, 2), np.nan)"): "gave the observation nan in step 0, no byte",
    ("Box(0, 255, (2,), np.uint8)", "np.full((4, 2), 7.0)"): None,
    ("Discrete(4, start=1)", "np.zeros(4, np.int64)"): "gave the observation 0 in step 0, not one of 4 from 1 on",
    ("Discrete(4)", "np.full(4, 4)"): "gave the observation 4 in step 0, not one of 4 from 0 on",
    ("Discrete(4)", "np.full(4, 1.5)"): r"gave the observation 1\.5 in step 0, not one of 4",
    ("Discrete(4)", "np.full(4, 3.0)"): None,
}


@pytest.mark.parametrize(("space", "observation"), SPACED)
def test_observations_outside_of_their_space_are_told_of(here, space, observation):
    """A cast would make zeros of pictures that were divided by 255 already, and an index of −1 is the last state's."""
    (here / "spaced.py").write_text(
        "import bandits\nimport numpy as np\nfrom gymnasium.spaces import Box, Discrete\n\n\n"
        "class Make(bandits.Bandit):\n    def __init__(self, num_envs):\n        super().__init__(num_envs)\n"
        f"        self.single_observation_space = {space}\n\n"
        f"    def _observation(self): return {observation}[: self.num_envs]\n"
    )
    said = SPACED[space, observation]
    if said is None:
        assert play(find_task("spaced:Make")).observation.any()
        return
    with pytest.raises(UsageError, match=f"TASK: spaced:Make: environment 0 {said}"):
        play(find_task("spaced:Make"))


@pytest.mark.parametrize("space", ["n, dtype=np.uint8", "n, start=5", "n, start=-1"])
def test_actions_are_those_of_their_space(here, space):
    """`Discrete(2, dtype=np.uint8)` does not contain NumPy's int64, and one that starts at 5 no 0."""
    (here / "typed.py").write_text(
        "import bandits\nimport numpy as np\nfrom gymnasium.spaces import Discrete\n\n\n"
        "class Make(bandits.Bandit):\n    def __init__(self, num_envs):\n        super().__init__(num_envs)\n"
        f"        n = self.single_action_space.n\n        self.single_action_space = Discrete({space})\n\n"
        "    def step(self, actions):\n        assert all(action in self.single_action_space for action in actions)\n"
        "        return super().step(actions - self.single_action_space.start)\n"
    )
    play(find_task("typed:Make"))


def test_lists_are_as_good_as_arrays(here):
    """They failed within rlscale: two lists have no `|`."""
    step = "o, r, t, u, i = super().step(actions); return o.tolist(), r.tolist(), t.tolist(), u.tolist(), i"
    text = f"import bandits\n\n\nclass Make(bandits.Bandit):\n    def step(self, actions): {step}\n"
    (here / "lists.py").write_text(text)
    for one, other in zip(play(find_task("lists:Make")), play(find_task("bandits:Bandit")), strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype


def play(task):
    """The second step of four environments."""
    env = make_env(task, 4)
    env.reset(np.arange(4))
    env.step(np.ones(4, dtype=np.int64))
    return env.step(np.ones(4, dtype=np.int64))


def test_a_class_of_environments_is_a_task(here):
    """As it is, in Gymnasium's own vector environment, so it is restarted one by one as well."""
    (here / "walk.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n\n\nclass Walk(PendulumEnv):\n    pass\n"
    )
    task = find_task("walk:Walk")
    assert task.user_make.__module__ == "walk", "which goes to the actors with it"
    env = make_env(task, 3)
    assert env.reset(np.arange(3)).shape == (3, 3)
    assert env.step(task.random_actions(np.random.default_rng(0), 3)).reward.shape == (3,)


@pytest.mark.parametrize(
    "words",
    ["from functools import partial\nimport walk\nmake = partial(walk.several, limit=7)", "from walk import several as make"],
)
def test_what_a_module_offers_goes_to_actors_that_lack_it(here, words):
    """A partial of a function is of Python's own module; a function may be of another module than the one that is named."""
    (here / "walk.py").write_text("from bandits import Bandit\n\n\ndef several(n, limit=0):\n    return Bandit(n)\n")
    (here / "mine.py").write_text(f"{words}\n")
    task = find_task("mine:make")
    pickled = pickle_settings(task, task)
    for name in ("mine", "walk"):
        (here / f"{name}.py").rename(here / f"{name}.elsewhere")
        if name == "mine" or "partial" not in words:  # what a named module imports must be on the node
            sys.modules.pop(name)
    assert pickle.loads(pickled).user_make(3).num_envs == 3


@pytest.mark.parametrize(
    ("body", "problem", "mend"),
    [
        ("return gym.make('CartPole-v1')", "returned TimeLimit", "such as SyncVectorEnv([make_one] * num_envs)"),
        (
            "return gym.make_vec('CartPole-v1', 1, 'sync', vector_kwargs={'autoreset_mode': gym.vector.AutoresetMode.SAME_STEP})",
            "does not say that it resets on the step after an end",
            "Let it, as SyncVectorEnv does by default",
        ),
    ],
)
def test_how_a_vector_environment_must_be_is_said(here, body, problem, mend):
    (here / "other.py").write_text(f"import gymnasium as gym\n\n\ndef make(num_envs):\n    {body}\n")
    with pytest.raises(UsageError) as refusal:
        find_task("other:make")
    assert problem in refusal.value.problem
    assert mend in refusal.value.mend
