"""Stable-Baselines3: the blocks measured of its rollout are those of our own learner, and its job leaves a record to read."""

import importlib
import math
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from batches import read_batch
from making import make_fragment
from statistics_by_hand import statistics_of

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from rlscale.agents.config import NoiseSettings, default_config
from rlscale.agents.learning import NoiseRecord
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.sums import _warn_of_one_block
from rlscale.agents.sb3 import NoiseCallback, deal_rollout, measure, measure_rollout
from rlscale.analysis.reading import read_noise
from rlscale.benchmarks.cli import main
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.noise import BlockStatistics, noise_scale
from rlscale.records.run import read_run

ROOT = Path(__file__).parents[3]
STEPS, ENVIRONMENTS, BLOCKS = 20, 10, 4
HEADS = ("policy", "value", "entropy", "joint", "joint_policy_parameters")
NETS = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}


def model_of(task="CartPole-v1", kind=PPO, environments=ENVIRONMENTS, **settings):
    usual = {"n_steps": STEPS, "device": "cpu", "seed": 0, "policy_kwargs": dict(NETS)}
    if kind is PPO:
        usual |= {"batch_size": 40, "n_epochs": 2}
    return kind("MlpPolicy", make_vec_env(task, n_envs=environments), **{**usual, **settings})


def fill(model, frames, action, log_prob, value, returns, advantage):
    """Put a rollout into the model's buffer; all arrays are (T, N, …)."""
    buffer = model.rollout_buffer
    buffer.observations, buffer.actions, buffer.log_probs = frames, action.astype(np.float32), log_prob
    buffer.values, buffer.returns, buffer.advantages = value, returns, advantage
    buffer.full = True


def normalized(advantage):
    return (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)


def copy_parameters(theirs, ours):
    """Theirs into ours, which are in the same order but for log σ: ours is the end of the bias of the policy's head."""
    named = dict(theirs.policy.named_parameters())
    if (log_std := named.pop("log_std", None)) is not None:
        named["action_net.bias"] = torch.cat([named["action_net.bias"], log_std])
    with torch.no_grad():
        for a, b in zip(named.values(), ours.network.parameters(), strict=True):
            b.copy_(a)


