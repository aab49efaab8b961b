"""Every example runs, shortened, and says what it promises."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlscale.benchmarks.cli import main
from rlscale.records.run import read_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def shortened(name, **constants):
    """The program with other constants."""
    text = (EXAMPLES / name).read_text()
    for constant, value in constants.items():
        text, changed = re.subn(rf"\b{constant} = \S+", f"{constant} = {value}", text, count=1)
        assert changed == 1
    return text


def run(folder, program):
    """What the program prints, as a script in a folder of its own."""
    (folder / "program.py").write_text(program)
    path = os.pathsep.join([str(ROOT), *(place for place in sys.path if place.endswith("site-packages"))])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_example_is_here_and_in_the_readme():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"rllib_job.py", "sb3_job.py", "torch_loop.py", "own_environment.py"}
    assert set(re.findall(r"\[`(\w+\.py)`\]\(\1\)", (EXAMPLES / "README.md").read_text())) == names


def test_the_torch_loop_learns_and_measures(tmp_path):
    said = run(
        tmp_path, (EXAMPLES / "torch_loop.py").read_text().replace("UPDATES, WINDOW = 100, 10", "UPDATES, WINDOW = 40, 10")
    )
    lines = re.findall(r"update (\d+), episodes of some (\d+) steps: noise scale (.+) observations", said)
    assert [int(update) for update, _, _ in lines] == [10, 20, 30, 40]
    assert int(lines[-1][1]) > 1.5 * int(lines[0][1]), "it does not learn"
    assert re.match(r"[\d,.]+ \[[\d,.]+, [\d,.]+\]", lines[0][2]), "an early window of 32,000 observations is resolved"


@pytest.mark.long
def test_the_stable_baselines3_job_leaves_a_record_that_is_advised_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    run(tmp_path, shortened("sb3_job.py", OBSERVATIONS="6_000"))
    record = read_run(tmp_path / "runs" / "sb3-job")
    assert (record.state, record.manifest["task"]["id"], len(record.rows)) == ("finished", "Pendulum-v1", 3)
    assert all({entry["head"] for entry in row["noise"]} >= {"policy", "value", "joint"} for row in record.rows)
    monkeypatch.chdir(tmp_path)
    assert main(["advise", "--run", "runs/sb3-job", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["task"] == "Pendulum-v1"
    assert (advice["settings"]["rollout_length"], advice["settings"]["epochs"]) == (128, 10)


@pytest.mark.long
def test_the_rllib_job_leaves_a_record(tmp_path, monkeypatch, capsys, ray_of_four):
    """In this process, which has Ray."""
    monkeypatch.chdir(tmp_path)
    exec(compile(shortened("rllib_job.py", ITERATIONS="2"), "rllib_job.py", "exec"), {})
    record = read_run(tmp_path / "runs" / "rllib-job")
    assert (record.state, len(record.rows)) == ("finished", 2)
    assert all(row["noise"] for row in record.rows)
    assert capsys.readouterr().out.count("the policy's noise scale is above") == 2


def test_the_own_environment_is_trained_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_environment.py").write_text((EXAMPLES / "own_environment.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_environment", raising=False)
    assert main(["train", "own_environment:make", "--observations", "20000", "--run", "mine"]) == 0
    rows = read_run(tmp_path / "mine").rows
    assert rows[-1]["return_mean"] > rows[0]["return_mean"] + 0.05, "it learns to walk right"
    assert main(["report", "mine"]) == 0
    capsys.readouterr()
