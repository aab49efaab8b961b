"""The command that a sweep's page names next: it is the one that was typed, and asks for more."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Planted, make_plan, read_again, write_sweep

from rlscale.analysis.comparison import compare
from rlscale.analysis.extension import next_command
from rlscale.estimate import Estimate
from rlscale.records import read_sweep

TASK, FOLDER = ["rlscale", "sweep", "classic/cartpole"], "classic-cartpole"


def asked(record):
    """The command less the place where the sweep lies, which is the record's own."""
    (sweep,) = compare([record], []).sweeps
    words = next_command(record, sweep.rows)
    if words is None:
        return None
    at = words.index("--out")
    assert words[at + 1] == str(record.folder.parent)
    return [*words[:at], *words[at + 2 :]]


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    plan = make_plan(batch_sizes=None, pilot_batch=640)
    return write_sweep(tmp_path_factory.mktemp("sharp") / FOLDER, Planted(scatter=0.2), plan=plan)


def test_a_sharp_sweep_is_asked_for_half_its_width(sharp):
    assert asked(sharp) == [*TASK, "--interval-ratio", "1.41"]


@pytest.mark.parametrize(("ratio", "half"), [(1.1, "1.05"), (1.02, "1.01"), (1.01, None), (1.0001, None)])
def test_a_ratio_near_one_is_not_rounded_to_one(sharp, ratio, half):
    """`rlscale sweep` takes ratios above 1 alone."""
    record = replace(sharp, manifest={**sharp.manifest, "plan": {**sharp.plan, "interval_ratio": ratio}})
    (sweep,) = compare([record], []).sweeps
    as_sharp = replace(sweep.rows[-1], measured=Estimate(1000.0, (1000.0, 1000.0 * ratio)))
    words = next_command(record, [*sweep.rows[:-1], as_sharp])
    assert (None if words is None else words[-2:]) == (None if half is None else ["--interval-ratio", half])


def test_a_sweep_that_was_stopped_goes_on_with_the_same_command(tmp_path):
    plan = make_plan(batch_sizes=None, pilot_batch=640)
    assert asked(write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan, most=12)) == TASK


def test_a_spent_budget_is_doubled(tmp_path):
    plan = make_plan(batch_sizes=None, pilot_batch=640, interval_ratio=1.01, total_observations=10_000_000)
    assert asked(write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan)) == [*TASK, "--total-observations", "20000000"]


def test_a_grid_is_asked_for_a_size_beyond_its_open_end_or_for_seeds(tmp_path):
    narrow = make_plan(batch_sizes=(32, 128, 512))
    record = write_sweep(tmp_path / "narrow" / FOLDER, Planted(b_crit=100_000, scatter=0.05), plan=narrow)
    assert asked(record) == [*TASK, "--batch-sizes", "32,128,512,2048"]
    assert asked(write_sweep(tmp_path / "wide" / FOLDER, Planted(scatter=0.1))) == [*TASK, "--seeds", "4"]


def test_a_smaller_size_is_asked_for_where_its_environments_and_mini_batches_are_whole(tmp_path):
    """Rollouts of 16 steps in four mini-batches: 64 observations are the smallest batch."""
    for smallest, asked_for in ((256, "64,256,1024,4096"), (128, None)):
        plan = make_plan(batch_sizes=(smallest, 4 * smallest, 16 * smallest), mini_batches=4)
        record = write_sweep(tmp_path / str(smallest) / FOLDER, Planted(b_crit=2, scatter=0.05), plan=plan)
        assert compare([record], []).sweeps[0].rows[-1].measured.interval[0] == 0
        assert asked(record) == [*TASK, *(["--batch-sizes", asked_for] if asked_for else ["--seeds", "4"])]


def test_a_flag_that_was_typed_is_replaced(tmp_path):
    record = write_sweep(tmp_path / FOLDER, Planted(scatter=0.1))
    manifest = json.loads((tmp_path / FOLDER / "sweep.json").read_text())
    manifest["command"] = [*TASK, "--seeds", "2", "--rates=4"]
    manifest["extensions"] = [{"at": "now", "command": [*TASK, "--seeds=2", "--rates", "4", "--out", "here"]}]
    (tmp_path / FOLDER / "sweep.json").write_text(json.dumps(manifest))
    assert asked(read_again(record)) == [*TASK, "--rates", "4", "--seeds", "4"]


def test_older_sweeps_cannot_be_extended(tmp_path):
    record = write_sweep(tmp_path / FOLDER, Planted(scatter=0.1))
    manifest = json.loads((tmp_path / FOLDER / "sweep.json").read_text())
    del manifest["plan"]["interval_ratio"]
    (tmp_path / FOLDER / "sweep.json").write_text(json.dumps(manifest))
    assert asked(read_again(record)) is None


def test_a_copy_under_another_name_cannot_be_extended(tmp_path):
    """`rlscale sweep` would begin a new sweep beside it."""
    assert asked(write_sweep(tmp_path / "published", Planted(scatter=0.1))) is None


def test_the_usual_place_is_not_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = read_sweep(write_sweep(Path("sweeps") / FOLDER, Planted(scatter=0.1)).folder)
    (sweep,) = compare([record], []).sweeps
    assert next_command(record, sweep.rows) == [*TASK, "--seeds", "4"]


def test_a_copy_whose_results_are_compressed_goes_on(tmp_path):
    """Published records are compressed; what is appended to one is read beside what it held."""
    plan = make_plan(batch_sizes=None, pilot_batch=640)
    first = write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan, most=6)
    results = tmp_path / FOLDER / "results.jsonl"
    (tmp_path / FOLDER / "results.jsonl.gz").write_bytes(gzip.compress(results.read_bytes()))
    results.unlink()
    assert read_again(first).results == first.results
    later = write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan, most=3)
    assert list(later.results)[:6] == list(first.results)
    assert len(later.results) == 9
    assert read_again(later).results == later.results