@pytest.mark.parametrize("mini_batch", [200, 20])
@pytest.mark.parametrize(("name", "task_id"), [("CartPole-v1", "classic/cartpole"), ("Pendulum-v1", "classic/pendulum")])
def test_blocks_have_the_gradients_of_our_own_learner(name, task_id, mini_batch):
    """Same parameters, loss and batch. Their value loss has no ½: its coefficient is half of ours, its head twice ours."""
    theirs = model_of(name, clip_range=0.2, vf_coef=0.25, ent_coef=0.03, batch_size=mini_batch)
    task = find_task(task_id)
    defaults = default_config(task)
    ours = Learner(
        replace(
            defaults,
            rollout=replace(defaults.rollout, environments=ENVIRONMENTS, rollout_length=STEPS),
            update=replace(defaults.update, epochs=1, mini_batch=None, clip=0.2, value_coef=0.5, entropy_coef=0.03),
            noise=NoiseSettings(blocks=BLOCKS, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1),
        ),
        task,
        torch.device("cpu"),
        False,
    )
    copy_parameters(theirs, ours)
    rng = np.random.default_rng(0)
    log_prob = np.log(rng.uniform(0.3, 0.7, (STEPS, ENVIRONMENTS))).astype(np.float32)  # so far off that the clip bites
    shape = STEPS, ENVIRONMENTS
    fragment = make_fragment(rng, *shape, features=task.frame_shape[0], actions=task.actions, log_prob=log_prob)
    returns, advantage = rng.normal(size=(2, *shape)).astype(np.float32)
    fill(theirs, fragment.frames, fragment.action.reshape(*shape, 1), log_prob, fragment.value, returns, advantage)
    batch = read_batch(ours, [fragment])
    for column, values in ((batch.advantage, normalized(advantage)), (batch.target, returns)):
        column.copy_(torch.from_numpy(values.reshape(-1)))
    noise = ours._learn_held(batch, 0.0)
    assert noise.figures["clip_fraction"] > 0.1
    own = {record.head: record.statistics for record in noise.noise}
    records = {record.head: record.statistics for record in measure_rollout(theirs, BLOCKS, 0)}
    assert set(records) == set(HEADS)
    for head in HEADS:
        got, factor = records[head], 4.0 if head == "value" else 1.0
        np.testing.assert_array_equal(got.size, own[head].size)
        np.testing.assert_allclose(got.square, factor * own[head].square, rtol=1e-4)
        np.testing.assert_allclose(got.dot, factor * own[head].dot, rtol=1e-4, atol=1e-6 * factor * own[head].square.max())


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_gaussian_policies_by_hand(kind):
    """Box actions: every block's gradient of every term, from the formulas of a diagonal Gaussian, observation by observation."""
    settings = {"clip_range": 0.2, "clip_range_vf": 0.3} if kind is PPO else {"normalize_advantage": False}
    model = model_of("Pendulum-v1", kind, environments=8, vf_coef=0.4, ent_coef=0.02, **settings)
    model.policy.log_std.data.fill_(-0.4)
    rng = np.random.default_rng(1)
    shape = STEPS, 8
    frames = rng.normal(size=(*shape, 3)).astype(np.float32)
    action = rng.normal(size=(*shape, 1)).astype(np.float32)
    value, returns, advantage = rng.normal(size=(3, *shape)).astype(np.float32)
    log_prob = rng.normal(-1, 0.5, shape).astype(np.float32)
    fill(model, frames, action, log_prob, value, returns, advantage)
    measured = {record.head: record.statistics for record in measure_rollout(model, BLOCKS, 0)}

    policy, parameters = model.policy, list(model.policy.parameters())
    weight = normalized(advantage) if kind is PPO else advantage
    gradients = {head: np.zeros((BLOCKS, sum(p.numel() for p in parameters))) for head in HEADS[:4]}
    for t in range(STEPS):
        for n in range(8):
            seen = torch.from_numpy(frames[t, n])
            mean = policy.action_net(policy.mlp_extractor.policy_net(seen))
            predicted = policy.value_net(policy.mlp_extractor.value_net(seen))[0]
            deviation = (torch.from_numpy(action[t, n]) - mean) / policy.log_std.exp()
            log = (-(deviation**2) / 2 - policy.log_std - math.log(2 * math.pi) / 2).sum()
            bonus = (policy.log_std + (1 + math.log(2 * math.pi)) / 2).sum()
            gain = float(weight[t, n])
            if kind is PPO:
                ratio = (log - float(log_prob[t, n])).exp()
                surrogate = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
                predicted = float(value[t, n]) + (predicted - float(value[t, n])).clamp(-0.3, 0.3)
            else:
                surrogate = -log * gain
            error = (predicted - float(returns[t, n])) ** 2
            losses = {"policy": surrogate, "value": error, "entropy": bonus}
            losses["joint"] = surrogate + 0.4 * error - 0.02 * bonus
            for head, loss in losses.items():
                found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
                gradients[head][n // 2] += torch.cat([g.reshape(-1) for g in found]).numpy() / (2 * STEPS)
    for head, rows in gradients.items():
        expected = statistics_of(rows, [2 * STEPS] * BLOCKS)
        np.testing.assert_allclose(measured[head].square, expected.square, rtol=1e-4)
        np.testing.assert_allclose(measured[head].dot, expected.dot, rtol=1e-3, atol=1e-5 * expected.square.max())


def test_adams_metric_is_that_of_their_optimizer(monkeypatch):
    """Σ p g² and Σ p g ĝ of the very gradients, with P from Stable-Baselines3's own Adam."""
    taken, reduce = {}, measure.noise_records
    monkeypatch.setattr(measure, "noise_records", lambda matrices, *rest: taken.update(matrices) or reduce(matrices, *rest))
    model = model_of()
    model.learn(STEPS * ENVIRONMENTS)  # Adam has a state from now on
    model.policy.set_training_mode(False)
    model.collect_rollouts(model.env, Quiet(model), model.rollout_buffer, STEPS)
    records = {record.head: record for record in measure_rollout(model, BLOCKS, 8)}
    assert not model.policy.training, "the model is left as it was"
    states = [model.policy.optimizer.state[p] for p in model.policy.parameters()]
    p = torch.cat([1 / ((s["exp_avg_sq"] / (1 - 0.999 ** float(s["step"]))).sqrt() + 1e-5).reshape(-1) for s in states])
    p = p.double()
    shares = torch.tensor([0.3, 0.3, 0.2, 0.2]).double()  # of ten environments
    for head in ("policy", "value", "joint"):
        g = taken[head].double()
        mean = shares @ g
        np.testing.assert_allclose(records[head].adam.square, (g * g) @ p, rtol=1e-4)
        np.testing.assert_allclose(records[head].adam.dot, g @ (p * mean), rtol=1e-4, atol=1e-4 * float(mean @ (p * mean)))
        assert records[head].optimizer_step == 8


class Quiet(BaseCallback):
    """A callback that does nothing."""

    def __init__(self, model):
        super().__init__()
        self.init_callback(model)

    def _on_step(self):
        return True


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_training_is_the_same_with_and_without_the_measurement(tmp_path, kind):
    after = []
    for callback in (None, NoiseCallback(tmp_path / "run", every=1, blocks=BLOCKS)):
        model = model_of(kind=kind)
        model.learn(3 * STEPS * ENVIRONMENTS, callback=callback)
        after.append(torch.cat([p.detach().reshape(-1) for p in model.policy.parameters()]))
    torch.testing.assert_close(after[0], after[1], rtol=0, atol=0)


def test_environments_are_dealt_as_our_learner_deals_them_and_episodes_where_they_are_few():
    starts = np.zeros((6, 10), dtype=bool)
    assert deal_rollout(starts, 4)[3].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    starts = np.zeros((6, 2), dtype=bool)
    starts[[2, 4], 0] = starts[3, 1] = True  # pieces of 2, 2, 2 and 3, 3 observations
    assert deal_rollout(starts, 6).T.tolist() == [[2, 2, 3, 3, 2, 2], [0, 0, 0, 1, 1, 1]], "no more than four as long as three"
    assert deal_rollout(starts, 3).T.tolist() == [[2, 2, 2, 2, 0, 0], [0, 0, 0, 1, 1, 1]]


def test_one_environment_is_measured_by_its_episodes(tmp_path):
    model = model_of(environments=1, n_steps=256, batch_size=64)
    model.learn(256, callback=NoiseCallback(tmp_path / "run", every=1, blocks=8))
    record = read_run(tmp_path / "run")
    assert record.manifest["config"]["noise"]["blocks_of"] == "episodes"
    (_, statistics), *_ = record.noise("policy")
    assert statistics.size.sum() == 256
    assert 4 <= len(statistics.size) <= 8


def test_the_page_s_example_runs_and_its_record_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/somewhere/of/mine/script.py"])
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sb3.md").read_text(), re.DOTALL)
    code = example.replace("50_000", "6_000")
    assert code != example
    names = {}
    exec(compile(code, "docs/sb3.md", "exec"), names)
    record = read_run(tmp_path / "runs" / "sb3-cartpole")
    assert (record.state, record.manifest["task"]["id"]) == ("finished", "CartPole-v1")
    assert record.manifest["command"] == ["script.py"]
    assert [row["iteration"] for row in record.rows] == list(range(6))
    assert [bool(row["noise"]) for row in record.rows] == [i % 4 == 0 for i in range(6)]
    assert [row["observations"] for row in record.rows] == [1024 * (i + 1) for i in range(6)]
    for row in record.rows:
        for entry in row["noise"]:
            assert entry["size"] == [64] * 16
            assert entry["optimizer_step"] == row["optimizer_steps"] - 160
        assert row["noise_seconds"] < row["learning_seconds"] < row["seconds"]
    assert sum(row["episodes"] for row in record.rows) > 20
    assert all(row["return_mean"] == row["episode_length_mean"] for row in record.rows if row["episodes"])  # CartPole's reward
    assert record.rows[-1]["optimizer_steps"] == 6 * 160  # ten epochs of sixteen mini-batches
    # What Stable-Baselines3 showed of the last measurement is the estimate from the record.
    assert {"entropy", "approx_kl", "explained_variance", "policy_loss", "value_loss", "clip_fraction"} <= set(record.rows[-1])
    assert 0 < record.rows[-1]["entropy"] < math.log(2)

    assert main(["report", "runs/sb3-cartpole", "--out", "report.html"]) == 0
    assert "CartPole-v1" in (tmp_path / "report.html").read_text()
    assert main(["compare", "runs/sb3-cartpole", "--out", "compare.html"]) == 0
    assert "CartPole-v1 (run sb3-cartpole)" in (tmp_path / "compare.html").read_text()
    capsys.readouterr()

    defined = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "glossary.md").read_text()))
    logged = set(record.rows[-1]) | set(record.manifest) | set(record.manifest["segments"][0]) | set(HEADS)
    assert logged - defined == set()


