"""Measurements that take hours: their commands are those that `rlscale train` takes, and their records are not mixed up."""

import json
import os
from types import SimpleNamespace

import pytest

from rlscale.agents.checks import check_config
from rlscale.benchmarks.measurements import peers, studies
from rlscale.benchmarks.measurements.learning import advised, shapes
from rlscale.benchmarks.options import parse_train


@pytest.mark.parametrize("noise", [False, True])
def test_beside_other_libraries_no_noise_is_measured_but_the_joint_loss_s_where_it_is_asked_for(noise, monkeypatch):
    """Runs whose steps are of shuffled transitions begin with an extra pass for the noise of the whole iteration."""
    typed = []

    def train(*words):
        typed.extend(map(str, words))
        return SimpleNamespace(rows=[])

    monkeypatch.setattr(peers, "train", train)
    assert peers.ours("float32", noise=noise)(4) == []
    config = parse_train(typed)
    check_config(config)
    periods = {name: value for name, value in vars(config.noise).items() if name.endswith("_noise_period")}
    assert {name for name, value in periods.items() if value != 0} == ({"joint_noise_period"} if noise else set())


def test_the_comparison_of_libraries_is_of_two_cores(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    with pytest.raises(SystemExit) as ended:
        peers.main(out=tmp_path / "record.json")
    assert ended.value.code == 2
    assert "all systems are set up for 2 cores, and this process has 6. Give it 2: taskset -c 0,1" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["atari/pong", "minatar/breakout"])
def test_the_runs_beside_advice_can_be_made(task, monkeypatch, tmp_path):
    """Pong's learning rate falls to the end of its observations by default, and these runs end by the clock."""
    typed = []
    monkeypatch.setattr(advised, "advised", lambda *_: {"lines": {"rlscale": f"rlscale train {task} --actors 2"}, "seconds": 1.0})
    monkeypatch.setattr(advised, "rlscale", lambda *words: typed.append(list(words)))
    monkeypatch.setattr(advised, "read", lambda _: {"end": 0.0})
    advised.of_task(task, tmp_path, 60, 1)
    assert len(typed) == 2
    for words in typed:
        assert words[0] == "train"
        check_config(parse_train(words[1:]))


def test_a_record_of_other_shapes_is_not_gone_on_with(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(shapes, "run", lambda options, *labels: made.append(labels) or {"end": 1.0, "whole": 1.0, "noise": {}})
    monkeypatch.setattr(shapes, "compare", lambda *_: ([], []))
    options = shapes.Options(tasks=("toy/catch",), environments=(16,), seeds=1, out=tmp_path / "shapes.json")
    shapes.main(options)
    shapes.main(shapes.Options(tasks=("toy/catch", "toy/snake"), environments=(16, 64), seeds=2, out=options.out))
    assert len(made) == 1 + 7
    before = options.out.read_bytes()
    with pytest.raises(SystemExit, match="holds runs of other options: choose another --out"):
        shapes.main(shapes.Options(tasks=("toy/catch",), environments=(16,), batch=8192, out=options.out))
    assert options.out.read_bytes() == before
    assert len(json.loads(before)["readings"]["runs"]) == 8


def test_a_study_s_run_holds_the_noise_of_every_head_by_window():
    options = studies.Options(task="toy/catch", batch_size=256, optimizer_steps=studies.POOL_WINDOW, episodes=8)
    made = studies.run(options, studies.Kind("plain", 16, None, 0))
    (window,) = made["windows"]
    assert set(window["noise"]) == set(studies.HEADS)
    assert window["observations"] > 0
