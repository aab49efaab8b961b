"""`rlscale advise --run`: what is read of a run or a job, and that nothing of how it ran keeps the advice from being followed."""

import contextlib
import json
import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_records import add_joint, make_run

from rlscale.agents.checks import check_config
from rlscale.agents.cluster import LostHeadError
from rlscale.agents.config import default_config
from rlscale.agents.learning import scaled_rate
from rlscale.agents.setup import can_begin
from rlscale.agents.supervised import SupervisedConfig
from rlscale.analysis.reading import read_noise
from rlscale.benchmarks.advise import job
from rlscale.benchmarks.advise import run as advise_run
from rlscale.benchmarks.advise.job import config_of, valid_share
from rlscale.benchmarks.advise.settings import as_advised, configured, flags_beside, lines_for, settings_for
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.workers.calibration import FleetReading
from rlscale.benchmarks.workers.measuring import Measuring, Readings
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.records import RunRecord

TASK = find_task("minatar/breakout")
USUAL = default_config(TASK)
PLAIN = {"epochs": 1, "mini_batch": None, "advantage_scale": "running"}


def run_with(rollout=None, update=None, **changes):
    """Settings of a run of the task."""
    return replace(
        USUAL, rollout=replace(USUAL.rollout, **(rollout or {})), update=replace(USUAL.update, **(update or {})), **changes
    )


def job_of(tmp_path, name, stored, rates):
    """A job of another library whose iterations had those learning rates."""
    manifest = {"config": {name: stored}, "task": {"id": "mine"}}
    return RunRecord(tmp_path, manifest, [{"learning_rate": rate} for rate in rates])


SB3 = {"algorithm": "PPO", "n_envs": 8, "n_steps": 128, "n_epochs": 4, "batch_size": 256}
RLLIB = {"num_env_runners": 2, "num_envs_per_env_runner": 4, "_train_batch_size_per_learner": 1024, "minibatch_size": 256}


@pytest.mark.parametrize(("name", "stored"), [("sb3", SB3), ("rllib", {**RLLIB, "lr": [[0, 2.5e-4], [10_000, 0.0]]})])
@pytest.mark.parametrize(
    "rates", [[2.5e-4, 1.25e-4, 0.0], [1e-5, 2.5e-4, 2.5e-4], [0.0, 2.5e-4, 1e-9]], ids=["decay", "warm-up", "both"]
)
def test_the_rate_of_a_job_is_the_largest_that_it_learned_with(tmp_path, name, stored, rates):
    config = config_of(job_of(tmp_path, name, stored, rates))
    assert config.update.learning_rate == 2.5e-4


def test_a_job_that_learned_at_no_rate_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--run: .* learning rate was 0 in every iteration"):
        config_of(job_of(tmp_path, "sb3", SB3, [0.0]))


def test_a_run_that_learned_from_examples_is_refused(tmp_path):
    record = RunRecord(tmp_path, {"config": asdict(SupervisedConfig("supervised/digits"))}, [{"learning_rate": 0.1}])
    with pytest.raises(UsageError, match=r"--run: .* learned from examples and has no policy"):
        config_of(record)


@pytest.mark.parametrize("rule", [{"lr_rule": "sqrt", "lr_batch": 64}, {"lr_rule": "linear"}])
def test_the_rate_of_a_run_is_what_its_rule_made_of_it(tmp_path, rule):
    """The line for it names that rate and not the rule, which would be applied a second time."""
    run = run_with(update={"mini_batch": 1024, **rule})
    rate = scaled_rate(run.update, 1024, None)
    record = RunRecord(tmp_path, {"config": asdict(run)}, [{"learning_rate": rate}, {"learning_rate": rate / 2}])
    update = config_of(record).update
    assert update == replace(run.update, learning_rate=rate, lr_rule="constant", lr_batch=None)


