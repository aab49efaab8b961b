"""RLlib: the blocks measured inside its learner are those of our own, and its job writes a record that our pages read."""

import importlib
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import read_batch
from making import make_fragment

pytest.importorskip("tree", reason="RLlib's own dependencies are not installed")  # dm-tree
pytest.importorskip("ray")
rllib = pytest.importorskip("rlscale.agents.rllib.measure")

from ray.rllib.algorithms.algorithm import Algorithm  # noqa: E402
from ray.rllib.algorithms.appo import APPOConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner  # noqa: E402
from ray.rllib.connectors.learner import AddInfosFromEpisodesToTrainBatch  # noqa: E402
from ray.rllib.core.columns import Columns  # noqa: E402
from ray.rllib.core.learner.torch.torch_learner import TorchLearner  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec  # noqa: E402
from ray.rllib.core.rl_module.rl_module import RLModuleSpec  # noqa: E402
from ray.rllib.env.single_agent_episode import SingleAgentEpisode  # noqa: E402
from ray.rllib.examples.learners.classes.separate_vf_lr_and_optimizer_learner import (  # noqa: E402
    PPOTorchLearnerWithSeparateVfOptimizer,
)

from rlscale.agents.config import NoiseSettings, default_config  # noqa: E402
from rlscale.agents.learning.learner import Learner  # noqa: E402
from rlscale.agents.rllib.measure import MeasuresNoise, NoiseLearner, deal_episodes, measure_noise  # noqa: E402
from rlscale.agents.rllib.record import KeepsRecord  # noqa: E402
from rlscale.analysis.summary import noise_over_run  # noqa: E402
from rlscale.benchmarks.cli import main  # noqa: E402
from rlscale.envs import find_task  # noqa: E402
from rlscale.errors import UsageError  # noqa: E402
from rlscale.noise import block_statistics, noise_scale  # noqa: E402
from rlscale.records.run import read_run  # noqa: E402

ROOT = Path(__file__).parents[3]
STEPS, ENVIRONMENTS, BLOCKS = 20, 10, 4
HEADS = ("policy", "value", "entropy", "joint", "joint_policy_parameters")


class Watched(NoiseLearner):
    """Keeps the batch that was measured."""

    def measure_if_due(self, batch, episodes):
        self.seen = dict(batch)
        super().measure_if_due(batch, episodes)


def ppo(**training):
    settings = {"train_batch_size_per_learner": 128, "minibatch_size": 64, "num_epochs": 1, "lr": 1e-2, "use_kl_loss": False}
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=ENVIRONMENTS)
        .training(**{**settings, **training})
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
    )


def built(config):
    import gymnasium

    return config.build_learner(env=gymnasium.make("CartPole-v1"))


def sampled(fragment, ends, every_step=None):
    """The experience of a fragment as RLlib's episodes, each environment cut in two where its first episode ends.

    `every_step` is what the module gave besides, the same at every step.
    """
    episodes = []
    length = (~fragment.reset).sum(0)
    for e, end in enumerate(ends):
        for piece, (start, stop) in enumerate([(0, end), (end, length[e])]):
            log_prob = fragment.log_prob[start:stop, e]
            episode = SingleAgentEpisode(
                id_=f"{piece}of{e}@{e}",
                observations=[*fragment.frames[start:stop, e], fragment.frames[stop - 1, e]],
                actions=list(fragment.action[start:stop, e]),
                rewards=list(fragment.reward[start:stop, e].astype(float)),
                terminated=piece == 0,
                extra_model_outputs={
                    Columns.ACTION_LOGP: list(log_prob),
                    Columns.ACTION_DIST_INPUTS: list(np.stack([log_prob, np.log1p(-np.exp(log_prob))], axis=1)),
                    **{column: [value] * (stop - start) for column, value in (every_step or {}).items()},
                },
                len_lookback_buffer=0,
            )
            episodes.append(episode.to_numpy())
    return episodes


def experience(seed=0):
    """A fragment whose environments end at different steps, with behaviour so far from the policy that the clip bites."""
    rng = np.random.default_rng(seed)
    length = rng.integers(STEPS - 6, STEPS + 1, ENVIRONMENTS)
    reset = np.arange(STEPS)[:, None] >= length
    log_prob = np.log(rng.uniform(0.3, 0.7, (STEPS, ENVIRONMENTS))).astype(np.float32)
    return make_fragment(rng, STEPS, ENVIRONMENTS, reset=reset, log_prob=log_prob), rng.integers(3, 10, ENVIRONMENTS)


