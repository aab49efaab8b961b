"""`rlscale branch` as a user types it: a real run, real branches, stopped and gone on with, and bad input in one line."""

import contextlib
import html
import io
import json
import math
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from threading import Event, Timer
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import COMMAND, Command
from rich.console import Console

from rlscale.agents.checkpoints import dump, load
from rlscale.agents.checks import check_config
from rlscale.agents.config import config_from_dict, default_config
from rlscale.agents.learning import Learner
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.setup import prepare
from rlscale.benchmarks.branch import run as run_module
from rlscale.benchmarks.branch.branches import Branch, branch_config, evaluator, learn, momentum_from_zero, run_branch
from rlscale.benchmarks.branch.findings import find_page, fit, say, tables
from rlscale.benchmarks.branch.options import BranchOptions, make_plan
from rlscale.benchmarks.branch.run import (
    START_EVALUATIONS,
    Checkpoint,
    _branches,
    _frozen,
    _noise,
    _open,
    _run,
    _start,
    _state,
    run_branches,
)
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.steps import Steps
from rlscale.crossing import Evaluated
from rlscale.envs import find_task, make_env
from rlscale.errors import UsageError
from rlscale.records import read_run
from rlscale.records.files import lock_folder
from rlscale.records.run import read_checkpoint

TRAIN = ["classic/cartpole", "--environments", "8", "--rollout-length", "16", "--epochs", "1", "--mini-batch", "None"]
TRAIN += ["--observations", "12000", "--learning-rate", "0.005", "--threads", "1", "--run", "run"]
BRANCH = ["run", "--observations", "2048", "--batch-sizes", "32,128,512", "--rates", "2", "--seeds", "2"]
BRANCH += ["--noise-batches", "3", "--evaluation-episodes", "8", "--jobs", "1"]

ROOT = Path(__file__).parents[3]


def rlscale(folder, *words):
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("branch")
    with contextlib.chdir(folder):
        assert main(["train", *TRAIN]) == 0
    return folder


@pytest.fixture(scope="module")
def branched(trained):
    """What `rlscale branch` printed, and its record."""
    done = rlscale(trained, "branch", *BRANCH)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((trained / "run" / "branches" / "branches.json").read_text())