def test_what_is_logged_is_the_estimate_of_the_record(tmp_path):
    class Listens(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            self.seen = dict(self.logger.name_to_value)

    listens = Listens()
    callback = NoiseCallback(tmp_path / "run", every=1, blocks=BLOCKS)
    model_of().learn(STEPS * ENVIRONMENTS, callback=[callback, listens])
    ((_, statistics),) = read_run(tmp_path / "run").noise("joint")
    noise = noise_scale(statistics)
    assert listens.seen["noise/joint/trace_cov"] == pytest.approx(noise.trace_cov, rel=1e-6)
    assert listens.seen["noise/joint/grad_sq"] == pytest.approx(noise.grad_sq, rel=1e-6)


def test_a_second_learn_goes_on_with_the_record(tmp_path):
    model, callback = model_of(), NoiseCallback(tmp_path / "run", every=2, blocks=BLOCKS)
    for first in (True, False):
        model.learn(2 * STEPS * ENVIRONMENTS, callback=callback, reset_num_timesteps=first)
    record = read_run(tmp_path / "run")
    assert [row["iteration"] for row in record.rows] == [0, 1, 2, 3]
    assert [row["observations"] for row in record.rows] == [200, 400, 600, 800]
    assert [s["first_iteration"] for s in record.manifest["segments"]] == [0, 2]
    assert (np.diff(record.column("optimizer_steps")) == 10).all()
    assert (np.diff(record.column("seconds")) > 0).all()


def test_a_callback_keeps_the_record_of_one_job(tmp_path):
    """As in a loop over seeds or tasks with one callback. The job itself goes on, restored from a file too."""
    model, callback = model_of(), NoiseCallback(tmp_path / "run", every=2, blocks=BLOCKS)
    model.learn(STEPS * ENVIRONMENTS, callback=callback)
    model.save(tmp_path / "model")
    for other in (model_of(), model_of("Pendulum-v1")):
        with pytest.raises(
            UsageError, match=r"^run: .*/run is the record of another model's job. Give every job a NoiseCallback"
        ):
            other.learn(STEPS * ENVIRONMENTS, callback=callback)
    trained = model_of(seed=1)
    trained.learn(STEPS * ENVIRONMENTS)
    with pytest.raises(UsageError, match="another model's job"):
        trained.learn(STEPS * ENVIRONMENTS, callback=callback)
    restored = PPO.load(tmp_path / "model", env=make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS), device="cpu")
    restored.learn(STEPS * ENVIRONMENTS, callback=callback, reset_num_timesteps=False)
    record = read_run(tmp_path / "run")
    assert [row["observations"] for row in record.rows] == [200, 400]
    assert record.manifest["task"]["id"] == "CartPole-v1"