def measured(learner, episodes, **update):
    learner.update(episodes=episodes, timesteps={}, **{"num_epochs": 1, "minibatch_size": 64, **update})
    report = learner.take_report()
    return {record.head: record for record in report["noise"]}, report


@pytest.mark.parametrize("mini_batch", [1000, 16])
def test_blocks_have_the_gradients_of_our_own_learner(tmp_path, mini_batch):
    """Same parameters, loss and batch. RLlib's value loss has no ½: its coefficient is half of ours, its head twice ours."""
    config = ppo(clip_param=0.2, vf_clip_param=1e9, vf_loss_coeff=0.25, entropy_coeff=0.03, minibatch_size=mini_batch)
    theirs = built(measure_noise(config.learners(learner_class=Watched), tmp_path / "run", every=1, blocks=BLOCKS))
    task = find_task("classic/cartpole")
    defaults = default_config(task)
    settings = NoiseSettings(blocks=BLOCKS, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)
    ours = Learner(
        replace(
            defaults,
            rollout=replace(defaults.rollout, environments=ENVIRONMENTS, rollout_length=STEPS),
            update=replace(defaults.update, epochs=1, mini_batch=None, clip=0.2, value_coef=0.5, entropy_coef=0.03),
            noise=settings,
        ),
        task,
        torch.device("cpu"),
        False,
    )
    with torch.no_grad():
        modules = theirs.module["default_policy"].parameters(), ours.network.parameters()
        for a, b in zip(*modules, strict=True):
            b.copy_(a)
    fragment, ends = experience()
    batch = read_batch(ours, [fragment])
    records, _ = measured(theirs, sampled(fragment, ends))
    # RLlib's advantages and targets, row by row; of each episode it adds a last row that is masked.
    mask = theirs.seen[Columns.LOSS_MASK].numpy()
    valid = np.flatnonzero(~fragment.reset.T.reshape(-1))  # environment by environment
    step, environment = valid % STEPS, valid // STEPS
    position = step * ENVIRONMENTS + environment
    for name, column in (("advantages", batch.advantage), ("value_targets", batch.target)):
        column[position] = theirs.seen[name][mask]
    noise = ours._learn_held(batch, 0.0)
    own = {record.head: record.statistics for record in noise.noise}
    assert noise.figures["clip_fraction"] > 0.1
    assert set(records) == set(HEADS)
    for head in HEADS:
        got, factor = records[head].statistics, 4.0 if head == "value" else 1.0
        np.testing.assert_array_equal(got.size, own[head].size)
        np.testing.assert_allclose(got.square, factor * own[head].square, rtol=1e-4)
        np.testing.assert_allclose(got.dot, factor * own[head].dot, rtol=1e-4, atol=1e-6 * factor * own[head].square.max())
    assert len(set(own["joint"].size)) > 1  # masked steps fell on some blocks more than on others


@pytest.mark.parametrize("shared", [False, True])
def test_adams_metric_is_that_of_rllibs_optimizer(tmp_path, shared):
    """Absent in the first update, and then Σ p g² and Σ p g ĝ of the very gradients, with P from RLlib's own Adam."""
    model = DefaultModelConfig(fcnet_hiddens=[16], vf_share_layers=shared)
    learner = built(measure_noise(ppo().rl_module(model_config=model), tmp_path / "run", every=1, blocks=BLOCKS))
    taken = []
    reduce = learner._reduce

    def watched(matrices, sizes, *rest):
        records = reduce(matrices, sizes, *rest)
        taken.append((matrices, sizes))
        return records

    learner._reduce = watched
    first, _ = measured(learner, sampled(*experience()))
    assert all(record.adam is None for record in first.values())
    v = [
        state["exp_avg_sq"].clone() for state in map(learner._optimizer.state.get, learner.module["default_policy"].parameters())
    ]
    steps = learner._steps
    second, _ = measured(learner, sampled(*experience(1)))
    assert {head for head, record in second.items() if record.adam is not None} == {*HEADS} - {"entropy"}
    matrices, sizes = taken[-1]
    p = torch.cat([1 / ((x / (1 - 0.999**steps)).sqrt() + 1e-8) for x in (y.reshape(-1) for y in v)]).double()
    names = [(name, x.numel()) for name, x in learner.module["default_policy"].named_parameters()]
    mine = torch.cat([torch.full((n,), not name.startswith(("vf", "encoder.critic"))) for name, n in names]).double()
    for head in {*HEADS} - {"entropy"}:
        weight = p * mine if head == "joint_policy_parameters" else p
        g = matrices["joint" if head == "joint_policy_parameters" else head].double()
        mean = (sizes / sizes.sum()) @ g
        np.testing.assert_allclose(second[head].adam.square, (g * g) @ weight, rtol=1e-4)
        np.testing.assert_allclose(
            second[head].adam.dot, g @ (weight * mean), rtol=1e-4, atol=1e-4 * float(mean @ (weight * mean))
        )
    g = matrices["joint"].double()
    np.testing.assert_allclose(second["joint_policy_parameters"].statistics.square, (g * g) @ mine, rtol=1e-4)