@pytest.mark.long
def test_branches_of_a_run_give_a_sentence_tables_a_page_and_a_record(trained, branched):
    shown, record = branched
    assert "classic/cartpole at a return of" in shown
    assert "Gradient noise at the checkpoint" in shown
    page = trained / "run" / "branches" / "branches.html"
    assert str(page.relative_to(trained)) in shown.replace("\n", "")
    said = html.unescape(page.read_text())
    assert f"<p class='answer'>{say(record, fit(record))[0]}</p>" in said
    assert "Gradient noise at the checkpoint" in said
    assert len(record["branches"]) == 12
    assert {(b["batch_size"], b["steps"]) for b in record["branches"]} == {(32, 64), (128, 16), (512, 4)}
    # CartPole's resets are masked, so a branch learns from a little less than the steps it takes.
    assert all(0.9 * 2048 < b["observations"] <= 2048 for b in record["branches"])
    kinds = {(s["head"], s["metric"]) for s in record["noise"]["scales"]}
    assert {("joint", "plain"), ("joint", "adam"), ("joint", "hessian"), ("joint_policy_parameters", "hessian")} <= kinds
    learned = [fmean(b["observations"] / b["steps"] for b in record["branches"] if b["batch_size"] == s) for s in (32, 128, 512)]
    assert record["fit"]["sizes"] == pytest.approx(learned)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_goes_on_with_the_same_branches(trained, branched, tmp_path, number):
    _, whole = branched
    shutil.copytree(trained / "run", tmp_path / "run", ignore=shutil.ignore_patterns("branches"))
    path = tmp_path / "run" / "branches" / "branches.json"
    with Command(
        [*COMMAND, "branch", *BRANCH], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not (path.exists() and len(json.loads(path.read_text())["branches"]) >= 3):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "the same command goes on" in said
        assert "Traceback" not in said
    before = json.loads(path.read_text())["branches"]
    assert 3 <= len(before) < 12
    done = rlscale(tmp_path, "branch", *BRANCH)
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())

    def without_time(branches):
        return sorted((b["batch_size"], b["learning_rate"], b["seed"], b["observations"], b["final_return"]) for b in branches)

    assert record["branches"][: len(before)] == before
    assert without_time(record["branches"]) == without_time(whole["branches"])
    again = rlscale(tmp_path, "branch", *BRANCH, "--seeds", "3")
    assert again.returncode == 2
    assert "another plan" in again.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "nothing"),
        ([str(ROOT / "results" / "rllib-pong")], "the record of another library's job"),
        (["run", "--batch-sizes", "33,128,512"], "rollout length of 16"),
        (
            ["run", "--batch-sizes", "32,128"],
            "--batch-sizes: 2 are too few to tell where the gain falls to half. Give at least three",
        ),
        (["run", "--observations", "100"], "--observations"),
        (["run", "--seeds", "0"], "--seeds"),
        (["run", "--observations", "8192", "--rates", "1", "--seeds", "1"], "ten branches"),
        (["run", "--evaluation-episodes", "1"], "--evaluation-episodes"),
        (["run", "--rate", "1"], "--rates"),
        (["run", "--observations", "8192", "--out", "run/manifest.json"], "--out: cannot write run/manifest.json: File exists"),
        (["run", "--observations", "8192", "--out", "run/manifest.json/new"], "--out: cannot write run/manifest.json/new: Not a"),
    ],
)
def test_bad_input_ends_in_one_line(trained, monkeypatch, capsys, words, says):
    monkeypatch.chdir(trained)
    assert main(["branch", *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said


@pytest.fixture
def without_branches(trained, tmp_path, monkeypatch):
    """The words of the command in this process, which makes no branch, and the record that it writes."""
    for name, value in {"_start": {"return": 1.0, "error": 0.1}, "_noise": None, "_state": b""}.items():
        monkeypatch.setattr(run_module, name, lambda *_, value=value: value)
    monkeypatch.chdir(trained)
    return ["branch", *BRANCH, "--out", str(tmp_path)], tmp_path / "branches.json"


@pytest.mark.parametrize("content", ["", "[]", '{"branches": []}', '{"start": 1, "noise": 1, "branches": [{}]}', None])
def test_a_damaged_record_is_left_alone(without_branches, capsys, content):
    words, path = without_branches
    path.mkdir() if content is None else path.write_text(content)
    assert main(words) == 2
    mend = "Choose another folder, or restore it from a copy"
    assert capsys.readouterr().err == f"rlscale: --out: {path} is no record of branches. {mend}\n"
    assert content is None or path.read_text() == content


def test_a_worker_that_dies_ends_the_command_in_one_line(without_branches, monkeypatch, capsys):
    class Pool(ThreadPoolExecutor):
        def __init__(self, jobs, **_):
            super().__init__(jobs)

        def submit(self, run, *given):
            future = Future()
            future.set_exception(BrokenProcessPool("A process in the process pool was terminated abruptly"))
            return future

    words, path = without_branches
    monkeypatch.setattr(run_module, "ProcessPoolExecutor", Pool)
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "rlscale: a process that made a branch died, perhaps for want of memory. What had ended is recorded in "
    )
    assert said.endswith("; the same command goes on.\n")
    assert json.loads(path.read_text())["start"] == {"return": 1.0, "error": 0.1}


def test_going_on_where_memory_is_short_names_the_command_s_own_option(without_branches, monkeypatch, capsys):
    words, path = without_branches

    def stopped(*_):
        raise KeyboardInterrupt

    def none_left(config, task):
        raise UsageError("--environments", "an iteration batch takes 641 GiB", "Give more --memory, or --stream")

    monkeypatch.setattr(run_module, "_run", stopped)
    assert main(words) == 130
    assert json.loads(path.read_text())["start"] == {"return": 1.0, "error": 0.1}
    capsys.readouterr()
    monkeypatch.setattr(run_module, "prepare", none_left)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("rlscale: --batch-sizes: a branch of ")


def test_two_commands_do_not_write_one_record(without_branches, capsys):
    words, path = without_branches
    lock = lock_folder(path.parent, "--out")
    assert main(words) == 2
    os.close(lock)
    assert f"--out: {path.parent} is being written by this process already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ("96,384,1600,20000", "a branch of 20,000 would learn from 20,000 observations instead of 10,000"),
        ("96,384,7200", "a branch of 7,200 would learn from 7,200 observations instead of 10,000"),
        ("96,384,6400", "a branch of 6,400 would learn from 12,800 observations instead of 10,000"),
    ],
)
def test_all_branches_learn_from_about_as_many_observations(trained, sizes, problem):
    at, record = checkpoint(trained)
    with pytest.raises(UsageError, match=f"--batch-sizes: {problem}. Give more --observations, or smaller sizes"):
        make_plan(BranchOptions("run", observations=10_000, batch_sizes=sizes), at.config, record)
    make_plan(BranchOptions("run", observations=10_000, batch_sizes="96,384,1600,9600"), at.config, record)