@pytest.mark.parametrize(
    ("suggested", "mini_batch", "told", "rate"),
    [(10.0, 256, 1e-3, "0.000353553"), (4096.0, 4096, 1e-3, "0.001414"), (2**16, 2**16, 2.5e-4, "0.001414")],
)
def test_all_that_a_tuned_batch_scales_is_scaled_from_there(tmp_path, suggested, mini_batch, told, rate):
    """Tuned at 2,048 observations a step; with 256, c = 8, and a step has the rate 1e-3 / √8, which grows at most fourfold.

    Of a mini-batch of 65,536, 256 times 256, the root is 16: the rate that is told is a quarter of 1e-3.
    """
    run = run_with(update={"mini_batch": 256, "tuned_batch": 2048, "proximal_average": 8.0, "learning_rate": 1e-3})
    record = RunRecord(tmp_path, {"config": asdict(run)}, [{"learning_rate": 1e-3 / math.sqrt(8)}])
    advised = as_advised(config_of(record), USUAL)
    settings = settings_for(advised, Estimate(suggested, None), 1)
    lines = lines_for(TASK.id, settings, beside=flags_beside(configured(advised, settings), USUAL))
    update = parse_train(shlex.split(lines["rlscale"])[2:]).update
    assert (update.mini_batch, update.tuned_batch, update.proximal_average) == (mini_batch, 2048, 8.0)
    assert update.learning_rate == told
    assert f"lr={rate})" in lines["RLlib"]


def test_an_average_stays_as_old_in_observations(tmp_path):
    """Eight optimizer steps of 256 observations are two of 1,024."""
    run = run_with(update={"mini_batch": 256, "proximal_average": 8.0})
    record = RunRecord(tmp_path, {"config": asdict(run)}, [{"learning_rate": 2.5e-4}])
    advised = as_advised(config_of(record), USUAL)
    for suggested, age in ((10.0, 8.0), (1024.0, 2.0)):
        settings = settings_for(advised, Estimate(suggested, None), 1)
        line = lines_for(TASK.id, settings, beside=flags_beside(configured(advised, settings), USUAL))["rlscale"]
        assert parse_train(shlex.split(line)[2:]).update.proximal_average == age


OTHERWISE = {
    "auto": {"rollout": {"actors": "auto", "actor_price": 0.1}},
    "adaptive": {"rollout": {"batch_size": "adaptive", "exchange_rate": 100.0}, "update": PLAIN},
    "streamed": {"update": {**PLAIN, "stream": True}},
    "fragments": {"rollout": {"environments": 96, "fragment_environments": 96}},
    "lag": {"rollout": {"actors": 2, "actor_cpus": 2, "lag": 1, "ray_address": "there:1"}},
    "learners": {"rollout": {"environments": 24}, "update": {"learners": 3, "mini_batch": 384}},
}


@pytest.mark.parametrize("otherwise", OTHERWISE)
def test_how_a_run_ran_does_not_keep_a_mini_batch_from_being_advised(otherwise):
    run = run_with(**OTHERWISE[otherwise])
    check_config(run)
    advised = as_advised(run, USUAL)
    settings = settings_for(advised, Estimate(4096.0, None), 2)
    assert settings.mini_batch == 4096
    check_config(configured(advised, settings))
    assert advised.update.learners == 1, "one learner is timed, on the whole batch"


def test_a_batch_filled_in_rounds_is_the_run_s_own_batch():
    """64 environments of 128 steps, 128 rounds: the usual mini-batch is all of them, and the rate is that of so many."""
    run = run_with({"environments": 64, "rollout_length": 128, "batch_size": 2**20}, {"mini_batch": None, "learning_rate": 1e-3})
    advised = as_advised(run, USUAL)
    assert (advised.batch, advised.rollout.environments, advised.rollout.batch_size) == (2**20, 8192, None)
    for suggested in (1000.0, 65_536.0):
        settings = settings_for(advised, Estimate(suggested, None), 1)
        assert (settings.mini_batch, settings.learning_rate) == (2**20, 1e-3)


def test_a_mini_batch_that_stays_keeps_its_learning_rate():
    """Of a larger one it grows with the root: 1.25e-4 at 256 observations is 1.25e-4 times √2 = 1.768e-4 at 512."""
    for rate in (3.5355e-4, 1.25e-4):
        line = lines_for(TASK.id, settings_for(run_with(update={"learning_rate": rate}), Estimate(10.0, None), 1))["rlscale"]
        assert parse_train(shlex.split(line)[2:]).update.learning_rate == rate
    assert settings_for(run_with(update={"learning_rate": 1.25e-4}), Estimate(512.0, None), 1).learning_rate == 1.768e-4


