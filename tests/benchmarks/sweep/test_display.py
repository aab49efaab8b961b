"""What a sweep says while it goes on: B_crit in the same observations as on the page."""

import io
import re
from dataclasses import replace

import pytest
from planted import Planted, make_plan, write_sweep
from rich.console import Console

from rlscale.analysis.comparison import compare
from rlscale.benchmarks.sweep.display import SweepDisplay


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