def test_what_other_callbacks_do_within_a_rollout_is_no_sampling(tmp_path):
    """An `EvalCallback` steps environments of its own there; more rollout workers would save nothing of it."""

    class Sleeps(BaseCallback):
        def _on_step(self):
            time.sleep(0.02)
            return True

    model, callback, beside = model_of(), NoiseCallback(tmp_path / "run", every=1, blocks=BLOCKS), Sleeps()
    model.learn(2 * STEPS * ENVIRONMENTS, callback=[callback, beside])
    slept = 0.02 * STEPS
    for row, before in zip(rows := read_run(tmp_path / "run").rows, [0.0, rows[0]["seconds"]], strict=True):
        parts = row["sampling_seconds"] + row["learning_seconds"]
        assert 0 < parts <= row["seconds"] - before - slept
        assert row["sampling_seconds"] > 0
    assert "on_step" not in vars(beside), "as it was"


@pytest.mark.parametrize(
    ("moment", "rows_kept"),
    [pytest.param("rollout", 1, id="while it samples"), pytest.param("training", 0, id="while it trains, before any row")],
)
def test_a_learn_that_was_interrupted_is_gone_on_from(tmp_path, moment, rows_kept):
    """Stable-Baselines3 ends nothing then: neither the record nor the counting of optimizer steps."""

    class Interrupts(BaseCallback):
        def _on_training_start(self):
            if moment == "training":
                self.hook = self.model.policy.optimizer.register_step_post_hook(self.interrupt)

        def _on_step(self):
            if moment == "rollout" and self.n_calls == STEPS + 5:
                self.interrupt()
            return True

        def interrupt(self, *_):
            if moment == "training":
                self.hook.remove()
            raise KeyboardInterrupt

    model, callback = model_of(), NoiseCallback(tmp_path / "run", every=1, blocks=BLOCKS)
    with pytest.raises(KeyboardInterrupt):
        model.learn(4 * STEPS * ENVIRONMENTS, callback=[callback, Interrupts()])
    assert len(read_run(tmp_path / "run").rows) == rows_kept
    model.learn(2 * STEPS * ENVIRONMENTS, callback=callback)
    record = read_run(tmp_path / "run")
    assert record.state == "finished"
    assert [row["iteration"] for row in record.rows] == list(range(rows_kept + 2))
    dropped = 200 if moment == "training" else 0
    assert [row["observations"] for row in record.rows] == [200 * (i + 1) + dropped for i in range(rows_kept + 2)]
    assert [s["first_iteration"] for s in record.manifest["segments"]] == [0, rows_kept]
    assert [s["environments"] for s in record.manifest["segments"]] == ["new", "new"]
    steps = [row["optimizer_steps"] for row in record.rows]
    assert steps == ([10, 20, 30] if moment == "rollout" else [11, 21]), "the step of the dropped iteration was made, too"
    assert [entry["optimizer_step"] for row in record.rows for entry in row["noise"][:1]] == [step - 10 for step in steps]
    assert (np.diff(record.column("seconds")) > 0).all()