@pytest.mark.parametrize("clones", [1, 2])
@pytest.mark.parametrize("task", ["classic/cartpole", "minatar/breakout"])
def test_branches_compose_their_mini_batches_as_the_run_did(trained, task, clones):
    """The run's `--shuffle auto` means whole environments; at other sizes it would mean transitions, which see other noise."""
    _, record = checkpoint(trained)
    config = default_config(find_task(task))
    config = replace(config, rollout=replace(config.rollout, clones=clones))
    assert config.update.shuffle == "auto"
    assert not config.shuffles_transitions
    plan = make_plan(BranchOptions("run", observations=400_000), config, record)
    assert len(plan.sizes) >= 3
    for size in plan.sizes:
        branch = branch_config(config, size, 0)
        assert not branch.shuffles_transitions
        check_config(replace(branch, budget=config.budget))
    shuffled = replace(config, rollout=replace(config.rollout, clones=1), update=replace(config.update, mini_batch=100))
    assert shuffled.shuffles_transitions
    assert branch_config(shuffled, 16 * config.batch, 0).shuffles_transitions


@pytest.mark.parametrize("shuffle", ["environments", "transitions"])
def test_a_run_with_clones_is_branched_at_sizes_that_hold_all_clones_of_an_environment(trained, shuffle):
    at, record = checkpoint(trained)
    length = at.config.rollout.rollout_length
    config = replace(
        at.config,
        rollout=replace(at.config.rollout, clones=4, environments=16),
        update=replace(at.config.update, shuffle=shuffle, mini_batch=None if shuffle == "environments" else 4 * length),
    )
    plan = make_plan(BranchOptions("run", observations=60_000), config, record)
    assert len(plan.sizes) >= 3
    for size in plan.sizes:
        assert size % (4 * length) == 0
    with pytest.raises(UsageError, match=f"--batch-sizes: {6 * length:,} is no multiple of .* 4 clones as in the run"):
        make_plan(BranchOptions("run", observations=60_000, batch_sizes=f"{6 * length},384,1536"), config, record)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"rate_exponent": 2.5}, "--rate-exponent: 2.5 is above 2; the square root is 0.5 and linear is 1. Use 2 or less"),
        ({"rate_exponent": 1000.0}, "--rate-exponent: 1000 is above 2"),
        ({"rates": 16}, "--rates: 16 rates a factor of two apart are more than 15, .* Use 15 or fewer"),
        ({"rates": 3000}, "--rates: 3,000 rates"),
    ],
)
def test_rates_that_no_branch_could_learn_at_are_refused(trained, words, problem):
    at, record = checkpoint(trained)
    with pytest.raises(UsageError, match=problem):
        make_plan(BranchOptions("run", observations=8192, **words), at.config, record)
    make_plan(BranchOptions("run", observations=8192, rates=15, rate_exponent=2.0), at.config, record)


def checkpoint(trained):
    record = read_run(trained / "run")
    config = config_from_dict(record.manifest["config"])
    learner = load(read_checkpoint(record.folder))["learner"]
    return Checkpoint(config, dump(learner), learner["optimizer_steps"], record.rows[-1]["observations"]), record


def test_a_branch_of_a_vanishing_rate_ends_where_it_began(trained):
    """So nothing but learning moves the return: the same evaluation of the same policy."""
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192, evaluation_episodes=16), at.config, record)
    state = _state(at, plan, Branch(128, 1e-12, 0, 3), {}, {})
    ended = run_branch(at.config, at.learner, state, Branch(128, 1e-12, 0, 3), 16, 5)
    weights = load(at.learner)["parameters"].numpy()
    evaluating = evaluator(prepare(branch_config(at.config, 128, 0), find_task(at.config.task)), 16, at.config.seed)
    assert ended.final_return == pytest.approx(evaluating.evaluate(weights, 5).at(1).return_mean)
    evaluating.close()


def test_seeds_start_from_other_environments_and_rates_from_the_same_with_other_random_numbers(trained):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192), at.config, record)
    frozen, states = {}, {}
    first = _state(at, plan, Branch(128, 0.01, 0, 1), frozen, states)
    other_rate = _state(at, plan, Branch(128, 0.02, 0, 1), frozen, states)
    third = _state(at, plan, Branch(128, 0.01, 2, 1), frozen, states)
    groups = [load(state)["states"][0] for state in (first, other_rate, third)]
    begins = [group["env"]["state"].tobytes() for group in groups]
    assert begins[0] == begins[1] != begins[2]
    for drawn in (group["generator"]["state"]["key"].tobytes() for group in groups), (str(g["env"]["generator"]) for g in groups):
        assert len(set(drawn)) == 3
    assert _state(at, plan, Branch(128, 0.01, 2, 1), {}, {}) == third, "whatever else was asked for before"


