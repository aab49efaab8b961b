"""Agreement over tasks: exact answers, tasks that weigh alike, few tasks said to be few, intervals that cover."""

import math

import numpy as np
import pytest

from rlscale.agreement import agreement

STATISTICS = ("r_squared", "r_squared_offset", "offset", "rms", "rms_offset", "left_out", "constant")


def by_hand(measured, predicted, task):
    """The same figures from their definitions, one loop each."""
    y, x = np.log10(measured), np.log10(predicted)
    names = sorted(set(task))
    of = {name: [i for i, t in enumerate(task) if t == name] for name in names}

    def mean(values):
        return np.mean([np.mean([values[i] for i in of[name]]) for name in names])

    d = y - x
    variance = mean((y - mean(y)) ** 2)
    left_out, constant = [], []
    for name in names:
        others = [n for n in names if n != name]
        offset = np.mean([np.mean(d[of[n]]) for n in others])
        level = np.mean([np.mean(y[of[n]]) for n in others])
        left_out.append(np.mean((d[of[name]] - offset) ** 2))
        constant.append(np.mean((y[of[name]] - level) ** 2))
    return {
        "r_squared": 1 - mean(d**2) / variance,
        "r_squared_offset": 1 - mean((d - mean(d)) ** 2) / variance,
        "offset": mean(d),
        "rms": math.sqrt(mean(d**2)),
        "rms_offset": math.sqrt(mean((d - mean(d)) ** 2)),
        "left_out": math.sqrt(np.mean(left_out)),
        "constant": math.sqrt(np.mean(constant)),
    }


def test_every_statistic_is_what_its_definition_says():
    rng = np.random.default_rng(0)
    task = ["a", "a", "a", "b", "c", "c", "d"]
    predicted = 10 ** rng.normal(3, 1, 7)
    measured = predicted * 10 ** rng.normal(0.2, 0.3, 7)
    found = agreement(measured, predicted, task)
    assert (found.tasks, found.goals) == (4, 7)
    for name, expected in by_hand(measured, predicted, task).items():
        estimate = getattr(found, name)
        assert estimate.value == pytest.approx(expected, rel=1e-9), name
        assert estimate.interval[0] <= estimate.value <= estimate.interval[1], name


def test_a_constant_factor_is_an_offset_and_nothing_else():
    measured = np.array([10.0, 100.0, 1000.0, 10_000.0])
    found = agreement(measured, measured / 10, "abcd")
    assert found.offset.value == pytest.approx(1)
    assert found.rms.value == pytest.approx(1)
    assert found.r_squared.value == pytest.approx(1 - 1 / 1.25)  # log10 measured has variance 1.25
    assert found.r_squared_offset.value == pytest.approx(1)
    assert found.rms_offset.value == pytest.approx(0, abs=1e-9)
    assert found.left_out.value == pytest.approx(0, abs=1e-9)
    assert found.constant.value == pytest.approx(math.sqrt(1.25) * 4 / 3)


def test_perfect_agreement():
    found = agreement([1.0, 10.0, 100.0], [1.0, 10.0, 100.0], "abc")
    assert (found.r_squared.value, found.rms.value, found.offset.value) == (1, 0, 0)


def test_a_useless_prediction_has_a_negative_r_squared():
    assert agreement([1.0, 10.0, 100.0], [100.0, 10.0, 1.0], "abc").r_squared.value == pytest.approx(-3)


def test_goals_of_one_task_are_not_more_tasks():
    measured, predicted = np.array([30.0, 200.0, 5000.0, 800.0]), np.array([50.0, 150.0, 9000.0, 300.0])
    once = agreement(measured, predicted, "abcd")
    again = agreement(np.repeat(measured, 5), np.repeat(predicted, 5), np.repeat(list("abcd"), 5).tolist())
    assert again.goals == 20
    for name in STATISTICS:
        assert getattr(again, name).value == pytest.approx(getattr(once, name).value)
        assert getattr(again, name).interval == pytest.approx(getattr(once, name).interval)


@pytest.mark.parametrize("task", ["aaa", "aab"])
def test_few_tasks_are_described_and_nothing_is_concluded(task):
    found = agreement([10.0, 100.0, 1000.0], [1.0, 10.0, 100.0], task)
    assert found.offset.value == pytest.approx(1)
    assert found.offset.interval is None
    assert found.rms.value == pytest.approx(1)
    for name in ("r_squared", "r_squared_offset", "rms_offset", "left_out", "constant"):
        estimate = getattr(found, name)
        assert estimate.value is None
        assert f"{len(set(task))}" in estimate.reason


def test_no_r_squared_without_variance():
    found = agreement([10.0, 10.0, 10.0], [9.0, 10.0, 12.0], "abc")
    assert found.r_squared.value is None
    assert "do not differ" in found.r_squared.reason
    assert found.rms.value > 0


def test_intervals_cover():
    rng = np.random.default_rng(1)
    draws, tasks, spread, scatter, offset = 150, 6, 0.8, 0.3, 0.15
    truth = {
        "offset": offset,
        "rms": math.hypot(scatter, offset),
        "r_squared": 1 - (scatter**2 + offset**2) / (spread**2 + scatter**2),
    }
    hits = dict.fromkeys(truth, 0)
    for _ in range(draws):
        x = rng.normal(3, spread, tasks)
        found = agreement(10 ** (x + offset + rng.normal(0, scatter, tasks)), 10**x, range(tasks))
        for name, value in truth.items():
            low, high = getattr(found, name).interval
            hits[name] += low <= value <= high
    assert min(hits.values()) >= 0.88 * draws


@pytest.mark.parametrize(
    ("measured", "predicted", "task", "complaint"),
    [
        ([], [], [], "at least 1"),
        ([1.0], [1.0, 2.0], ["a"], "one length"),
        ([1.0, math.inf], [1.0, 2.0], "ab", "measured must be"),
        ([1.0, 2.0], [0.0, 2.0], "ab", "predicted must be"),
    ],
)
def test_bad_input(measured, predicted, task, complaint):
    with pytest.raises(ValueError, match=complaint):
        agreement(measured, predicted, task)