def test_only_every_mth_update_is_measured_and_optimizer_steps_are_counted(tmp_path):
    learner = built(measure_noise(ppo(), tmp_path / "run", every=3, blocks=BLOCKS))
    fragment, ends = experience()
    rows = (~fragment.reset).sum() + 2 * ENVIRONMENTS
    seen = []
    for _ in range(4):
        records, report = measured(learner, sampled(fragment, ends), minibatch_size=rows)
        assert report["learning_seconds"] > 0
        assert (report["noise_seconds"] > 0) == bool(records)
        assert report["noise_seconds"] < report["learning_seconds"]
        seen.append((report["optimizer_steps"], records["joint"].optimizer_step if records else None))
    steps = seen[0][0]
    assert seen == [(steps, 0), (2 * steps, None), (3 * steps, None), (4 * steps, 3 * steps)]


def test_training_is_the_same_with_and_without_the_measurement(tmp_path):
    """Parameters after two shuffled updates, and what RLlib reports of its loss."""
    after, losses = [], []
    for config in (ppo(num_epochs=3), measure_noise(ppo(num_epochs=3), tmp_path / "run", every=1)):
        np.random.seed(0)  # noqa: NPY002  (what RLlib shuffles by)
        torch.manual_seed(0)
        learner = built(config)
        for turn in range(2):
            result = learner.update(
                episodes=sampled(*experience(turn)),
                timesteps={},
                num_epochs=3,
                minibatch_size=50,
                shuffle_batch_per_epoch=True,
            )
        after.append(torch.cat([p.detach().reshape(-1) for p in learner.module["default_policy"].parameters()]))
        losses.append({name: float(result["default_policy"][name].peek()) for name in ("policy_loss", "vf_loss", "entropy")})
    torch.testing.assert_close(after[0], after[1], rtol=0, atol=0)
    assert losses[0] == losses[1]


def test_the_loss_of_a_users_own_learner_is_what_is_measured(tmp_path):
    class Thrice(PPOTorchLearner):
        def compute_loss_for_module(self, **what):
            return 3 * super().compute_loss_for_module(**what)

    fragment, ends = experience()
    records = []
    for number, base in enumerate((PPOTorchLearner, Thrice)):
        torch.manual_seed(0)
        config = measure_noise(ppo().learners(learner_class=base), tmp_path / str(number), every=1)
        assert issubclass(config.learner_class, base)
        records.append(measured(built(config), sampled(fragment, ends))[0])
    plain, thrice = records
    np.testing.assert_allclose(thrice["joint"].statistics.square, 9 * plain["joint"].statistics.square, rtol=1e-5)
    np.testing.assert_allclose(thrice["policy"].statistics.square, plain["policy"].statistics.square, rtol=1e-5)


def test_padded_sequences_of_a_recurrent_module_count_their_true_steps(tmp_path):
    """Blocks add up to the gradient of RLlib's loss on its whole padded batch at once."""
    model = DefaultModelConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=8, max_seq_len=6)
    config = ppo(vf_clip_param=1e9, minibatch_size=1000).rl_module(model_config=model)
    learner = built(measure_noise(config.learners(learner_class=Watched), tmp_path / "run", every=1, blocks=BLOCKS))
    fragment, ends = experience()
    episodes = sampled(
        fragment, ends, {Columns.STATE_OUT: {"h": np.zeros((1, 8), np.float32), "c": np.zeros((1, 8), np.float32)}}
    )
    expected = []
    measure = learner._measure

    def whole(batch, blocks):
        module = learner.module["default_policy"]
        loss = learner.compute_loss_for_module(
            module_id="default_policy", config=learner.config, batch=batch, fwd_out=module.forward_train(batch)
        )
        gradient = torch.autograd.grad(loss, list(module.parameters()), materialize_grads=True)
        expected.append(sum(float(g.double().square().sum()) for g in gradient))
        return measure(batch, blocks)

    learner._measure = whole
    (record,) = [record for head, record in measured(learner, episodes)[0].items() if head == "joint"]
    statistics = record.statistics
    assert statistics.size.sum() == (~fragment.reset).sum()
    assert (statistics.size * statistics.dot).sum() / statistics.size.sum() == pytest.approx(expected[0], rel=1e-4)


