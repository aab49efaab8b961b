"""The verdict by other readings, on planted rungs."""

from dataclasses import replace

import pytest
from rungs import BATCH, comparison_of, row_of, rungs_of, trial_of

from rlscale.analysis.predictions import PRIMARY, predict
from rlscale.benchmarks.measurements.ladder.readings import (
    by_windows,
    fewer_rungs,
    missed_runs,
    windows_of_few_iterations,
    with_missed_runs,
)


def test_noise_runs_that_missed_the_goal_can_be_kept():
    """Three runs cross after twenty updates, in the latter half of which tr Σ is 1,536; the fourth is noisier."""
    trials = [trial_of(n, 20.0, [512.0] * 2 + [1536.0] * 2, [2.0] * 4) for n in range(3)]
    trials.append(trial_of(3, None, [512.0] * 2 + [5120.0] * 2 + [10_240.0] * 4, [2.0] * 8))
    trials = [replace(t, noise_sums=tuple(replace(one, head=PRIMARY[0], metric="adam") for one in t.noise_sums)) for t in trials]
    predictions, batch = predict(trials, 4.0, BATCH)
    row = replace(row_of("classic/a", 300.0, 1.0, goal=4.0), predictions=predictions, prediction_batch=batch)
    comparison = comparison_of(row)
    comparison.sweeps[0].record.results = {trial.id: trial for trial in trials}
    judged = with_missed_runs(comparison, rungs_of(comparison))
    found = [kept[0].row.prediction(*PRIMARY) for kept, _ in judged.values()]
    assert [(one.resolved, one.runs) for one in found] == [(3, 4), (4, 4), (4, 4)]
    # |G|² + tr Σ/B is 3 in the first ten updates, then 5; with the fourth run tr Σ is 2,432 there, and 10,240 later.
    three = (30 * 512 / 3 + 30 * 1536 / 5) / (30 * 2 / 3 + 30 * 2 / 5)
    above, below = 40 * 512 / 3 + 40 * 2432 / 6.75, 40 * 2 / 3 + 40 * 2 / 6.75
    whole = (above + 20 * 10_240 / 22) / (below + 20 * 2 / 22)
    assert [one.scale.value for one in found] == pytest.approx([three, above / below, whole])
    assert missed_runs(comparison, rungs_of(comparison)).startswith("| noise runs that missed the goal | `a`, predicted |")
    none_missed = comparison_of(row_of("classic/a", 300.0, 1.0))
    assert with_missed_runs(none_missed, rungs_of(none_missed)) == {}


def test_a_goal_that_is_reached_within_few_windows():
    """Three runs cross after eight iterations; tr Σ is 512 in the first five, 1,536 in the three that are in no whole window."""
    trials = [trial_of(n, 8.4, [512.0, 1536.0, 9999.0], [2.0] * 3) for n in range(3)]
    trials = [replace(t, noise_sums=tuple(replace(one, head=PRIMARY[0], metric="adam") for one in t.noise_sums)) for t in trials]
    predictions, batch = predict(trials, 4.0, BATCH)
    row = replace(row_of("atari/a", 300.0, 1.0, goal=4.0, inner_steps=12), predictions=predictions, prediction_batch=batch)
    comparison = comparison_of(row)
    comparison.sweeps[0].record.results = {trial.id: trial for trial in trials}
    rungs = rungs_of(comparison)
    found = [rungs[0], *(those[0] for those in by_windows(comparison, rungs).values())]
    # |G|² + tr Σ/B is 3 in the first window, 5 in the second; in both together tr Σ is 896 and |G|² is 2.
    begun = (5 * 512 / 3 + 3 * 1536 / 5) / (5 * 2 / 3 + 3 * 2 / 5)
    assert [one.row.predicted(*PRIMARY).value for one in found] == pytest.approx([256, begun, 448])
    assert "| `a` | task | 8 to 8 | 300 " in windows_of_few_iterations(comparison, rungs)
    one_step = comparison_of(row_of("classic/a", 300.0, 1.0))
    assert windows_of_few_iterations(one_step, rungs_of(one_step)).startswith("No scored rung has several optimizer steps")


def test_the_verdict_over_fewer_rungs():
    """Eight tasks, and an intervention that moved B_crit and the prediction fourfold; all that differs is which tasks count."""
    decades = {"a": 1.0, "iterated": 1.5, "frozenlake": 2.0, "b": 2.5, "c": 3.0, "d": 3.5, "umbrella": 2.2, "short": 4.0}
    of_steps = {"short": {"s_min": 90.0}, "iterated": {"s_min": 30.0, "inner_steps": 12}}
    rows = [row_of(f"toy/{name}", 10**x, 3 * 10**x, **of_steps.get(name, {})) for name, x in decades.items()]
    moved = row_of("toy/umbrella-noise-4", 10**2.802, 3 * 10**2.802)
    ladder = {moved.name: {"role": "intervention", "base": "umbrella", "state": "finished"}}
    comparison = comparison_of(*rows, moved, ladder=ladder)
    table = [line.strip("| ").split(" | ") for line in fewer_rungs(comparison, rungs_of(comparison)).splitlines()[2:]]
    without = {
        "as published": ("", "1 of 1", "undecided"),
        "where S_min is at least 100 optimizer steps": ("short", "1 of 1", "too few"),
        "where S_min is at least 50 iterations": ("iterated", "1 of 1", "too few"),
        "without rungs whose environments were in step": ("umbrella", "0 of 0", "too few"),
        "without rungs that this repository has no earlier rule of": ("frozenlake", "1 of 1", "too few"),
    }
    assert [name for name, *_ in table] == list(without)
    for name, tasks, rms, _, constant, held, said in table:
        left, *expected = without[name]
        assert [held, said] == expected
        logs = [x for task, x in decades.items() if task != left]
        assert int(tasks) == len(logs)
        mean = sum(logs) / len(logs)
        spread = (sum((x - mean) ** 2 for x in logs) / len(logs)) ** 0.5
        assert float(constant.split()[0]) == pytest.approx(spread * len(logs) / (len(logs) - 1), abs=5e-3), "the others' mean"
        assert float(rms.split()[0]) == pytest.approx(0, abs=1e-6)