def test_every_branch_has_reward_noise_of_its_own(trained, monkeypatch):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192), at.config, record)
    noisy, seeds = replace(at.config, rollout=replace(at.config.rollout, reward_noise=0.5)), []
    monkeypatch.setattr(Fragment, "reward_noise", lambda self, seed: seeds.append(seed) or np.zeros(self.reward.shape))
    first, other_rate = Branch(128, 0.01, 0, 1), Branch(128, 0.02, 0, 1)
    for branch in (first, other_rate, first):
        learn(noisy, at.learner, _state(at, plan, branch, {}, {}), branch)
    assert seeds[0] != seeds[1]
    assert seeds[0] == seeds[2]


def test_rewards_of_one_seed_are_not_those_of_another_some_steps_on():
    """Umbrella's distractors are drawn whatever is done: by one stream, seed 1 would see what seed 0 saw, some steps on."""
    task = find_task("toy/umbrella")
    config = default_config(task)
    learner = Learner(config, task, torch.device("cpu"), False).get_state()
    at, size = Checkpoint(config, dump(learner), 0, 0), 32 * config.rollout.rollout_length
    frozen, states, seen = {}, {}, []
    plan = SimpleNamespace(burn_in=20)
    for seed in (0, 1):
        env = make_env(task, 32)
        env.set_state(load(_state(at, plan, Branch(size, 0.01, seed, 1), frozen, states))["states"][0]["env"])
        seen.append([env.step(np.zeros(32, dtype=np.int64)).observation[:, 3:] for _ in range(120)])
    assert len({distractors.tobytes() for course in seen for distractors in course}) == 240


def test_environments_that_cannot_be_saved_are_refused_before_anything_is_measured(tmp_path, monkeypatch):
    words = ["gym/CartPole-v1", "--environments", "8", "--observations", "512", "--threads", "1", "--run", str(tmp_path / "run")]
    assert main(["train", *words]) == 0
    for name in ("_start", "_noise"):
        monkeypatch.setattr(run_module, name, lambda *_: pytest.fail("measured"))
    with pytest.raises(UsageError, match="RUN: environments of gym/CartPole-v1 cannot be saved in the midst of their episodes"):
        run_branches(BranchOptions(str(tmp_path / "run")), [], Console())
    assert not (tmp_path / "run" / "branches").exists()


def test_branches_of_a_run_on_an_accelerator_act_where_they_learn():
    config = default_config(find_task("classic/cartpole"))
    config = replace(config, rollout=replace(config.rollout, actor_device="cuda", actors=2))
    assert prepare(branch_config(config, 128, 0), find_task("classic/cartpole")).compute.device.type == "cpu"


@pytest.mark.parametrize("first_steps", [0, 40])
def test_environments_of_branches_are_out_of_step(first_steps):
    """Whatever the run began with: all episodes of Catch have nine steps, and would begin in one of them for ever."""
    task = find_task("toy/catch")
    config = default_config(task)
    config = replace(config, rollout=replace(config.rollout, random_first_steps=first_steps))
    learner = Learner(config, task, torch.device("cpu"), False).get_state()
    frozen = _frozen(Checkpoint(config, dump(learner), 0, 0), 64 * config.rollout.rollout_length, 1)
    frozen.play(20)
    groups = frozen.environments()["states"]
    frozen.close()
    assert len(np.unique(np.concatenate([group["env"]["steps"] for group in groups]))) >= 5


def test_every_prefix_of_the_branches_holds_all_sizes(trained):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192, seeds=3), at.config, record)
    branches = list(_branches(plan))
    per_seed = len(plan.sizes) * 3
    assert len({(b.batch_size, b.learning_rate) for b in branches[:per_seed]}) == per_seed
    assert len(plan.sizes) >= 3
    assert [b / a for a, b in pairwise(plan.sizes)] == [4.0] * (len(plan.sizes) - 1)
    middle = [rates[1] for rates in plan.rates]
    ratios = [b / a for a, b in pairwise(middle)]
    assert ratios == pytest.approx([(b / a) ** 0.5 for a, b in pairwise(plan.sizes)], rel=0.01)