def test_the_policy_s_loss_is_recorded_of_both_algorithms(tmp_path):
    for kind in (PPO, A2C):
        model = model_of(kind=kind)
        model.learn(STEPS * ENVIRONMENTS, callback=NoiseCallback(tmp_path / kind.__name__, blocks=BLOCKS))
        logged = model.logger.name_to_value
        (row,) = read_run(tmp_path / kind.__name__).rows
        assert row["policy_loss"] == float(logged["train/policy_gradient_loss" if kind is PPO else "train/policy_loss"])
        assert row["value_loss"] == float(logged["train/value_loss"]) / 2


class Game(gymnasium.Env):
    """Three lives of ten steps, five points a step, and what Stable-Baselines3's wrappers of Atari games ask for."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)

    @property
    def ale(self):
        return self

    def lives(self):
        return 3 - self._taken // 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._taken += 1
        return np.zeros(1, np.float32), 5.0, self._taken == 30, False, {}


class DoesNotKnow(DummyVecEnv):
    """A vector environment of the user's own."""

    def env_is_wrapped(self, wrapper_class, indices=None):
        raise NotImplementedError


class AnswersOnceForAll(DummyVecEnv):
    """As Isaac Lab's: one answer whatever the number of environments, and no method that takes `indices`."""

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False]

    def env_method(self, method_name, *args, indices=None, **words):
        return getattr(self.envs[0], method_name)(*args, indices=indices, **words)


def as_atari(game):
    return ClipRewardEnv(EpisodicLifeEnv(game))


@pytest.mark.parametrize(
    ("environments", "episodes", "mean", "length"),
    [
        pytest.param(lambda: make_vec_env(Game, 8, wrapper_class=as_atari), [0, 8], 150.0, 30.0, id="Monitor sees games"),
        pytest.param(lambda: VecMonitor(DummyVecEnv([lambda: as_atari(Game())] * 8)), [8, 16], 9.0, 9.0, id="VecMonitor, lives"),
        pytest.param(lambda: DummyVecEnv([lambda: as_atari(Game())] * 8), [8, 16], 9.0, 9.0, id="none, lives"),
        pytest.param(lambda: DoesNotKnow([lambda: as_atari(Game())] * 8), [8, 16], 9.0, 9.0, id="none, and it cannot be asked"),
        pytest.param(lambda: AnswersOnceForAll([lambda: as_atari(Game())] * 8), [8, 16], 9.0, 9.0, id="none, asked once for all"),
    ],
)
def test_returns_are_a_monitor_s_alone_where_there_is_one(tmp_path, environments, episodes, mean, length):
    """After a lost life the wrapper takes a step unseen: lives end at the steps 10, 19 and 28, the last of them with the game."""
    model = PPO("MlpPolicy", environments(), n_steps=18, batch_size=48, n_epochs=1, device="cpu")
    model.learn(2 * 18 * 8, callback=NoiseCallback(tmp_path / "run", blocks=BLOCKS))
    rows = read_run(tmp_path / "run").rows
    assert [row["episodes"] for row in rows] == episodes
    assert (rows[-1]["return_mean"], rows[-1]["episode_length_mean"]) == (mean, length)
    assert rows[0]["return_mean"] == (10.0 if episodes[0] else None)


