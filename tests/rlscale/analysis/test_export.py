"""Every column of an exported table holds the figure that it is named after."""

import csv
import math
from dataclasses import replace

import pytest
from planted import Planted, make_plan, write_sweep

from rlscale.analysis.comparison import compare
from rlscale.analysis.export import to_csv, to_parquet
from rlscale.analysis.predictions import ratio
from rlscale.errors import UsageError
from rlscale.records.trial import GoalCrossing


def changed(trial, result):
    """One run misses the goal, and one does not resolve the last layer's noise."""
    if trial.id == "b8192-k+0-s1":
        goal = GoalCrossing(result.goals[-1].goal, None, None, None, not_before=40)
        return replace(result, state="hopeless", goals=(goal,))
    if trial.id == "noise-2":
        open_ended = {"value": None, "interval": (500.0, math.inf)}
        noise = (replace(one, **open_ended) if one.head == "policy_last_layer" else one for one in result.noise)
        return replace(result, noise=tuple(noise))
    return result


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The row of a sweep of 51 runs, and the line that it is written as."""
    folder = tmp_path_factory.mktemp("export")
    record = write_sweep(folder / "s", Planted(scatter=0.1, predicted=0.5), plan=make_plan(goals=(200.0,)), change=changed)
    (row,) = compare([record], []).rows
    to_csv([row], folder / "table.csv")
    (line,) = csv.DictReader((folder / "table.csv").read_text().splitlines())
    return row, line


def test_columns_hold_what_they_are_named_after(exported):
    row, line = exported
    surface = row.frontier
    without = list(surface.leave_one_size_out.values())
    expected = {
        "name": row.name,
        "task": "classic/cartpole",
        "source": row.source,
        "goal": "200.0",
        "quick": "False",
        "inner_steps": "1",
        "clones": "1",
        "reward_noise": "0.0",
        "b_crit_reason": "",
        "residual": str(surface.residual),
        "b_crit_without_a_size_low": str(min(without)),
        "b_crit_without_a_size_high": str(max(without)),
        "b_crit_without_a_size_unidentified": "0",
        "batch_size_low": "32",
        "batch_size_high": "32768",
        "points": "51",
        "missed": "1",
        "learning_rate_low": str(surface.best_rate(32)),
        "learning_rate_high": str(surface.best_rate(32768)),
        "provisional": "False",
        "scored": "True",
        "warning": "",
        "prediction_batch": "128.0",
        "policy_gain": "0.8",
        "policy_last_layer_cumulative_resolved": "2",
        "policy_last_layer_cumulative_runs": "3",
        "notes": "; ".join(row.notes),
    }
    assert {name: line[name] for name in expected} == expected
    assert surface.best_rate(32) < surface.best_rate(32768)


def test_what_a_step_counts_and_what_was_done_to_the_environments_is_exported(exported, tmp_path):
    """B_crit of 12 steps, or of clones, is another quantity than that of one step on the task as it is."""
    row = replace(exported[0], inner_steps=12, clones=4, reward_noise=0.5, quick=True)
    to_csv([row, replace(row, goal=None)], tmp_path / "table.csv")
    several, single = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    names = ("quick", "inner_steps", "clones", "reward_noise")
    assert [several[name] for name in names] == ["True", "12", "4", "0.5"]
    assert [single[name] for name in names] == ["True", "", "4", "0.5"], "a run of how many steps is not known"


def test_columns_of_an_estimate_hold_its_value_and_its_ends(exported):
    row, line = exported
    b_crit, predicted = row.measured, row.prediction("policy", "cumulative").scale
    expected = {
        "b_crit": b_crit,
        "s_min": row.s_min,
        "e_min": row.e_min,
        "overhead_20_batch": b_crit.map(lambda size: 0.2 * size),
        "exponent": row.frontier.exponent,
        "policy_cumulative": predicted,
        "value_start": row.prediction("value", "start").scale,
        "ratio_policy_cumulative": ratio(b_crit, predicted),
        "ratio_value_start": ratio(b_crit, row.prediction("value", "start").scale),
    }
    for name, figure in expected.items():
        low, high = figure.interval
        assert [float(line[column]) for column in (name, f"{name}_low", f"{name}_high")] == [figure.value, low, high], name
    assert float(line["s_min"]) == pytest.approx(150, rel=0.2)
    assert float(line["e_min"]) == pytest.approx(150 * 1440, rel=0.2)
    assert float(line["ratio_policy_cumulative"]) == pytest.approx(2, rel=0.3)
    assert all(math.isfinite(float(line[f"exponent_{end}"])) for end in ("low", "high"))


def test_a_table_takes_no_records_place(exported, tmp_path):
    row, _ = exported
    record = tmp_path / "iterations.jsonl"
    record.write_text("{}\n")
    for write in (to_csv, to_parquet):
        with pytest.raises(UsageError, match="part of a record, which is never overwritten"):
            write([row], str(record))
    table = tmp_path / "table.csv"
    table.write_text("earlier")
    with pytest.raises(TypeError):
        to_csv(compare, table)
    assert (record.read_text(), table.read_text()) == ("{}\n", "earlier")


@pytest.mark.parametrize(("there", "named"), [("results.jsonl.gz", "results.jsonl"), ("results.jsonl", "results.jsonl.gz")])
def test_a_table_is_not_written_beside_the_compressed_or_plain_file_of_a_record(exported, tmp_path, there, named):
    """Readers would take the table for rows of the record."""
    (tmp_path / there).write_bytes(b"rows")
    for write in (to_csv, to_parquet):
        with pytest.raises(UsageError, match="part of a record, which is never overwritten"):
            write([exported[0]], tmp_path / named)
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_what_was_not_measured_is_empty(exported):
    _, line = exported
    columns = [f"{name}{end}" for name in ("joint_policy_parameters_cumulative", "policy_sums") for end in ("", "_low", "_runs")]
    assert {line[column] for column in (*columns, "ratio_policy_sums", "joint_policy_parameters_gain")} == {""}
