"""Measurements that take hours: their commands are those that `rlscale train` takes, and their records are not mixed up."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlscale.agents.checks import check_config
from rlscale.benchmarks.measurements import peers, studies
from rlscale.benchmarks.measurements.learning import adaptive, advised, beside
from rlscale.benchmarks.options import parse_train

ROOT = Path(__file__).parents[3]


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


def test_a_record_of_kinds_is_gone_on_with_unless_its_runs_had_other_settings(tmp_path, monkeypatch):
    made = []

    def measure(question, task, seed, words):
        made.append((task, seed))
        return {"end": float(len(made)), "whole": 1.0 / len(made)}

    monkeypatch.setattr(beside, "measure", measure)
    shapes = beside.QUESTIONS["shapes"]
    out = tmp_path / "record.json"
    for question in (replace(shapes, tasks=shapes.tasks[:1], kinds=shapes.kinds[:1]), shapes):
        monkeypatch.setitem(beside.QUESTIONS, "shapes", question)
        beside.main(beside.Options("shapes", seeds=2, out=out))
    assert len(made) == len(set(made)) * 4 == 2 + 14
    before = out.read_bytes()
    for question in (replace(shapes, observations=7), replace(shapes, settings="--epochs 1")):
        monkeypatch.setitem(beside.QUESTIONS, "shapes", question)
        with pytest.raises(SystemExit, match="holds runs of other options: choose another --out"):
            beside.main(beside.Options("shapes", seeds=3, out=out))
    assert out.read_bytes() == before
    assert len(json.loads(before)["readings"]["runs"]) == 16


@pytest.mark.parametrize("record", ["unharmed", "unharmed-clip-behaviour", "shapes", "invariance"])
def test_the_published_records_of_kinds_are_whole(record, monkeypatch, capsys):
    """None of their runs is made again: they are read, and the page's tables made of them."""
    monkeypatch.delattr(beside, "measure")
    question = record.removesuffix("-clip-behaviour")
    beside.main(beside.Options(question, out=ROOT / "results" / f"{record}.json"))
    said = capsys.readouterr().out
    assert all(f"{task}: mean return" in said for task in beside.QUESTIONS[question].tasks)
    if record == "invariance":  # docs/beyond.md has 0.51 [0.15, 0.87]
        assert "16, True less 1, True" in said
        assert "+0.51 [+0.15, +0.87]" in said


@pytest.mark.parametrize("name", beside.QUESTIONS)
def test_the_runs_of_every_kind_can_be_made(name, monkeypatch):
    """Their words are those of `rlscale train`, and no two kinds of a question are the same run."""
    configs = []
    monkeypatch.setattr(beside, "train", lambda config, *_, **__: configs.append(config) or SimpleNamespace(state="stopped"))
    question = beside.QUESTIONS[name]
    for task in question.tasks:
        for _, words in question.kinds:
            with pytest.raises(SystemExit, match="stopped within a run"):
                beside.measure(question, task, 0, words)
            check_config(configs[-1])
    assert all(configs.count(config) == 1 for config in configs)


def test_a_study_s_run_holds_the_noise_of_every_head_by_window():
    options = studies.Options(task="toy/catch", batch_size=256, optimizer_steps=studies.POOL_WINDOW, episodes=8)
    made = studies.run(options, studies.Kind("plain", 16, None, 0))
    (window,) = made["windows"]
    assert set(window["noise"]) == set(studies.HEADS)
    assert window["observations"] > 0


def test_runs_with_an_adaptive_batch_are_gone_on_with_where_they_were_stopped(tmp_path, monkeypatch):
    """Stopped after its second run, the measurement makes the other two; what it returns is in the order that was asked for."""
    known = adaptive.read_rung("blackjack")
    jobs = [(adaptive.Case(followed, 1.0, rate), seed) for seed in (0, 1) for followed, rate in ((None, 2.0), ("joint", 0.5))]
    made, most = [], 2

    def run_in_turn(_function, arguments):
        for _, case, seed in arguments:
            if len(made) == most:
                raise KeyboardInterrupt
            made.append((case, seed))
            cost = 10 * case.rate + seed
            yield {**vars(case), "seed": seed, "reached": True, "cost": cost, "batches": [cost]}

    monkeypatch.setattr(adaptive, "map_in_processes", run_in_turn)
    kept = tmp_path / "new" / "record.blackjack.jsonl"
    with pytest.raises(KeyboardInterrupt):
        adaptive.make(known, jobs, kept)
    assert made == jobs[:2]
    most = 4
    assert [one["cost"] for one in adaptive.make(known, jobs, kept)] == [20, 5, 21, 6]
    assert made == jobs
    assert [one["cost"] for one in adaptive.make(known, jobs[::-1], kept)] == [6, 21, 5, 20]
    assert made == jobs
    assert adaptive.mean_of(list(map(json.loads, kept.read_text().splitlines())), jobs[0][0]) == pytest.approx(math.log(420) / 2)