@pytest.mark.parametrize(
    ("rollout", "update", "problem"),
    [
        ({}, {"learners": 2}, "need a run of one learner"),
        ({"batch_size": "adaptive"}, {}, "need a run of one learner"),
        ({"lag": 1}, {}, "need a run of one learner"),
        ({}, {"stream": True}, "need a run of one learner"),
        ({}, {"proximal_average": 8.0}, "--proximal-average and --tuned-batch would mean other settings"),
        ({}, {"tuned_batch": 64}, "--proximal-average and --tuned-batch would mean other settings"),
        ({"batch_size": 1024}, {}, "its batch is filled in rounds"),
        ({}, {"mini_batch": 48}, "its mini-batches do not divide its batch"),
    ],
)
def test_a_run_that_branches_cannot_go_on_from_is_refused(trained, rollout, update, problem):
    at, record = checkpoint(trained)
    config = replace(at.config, rollout=replace(at.config.rollout, **rollout), update=replace(at.config.update, **update))
    with pytest.raises(UsageError, match=f"RUN: .*{problem}"):
        make_plan(BranchOptions("run", observations=8192), config, record)


@pytest.mark.parametrize(
    ("lengths", "steps"), [([1000.0] * 10 + [40.0] * 10 + [None] + [60.5] * 10, 100), ([7.9], 16), ([None], 16)]
)
def test_environments_play_two_of_the_last_episodes_before_a_branch(trained, lengths, steps):
    """Of the mean length in the last twenty iterations that ended any; and no less than a rollout of 16 steps."""
    at, record = checkpoint(trained)
    record = replace(record, rows=[record.rows[-1] | {"episode_length_mean": length} for length in lengths])
    assert make_plan(BranchOptions("run", observations=8192), at.config, record).burn_in == steps


def test_mini_batches_keep_their_number():
    base = default_config(find_task("classic/cartpole"))
    config = replace(
        base, rollout=replace(base.rollout, environments=8, rollout_length=16), update=replace(base.update, mini_batch=32)
    )
    assert branch_config(config, 512, 1).update.mini_batch == 128
    assert branch_config(config, 512, 1).batch == 512


@pytest.mark.parametrize("before", [0, 1, 10, 20, 50, 2000])
def test_every_step_has_adams_own_correction_however_young_the_checkpoint(before):
    """Against Adam written out: its mean of gradients begins at zero with the branch, that of squares with the run."""
    rng = torch.Generator().manual_seed(before)
    gradients = 0.3 + torch.randn(before + 16, 3, generator=rng, dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    adam = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.999), eps=1e-5)
    mean, square = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for gradient in gradients[:before]:
        parameter.grad = gradient.clone()
        adam.step()
        square = 0.999 * square + 0.001 * gradient**2
    for state in adam.state.values():
        state["exp_avg"].zero_()
    with momentum_from_zero():
        for k, gradient in enumerate(gradients[before:], 1):
            start = parameter.detach().clone()
            parameter.grad, adam.param_groups[0]["lr"] = gradient.clone(), 0.1
            adam.step()
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            step = 0.1 * (mean / (1 - 0.9**k)) / ((square / (1 - 0.999 ** (before + k))).sqrt() + 1e-5)
            torch.testing.assert_close(start - parameter.detach(), step, rtol=1e-6, atol=0)
    adam.param_groups[0]["lr"] = 0.1
    adam.step()
    assert adam.param_groups[0]["lr"] == 0.1, "outside, a rate stays what it is"


