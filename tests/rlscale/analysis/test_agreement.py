"""Scores over all goals and over pairs: exact answers, tasks that weigh alike, intervals that cover."""

import math
from functools import partial

import numpy as np
import pytest
from rungs import row_of

from rlscale.analysis.predictions import PRIMARY
from rlscale.analysis.verdict import _draws, agreement_of, score_pairs
from rlscale.report.words import say_all_agreements

STATISTICS = ("r_squared", "r_squared_offset", "offset", "error", "rms", "left_out", "constant")


def by_hand(measured, predicted, task):
    """The same figures from their definitions, of the means of every task's goals."""
    names = sorted(set(task))
    y, x = (
        np.array([np.mean([math.log10(v) for v, t in zip(values, task, strict=True) if t == name]) for name in names])
        for values in (measured, predicted)
    )
    d = y - x
    others = [np.arange(len(names)) != i for i in range(len(names))]
    return {
        "r_squared": 1 - np.mean(d**2) / np.var(y),
        "r_squared_offset": 1 - np.var(d) / np.var(y),
        "offset": np.mean(d),
        "error": math.sqrt(np.mean(d**2)),
        "rms": np.std(d),
        "left_out": math.sqrt(np.mean([(d[i] - np.mean(d[rest])) ** 2 for i, rest in enumerate(others)])),
        "constant": math.sqrt(np.mean([(y[i] - np.mean(y[rest])) ** 2 for i, rest in enumerate(others)])),
    }


def rows_of(measured, predicted, task):
    return [row_of(*figures) for figures in zip(task, measured, predicted, strict=True)]


def test_every_statistic_is_what_its_definition_says():
    rng = np.random.default_rng(0)
    task = ["a", "a", "a", "b", "c", "c", "d"]
    predicted = 10 ** rng.normal(3, 1, 7)
    measured = predicted * 10 ** rng.normal(0.2, 0.3, 7)
    goals, found = agreement_of(rows_of(measured, predicted, task), *PRIMARY)
    assert (found.tasks, goals) == (4, 7)
    for name, expected in by_hand(measured, predicted, task).items():
        estimate = getattr(found, name)
        assert estimate.value == pytest.approx(expected, rel=1e-9), name
        assert estimate.interval[0] <= estimate.value <= estimate.interval[1], name


def test_a_constant_factor_is_an_offset_and_nothing_else():
    measured = np.array([10.0, 100.0, 1000.0, 10_000.0])
    found = score_pairs(measured.tolist(), (measured / 10).tolist())
    assert found.offset.value == pytest.approx(1)
    assert found.error.value == pytest.approx(1)
    assert found.r_squared.value == pytest.approx(1 - 1 / 1.25)  # log10 measured has variance 1.25
    assert found.r_squared_offset.value == pytest.approx(1)
    assert found.rms.value == pytest.approx(0, abs=1e-9)
    assert found.left_out.value == pytest.approx(0, abs=1e-9)
    assert found.constant.value == pytest.approx(math.sqrt(1.25) * 4 / 3)


def test_perfect_agreement():
    found = score_pairs([1.0, 10.0, 100.0], [1.0, 10.0, 100.0])
    assert (found.r_squared.value, found.error.value, found.offset.value) == pytest.approx((1, 0, 0), abs=1e-9)


def test_a_useless_prediction_has_a_negative_r_squared():
    assert score_pairs([1.0, 10.0, 100.0], [100.0, 10.0, 1.0]).r_squared.value == pytest.approx(-3)


def test_goals_of_one_task_are_not_more_tasks():
    measured, predicted = np.array([30.0, 200.0, 5000.0, 800.0]), np.array([50.0, 150.0, 9000.0, 300.0])
    _, once = agreement_of(rows_of(measured, predicted, "abcd"), *PRIMARY)
    goals, again = agreement_of(rows_of(np.repeat(measured, 5), np.repeat(predicted, 5), np.repeat(list("abcd"), 5)), *PRIMARY)
    assert goals == 20
    for name in STATISTICS:
        assert getattr(again, name).value == pytest.approx(getattr(once, name).value)
        assert getattr(again, name).interval == pytest.approx(getattr(once, name).interval)


@pytest.mark.parametrize("task", ["aaa", "aab"])
def test_few_tasks_are_described_and_nothing_is_concluded(task):
    rows = rows_of([10.0, 100.0, 1000.0], [1.0, 10.0, 100.0], task)
    _, found = agreement_of(rows, *PRIMARY)
    assert found.offset.value == pytest.approx(1)
    assert found.offset.interval is None
    assert found.error.value == pytest.approx(1)
    assert {tuple(said[1:]) for said in say_all_agreements(rows)} == {("3", "–", "–", "1.00", "1.00", "–", "–")}


def test_no_r_squared_without_variance():
    found = score_pairs([10.0, 10.0, 10.0], [9.0, 10.0, 12.0])
    assert found.r_squared.value is None
    assert found.error.value > 0


def test_intervals_cover(monkeypatch):
    monkeypatch.setattr("rlscale.analysis.verdict._draws", partial(_draws, draws=500))
    rng = np.random.default_rng(1)
    draws, tasks, spread, scatter, offset = 150, 6, 0.8, 0.3, 0.15
    truth = {
        "offset": offset,
        "error": math.hypot(scatter, offset),
        "r_squared": 1 - (scatter**2 + offset**2) / (spread**2 + scatter**2),
    }
    hits = dict.fromkeys(truth, 0)
    for _ in range(draws):
        x = rng.normal(3, spread, tasks)
        found = score_pairs((10 ** (x + offset + rng.normal(0, scatter, tasks))).tolist(), (10**x).tolist())
        for name, value in truth.items():
            low, high = getattr(found, name).interval
            hits[name] += low <= value <= high
    assert min(hits.values()) >= 0.88 * draws
    assert sum(hits.values()) <= 0.98 * len(hits) * draws