def test_the_line_trains_as_the_run_that_was_read():
    """A2C's rate, optimizer and loss belong together, and the network, the discount and the rest to what was measured."""
    usual = default_config(TASK, "a2c")
    run = replace(
        usual,
        seed=3,
        rollout=replace(usual.rollout, random_first_steps=100, memory="4GiB", actors=3, environments=18),
        update=replace(usual.update, width=64, discount=0.9, clip=0.3, network="mlp", anneal=True, threads=2),
    )
    advised = as_advised(run, usual, "auto")
    settings = settings_for(advised, Estimate(1024.0, None), 2)
    lines = lines_for(TASK.id, settings, 1, "a2c", flags_beside(configured(advised, settings), usual))
    assert "--algorithm a2c" in lines["rlscale"]
    assert "--ray-address auto" in lines["rlscale"]
    found = parse_train(shlex.split(lines["rlscale"])[2:])
    assert found == configured(advised, settings)
    kept = ("algorithm", "width", "discount", "clip", "network", "anneal", "optimizer", "gae_lambda")
    assert [getattr(found.update, name) for name in kept] == [getattr(run.update, name) for name in kept]
    assert (found.rollout.random_first_steps, found.rollout.memory) == (100, "4GiB")


@pytest.mark.parametrize(
    ("runners", "environments", "learners", "each", "mini_batch", "rollout", "learned"),
    [
        (3, 1, 2, 2000, 128, 1333, 1999),
        (5, 1, 3, 1024, 128, 614, 1023),
        (2, 3, 2, 1000, 128, 333, 999),
        (3, 1, 1, 4000, 4000, 1333, 3999),
    ],
)
def test_learners_of_rllib_are_given_no_more_than_its_runners_sample(
    tmp_path, runners, environments, learners, each, mini_batch, rollout, learned
):
    """One observation more than the fragments hold, and RLlib counts two rounds of them and refuses; so it does mini-batches of
    more than a learner has."""
    stored = {"num_env_runners": runners, "num_envs_per_env_runner": environments, "num_learners": learners}
    stored |= {"_train_batch_size_per_learner": each, "minibatch_size": mini_batch}
    config = config_of(job_of(tmp_path, "rllib", stored, [1e-3]))
    line = lines_for("mine", settings_for(config, Estimate(10.0, None), runners), learners)["RLlib"]
    assert f"num_envs_per_env_runner={environments}, rollout_fragment_length={rollout})" in line
    assert f"train_batch_size_per_learner={learned}, minibatch_size={min(mini_batch, learned)}," in line
    assert learned * learners <= runners * environments * rollout


def test_a_mini_batch_beyond_its_rollout_is_the_whole_rollout(tmp_path):
    """Stable-Baselines3 only warns of it: eight environments of 16 steps have 128 observations."""
    config = config_of(job_of(tmp_path, "sb3", {**SB3, "n_steps": 16}, [1e-3]))
    settings = settings_for(config, Estimate(10.0, None), 1)
    assert (config.mini_batch, settings.mini_batch, settings.environments, settings.rollout_length) == (128, 128, 8, 16)
    assert "train_batch_size_per_learner=128, minibatch_size=128," in lines_for("mine", settings)["RLlib"]


def test_an_a2c_job_is_not_told_to_become_ppo(tmp_path):
    """Stable-Baselines3's A2C makes one step of a rollout, so that the rollout is the mini-batch; RLlib has none."""
    stored = {"algorithm": "A2C", "n_envs": 8, "n_steps": 5}
    config = config_of(job_of(tmp_path, "sb3", stored, [7e-4]))
    assert (config.update.algorithm, config.batch, config.mini_batch, config.update.epochs) == ("a2c", 40, 40, 1)
    lines = lines_for("mine", settings_for(config, Estimate(640.0, None), 1), 1, config.update.algorithm)
    rate = float(f"{7e-4 * (512 / 40) ** 0.5:.4g}")
    assert lines["Stable-Baselines3"] == f"A2C(policy, make_vec_env(env, n_envs=103), n_steps=5, learning_rate={rate:g})"
    assert set(lines) == {"rlscale", "Stable-Baselines3"}


