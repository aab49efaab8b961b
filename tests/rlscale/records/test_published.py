"""The sweeps that are published in results/ are still read, and say what they said when they were published."""

import gzip
import json
from pathlib import Path

import pytest

from rlscale.analysis.comparison import compare
from rlscale.records.sweep import read_sweep
from rlscale.report.words import say_aim

RESULTS = Path(__file__).parents[3] / "results"
PUBLISHED = {  # per sweep: B_crit of the last goal by the response surface, its interval, and the noise scale that predicts it
    "minatar-breakout": (836.9, (666.8, 1075.3), 1941.82123),
    "minatar-breakout-entropy": (697.9, (475.3, 1014.8), 2245.06620),
    "minatar-breakout-run-by-run": (320.3, (199.5, 524.8), 2479.842),
}
each_sweep = pytest.mark.parametrize("name", PUBLISHED)


@each_sweep
def test_a_published_sweep_says_what_it_said(name):
    b_crit, interval, predicted = PUBLISHED[name]
    record = read_sweep(RESULTS / name)
    assert record.left_out == ()
    comparison = compare([record], [])
    row = comparison.rows[-1]
    assert row.measured.value == pytest.approx(b_crit, rel=2e-3)
    assert row.measured.interval == pytest.approx(interval, rel=1e-2)
    assert row.predicted("policy", "cumulative").value == pytest.approx(predicted, rel=1e-6)
    assert len(row.points) == len(record.results), "every run enters"


def test_the_demo_says_what_its_pages_say():
    (row,) = compare([read_sweep(RESULTS / "demo")], []).rows
    assert row.predicted("policy", "cumulative").value is None, "two of three runs or so resolve the policy's own noise"
    found = [row.measured, row.s_min, row.predicted(*row.predictor)]
    assert [(each.value, *each.interval) for each in found] == [
        pytest.approx(said, rel=1e-2) for said in ((504, 248, 1018), (39.8, 25.7, 61.7), (380, 296, 492))
    ]


def test_the_published_sweep_of_a_supervised_task_says_what_it_said():
    rows = compare([read_sweep(RESULTS / "supervised" / "digits")], []).rows
    found = [(row.measured.value, row.s_min.value, row.predicted(*row.predictor).value) for row in rows]
    assert [(row.goal, say_aim(row)) for row in rows] == [(0.9, "an accuracy of 0.9"), (0.95, "an accuracy of 0.95")]
    assert found == [pytest.approx((39.1, 60.3, 79.4), rel=5e-3), pytest.approx((110, 81.1, 98.1), rel=5e-3)]


def test_the_published_sweep_of_a_variational_autoencoder_says_what_it_said():
    rows = compare([read_sweep(RESULTS / "supervised" / "digits-variational")], []).rows
    found = [(row.goal, row.measured.value, row.s_min.value, row.predicted(*row.predictor).value) for row in rows]
    assert found == [pytest.approx((-2, 8.42, 70.0, 46.0), rel=5e-3), pytest.approx((-1.5, 16.8, 137, 39.7), rel=5e-3)]


def test_the_published_sweep_of_a_text_says_what_it_said():
    rows = compare([read_sweep(RESULTS / "supervised" / "text")], []).rows
    found = [(row.goal, row.measured.value, row.s_min.value, row.predicted(*row.predictor).value) for row in rows]
    assert found == [pytest.approx((-2.5, 285, 28.0, 575), rel=5e-3), pytest.approx((-2.25, 928, 39.3, 1160), rel=5e-3)]


def test_a_goal_of_a_loss_is_said_as_a_loss():
    row = compare([read_sweep(RESULTS / "supervised" / "digits-autoencoder")], []).rows[-1]
    assert say_aim(row) == f"a loss of {-row.goal:g}"


@each_sweep
def test_a_result_is_written_as_it_was_read(name):
    lines = gzip.decompress((RESULTS / name / "results.jsonl.gz").read_bytes()).splitlines()
    for line, result in zip(lines, read_sweep(RESULTS / name).results.values(), strict=True):
        stored, written = json.loads(line), json.loads(json.dumps(result.to_json()).replace("Infinity", "null"))
        if "last_goal" not in stored:  # fields that were not there yet
            assert (written.pop("noise_sums"), written.pop("last_goal")) == ([], None)
            assert not any(evaluation.pop("training") for evaluation in written["evaluations"])
        assert set(written) == set(stored)
        for part in ("goals", "evaluations", "noise", "noise_windows"):
            assert written.pop(part) == stored.pop(part)
        assert written == stored
