"""`TrainedPolicy`: what a trained run's policy does in a program of the user's own is what it does in rlscale."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from rlscale.agents.checkpoints import TrainedPolicy, read_state
from rlscale.agents.config import Budget, default_config
from rlscale.agents.rollout import Evaluator
from rlscale.agents.train import train
from rlscale.benchmarks.commands.play import run as play_run
from rlscale.envs import find_task, make_env
from rlscale.errors import UsageError
from rlscale.records import read_run


@pytest.fixture(scope="module", params=["minatar/breakout", "classic/pendulum"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    config = default_config(find_task(request.param))
    rollout = replace(config.rollout, environments=8, rollout_length=16)
    update = replace(config.update, epochs=1, mini_batch=None, precision="float32", learning_rate=0.01, threads=1)
    train(replace(config, rollout=rollout, update=update, budget=Budget(observations=512)), folder, command=[])
    return folder


def test_it_acts_as_an_evaluation_does(run):
    """The same observations and random numbers, up to the first end of an episode; drawn by the generator of `Evaluator.play`."""
    policy = TrainedPolicy(run)
    network = default_config(policy.task).update.network
    evaluator = Evaluator(policy.task, network, None, episodes=4, bfloat16=False, seed=3, threads=1)
    weights = read_state(read_run(run), policy.task)["learner"]["parameters"].numpy()
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([3, 0xE7A1, 7])))
    seeds = generator.integers(0, 2**31 - 1, size=4)
    env = make_env(policy.task, 4, cut_on_life_loss=False)
    observation = env.begin_episodes(seeds)
    for number, moment in enumerate(evaluator.play(weights, 7)):
        np.testing.assert_array_equal(observation, moment.observation)
        if number == 5 or not moment.going_on.all():
            break
        observation, *_ = env.step(policy.act(observation, generator))
        observation = observation.copy()
    assert number > 1
    evaluator.close()
    env.close()


def test_the_most_likely_action_is_the_one_that_is_drawn_most(run):
    policy, generator = TrainedPolicy(run), np.random.default_rng(0)
    env = make_env(policy.task, 1)
    observation = env.reset(np.zeros(1, dtype=np.int64)).copy()
    env.close()
    drawn = policy.act(np.repeat(observation, 20_000, axis=0), generator)
    likely = policy.act(observation)
    assert likely.shape == drawn[:1].shape
    assert likely.dtype == drawn.dtype
    if policy.task.id == "classic/pendulum":
        np.testing.assert_allclose(drawn.mean(axis=0), likely[0], atol=0.05)
    else:
        counts = np.bincount(drawn)
        assert counts[likely[0]] > counts.max() - 4 * 20_000**0.5
        assert counts.min() < counts.max() - 4 * 20_000**0.5, "this policy prefers something"


def test_a_folder_without_a_run_is_said(tmp_path):
    with pytest.raises(UsageError, match="nothing"):
        TrainedPolicy(tmp_path / "nothing")


def test_environments_whose_spaces_have_changed_are_told_of(tmp_path, monkeypatch):
    """A user's own, whose observations have become longer since the run."""
    (tmp_path / "changing.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom gymnasium.spaces import Box, Discrete\n\n\n"
        "class Walk(gymnasium.Env):\n    SIZE = 2\n    action_space = Discrete(2)\n\n"
        "    def __init__(self): self.observation_space = Box(-1, 1, (self.SIZE,))\n\n"
        "    def reset(self, seed=None, options=None): return np.zeros(self.SIZE, np.float32), {}\n\n"
        "    def step(self, action): return np.zeros(self.SIZE, np.float32), 1.0, True, False, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = default_config(find_task("changing:Walk"))
    config = replace(config, recording=replace(config.recording, snapshot_growth=1.2))
    train(replace(config, budget=Budget(observations=1)), tmp_path / "run", command=[])
    monkeypatch.setattr(sys.modules["changing"].Walk, "SIZE", 4)
    said = r"its policy has .* parameters, and changing:Walk as it is now needs .*\. Restore the environment as it was"
    with pytest.raises(UsageError, match=f"RUN: {said}"):
        TrainedPolicy(tmp_path / "run")
    with pytest.raises(UsageError, match=f"RUN: {said}"):
        play_run([str(tmp_path / "run"), "--kept"])
    with pytest.raises(UsageError, match=f"--resume: {said}"):
        train(replace(config, resume=str(tmp_path / "run")), tmp_path / "run", command=[])
    assert read_run(tmp_path / "run").state == "finished", "it stays as it was"