def test_the_command_s_own_short_run_does_not_say_whether_to_anneal():
    """It has no budget of observations, at whose end a rate could reach zero."""
    usual = default_config(find_task("atari/pong"))
    short = replace(
        usual, budget=replace(usual.budget, observations=None, seconds=90.0), update=replace(usual.update, anneal=False)
    )
    assert as_advised(short, usual).update.anneal is usual.update.anneal is True
    chosen = replace(usual, update=replace(usual.update, anneal=False))
    assert "--no-anneal" in flags_beside(as_advised(chosen, usual), usual)


# --- the whole command, with planted measurements ---------------------------------------------------------------------------


def reading(shape, valid=1.0):
    """A fleet whose actors take 2 ms a step and half a millisecond for each environment of it."""
    seconds = 32 * (2e-3 + 5e-4 * shape.environments / shape.threads)
    fragments = ((seconds,) * shape.actors,) * 4
    size = 7100 * 32 * shape.actors * shape.environments
    return FleetReading(shape, 32, (seconds + 0.01 * shape.actors,) * 4, fragments, size, valid)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A function that runs `rlscale advise --run` on a run with these settings; what it printed as JSON, and what was timed."""
    timed = []

    def measure(self, shapes):
        timed.append(self.config)
        learning = [{"batch_size": size, "blocks": None, "seconds": [ask.observation * size] * 2} for size in (8192, 16384)]
        ask.shapes = shapes
        return Readings([reading(shape, ask.valid) for shape in shapes], learning, 9e3)

    for name, value in {
        "connected": contextlib.nullcontext(),
        "resolve_compute": SimpleNamespace(prepare_process=lambda: None, device=torch.device("cpu")),
        "busy_cpus": None,
        "cpus_by_node": (2, 2, 2),
        "learning_times": {256: 1e-4, 4096: 1e-6},
    }.items():
        monkeypatch.setattr(advise_run, name, lambda *_, value=value: value)
    monkeypatch.setattr(advise_run, "cpus_for_actors", lambda cpus, _: cpus)
    monkeypatch.setattr(Measuring, "measure", measure)

    run = add_joint(make_run(tmp_path / "made"))

    def ask(config, *words, suggestion=None, policy=None, rate=1e-3):
        manifest = run.manifest | {"config": asdict(config), "task": run.manifest["task"] | {"id": TASK.id}}
        of_batch = {"learning_rate": rate} | ({} if config.adaptive else {"batch_observations": round(ask.valid * config.batch)})
        record = replace(run, manifest=manifest, rows=[row | of_batch for row in run.rows])
        monkeypatch.setattr(advise_run, "read_run", lambda *_: record)
        noise = read_noise(record)
        noise = replace(noise, suggestion=suggestion or Estimate(5e4, (2e4, 1e5)), policy=policy or Estimate(9e4, (5e4, 2e5)))
        monkeypatch.setattr(advise_run, "read_noise", lambda _: noise)
        return main(["advise", "--run", str(tmp_path / "made"), "--cpus", "1", "--json", *words])

    ask.timed, ask.observation, ask.valid = timed, 1e-4, 1.0
    return ask


@pytest.mark.parametrize("otherwise", OTHERWISE)
def test_the_mini_batch_that_ends_soonest_is_advised_whatever_the_run_was(planted, capsys, otherwise):
    assert planted(run_with(**OTHERWISE[otherwise])) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["mini_batch"] == 4096
    (timed,) = planted.timed
    assert timed.update.learners == 1
    parse_train(shlex.split(found["lines"]["rlscale"])[2:])


@pytest.mark.parametrize("shuffle", ["auto", "environments"])
def test_the_mini_batch_that_is_advised_is_one_that_was_timed(planted, capsys, monkeypatch, shuffle):
    """To a power of two, 1,024, it was not timed, and as whole environments of 20 steps it could not be composed."""
    monkeypatch.setattr(advise_run, "learning_times", lambda *_: {320: 1e-4, 1280: 1e-6, 5120: 1e-4})
    run = run_with({"environments": 64, "rollout_length": 20}, {"mini_batch": 320, "shuffle": shuffle})
    assert planted(run) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["mini_batch"] == 1280


def test_a_run_on_a_device_that_is_not_here_is_advised_on_for_what_is():
    run = run_with({"actor_device": "cuda:0"}, {"device": "cuda"})
    advised = as_advised(run, USUAL)
    assert (advised.update.device, advised.rollout.actor_device) == ("auto", "cpu")
    assert not {"--device", "--actor-device"} & set(flags_beside(advised, USUAL))
    kept = as_advised(run_with({}, {"device": "cpu"}), USUAL)
    assert kept.update.device == "cpu"


def test_steps_that_only_reset_an_environment_are_no_observations(planted, capsys):
    """Half of the digits' steps are; a sweep takes twice the time that its observations would at the rate of steps."""
    found = []
    for planted.valid in (1.0, 0.5):
        assert planted(USUAL) == 0
        found.append(json.loads(capsys.readouterr().out))
    all_valid, half = (one["throughput"] for one in found)
    for name in ("end_to_end", "one_pass"):
        assert half[name] == pytest.approx(all_valid[name] / 2)
    assert half["sampling"]["value"] == pytest.approx(all_valid["sampling"]["value"] / 2)
    assert half["shares"] == all_valid["shares"]
    assert found[1]["settings"] == found[0]["settings"]


