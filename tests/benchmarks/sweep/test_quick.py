"""A quick sweep: which runs it makes, what it predicts on a task whose noise scale is known, and what is said of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from planted import Planted, make_plan, write_sweep
from regressions import NOISE_SCALE, planted_course
from rich.console import Console

from rlscale.analysis.comparison import compare
from rlscale.analysis.rungs import rungs_of
from rlscale.benchmarks.commands.compare import terminal_tables
from rlscale.benchmarks.sweep import kinds
from rlscale.benchmarks.sweep.next_command import next_command, with_next_words
from rlscale.benchmarks.sweep.options import SweepOptions
from rlscale.benchmarks.sweep.options import make_plan as plan_of
from rlscale.benchmarks.sweep.run import run_sweeps
from rlscale.errors import UsageError
from rlscale.records import read_sweep
from rlscale.records.trial import NoiseSums
from rlscale.report.answers import answers
from rlscale.report.comparison_page import write_comparison
from rlscale.report.words import warnings

QUICK = make_plan(batch_sizes=None, pilot_batch=640, noise_runs=8, quick=True)
SCALE = 700.0  # tr Σ over |G|² of the planted sums


def measuring(error):
    """Puts sums into the noise runs, of which |G|² scatters so much between runs, in parts of itself."""
    rng = np.random.default_rng(3)

    def change(trial, result):
        if trial.stage != "noise":
            return result
        windows = 20
        signal = tuple(float(1 + error * rng.normal()) for _ in range(windows))
        return replace(result, noise_sums=(NoiseSums("joint", "plain", (SCALE,) * windows, signal, (5,) * windows),))

    return change


def quick_sweep(folder, error=0.1, most=10_000, plan=QUICK, **truth):
    return write_sweep(folder / "classic-cartpole", Planted(scatter=0.1, **truth), plan=plan, most=most, change=measuring(error))


def stages(record):
    return [result.stage for result in record.results.values()]


@pytest.mark.parametrize(("error", "noise_runs"), [(0.1, 4), (1.0, 4), (2.0, 8), (40.0, 8)])
def test_it_is_the_pilot_and_four_noise_runs_or_all_where_four_leave_it_open(tmp_path, error, noise_runs):
    """Four runs leave factors of 1.06, 1.9 and 4.6 between the ends of the interval, and no upper end; up to 4 is enough."""
    record = quick_sweep(tmp_path, error)
    assert stages(record) == ["pilot"] * 3 + ["noise"] * noise_runs
    first = dict(list(record.results.items())[:7])
    low, high = QUICK.predicted(first).interval
    assert (high <= 4 * low) == (noise_runs == 4)
    if error == 0.1:
        assert QUICK.predicted(record.results).value == pytest.approx(SCALE, rel=0.1)


def test_the_noise_runs_have_the_cheapest_rate_of_the_pilot_by_the_root_rule(tmp_path):
    """The joint noise scale of the pilot is 0.3 times B_crit. The best rate is two octaves above the first one."""
    record = quick_sweep(tmp_path, best_rate=4.0, b_crit=3400.0)
    pilot, noise = list(record.results.values())[:3], list(record.results.values())[3:]
    assert {run.batch_size for run in noise} == {1024}
    rate = max(run.learning_rate for run in pilot)
    assert [run.learning_rate for run in noise] == pytest.approx([rate * math.sqrt(1024 / 512)] * 4, rel=1e-3)
    fastest = min(run.goals[-1].optimizer_steps for run in pilot if run.goals[-1].optimizer_steps)
    assert {run.most_optimizer_steps for run in noise} == {math.ceil(4 * fastest)}
    assert len({run.seed for run in record.results.values()}) == 7


@pytest.mark.parametrize(("b_crit", "size"), [(40.0, 512), (100_000.0, 2048)])
def test_the_noise_runs_are_no_smaller_than_the_pilot_and_at_most_four_times_as_large(tmp_path, b_crit, size):
    record = quick_sweep(tmp_path, b_crit=b_crit)
    assert {run.batch_size for run in record.results.values() if run.stage == "noise"} == {size}


def test_where_the_pilot_reaches_no_goal_there_are_no_noise_runs(tmp_path):
    record = quick_sweep(tmp_path, plan=replace(QUICK, most_observations=2_000))
    assert stages(record) == ["pilot"] * 3
    (answer,) = answers(compare([record], []))
    assert "cannot be said yet" in answer.sentence


def test_it_can_be_stopped_anywhere(tmp_path):
    whole = quick_sweep(tmp_path / "whole")
    for most in range(1, 7):
        quick_sweep(tmp_path / "parts", most=1)
        assert stages(read_sweep(tmp_path / "parts" / "classic-cartpole")) == stages(whole)[:most]


def test_without_the_flag_it_goes_on_as_a_whole_sweep(tmp_path):
    quick = quick_sweep(tmp_path)
    whole = quick_sweep(tmp_path, plan=replace(QUICK, quick=False))
    assert {"pilot", "span", "noise"} <= set(stages(whole))
    assert {name: whole.results[name] for name in quick.results} == quick.results
    assert stages(whole).count("noise") == 8
    (row,) = [row for row in compare([whole], []).rows if row.goal == 200]
    assert row.measured.interval[0] < 1440 < row.measured.interval[1]
    (extension,) = whole.manifest["extensions"]
    assert extension["quick"] is False


def test_a_whole_sweep_is_not_made_a_quick_one(tmp_path):
    quick_sweep(tmp_path, plan=replace(QUICK, quick=False), most=3)
    with pytest.raises(UsageError, match=r"another plan \(--quick\)"):
        quick_sweep(tmp_path)


def test_a_sweep_of_before_goes_on_and_is_not_said_to_be_extended(tmp_path):
    plan = replace(QUICK, quick=False)
    write_sweep(tmp_path / "s", Planted(scatter=0.1), plan=plan, most=3)
    manifest = json.loads((tmp_path / "s" / "sweep.json").read_text())
    del manifest["plan"]["quick"]
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(manifest))
    record = write_sweep(tmp_path / "s", Planted(scatter=0.1), plan=plan, most=2)
    assert "extensions" not in record.manifest
    assert len(record.results) == 5


def test_what_is_said_of_it_is_a_prediction(tmp_path):
    record = quick_sweep(tmp_path)
    comparison = with_next_words(compare([record], []))
    row = comparison.rows[-1]
    assert row.measured.value is None
    assert row.predictor == ("joint", "sums")
    (answer,) = answers(comparison)
    assert answer.confidence is None
    assert "to a return of 200: its noise scale suggests 7" in answer.sentence
    assert "That is a prediction, nothing is measured. Next: rlscale sweep classic/cartpole" in answer.sentence
    assert next_command(record, comparison.sweeps[0].rows)[:3] == ["rlscale", "sweep", "classic/cartpole"]
    assert not warnings(comparison.rows)
    assert not rungs_of(comparison), "what measures nothing tests no prediction"
    (table,) = terminal_tables(comparison)
    assert "Noise scale" in table.title
    write_comparison(comparison, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "not identifiable" not in page


def test_the_command_to_measure_it_lacks_the_flag_and_an_open_one_asks_for_more_runs(tmp_path):
    for error, words in ((0.1, []), (40.0, ["--quick", "--noise-runs", "16"])):
        record = quick_sweep(tmp_path / str(error), error)
        record.manifest["command"] = ["rlscale", "sweep", "classic/cartpole", "--quick"]
        (sweep,) = compare([record], []).sweeps
        resolved = sweep.rows[-1].predicted("joint", "sums").value is not None
        assert resolved == (not words)
        out = ["--out", str(record.folder.parent)]
        asked = next_command(record, sweep.rows)
        assert sorted(asked) == sorted(["rlscale", "sweep", "classic/cartpole", *words, *out])


@pytest.mark.parametrize("seed", [100, 200, 300])
def test_on_linear_regression_it_predicts_the_noise_scale_that_is_known_exactly(tmp_path, monkeypatch, seed):
    """The whole command on a task whose noise scale is 51 at every step; everything is its own but the trainer."""

    monkeypatch.setattr(kinds, "TrainingCourse", planted_course)
    options = SweepOptions(
        tasks=("classic/cartpole",),
        quick=True,
        goals=(2.0,),
        learning_rate=0.03,
        rate_batch=float(NOISE_SCALE),
        rate_exponent=1.0,
        rollout_length=1,
        seed=seed,
        jobs=0,
        out=str(tmp_path),
    )
    (folder,) = run_sweeps(options, [], Console(quiet=True))
    record = read_sweep(folder)
    (row,) = compare([record], []).rows
    found = row.predicted("joint", "sums")
    assert stages(record) == ["pilot"] * 3 + ["noise"] * 4
    assert found.value == pytest.approx(NOISE_SCALE, rel=0.15)
    assert found.interval[0] < NOISE_SCALE < found.interval[1]


@pytest.mark.parametrize(("name", "value"), [("hours", 1.0), ("total_observations", 10), ("interval_ratio", 1.5)])
def test_what_ends_a_whole_sweep_is_refused(name, value):
    asked = SweepOptions(tasks=("classic/cartpole",), quick=True, **{name: value})
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: a quick sweep ends after its pilot and noise runs"):
        plan_of("classic/cartpole", asked)
