"""`rlscale bench`: a planted change is found, none is not, and the real suite is measured, stopped, continued and compared."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from rlscale.agents import machine
from rlscale.agents.cluster import resources
from rlscale.agents.config import default_config
from rlscale.benchmarks.bench import BenchOptions, run_bench, suite
from rlscale.benchmarks.bench import run as bench
from rlscale.benchmarks.bench.compare import compare_files, rate_ratio
from rlscale.benchmarks.bench.suite import SUITE, VERSION, actor_counts
from rlscale.benchmarks.commands.bench import run
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.files import lock_folder

ROOT = Path(__file__).parents[3]


def test_the_first_iteration_is_not_counted_end_to_end(monkeypatch):
    """Iterations of 100 observations that end at 4, 6 and 8 seconds: 200 observations in 4 seconds."""
    ended = iter([4.0, 6.0, 8.0])
    closed = []
    session = SimpleNamespace(
        iterate=lambda: ({"batch_observations": 100, "seconds": next(ended)}, None), close=lambda: closed.append(True)
    )
    monkeypatch.setattr(suite, "prepare", lambda config, task: SimpleNamespace(start=lambda: session))
    assert suite.end_to_end(None, None) == 50.0
    assert closed == [True]


def test_the_learner_s_rates_are_those_of_its_median_updates(monkeypatch):
    """Updates of 4,096 observations: one step in 2 s and with the noise in 4 s, four epochs in 16 s, others slower or faster."""
    took, asked = iter([[2.0, 1.0, 9.0], [4.0, 3.0, 9.0], [16.0, 3.0, 20.0]]), []

    def measure_learner(config, task, compute, fragments, blocks):
        asked.append((config.update.epochs, config.update.mini_batch, config.noise.joint_noise_period, fragments))
        return {"batch_size": 4096, "blocks": blocks, "seconds": next(took)}

    monkeypatch.setattr(suite, "measure_learner", measure_learner)
    monkeypatch.setattr(suite, "sample_fragments", lambda config, task, compute, environments, count: (environments, count))
    task = find_task("atari/pong")
    config = default_config(task)
    config = replace(config, update=replace(config.update, epochs=4, mini_batch=256))
    assert suite.measure_learning(config, task, None) == {
        "learning, one step": 2048.0,
        "learning, one step, noise measured": 1024.0,
        "learning, 4 epochs of mini-batches": 256.0,
    }
    assert asked == [(1, None, 0, (64, 2)), (1, None, 1, (64, 2)), (4, 256, 0, (64, 2))]


def test_a_ratio_and_its_interval():
    """Twice as fast is 2; of ratios of equal rates 95% hold 1; a change of 20% is seen through 3%, not through 30%."""
    assert rate_ratio([100, 100, 100], [200, 200, 200]).value == pytest.approx(2)
    assert rate_ratio([100], [150]).interval is None
    rng = np.random.default_rng(0)

    def draw(middle, scatter, n=5):
        return middle * np.exp(scatter * rng.normal(size=n))

    held = seen = unseen = 0
    for _ in range(200):
        low, high = rate_ratio(draw(100, 0.1), draw(100, 0.2)).interval
        held += low <= 1 <= high
        seen += rate_ratio(draw(100, 0.03), draw(120, 0.03)).interval[0] > 1
        low, high = rate_ratio(draw(100, 0.3), draw(120, 0.3)).interval
        unseen += low <= 1 <= high
    assert 182 <= held <= 199
    assert seen >= 195
    assert unseen >= 140


def result(path, rates, **changes):
    record = {"suite": SUITE, "version": VERSION, "nodes": [{"cpus": 2, "gpus": 0, "count": 1}]}
    record |= {"cpus": 2, "commit": "abc", "precision": "float32", "rounds": [{"sampling": r, "learning": 50.0} for r in rates]}
    path.write_text(json.dumps(record | changes))
    return path


def test_what_changed_is_said(tmp_path):
    one = result(tmp_path / "a.json", [100, 101, 99, 100])
    other = result(tmp_path / "b.json", [120, 121, 119, 120])
    text = io.StringIO()
    assert compare_files(one, other, Console(width=120, file=text)) == 0
    lines = text.getvalue().splitlines()
    (sampling,) = [line for line in lines if line.startswith(" ") and "sampling" in line]
    assert "1.20" in sampling
    assert "faster" in sampling
    (learning,) = [line for line in lines if "learning" in line]
    assert "within the noise" in learning
    assert "CPUs: rates of whole fleets" not in text.getvalue()
    more = result(tmp_path / "more.json", [150, 151], cpus=6)
    compare_files(one, more, Console(width=120, file=text))
    assert "actors had 2 and 6 CPUs: rates of whole fleets, as end to end, are of two different ones" in text.getvalue()


@pytest.mark.parametrize("changes", [{"rounds": [{"a": 1.0, "b": 2.0}, {"a": 1.0}]}, {"nodes": [{"cpus": 2}]}, {"nodes": 2}])
def test_what_is_not_whole_cannot_be_compared(tmp_path, changes):
    with pytest.raises(UsageError, match=r"--compare: .*c\.json is no result of rlscale bench, or no whole one"):
        compare_files(result(tmp_path / "c.json", [1.0], **changes), result(tmp_path / "a.json", [1.0]), Console(quiet=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "is no result"), ("[", "is no result"), ('{"rounds": []}', "is no result"), (None, "cannot read")],
)
def test_what_cannot_be_compared(tmp_path, content, message):
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content)
    with pytest.raises(UsageError, match=message):
        compare_files(result(tmp_path / "a.json", [1.0]), bad, Console(quiet=True))
    with pytest.raises(UsageError, match="Measure both with the same version"):
        compare_files(result(tmp_path / "a.json", [1.0]), result(tmp_path / "c.json", [1.0], version=99), Console(quiet=True))


def test_fleets_follow_the_nodes():
    assert actor_counts(2, [{"cpus": 2, "count": 1}]) == [1, 2]
    assert actor_counts(6, [{"cpus": 6, "count": 1}]) == [1, 2, 4, 6]
    assert actor_counts(24, [{"cpus": 16, "count": 1}, {"cpus": 4, "count": 2}]) == [1, 2, 4, 8, 16, 20, 24]


@pytest.fixture
def rounds(monkeypatch):
    """The command without Ray and without what it measures: the numbers of the rounds that were measured."""
    made = []

    def planted(config, task, compute, counts, seconds, steps, number):
        made.append((number, counts))
        for part in range(len(counts) + 2):  # each fleet, the learner, end to end
            steps.begin(f"round {number}, part {part}")
        return {"sampling": 1.0}

    monkeypatch.setattr(bench, "connected", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr(bench, "describe_nodes", lambda: [{"cpus": 1, "gpus": 0, "count": 1}])
    monkeypatch.setattr(bench, "measure_round", planted)
    return made


def measure(out, console=None, **options):
    return run_bench(BenchOptions(cpus=1, out=str(out), **options), ["rlscale", "bench"], console or Console(quiet=True))


def test_the_time_left_is_said_once_a_round_has_told_it(tmp_path, rounds):
    said = io.StringIO()
    assert measure(tmp_path / "here.json", Console(file=said, width=150), rounds=2) == 0
    told = [line for line in said.getvalue().splitlines() if line.startswith("round ")]
    assert [line.endswith(" left") for line in told] == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"commit": "abc+changes"}, "commit abc\\+changes, now "),
        ({"driver": {"processor": "Z80"}}, "processor Z80, now "),
        ({"versions": {"torch": "0.1"}}, "torch 0.1, now "),
        ({"seconds": 7.0}, "seconds 7.0, now 3.0"),
        ({"cpus": 9}, "cpus 9, now 1"),
        ({"nodes": [{"cpus": 3, "gpus": 1, "count": 2}]}, "nodes 2 × 3 CPUs and 1 GPUs, now 1 × 1 CPUs and 0 GPUs"),
        ({"version": 0}, "version 0, now 1"),
    ],
)
def test_rounds_of_one_file_are_all_measured_alike(tmp_path, rounds, stored, says):
    """A file is labelled with one commit and one machine, so rounds of others do not go into it."""
    out = tmp_path / "here.json"
    assert measure(out, rounds=2) == 0
    record = json.loads(out.read_text())
    part = {name: record[name] | value if isinstance(value, dict) else value for name, value in stored.items()}
    out.write_text(json.dumps(record | part))
    before = out.read_bytes()
    with pytest.raises(UsageError, match=f"--out: .*was measured otherwise: {says}.*Give another --out") as caught:
        measure(out, rounds=5)
    assert str(caught.value).count(", now ") == 1
    assert "\n" not in str(caught.value)
    assert out.read_bytes() == before
    assert len(rounds) == 2


def test_rounds_of_another_installed_version_are_not_continued(tmp_path, rounds, monkeypatch):
    """Where there is no commit the code itself is compared."""
    monkeypatch.setattr(machine, "find_commit", lambda: None)
    assert measure(tmp_path / "here.json", rounds=1) == 0
    assert measure(tmp_path / "here.json", rounds=2) == 0
    package = tmp_path / "rlscale"
    package.mkdir()
    (package / "__init__.py").write_text("x = 2\n")
    monkeypatch.setattr(machine.rlscale, "__file__", str(package / "__init__.py"))
    with pytest.raises(UsageError, match=r"was measured otherwise: commit installed-\w{8}, now installed-\w{8}\. Give another"):
        measure(tmp_path / "here.json", rounds=3)


def test_a_file_of_before_the_seconds_were_stored_is_continued(tmp_path, rounds):
    out = tmp_path / "here.json"
    assert measure(out, rounds=1) == 0
    record = json.loads(out.read_text())
    assert record.pop("seconds") == 3.0
    out.write_text(json.dumps(record))
    assert measure(out, rounds=2, seconds=1.0) == 0
    assert len(json.loads(out.read_text())["rounds"]) == 2


@pytest.mark.parametrize("content", ["{}", "[", "[]", '{"rounds": 3}'])
def test_a_file_that_is_no_result_is_left_alone(tmp_path, rounds, content):
    out = tmp_path / "here.json"
    out.write_text(content)
    with pytest.raises(UsageError, match=r"--out: .*here\.json is no result of rlscale bench"):
        measure(out)
    assert out.read_text() == content


@pytest.mark.parametrize("place", ["taken/here.json", "taken/below/here.json", "folder"])
def test_a_file_that_cannot_be_written_is_said_before_a_round(tmp_path, rounds, place):
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"--out: "):
        measure(tmp_path / place)
    assert rounds == []


def test_two_commands_do_not_write_one_folder(tmp_path, rounds):
    lock = lock_folder(tmp_path, "--out")
    with pytest.raises(UsageError, match=f"--out: {tmp_path} is being written by this process already"):
        measure(tmp_path / "here.json")
    os.close(lock)
    assert rounds == []


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["--rounds", "3"], "--rounds"), (["--out", "c.json"], "--out"), (["--ray-address", "auto"], "--ray-address")],
)
def test_comparing_measures_nothing(tmp_path, words, flag):
    files = [str(result(tmp_path / name, [100, 101])) for name in ("a.json", "b.json")]
    with pytest.raises(UsageError, match=f"{flag}: nothing is measured with --compare. Leave it out"):
        run(["--compare", *files, *words])


def test_published_results_can_be_compared():
    published = str(ROOT / "results" / "bench.json")
    assert run(["--compare", published, published]) == 0


def test_on_a_shared_cluster_fleets_use_what_is_free(tmp_path, rounds, monkeypatch):
    monkeypatch.setattr(bench, "describe_nodes", lambda: [{"cpus": 16, "gpus": 0, "count": 1}])
    monkeypatch.setattr(bench, "watch_head", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(resources, "free_cpus", lambda: 6)
    options = BenchOptions(ray_address="127.0.0.1:6379", rounds=1, out=str(tmp_path / "here.json"))
    assert run_bench(options, ["rlscale", "bench"], Console(quiet=True)) == 0
    assert rounds == [(1, [1, 2, 4, 6])]
    monkeypatch.setattr(resources, "free_cpus", lambda: 0)
    with pytest.raises(UsageError, match="--ray-address: all CPUs of the cluster are in use"):
        run_bench(options, ["rlscale", "bench"], Console(quiet=True))


@pytest.mark.long
def test_the_suite_goes_on_where_it_stopped(tmp_path, monkeypatch, own_ray):
    """The real command for one round on one CPU; then another one in the same file, and both compared with themselves."""
    out = tmp_path / "here.json"
    words = ["bench", "--cpus", "1", "--seconds", "0.1", "--out", str(out)]
    command = [sys.executable, "-m", "rlscale", *words, "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first = json.loads(out.read_text())["rounds"]
    assert len(first) == 1
    assert {"sampling, 1 actor", "learning, one step", "end to end, 4 epochs, noise measured"} <= first[0].keys()
    assert min(first[0].values()) > 0

    second = {name: 1.1 * rate for name, rate in first[0].items()}

    def planted(config, task, compute, counts, seconds, steps, number):
        for part in range(3):  # one fleet, the learner, end to end
            steps.begin(f"round {number}, part {part}")
        return second

    monkeypatch.setattr(bench, "measure_round", planted)
    said = io.StringIO()
    options = BenchOptions(cpus=1, rounds=3, seconds=0.1, out=str(out))
    assert run_bench(options, command, Console(file=said, width=150)) == 0
    assert json.loads(out.read_text())["rounds"] == [first[0], second, second]
    assert "holds 1 of 3 rounds already" in said.getvalue()
    told = [line for line in said.getvalue().splitlines() if line.startswith("round ")]
    assert [line.endswith(" left") for line in told] == [False] * 3 + [True] * 3, "once a round has told it"
    said = io.StringIO()
    assert compare_files(out, out, Console(file=said, width=150)) == 0
    assert said.getvalue().count("within the noise") == len(second)
    record = json.loads(out.read_text())
    out.write_text(json.dumps({**record, "cpus": 9}))
    with pytest.raises(UsageError, match=r"--out: .*cpus 9, now 1"):
        run_bench(options, command, Console(file=said))
