"""What a sweep says while it goes on: B_crit in the same observations as on the page."""

import io
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from planted import Planted, make_plan, write_sweep
from rich.console import Console

from rlscale.analysis.comparison import compare
from rlscale.benchmarks.sweep import display as display_module
from rlscale.benchmarks.sweep.display import SweepDisplay


@pytest.mark.parametrize(("hours", "said"), [(None, ""), (0.25, "; --hours leaves 3 min"), (9.0, "")])
def test_a_sweep_says_how_much_longer_it_will_take(hours, said, tmp_path):
    """After 12 minutes (72 runs of 20 s, two side by side), at a factor f: 12 (ln f / ln 1.5 - 1) more, and 3 runs."""
    made = make_plan(seeds=3, noise_runs=0)
    record = write_sweep(tmp_path / "s", Planted(b_crit=1440, scatter=0.3), plan=made)
    console = Console(file=io.StringIO(), width=300)
    plan = make_plan(batch_sizes=None, interval_ratio=1.5, hours=hours)
    with SweepDisplay([plan], [record.results], console) as display:
        display.ended(0, list(record.results.values())[-1])
    shown = console.file.getvalue()
    low, high = (float(end.replace(",", "")) for end in re.search(r"B_crit [\d,.]+ \[([\d,.]+), ([\d,.]+)\]", shown).groups())
    minutes = int(re.search(rf"\(1\.5 is wanted, some (\d+) min more{said}\)", shown)[1])
    assert len(record.results) == 72
    assert minutes == pytest.approx(12 * (math.log(high / low) / math.log(1.5) - 1) + 0.5, abs=1)


def test_steps_that_only_reset_an_environment_are_no_observations_of_b_crit(tmp_path):
    """Of short episodes half of all steps may be resets, and B_crit is then half of what the nominal sizes say."""

    def with_resets(trial, result):
        goals = tuple(replace(goal, observations=goal.observations and goal.observations / 2) for goal in result.goals)
        return replace(result, goals=goals, observations=result.observations // 2)

    plan = make_plan(seeds=1)
    record = write_sweep(tmp_path / "s", Planted(b_crit=1440, scatter=0.05), plan=plan, change=with_resets)
    console = Console(file=io.StringIO(), width=300)
    with SweepDisplay([plan], [record.results], console) as display:
        display.ended(0, list(record.results.values())[-1])
    said = re.search(r"B_crit ([\d,.]+) \[([\d,.]+), ([\d,.]+)\]", console.file.getvalue()).groups()
    b_crit, low, high = (float(figure.replace(",", "")) for figure in said)
    on_page = compare([record], []).rows[-1].measured
    assert b_crit == pytest.approx(720, rel=0.1)
    assert b_crit == pytest.approx(on_page.value, rel=0.03)
    assert (low, high) == pytest.approx(on_page.interval, rel=0.2)


def test_a_grid_says_how_long_its_other_runs_will_take(tmp_path, monkeypatch):
    """24 runs, 4 of them from before: 6 more took 9 minutes, so the other 14 take 21."""
    plan = make_plan(seeds=1, noise_runs=0)
    record = write_sweep(tmp_path / "s", Planted(), plan=plan, most=10)
    ended = list(record.results.values())
    results = {run.id: run for run in ended[:4]}
    clock = iter([1000.0, 1540.0])
    monkeypatch.setattr(display_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console(file=io.StringIO(), width=300)
    with SweepDisplay([plan], [results], console) as display:
        results |= {run.id: run for run in ended[4:]}
        display.ended(0, ended[-1])
    assert "[10 of 24 runs, 21:00 left; " in console.file.getvalue()
