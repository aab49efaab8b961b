"""Sweeps of supervised tasks through the command: one kind of plan among two, the very same results, records and pages."""

import html
import json
import re
from dataclasses import replace

import cv2
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from rlscale.analysis.comparison import compare
from rlscale.analysis.rungs import rungs_of
from rlscale.analysis.summary import noise_over_run
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.sweep.kinds import SupervisedPlan, TrainingPlan
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.sweep.run import Job, run_job
from rlscale.errors import UsageError
from rlscale.records.run import read_run
from rlscale.records.sweep import read_sweep
from rlscale.report.words import say_predictor

WORDS = [
    *("supervised/digits", "--batch-sizes", "64,256,1024", "--rates", "1", "--seeds", "1", "--goals", "0.5", "--noise-runs", "3"),
    *("--jobs", "0"),
]


def options_of(**changes):
    return SweepOptions(**{"tasks": ("supervised/digits",), "jobs": 0} | changes)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A sweep of digits to the first signs of learning, typed as a person would."""
    folder = tmp_path_factory.mktemp("tiny")
    assert main(["sweep", *WORDS, "--out", str(folder), "--report"]) == 0
    return folder


def test_a_sweep_ends_with_a_frontier_a_prediction_and_a_page(tiny):
    record = read_sweep(tiny / "supervised-digits")
    assert record.left_out == ()
    assert len(record.results) == 6
    assert {result.state for result in record.results.values()} == {"finished"}
    (row,) = compare([record], []).rows
    assert row.predictor == ("joint", "cumulative")
    assert 10 < row.predicted(*row.predictor).value < 1000
    assert say_predictor(row).endswith("; of the only loss, in the plain metric")
    assert not row.notes, "ten steps of momentum are no long memory"
    assert "supervised/digits" in (tiny / "comparison.html").read_text()
    assert main(["compare", str(tiny / "supervised-digits"), "--out", str(tiny / "again.html")]) == 0


def test_observations_are_examples_and_steps_are_optimizer_steps(tiny):
    record = read_sweep(tiny / "supervised-digits")
    for trial in record.results.values():
        run = read_run(record.folder / "trials" / trial.id)
        assert trial.observations == trial.batch_size * trial.optimizer_steps == run.rows[-1]["observations"]
        assert trial.optimizer_steps == run.rows[-1]["optimizer_steps"] == len(run.rows)
        assert run.manifest["config"]["update"]["learning_rate"] == trial.learning_rate
        assert {e.episodes for e in trial.evaluations} == {359}
        for e in trial.evaluations:  # of n right and wrong ones
            assert e.return_error == pytest.approx(np.sqrt(e.return_mean * (1 - e.return_mean) / 358), rel=1e-9)
        measured = run.noise("joint", "rollout")
        assert len(measured) == (len(run.rows) if trial.measures_noise else 0)
        assert all(statistics.size.sum() == trial.batch_size for _, statistics in measured)
        assert {sums.head for sums in trial.noise_sums} == ({"joint"} if trial.measures_noise else set())


def test_a_page_of_one_of_its_runs_suggests_what_its_only_loss_says(tiny):
    """One figure, the mean over the run; and no workers, of which it has none, nor goals, which the task has."""
    folder = tiny / "supervised-digits" / "trials" / "noise-1"
    assert main(["report", str(folder), "--out", str(tiny / "run.html")]) == 0
    text = html.unescape((tiny / "run.html").read_text())
    run = read_run(folder)
    whole = noise_over_run(run, "joint", "rollout").noise_scale
    (cells,) = re.findall(r"<td[^>]*>[^<]*: the suggestion</td>(.*?)</tr>", text)
    assert f"<td data-label='whole run'>{whole}</td>" in cells
    answer = re.search(r"<p class='answer'>(.*?)</p>", text).group(1)
    assert "workers" not in answer
    assert "episode" not in text
    assert "'rlscale sweep supervised/digits'" in answer
    assert run.rows[-1]["seconds"] == pytest.approx(sum(row["learning_seconds"] for row in run.rows))


def test_its_records_follow_the_schema(tiny):
    from importlib.resources import files

    stored = json.loads((files("rlscale.records") / "schema-1.json").read_text(encoding="utf-8"))
    folder = tiny / "supervised-digits"
    run = folder / "trials" / "noise-1"
    for part, path in (("sweep", folder / "sweep.json"), ("manifest", run / "manifest.json")):
        Draft202012Validator({**stored, "$ref": f"#/$defs/{part}"}).validate(json.loads(path.read_text()))
    for part, path in (("result", folder / "results.jsonl"), ("row", run / "iterations.jsonl")):
        for line in path.read_text().splitlines():
            Draft202012Validator({**stored, "$ref": f"#/$defs/{part}"}).validate(json.loads(line))


def test_the_rule_about_policies_leaves_it_out(tiny):
    (rung,) = rungs_of(compare([read_sweep(tiny / "supervised-digits")], []))
    assert rung.left_out == "it has no policy, whose noise the rule is about"


def test_a_trial_is_what_its_seed_says(tmp_path):
    plan = make_plan("supervised/digits", options_of(batch_sizes="32", goals=(0.3,)))
    trial = replace(plan.next_trials({})[0], measures_noise=True)
    once, again, other = (
        run_job(Job(plan, one, tmp_path / name, (), 0))
        for name, one in (("a", trial), ("b", trial), ("c", replace(trial, seed=7)))
    )

    def without_clocks(result):
        return replace(result, seconds=0.0, evaluation_seconds=0.0)

    assert without_clocks(once) == without_clocks(again)
    assert once.evaluations != other.evaluations


def test_a_rate_far_too_high_is_a_result_and_no_error(tmp_path):
    plan = make_plan("supervised/digits", options_of(batch_sizes="32", goals=(0.3,), learning_rate=1e9))
    result = run_job(Job(plan, plan.next_trials({})[0], tmp_path / "run", (), 0))
    assert result.state == "hopeless"
    assert result.reason.startswith("diverged in step")


def test_the_name_of_the_task_decides_the_kind_of_plan():
    supervised = make_plan("supervised/digits", options_of())
    assert isinstance(supervised, SupervisedPlan)
    assert isinstance(make_plan("classic/cartpole", options_of()), TrainingPlan)
    assert supervised.sizes[:3] == (1, 2, 4)
    assert supervised.episodes == 359
    (first, *_) = supervised.next_trials({})
    config = supervised.config_of(first)
    assert (config.batch_size, config.update.learning_rate, config.blocks) == (first.batch_size, first.learning_rate, 32)
    assert supervised.config_of(replace(first, measures_noise=False)).blocks == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entropy_coef": 0.1}, "--entropy-coef: supervised/digits is learned from examples"),
        ({"epochs": 4}, "--epochs: supervised/digits is learned from examples"),
        ({"optimizer": "rmsprop"}, "--optimizer: supervised/digits is learned from examples"),
        ({"data": "somewhere"}, "--data: supervised/digits brings its own examples"),
        ({"goals": ()}, "--goals: none was named"),
        ({"goals": (0.9, 1.01)}, "--goals: 1.01 is out of reach: a goal of supervised/digits is an accuracy, at most 1"),
        ({"goals": (-0.5, 0.9)}, "--goals: -0.5 is no accuracy above 0, as a goal of supervised/digits is. Name higher ones"),
        ({"rates": 0}, "--rates: 0 is not a positive number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, said):
    with pytest.raises(UsageError) as error:
        make_plan("supervised/digits", options_of(**changes))
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_loss_has_goals_below_zero():
    with pytest.raises(UsageError, match=r"^--goals: 0\.1 is out of reach: .* is minus a loss, so at most 0"):
        make_plan("supervised/digits-autoencoder", options_of(goals=(0.1,)))
    assert make_plan("supervised/digits-autoencoder", options_of(goals=(-0.04,))).goals == (-0.04,)


def test_a_task_with_an_environment_takes_no_data():
    with pytest.raises(UsageError, match="--data: classic/cartpole has an environment and no examples"):
        make_plan("classic/cartpole", options_of(data="somewhere"))


def test_a_folder_of_pictures_is_swept(tmp_path, capsys):
    """Red and blue ones, which are soon told apart: the whole command over the user's own files."""
    for name, colour in (("blue", (255, 0, 0)), ("red", (0, 0, 255))):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            cv2.imwrite(str(tmp_path / "pictures" / name / f"{number}.png"), np.full((64, 64, 3), colour, np.uint8))
    words = ["supervised/pictures", "--data", str(tmp_path / "pictures"), "--goals", "0.9", "--batch-sizes", "16"]
    more = ["--rates", "1", "--seeds", "1", "--noise-runs", "0", "--learning-rate", "0.02", "--jobs", "0"]
    assert main(["sweep", *words, *more, "--out", str(tmp_path / "sweeps")]) == 0
    (result,) = read_sweep(tmp_path / "sweeps" / "supervised-pictures").results.values()
    assert result.state == "finished"
    assert main(["sweep", "supervised/pictures", "--data", str(tmp_path / "pictures"), "--jobs", "0"]) == 2, "it has no goals"
    for seed, said in (("-1", "--seed: -1 is not zero or more"), (str(2**64), f"--seed: {2**64} is too large")):
        assert main(["sweep", "supervised/digits", "--seed", seed, "--out", str(tmp_path / "none")]) == 2
        assert said in capsys.readouterr().err
    assert main(["sweep", "supervised/pictures", "--goals", "0.9", "--jobs", "0"]) == 2, "it has no pictures"