def test_rates_are_those_of_an_iteration_by_hand(planted, capsys, monkeypatch):
    """16 steps of 128 environments take 16 times 66 ms and 10 ms to hand over, and eight epochs 1 ms an observation."""
    planted.observation = 1e-3
    monkeypatch.setattr(advise_run, "learning_times", lambda *_: {256: 1e-3})
    assert planted(USUAL) == 0
    found = json.loads(capsys.readouterr().out)
    settings, throughput = found["settings"], found["throughput"]
    assert (settings["environments"], settings["rollout_length"], settings["epochs"]) == (128, 16, 8)
    sampling, learning = 16 * 0.066 + 0.01, 2048e-3
    assert throughput["sampling"]["value"] == pytest.approx(2048 / sampling)
    assert throughput["end_to_end"] == pytest.approx(2048 / (sampling + learning))
    assert throughput["one_pass"] == pytest.approx(2048 / (sampling + learning / 8))


@pytest.mark.parametrize("epochs", [1, 4])
def test_a_batch_that_followed_the_noise_is_what_it_was_on_average(planted, capsys, epochs):
    """Not one round of all environments, which would stay as the mini-batch in use, and not an epoch's part of it."""
    rollout = {"environments": 512, "rollout_length": 16, "batch_size": "adaptive"}
    assert planted(run_with(rollout, {"epochs": epochs, "mini_batch": None})) == 0
    found = json.loads(capsys.readouterr().out)
    batches = [row["batch_observations"] for row in advise_run.read_run("made").rows]
    assert found["mini_batch"] == pytest.approx(sum(batches) / len(batches), abs=8)
    assert found["mini_batch"] < 512 * 16


def test_what_is_predicted_is_an_iteration_of_what_is_advised(planted, capsys, monkeypatch):
    """Mini-batches of 4,096 do not divide rollouts of 100 steps, so those that are advised are longer or shorter."""
    predict, sizes = advise_run.predict, []
    monkeypatch.setattr(advise_run, "predict", lambda *given: sizes.append(predict(*given).batch_size) or predict(*given))
    assert planted(run_with({"environments": 64, "rollout_length": 100}, {"mini_batch": 1600})) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["rollout_length"] != settings["usual_length"] == 100
    assert settings["batch_size"] in sizes
    assert all(size % 4096 == 0 for size in sizes)


def test_learning_takes_time_however_two_measurements_of_it_scatter(planted, capsys):
    """Of an observation 99 µs are saved by large mini-batches, and the learner was just measured to take 10 µs in all."""
    planted.observation = 1e-5
    assert planted(USUAL) == 0
    assert json.loads(capsys.readouterr().out)["throughput"]["shares"]["learner"] > 0


