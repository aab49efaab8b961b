"""The noise of tasks without a sweep: real runs that end, go on and are summed up; a planted record."""

import json
import subprocess
import sys

import pytest
from run_records import add_joint, make_run

from rlscale.benchmarks.measurements.learning.noise_without_sweep import at, summary_of, table
from rlscale.benchmarks.measurements.measuring import say_recorded
from rlscale.noise import pool

COMMAND = [sys.executable, "-m", "rlscale.benchmarks.measurements.learning.noise_without_sweep"]


def measure(folder, observations):
    settings = "--environments 16 --rollout-length 32 --epochs 1 --mini-batch 512 --policy-noise-period 1 --value-noise-period 1"
    tasks = ["classic/cartpole", "toy/catch"]
    words = ["--tasks", *tasks, f"--settings={settings}", "--observations", str(observations)]
    paths = ["--runs", str(folder / "runs"), "--out", str(folder / "record.json")]
    done = subprocess.run([*COMMAND, *words, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "record.json").read_text())["readings"]["tasks"], done.stdout


@pytest.mark.long
def test_every_task_is_run_to_its_observations_and_goes_on_with_more(tmp_path):
    found, _ = measure(tmp_path, 10_240)
    assert [one["task"] for one in found] == ["classic/cartpole", "toy/catch"]
    assert all(10_240 <= one["observations"] < 10_240 + 512 for one in found)
    for one in found:
        assert {(noise["head"], noise["metric"]) for noise in one["noise"]} >= {
            ("policy", "plain"),
            ("value", "adam"),
            ("joint", "plain"),
        }
        assert all(window["observations"] <= one["observations"] for noise in one["noise"] for window in noise["windows"])
    more, printed = measure(tmp_path, 15_360)
    assert all(one["observations"] >= 15_360 for one in more)
    assert printed.count("--resume") == 2
    assert more[0]["curve"][: len(found[0]["curve"])] == found[0]["curve"]  # it went on; it did not begin again
    assert measure(tmp_path, 15_360)[1].count("rlscale train") == 0


def test_windows_hold_the_pooled_noise_and_the_return_of_their_time(tmp_path):
    """Forty measurements are five windows of eight; the return of iteration i is i."""
    record = add_joint(make_run(tmp_path / "run"))
    policy = next(one for one in summary_of("atari/pong", record)["noise"] if one["head"] == "policy")
    assert len(policy["windows"]) == 5
    eight = pool([statistics for _, statistics in record.noise("policy", "rollout")[8:16]])
    second = policy["windows"][1]
    assert second["value"] == pytest.approx(eight.b_simple)
    assert second["interval"] == pytest.approx(list(eight.interval))
    assert second["observations"] == 128 * 12.5
    assert second["return"] == pytest.approx(5.5)  # of iterations 0 to 11, those that had ended by then


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "classic/cartpole", "toy/nothing"], "toy/nothing"),
        (["--tasks", "toy/catch", "--settings=--epochs 0"], "epochs"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, said, tmp_path):
    paths = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "record.json")]
    done = subprocess.run([*COMMAND, *words, *paths, "--observations", "1000"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_open_end_is_said():
    assert say_recorded(1000.0, [500.0, 2000.0]) == "1,000 [500, 2,000]"
    assert say_recorded(None, [500.0, None]) == "not resolved, above 500"


def test_a_return_before_the_first_episode_is_none():
    curve = [(100, 1.0), (200, 2.0)]
    assert [at(curve, observations) for observations in (99, 100, 199.5, 1000)] == [None, 1.0, 1.0, 2.0]


def test_the_table_has_the_plain_metric_and_the_preregistered_noise_scale_over_the_run():
    known = {("value", "plain"): 100.0, ("value", "adam"): 7.0, ("joint_policy_parameters", "adam"): 40.0}
    noise = [
        {"head": head, "metric": metric, "over_run": {"value": value, "interval": [value / 2, value * 2]}, "windows": []}
        for (head, metric), value in known.items()
    ]
    task = {"task": "atari/alien", "observations": 1_250_000, "curve": [[5, 1.0], [9, 512.34]], "noise": noise}
    columns, rows = table([task])
    assert columns == ["task", "observations, millions", "return at the end", "policy", "value", "joint", "preregistered"]
    assert rows == [["atari/alien", "1.25", "512.3", "–", "100 [50.0, 200]", "–", "40.0 [20.0, 80.0]"]]