def test_batch_sizes_hold_the_run_s_mini_batches(trained):
    at, record = checkpoint(trained)
    length = at.config.rollout.rollout_length
    rollout = replace(at.config.rollout, environments=12)
    config = replace(at.config, rollout=rollout, update=replace(at.config.update, mini_batch=12 * length // 6, epochs=2))
    for shuffle, unit in (("transitions", math.lcm(length, 6)), ("environments", 6 * length)):
        shuffled = replace(config, update=replace(config.update, shuffle=shuffle))
        plan = make_plan(BranchOptions("run", observations=20 * 8 * 6 * length, seeds=12), shuffled, record)
        assert len(plan.sizes) >= 3
        assert all(size % unit == 0 for size in plan.sizes)
    with pytest.raises(UsageError, match=f"{4 * length:,} is no multiple of {6 * length}, for 6 mini-batches"):
        make_plan(BranchOptions("run", batch_sizes=f"{4 * length},{8 * length},{16 * length}"), shuffled, record)


@pytest.mark.parametrize(
    "rule",
    [
        {"learning_rate": 0.008},
        {"learning_rate": 0.032, "lr_rule": "linear", "lr_batch": 4.0},
        {"learning_rate": 0.004, "lr_rule": "sqrt", "lr_batch": 0.25},
        {"learning_rate": 1.0, "lr_rule": "noise"},
    ],
    ids=lambda rule: next(reversed(rule)),
)
def test_a_branch_of_an_annealed_run_still_learns(trained, rule):
    """A rate that has fallen to nothing is followed down to a quarter of 0.008, which the run's own rule made of its setting."""
    at, record = checkpoint(trained)
    own = {name: int(value * at.config.mini_batch) if name == "lr_batch" else value for name, value in rule.items()}
    config = replace(at.config, update=replace(at.config.update, anneal=True, **own))
    fell = (0.008 * (1 - n / (len(record.rows) - 1)) for n in range(len(record.rows)))
    record = replace(record, rows=[row | {"learning_rate": rate} for row, rate in zip(record.rows, fell, strict=True)])
    if config.update.lr_rule != "noise":  # a higher rate from before the run was resumed with this one counts no more
        record.rows[0]["learning_rate"] = 0.08
    plan = make_plan(BranchOptions("run", observations=8192), config, record)
    at_run = plan.sizes.index(config.batch) if config.batch in plan.sizes else None
    scale = math.sqrt(plan.sizes[0] / config.batch)
    assert plan.rates[0][1] == pytest.approx(0.002 * scale, rel=1e-3)
    assert at_run is None or plan.rates[at_run][1] == pytest.approx(0.002, rel=1e-3)


def gaining():
    """A record of twelve branches with gains that stand out: 50 in small batches, half of that at 200."""
    branches = [
        {
            "batch_size": size,
            "learning_rate": factor * 0.001 * size**0.5,
            "seed": seed,
            "steps": 2048 // size,
            "observations": 2048,
            "final_return": 100 + 50 / (1 + size / 200) + seed,
            "return_error": 0.5,
        }
        for seed in range(2)
        for size in (32, 128, 512)
        for factor in (1.0, 2.0)
    ]
    return {"start": {"return": 100.0, "error": 0.1}, "branches": branches}


def test_a_diverged_branch_is_left_out():
    record = gaining()
    whole = fit(record)
    extra = {**record["branches"][0], "final_return": None, "return_error": None}
    record["branches"].append(extra)
    assert asdict(fit(record))["progress"] == whole.progress
    plan = {"sizes": (32, 128, 512), "rates": [[0.001 * size**0.5, 0.002 * size**0.5] for size in (32, 128, 512)]}
    said = say({**record, "task": "t", "observations": 2048, "noise": None, "plan": plan}, whole)
    assert "Branches that diverged and are left out: 1." in said


@pytest.mark.parametrize(
    ("diverged", "problem"),
    [
        (lambda b: b["batch_size"] == 512, "4 of 12 branches diverged, and 8 of 2 batch sizes are too few for a fit"),
        (lambda b: b["batch_size"] > 32 and b["seed"], "4 of 12 branches diverged, and 8 of 3 batch sizes are too few"),
    ],
)
def test_too_few_branches_left_is_said_in_one_line(diverged, problem):
    record = gaining()
    branches = [{**b, "final_return": None, "return_error": None} if diverged(b) else b for b in record["branches"]]
    with pytest.raises(UsageError, match=f"--seeds: {problem}"):
        fit({**record, "branches": branches})


def unequal():
    """A record of branches of whole batches that come near 10,000 observations, except the largest: 20,000. B_local is 5,000."""
    rng = np.random.default_rng(0)
    sizes, steps = (100, 400, 1600, 20_000), (100, 25, 6, 1)
    rates = [[0.001 * size**0.5 * factor for factor in (0.5, 1.0, 2.0)] for size in sizes]
    branches = [
        {
            "batch_size": size,
            "learning_rate": rate,
            "seed": seed,
            "steps": count,
            "observations": size * count,
            "final_return": 3
            + 1e-3 * size * count / (1 + size / 5000) * math.exp(-0.3 * math.log(factor) ** 2) * (1 + 0.02 * rng.normal()),
            "return_error": 0.01,
        }
        for seed in range(6)
        for size, count, tried in zip(sizes, steps, rates, strict=True)
        for factor, rate in zip((0.5, 1.0, 2.0), tried, strict=True)
    ]
    start = {"return": 3.0, "error": 0.01}
    plan = {"sizes": sizes, "rates": rates}
    return {"task": "t", "plan": plan, "start": start, "observations": 50_000, "noise": None, "branches": branches}


def test_shares_are_of_what_small_batches_gain_from_as_many_observations():
    """Branches of an earlier version may have learned from unequal numbers of them."""
    record = unequal()
    diverged = {**record["branches"][0], "final_return": None, "return_error": None, "observations": 100}
    record["branches"].append(diverged)
    frontier = fit(record)
    shares = [float(row[-1].rstrip("%")) / 100 for row in tables(record, frontier)[0][2]]
    alone = replace(frontier, gains=tuple((gain, math.nan) for gain, _ in frontier.gains))
    assert [row[2] for row in tables(record, alone)[0][2]] == [f"{gain:.3g}" for gain, _ in frontier.gains], "no ± nan"
    assert shares == pytest.approx([1 / (1 + size / 5000) for size in frontier.sizes], abs=0.03)
    known = {"command": ["rlscale"], "machine": {}, "commit": None}
    assert find_page(record | known, frontier).observations == (10_000, 10_000, 9_600, 20_000)


def test_b_local_counts_no_steps_that_only_reset_an_environment():
    """As the noise scale beside it does: where a tenth of the steps are such, B_local is nine tenths as large."""
    record = unequal()
    fewer = [{**row, "observations": 0.9 * row["observations"]} for row in record["branches"]]
    whole, valid = fit(record), fit({**record, "branches": fewer})
    assert valid.sizes == pytest.approx([0.9 * size for size in whole.sizes])
    assert valid.b_local.value == pytest.approx(0.9 * whole.b_local.value, rel=1e-3)


def test_no_two_branches_are_evaluated_on_the_same_random_numbers(trained, monkeypatch):
    """Nor a branch and the start: an error that they shared would shift all gains, and the fit takes them as independent."""
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=2048, batch_sizes="32,128,512", rates=2, seeds=2), at.config, record)
    branches, keys = list(_branches(plan)), []

    class Pool(ThreadPoolExecutor):
        def __init__(self, jobs, **_):
            super().__init__(jobs)

        def submit(self, run, *given):
            keys.append(given[-1])
            return super().submit(lambda: given[-1])

    monkeypatch.setattr(run_module, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(run_module, "_state", lambda *_: b"")
    kept = []
    _run(at, plan, branches, 2, Steps(Console(file=io.StringIO()), 12), kept.append)
    assert len(kept) == 12
    assert len({*keys, *range(START_EVALUATIONS)}) == 12 + START_EVALUATIONS
    resumed = keys[5:]
    keys.clear()
    _run(at, plan, branches[5:], 2, Steps(Console(file=io.StringIO()), 12), kept.append)
    assert keys == resumed


def test_a_branch_that_has_ended_is_kept_whatever_stops_the_others(trained, monkeypatch):
    """Ctrl-C while environments are made for the next one: nobody has looked at the three that are under way or have ended."""
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=2048, batch_sizes="32,128,512", rates=2, seeds=2), at.config, record)
    made, last, kept = [], Event(), []

    class Pool(ThreadPoolExecutor):
        def __init__(self, jobs, **_):
            super().__init__(jobs)

        def submit(self, run, *given):
            number = len(made)
            made.append(super().submit(lambda: number if number < 2 else last.wait(60)))
            return made[-1]

    def state(*_):
        if len(made) == 3:
            wait(made[:2])
            Timer(0.5, last.set).start()  # the pool waits for it
            raise KeyboardInterrupt
        return b""

    monkeypatch.setattr(run_module, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(run_module, "_state", state)
    with pytest.raises(KeyboardInterrupt):
        _run(at, plan, list(_branches(plan)), 8, Steps(Console(file=io.StringIO()), 12), kept.append)
    assert sorted(kept) == [0, 1]


def test_a_record_is_of_one_checkpoint(trained, tmp_path):
    """Of two runs with the same task, plan and counts the parameters differ; a record of before says nothing of them."""
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192), at.config, record)
    path = tmp_path / "branches.json"
    path.write_text(json.dumps(_open(path, plan, at, ["rlscale"])))
    assert _open(path, plan, at, ["rlscale"])["command"] == ["rlscale"]
    learner = load(at.learner)
    learner["parameters"][0] += 1
    others = [replace(at, learner=dump(learner)), replace(at, config=replace(at.config, task="classic/acrobot"))]
    for other in others:
        with pytest.raises(UsageError, match="of another plan or checkpoint"):
            _open(path, plan, other, ["rlscale"])
    before = {key: value for key, value in json.loads(path.read_text()).items() if key != "parameters_sha256"}
    path.write_text(json.dumps(before))
    assert _open(path, plan, at, ["rlscale"]) == before