def test_a_suggestion_that_is_disowned_is_not_followed(planted, capsys):
    """The joint loss resolves a noise scale, and that of the policy is known to be far above: the usual settings stay."""
    far = Estimate(None, (3e6, math.inf), "not resolved")
    assert planted(USUAL, policy=far) == 0
    found = json.loads(capsys.readouterr().out)
    first = found["said"][0]
    assert "does not say yet how many observations an optimizer step can use" in first
    assert "ini-batches of" not in first
    assert (found["settings"]["mini_batch"], found["more"]) == (USUAL.mini_batch, [])
    assert found["settings"]["learning_rate"] == USUAL.update.learning_rate
    assert not any(line.startswith("More machines") or "roughly" in line for line in found["said"])


def test_a_batch_for_a_cluster_is_not_checked_against_this_machine(planted, capsys, monkeypatch):
    addresses = set()
    monkeypatch.setattr(advise_run, "can_begin", lambda config, task: addresses.add(config.rollout.ray_address) or True)
    monkeypatch.setattr(advise_run, "watch_head", lambda _: contextlib.nullcontext())
    assert planted(USUAL) == 0
    assert addresses == {None}
    addresses.clear()
    assert planted(USUAL, "--ray-address", "auto") == 0
    assert addresses == {"auto"}, "see `memory_plan`"


def test_more_machines_have_larger_mini_batches(planted, capsys, monkeypatch):
    """The learner of the fleets had mini-batches of 256, where a step takes a fifth of the time; eight make a batch."""
    learners, times = [], {256: 1e-4, 4096: 8.125e-5}  # 20 µs of the 100 are the step's, so it takes 5.12 ms
    monkeypatch.setattr(advise_run, "learning_times", lambda *_: times)
    monkeypatch.setattr(advise_run, "scale_out", lambda critical, law, learner, **_: learners.append((critical, learner)) or [])
    assert planted(USUAL) == 0
    ((critical, learner),) = learners
    assert critical == 8 * 5e4
    assert learner.seconds(2**16) == pytest.approx(8 * 5.12e-3 + 8e-5 * 2**16)
    planted.valid = 0.5  # a batch of as many observations has twice as many steps
    assert planted(USUAL) == 0
    assert learners[-1][0] == 2 * critical