def test_statistics_are_of_the_sum_over_learners(monkeypatch):
    """Two learners with shares of the same blocks, exchanged by hand, against one that holds everything."""
    rng = np.random.default_rng(0)
    sizes = np.array([[5.0, 0, 7, 3], [2, 4, 0, 1]])  # (learners, blocks)
    sums = torch.from_numpy(rng.normal(size=(2, 4, 11))).float() * torch.from_numpy(sizes > 0)[..., None]
    expected = block_statistics(sums.sum(0) / torch.from_numpy(sizes.sum(0)).float()[:, None], sizes.sum(0))
    theirs = [sums[1], torch.from_numpy(sizes[1])]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.add_(theirs.pop(0)))

    class First(MeasuresNoise):
        distributed, _steps = True, 3

    (record,) = First()._reduce({"joint": sums[0].clone()}, torch.from_numpy(sizes[0]).clone())
    assert (record.head, record.kind, record.optimizer_step) == ("joint", "rollout", 3)
    np.testing.assert_array_equal(record.statistics.size, expected.size)
    np.testing.assert_allclose(record.statistics.square, expected.square, rtol=1e-6)
    np.testing.assert_allclose(record.statistics.dot, expected.dot, rtol=1e-5)


def test_whole_episodes_are_dealt_where_environments_give_parts_of_unequal_length(tmp_path):
    """With `complete_episodes` each environment gives whole episodes, however long they are."""
    for number, (mode, dealt) in enumerate((("truncate_episodes", ENVIRONMENTS), ("complete_episodes", 0))):
        config = measure_noise(ppo().env_runners(batch_mode=mode), tmp_path / str(number))
        assert built(config)._environments == dealt


def test_environments_keep_their_block():
    ids = ["a@0_0", "b@9_1", "c@4_2", "a@0_3", "d@5"]
    assert deal_episodes(ids, [5] * 5, 10, 10) == [0, 9, 4, 0, 5]
    assert deal_episodes(ids, [5] * 5, 10, 5) == [0, 4, 2, 0, 2]
    assert deal_episodes(ids[::-1], [1, 2, 3, 4, 5], 10, 5) == [2, 0, 2, 4, 0]


def test_of_few_environments_whole_episodes_are_dealt():
    ids = [f"{name}@{number % 2}_{number}" for number, name in enumerate("abcdabcd")]
    assert deal_episodes(ids, [10] * 8, 2, 4) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert deal_episodes(["a@0_0", "b@1_1", "c@0_2", "d@1_3"], [10, 80, 10, 10], 2, 10) == [1, 0, 2, 1], "three blocks at least"
    # Two learners deal theirs into their own halves of the blocks.
    assert deal_episodes(ids[:4], [10] * 4, 2, 8, rank=0, learners=2) == [0, 1, 2, 3]
    assert deal_episodes(ids[:4], [10] * 4, 2, 8, rank=1, learners=2) == [4, 5, 6, 7]


def test_a_batch_whose_rows_are_not_those_of_its_episodes_is_refused(tmp_path):
    """As a learner connector of the user's own may leave it."""
    learner = built(measure_noise(ppo(), tmp_path / "run"))
    episodes = sampled(*experience())
    with pytest.raises(UsageError, match=r"the train batch has 7 rows, not the 1\d\d of its episodes"):
        learner.measure_if_due({Columns.LOSS_MASK: torch.ones(7, dtype=bool)}, episodes)


def test_episodes_that_do_not_tell_their_environment_are_refused():
    with pytest.raises(UsageError, match=r"config\.callbacks_class: episodes do not tell"):
        deal_episodes(["a@0", "b"], [1, 1], 10, 4)