def test_a_branch_without_room_names_an_option_of_this_command(trained, tmp_path):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192), at.config, record)
    huge = replace(plan, sizes=(*plan.sizes[:-1], 16 * 10**9))
    with pytest.raises(UsageError, match=r"--batch-sizes: a branch of 16,000,000,000 observations .* Use smaller ones"):
        _open(tmp_path / "branches.json", huge, at, ["rlscale"])


@pytest.mark.parametrize(("clones", "environments"), [(4, 4), (1, 2)])
def test_the_noise_is_measured_between_eight_environments_or_groups_of_clones(trained, clones, environments):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192, noise_batches=2), at.config, record)
    rollout = replace(at.config.rollout, environments=environments, clones=clones)
    config = replace(at.config, rollout=rollout, update=replace(at.config.update, mini_batch=None, shuffle="environments"))
    found = _noise(replace(at, config=config), plan)
    assert found["batch_size"] == 8 * clones * rollout.rollout_length
    assert {scale["head"] for scale in found["scales"] if scale["trace"] > 0} >= {"joint", "policy", "value"}


def test_at_the_best_return_there_is_nothing_is_concluded():
    record = gaining()
    assert fit(record).b_local.value is not None
    ended = [{**b, "final_return": 500.0, "return_error": 0.0} if b["batch_size"] == 32 else b for b in record["branches"]]
    found = fit({**record, "branches": ended}).b_local
    assert (found.value, found.interval) == (None, (0.0, math.inf))
    assert found.reason.startswith("4 of 12 branches end with the same return of 500 in every episode")


