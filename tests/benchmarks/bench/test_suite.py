"""`rlscale bench`: a planted change is found, none is not, and the real suite is measured, stopped, continued and compared."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from rlscale.benchmarks.bench import suite
from rlscale.benchmarks.bench.compare import compare_files, rate_ratio
from rlscale.benchmarks.bench.suite import SUITE, VERSION, actor_counts
from rlscale.benchmarks.commands import bench
from rlscale.benchmarks.commands.bench import BenchOptions, run_bench
from rlscale.errors import UsageError


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


def test_the_time_left_is_said_once_a_round_has_told_it(tmp_path, monkeypatch):
    """The command without Ray and without what it measures."""

    def planted(config, task, compute, counts, seconds, steps, number):
        for part in range(len(counts) + 2):  # each fleet, the learner, end to end
            steps.begin(f"round {number}, part {part}")
        return {"sampling": 1.0}

    for name in ("connect", "disconnect"):
        monkeypatch.setattr(bench, name, lambda *arguments: None)
    monkeypatch.setattr(bench, "describe_nodes", lambda: [{"cpus": 1, "gpus": 0, "count": 1}])
    monkeypatch.setattr(bench, "measure_round", planted)
    said = io.StringIO()
    options = BenchOptions(cpus=1, rounds=2, out=str(tmp_path / "here.json"))
    assert run_bench(options, ["rlscale", "bench"], Console(file=said, width=150)) == 0
    told = [line for line in said.getvalue().splitlines() if line.startswith("round ")]
    assert [line.endswith(" left") for line in told] == [False] * 3 + [True] * 3


@pytest.mark.long
def test_the_suite_goes_on_where_it_stopped(tmp_path, monkeypatch):
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
    options = BenchOptions(cpus=1, rounds=3, out=str(out))
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
    with pytest.raises(UsageError, match=r"--out: .*another machine's result"):
        run_bench(options, command, Console(file=said))