def with_curiosity():
    """One agent's module and another beside it, whose loss the user's learner adds."""
    return MultiRLModuleSpec(rl_module_specs={"default_policy": RLModuleSpec(), "curiosity": RLModuleSpec()})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: APPOConfig().environment("CartPole-v1"), "config"),
        (lambda: ppo().multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda *_: "a"), "config.multi_agent"),
        (lambda: ppo().rl_module(rl_module_spec=with_curiosity()), "config.multi_agent"),
        (
            lambda: ppo().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False),
            "config.api_stack",
        ),
        (lambda: ppo().learners(learner_class=TorchLearner), "config.learners(learner_class=…)"),
        (
            lambda: ppo().learners(add_default_connectors_to_learner_pipeline=False),
            "config.learners(add_default_connectors_to_learner_pipeline=…)",
        ),
    ],
)
def test_jobs_that_cannot_be_measured_are_refused(tmp_path, make, field):
    with pytest.raises(UsageError) as refusal:
        measure_noise(make(), tmp_path / "run")
    assert refusal.value.field == field
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_settings_that_make_no_sense_are_refused(tmp_path):
    wrong = [("every", value) for value in (0, 2.5, math.nan, "4", None)] + [("blocks", value) for value in (2, 8.0, "8")]
    for field, value in wrong:
        with pytest.raises(UsageError) as refusal:
            measure_noise(ppo(), tmp_path / "run", **{field: value})
        assert refusal.value.field == field
    with pytest.raises(UsageError, match=r"run: .* exists already"):
        measure_noise(ppo(), tmp_path)


def test_without_rllib_the_plug_in_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("rlscale.rllib", "rlscale.agents.rllib"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray.rllib.algorithms.ppo", None)
    with pytest.raises(UsageError, match=r"RLlib cannot be imported \(.*Run: pip install 'ray\[rllib\]'"):
        importlib.import_module("rlscale.rllib")


def test_the_callbacks_of_a_user_stay(tmp_path):
    class Mine(KeepsRecord.__base__):
        pass

    config = measure_noise(ppo().callbacks(Mine), tmp_path / "run")
    assert config.callbacks_class == [KeepsRecord, Mine]
    # The same configuration again, for another run.
    assert measure_noise(config, tmp_path / "other").callbacks_class == [KeepsRecord, Mine]
    assert config.learner_class is NoiseLearner
    assert config.learner_config_dict["rlscale"]["run"] == str(tmp_path / "other")


def test_the_page_s_example_runs_and_its_record_is_read(tmp_path, monkeypatch, capsys, ray_of_four):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/somewhere/of/mine/script.py", "--seed", "3"])
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "rllib.md").read_text(), re.DOTALL)
    names = {}
    exec(compile(example, "docs/rllib.md", "exec"), names)
    record = read_run(tmp_path / "runs" / "rllib-cartpole")
    assert record.state == "finished"
    assert record.manifest["command"] == ["script.py", "--seed", "3"]
    assert [row["iteration"] for row in record.rows] == list(range(len(record.rows)))
    assert [bool(row["noise"]) for row in record.rows] == [i % 2 == 0 for i in range(len(record.rows))]
    for row in record.rows:
        for entry in row["noise"]:
            assert sum(entry["size"]) == row["batch_observations"]  # neither masked steps nor any step twice
            assert len(entry["size"]) == 16
    assert record.rows[-1]["observations"] == sum(row["batch_observations"] for row in record.rows)
    assert sum(row["episodes"] for row in record.rows) > 20
    assert all(row["return_mean"] == row["episode_length_mean"] for row in record.rows if row["episodes"])  # CartPole's reward
    # What RLlib reported is the estimate from the record.
    assert record.rows[-1]["noise"]
    for head in HEADS:
        noise, reported = noise_scale(record.noise(head)[-1][1]), names["result"]["learners"]["default_policy"]["noise"][head]
        assert reported["trace_cov"] == pytest.approx(noise.trace_cov, rel=1e-6)
        assert reported["grad_sq"] == pytest.approx(noise.grad_sq, rel=1e-6)
        assert reported["b_simple_low"] == pytest.approx(noise.interval[0], rel=1e-6)
        # Where it is not resolved RLlib shows what it shows of any figure that was not reported this time.
        expected = math.nan if noise.b_simple is None else noise.b_simple
        assert reported.get("b_simple", math.nan) == pytest.approx(expected, rel=1e-6, nan_ok=True)
    times = names["result"]["learners"]["__all_modules__"]
    assert times["noise_seconds"] == record.rows[-1]["noise_seconds"]
    assert times["noise_share_of_learner"] == pytest.approx(times["noise_seconds"] / record.rows[-1]["learning_seconds"])

    assert main(["report", str(record.folder), "--out", "report.html"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "CartPole-v1" in page
    assert str(noise_over_run(record, "value", "rollout").noise_scale) in page
    assert main(["compare", str(record.folder), "--out", "compare.html"]) == 0
    assert "CartPole-v1 (run rllib-cartpole)" in (tmp_path / "compare.html").read_text()
    compared = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "CartPole-v1" in compared

    defined = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "glossary.md").read_text()))
    logged = set(record.rows[-1]) | set(record.manifest) | set(record.manifest["segments"][0]) | set(HEADS)
    assert logged - defined == set()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # what Ray Train, which starts RLlib's learners, says of Ray Data