def test_the_start_is_measured_eight_times(trained):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192, evaluation_episodes=16), at.config, record)
    found = _start(at, plan)
    assert 5 < found["return"] < 500
    assert 0 < found["error"] < found["return"] / 4


def test_the_start_is_the_mean_of_its_evaluations_with_the_error_of_that_mean(trained, monkeypatch):
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192), at.config, record)
    returns, errors = [10, 20, 30, 40, 50, 60, 70, 120], [3, 4, 0, 0, 0, 0, 0, 12]

    def evaluate(weights, key):
        return SimpleNamespace(at=lambda steps: Evaluated(steps, returns[key], errors[key], 256))

    monkeypatch.setattr(run_module, "evaluator", lambda *_: SimpleNamespace(evaluate=evaluate, close=lambda: None))
    assert _start(at, plan) == {"return": 50.0, "error": 13 / 8}


def test_the_first_step_is_adams_own_from_a_mean_of_gradients_that_begins_anew(trained):
    """Δθ = -ε g / (√v̂ + 1e-5), with g read from m = (1 - β₁) g after the step; the run's own m is nothing."""
    at, record = checkpoint(trained)
    plan = make_plan(BranchOptions("run", observations=8192), at.config, record)
    branch = Branch(128, 0.01, 0, 1)
    state = _state(at, plan, branch, {}, {})
    before = load(at.learner)
    _, after, _ = learn(at.config, at.learner, state, branch)
    (adam,) = after["optimizer"]["state"].values()
    root = (adam["exp_avg_sq"] / (1 - at.config.update.beta2 ** float(adam["step"]))).sqrt()
    expected = -0.01 * (adam["exp_avg"] / 0.1) / (root + 1e-5)
    torch.testing.assert_close(after["parameters"] - before["parameters"], expected, rtol=1e-3, atol=1e-6)
    for poisoned in before["optimizer"]["state"].values():
        poisoned["exp_avg"].fill_(1e6)
    _, again, _ = learn(at.config, dump(before), state, branch)
    assert torch.equal(again["parameters"], after["parameters"])


def test_gains_are_counted_from_the_start():
    record = gaining()
    start = record["start"]
    lifted = [{**b, "final_return": b["final_return"] + 100} for b in record["branches"]]
    whole = fit(record)
    same = fit({**record, "branches": lifted, "start": {**start, "return": start["return"] + 100}})
    assert same.progress == pytest.approx(whole.progress, rel=0.01)
    assert fit({**record, "branches": lifted}).progress > 1.5 * whole.progress


def test_a_published_records_page_and_tables_say_the_same():
    record = json.loads((ROOT / "results" / "branches" / "minatar-breakout.json").read_text())
    page = find_page(record, fit(record))
    sizes = record["plan"]["sizes"]
    learned = [fmean(row["observations"] for row in record["branches"] if row["batch_size"] == size) for size in sizes]
    assert page.observations == pytest.approx(learned)
    shares = [
        f"{gain / (page.frontier.progress * count):.0%}" for (gain, _), count in zip(page.frontier.gains, learned, strict=True)
    ]
    assert [row[-1] for row in page.tables[0][2]] == shares
    (scale,) = (s for s in record["noise"]["scales"] if (s["head"], s["metric"]) == ("joint_policy_parameters", "adam"))
    assert (page.noise.value, list(page.noise.interval)) == (scale["value"], scale["interval"])
    assert ["joint, on the policy's parameters", "Adam's", page.noise.say()] in page.tables[1][2]