def test_jobs_that_cannot_be_measured_are_refused(tmp_path):
    class Mine(PPO):
        def train(self):
            super().train()

    for model in (DQN("MlpPolicy", "CartPole-v1", device="cpu"), Mine("MlpPolicy", "CartPole-v1", device="cpu")):
        with pytest.raises(UsageError, match=r"model: .* does not train by PPO's or A2C's loss. Use PPO or A2C itself"):
            model.learn(10, callback=NoiseCallback(tmp_path / "run"))
    for field, value in (("every", 0), ("every", 2.5), ("blocks", 2)):
        with pytest.raises(UsageError) as refusal:
            NoiseCallback(tmp_path / "run", **{field: value})
        assert refusal.value.field == field
    assert NoiseCallback(tmp_path / "run", every=np.int64(4), blocks=np.int64(8)), "whole numbers of NumPy's"
    with pytest.raises(UsageError, match=r"run: .* exists already"):
        NoiseCallback(tmp_path)
    assert not (tmp_path / "run").exists()


def test_without_the_library_the_plug_in_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("rlscale.sb3", "rlscale.agents.sb3"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(UsageError, match=r"Stable-Baselines3 cannot be imported \(.*Run: pip install 'rlscale\[sb3\]'"):
        importlib.import_module("rlscale.sb3")


def test_settings_that_numpy_drew_are_recorded_as_numbers(tmp_path):
    """Of a search over settings; without its epochs a job of PPO would be taken for one of A2C."""
    model = model_of(n_steps=np.int64(STEPS), batch_size=np.int64(20), n_epochs=np.int64(2))
    model.learn(2 * STEPS * ENVIRONMENTS, callback=NoiseCallback(tmp_path / "run"))
    record = read_run(tmp_path / "run")
    assert len(record.rows) == 2
    settings = record.manifest["config"]["sb3"]
    assert (settings["n_steps"], settings["batch_size"], settings["n_epochs"]) == (STEPS, 20, 2)


@pytest.mark.parametrize(("kind", "every"), [(PPO, 4), (A2C, 100)])
def test_a_job_that_makes_one_step_a_rollout_is_measured_seldom(tmp_path, kind, every):
    model_of(kind=kind).learn(5 * STEPS * ENVIRONMENTS, callback=NoiseCallback(tmp_path / "run", blocks=BLOCKS))
    record = read_run(tmp_path / "run")
    assert record.manifest["config"]["noise"]["every"] == every
    assert [bool(row["noise"]) for row in record.rows] == [number % every == 0 for number in range(5)]


def test_an_unresolved_noise_scale_is_not_shown_as_the_one_before(tmp_path):
    """Stable-Baselines3 shows what was logged last, however many rollouts ago."""
    callback, model = NoiseCallback(tmp_path / "run", blocks=BLOCKS), model_of()
    callback.init_callback(model)
    model.set_logger(configure(None, []))
    gradients = np.random.default_rng(0).normal(size=(8, 5))
    for signal, shown in ((9.0, True), (0.0, False), (9.0, True)):
        g = gradients - gradients.mean(0) + signal
        callback._log([NoiseRecord("joint", "rollout", 0, BlockStatistics([4] * 8, (g * g).sum(1), g @ g.mean(0)))])
        assert ("noise/joint/b_simple" in model.logger.name_to_value) is shown
        assert set(model.logger.name_to_value) == set(model.logger.name_to_excluded)
        assert model.logger.name_to_value["noise/joint/trace_cov"] > 0


def test_a_job_of_too_few_episodes_for_an_interval_is_told_to_take_more_environments(tmp_path, caplog):
    """Episodes of 12 steps in rollouts of 18 are two pieces in each; those of 30 in rollouts of five are one in most."""
    env = make_vec_env(lambda: gymnasium.wrappers.TimeLimit(Game(), 12), 1)
    model = PPO("MlpPolicy", env, n_steps=18, batch_size=18, n_epochs=1, device="cpu")
    _warn_of_one_block.cache_clear()
    model.learn(20 * 18, callback=NoiseCallback(tmp_path / "run", every=1))
    reading = read_noise(read_run(tmp_path / "run"))
    assert reading.few_blocks
    assert reading.missing is None
    env = make_vec_env(lambda: gymnasium.wrappers.TimeLimit(Game(), 1000), 1)
    model = PPO("MlpPolicy", env, n_steps=5, batch_size=5, n_epochs=1, device="cpu")
    model.learn(20 * 5, callback=NoiseCallback(tmp_path / "other", every=1))
    said = [record.message for record in caplog.records if "lies in one block" in record.message]
    assert len(said) == 1, "once a job, not at every rollout"