def test_two_learners_measure_the_whole_batch(tmp_path, ray_of_four):
    config = ppo().learners(num_learners=2).env_runners(num_env_runners=1, num_envs_per_env_runner=8)
    algorithm = measure_noise(config, tmp_path / "run", every=1, blocks=8).build_algo()
    algorithm.train()
    algorithm.stop()
    (row,) = read_run(tmp_path / "run").rows
    assert row["batch_observations"] >= 256
    assert {entry["head"] for entry in row["noise"]} == set(HEADS)
    for entry in row["noise"]:
        assert sum(entry["size"]) == row["batch_observations"]
        # Every environment gave as many steps, whoever learned from them, but for those that its resets took.
        assert max(entry["size"]) - min(entry["size"]) <= 4


def test_a_restored_algorithm_goes_on_with_its_record(tmp_path, ray_of_four):
    algorithm = measure_noise(ppo(), tmp_path / "run", every=2).build_algo()
    for _ in range(2):
        algorithm.train()
    algorithm.save_to_path(tmp_path / "checkpoint")
    algorithm.train()  # will be made again
    algorithm.stop()
    algorithm = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    for _ in range(2):
        algorithm.train()
    algorithm.stop()
    record = read_run(tmp_path / "run")
    assert [row["iteration"] for row in record.rows] == [0, 1, 2, 3]
    assert [s["first_iteration"] for s in record.manifest["segments"]] == [0, 2]
    steps = record.column("optimizer_steps")
    assert (np.diff(steps) > 0).all()
    assert steps[3] == pytest.approx(2 * steps[1], rel=0.3)
    assert record.rows[2]["noise"][0]["optimizer_step"] == steps[1]
    assert (np.diff(record.column("observations")) > 0).all()
    assert (np.diff(record.column("seconds")) > 0).all(), "a restored algorithm counts them from zero"


def test_a_learner_class_set_afterwards_is_told(tmp_path, ray_of_four):
    config = measure_noise(ppo(), tmp_path / "run").learners(learner_class=PPOTorchLearner)
    algorithm = config.build_algo()
    with pytest.raises(UsageError, match="Call measure_noise last"):
        algorithm.train()
    algorithm.stop()


def test_a_learner_of_the_user_s_own_may_log_numbers_and_read_them_back(tmp_path):
    class Logs(PPOTorchLearner):
        def compute_loss_for_module(self, **what):
            loss = super().compute_loss_for_module(**what)
            self.read = float(self.metrics.peek((what["module_id"], "mean_kl_loss")))
            self.metrics.log_dict({"policy_loss": 7.0}, key=what["module_id"], window=1)
            return loss

    plain, logs = (
        measured(
            built(measure_noise(ppo().learners(learner_class=base), tmp_path / base.__name__, every=1)), sampled(*experience())
        )
        for base in (PPOTorchLearner, Logs)
    )
    assert plain[0].keys() == logs[0].keys() == set(HEADS)


def test_infos_of_the_environment_may_be_in_the_batch(tmp_path):
    config = ppo().learners(learner_class=Watched)
    config = config.training(learner_connector=lambda *_: AddInfosFromEpisodesToTrainBatch())
    learner = built(measure_noise(config, tmp_path / "run", every=1, blocks=BLOCKS))
    records, _ = measured(learner, sampled(*experience()))
    assert set(records) == set(HEADS)


def test_two_optimizers_have_the_parameters_between_them(tmp_path):
    config = ppo().learners(learner_class=PPOTorchLearnerWithSeparateVfOptimizer)
    learner = built(measure_noise(config, tmp_path / "run", every=1, blocks=BLOCKS))
    measured(learner, sampled(*experience()))
    second, _ = measured(learner, sampled(*experience(1)))
    assert {head for head, record in second.items() if record.adam is not None} == {*HEADS} - {"entropy"}