@pytest.mark.parametrize(("words", "unit"), [((), "machine"), (("--ray-address", "auto"), "cluster")])
def test_on_a_cluster_more_of_it_are_clusters(planted, capsys, monkeypatch, words, unit):
    monkeypatch.setattr(advise_run, "watch_head", lambda _: contextlib.nullcontext())
    assert planted(USUAL, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"] == unit
    assert any(line.startswith(f"More {unit}s like this one") for line in found["said"])


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(planted, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        assert planted(USUAL, "--out", str(tmp_path / place)) == 2
        assert capsys.readouterr().err.startswith(f"rlscale: --out: cannot write {tmp_path / place}: ")
    assert not planted.timed


def test_no_fleet_is_measured_that_no_node_has_room_for(planted, capsys, monkeypatch):
    monkeypatch.setattr(advise_run, "watch_head", lambda _: contextlib.nullcontext())
    assert planted(USUAL, "--ray-address", "auto", "--cpus", "6") == 0
    assert {shape.threads for shape in planted.shapes} == {1, 2}


def test_a_folder_that_holds_a_run_already_is_said_before_one_is_trained(planted, capsys, monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(advise_run, "train", lambda *_, **__: trained.append(1))
    there = tmp_path / "there"
    (there / "run").mkdir(parents=True)
    assert main(["advise", TASK.id, "--out", str(there)]) == 2
    go_on = f"rlscale advise --run {there / 'run'} --out {there}"
    said = f"--out: {there} holds a run already. Choose another folder, or read that run: {go_on}"
    assert capsys.readouterr().err == f"rlscale: {said}\n"
    assert not trained


def test_a_training_in_which_no_iteration_ended_needs_more_seconds(planted, capsys, monkeypatch, tmp_path):
    planted(USUAL)
    capsys.readouterr()
    record = replace(advise_run.read_run(), rows=[])
    monkeypatch.setattr(advise_run, "read_run", lambda *_: record)
    monkeypatch.setattr(advise_run, "train", lambda *_, **__: SimpleNamespace(state="finished"))
    assert main(["advise", TASK.id, "--seconds", "3", "--out", str(tmp_path / "there")]) == 2
    assert capsys.readouterr().err == f"rlscale: --seconds: no iteration of {TASK.id} ended within 3 seconds. Give more\n"
    assert main(["advise", "--run", str(tmp_path / "made")]) == 2
    assert "--run: " in capsys.readouterr().err


def test_a_run_with_clones_is_refused(planted, capsys):
    """Its noise scale is that of four environments alike, and what is advised would have others."""
    assert planted(run_with({"clones": 4, "environments": 64})) == 2
    assert "has 4 clones of every environment" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_said_before_a_run_is_trained(capsys, monkeypatch, tmp_path, own_ray):
    trained = []
    monkeypatch.setattr(advise_run, "train", lambda *_, **__: trained.append(1))
    assert main(["advise", TASK.id, "--ray-address", "127.0.0.1:1", "--out", str(tmp_path / "there")]) == 2
    assert capsys.readouterr().err.startswith("rlscale: --ray-address: nothing answers")
    assert not trained


@pytest.mark.parametrize(
    ("stop", "code"), [(KeyboardInterrupt, 130), (LostHeadError, 2), (lambda: UsageError("--cpus", "too many", "Use fewer"), 2)]
)
def test_a_stop_while_fleets_are_measured_names_the_run_that_was_trained(planted, capsys, monkeypatch, tmp_path, stop, code):
    """A run that was named with --run is the user's own, and nothing has to be said of it."""

    def stopped(*_):
        raise stop()

    assert planted(USUAL) == 0
    monkeypatch.setattr(advise_run, "train", lambda *_, **__: SimpleNamespace(state="finished"))
    monkeypatch.setattr(Measuring, "measure", stopped)
    capsys.readouterr()
    there = tmp_path / "there"
    words = ["--fleet-seconds", "0.5", "--cpus", "1", "--price-hour", "3", "--json", "--out", str(there)]
    assert main(["advise", TASK.id, "--seconds", "60", "--seed", "3", *words]) == code
    go_on = shlex.join(["rlscale", "advise", "--run", str(there / "run"), *words])
    assert capsys.readouterr().err.endswith(f". The run is kept; go on from it with: {go_on}\n")
    assert planted(USUAL) == code
    assert "kept" not in capsys.readouterr().err


def test_settings_that_no_run_could_begin_with_are_not_recommended():
    """A run of a huge streamed batch is advised without --stream: where its memory holds no batch, nothing is said to fit."""
    task = find_task("classic/cartpole")
    config = default_config(task)
    settings = settings_for(config, Estimate(None, None, ""), 1)
    assert can_begin(configured(config, settings), task)
    small = replace(config, rollout=replace(config.rollout, memory="1KiB"))
    assert not can_begin(configured(small, settings_for(small, Estimate(None, None, ""), 1)), task)


def test_a_step_that_is_no_observation_is_told_by_the_fragments_of_each_session():
    """Half of 512 steps, then nine tenths of 2,048 after a resume; an adaptive batch says nothing of its steps by its size."""
    run = run_with({"environments": 32, "rollout_length": 16}, {"mini_batch": None})
    first = {"first_iteration": 0, "config": asdict(run), "memory": {"environments": 8}}
    larger = asdict(replace(run, rollout=replace(run.rollout, environments=128)))
    resumed = {"first_iteration": 1, "config": larger, "memory": {"environments": 16}}
    manifest = {"config": larger, "segments": [first, resumed]}
    rows = [
        {"iteration": 0, "batch_observations": 256, "fragments": 4},
        {"iteration": 1, "batch_observations": 1843, "fragments": 8},
    ]
    record = RunRecord(Path("there"), manifest, rows)
    assert job._steps(record) == [512, 2048]
    assert valid_share(record) == pytest.approx((256 + 1843) / (512 + 2048))
    adaptive = replace(run, rollout=replace(run.rollout, batch_size="adaptive"))
    filled = job._filled(adaptive, replace(record, manifest={**manifest, "config": asdict(adaptive)}))
    assert filled.batch == (512 + 2048) / 2
