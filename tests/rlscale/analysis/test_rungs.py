"""Sweeps as rungs: their roles, and which other one an altered one was moved from."""

from dataclasses import replace

import pytest
from rungs import comparison_of, row_of

from rlscale.analysis.rungs import interventions_of, rungs_of
from rlscale.analysis.verdict import verdict
from rlscale.report.words import say_verdict_details


def moved(task="a", measured=400.0, predicted=400.0, **changes):
    row = replace(row_of(task, measured, predicted), **{"reward_noise": 0.5, **changes})
    return replace(row, name=f"{task} (moved)", source=f"{task}-moved")


@pytest.mark.parametrize(("altered", "role"), [(dict(clones=4), "control"), (dict(reward_noise=0.5), "intervention")])
def test_a_sweep_of_altered_environments_is_no_task_of_its_own(altered, role):
    rows = row_of("a", 100.0, 100.0), moved(**{"reward_noise": 0.0, **altered})
    assert [rung.role for rung in rungs_of(comparison_of(*rows))] == ["task", role]
    kept = rungs_of(comparison_of(*rows, ladder={"a (moved)": {"role": "development"}}))
    assert [rung.role for rung in kept] == ["task", "development"]


def test_a_sweep_with_noise_was_moved_from_the_only_one_of_its_task_and_goal():
    plain = row_of("a", 100.0, 100.0)
    assert [rung.base for rung in rungs_of(comparison_of(plain, moved()))] == [None, "a"]
    for others in ((), (plain, replace(plain, name="again", source="again")), (replace(plain, goal=2.0),)):
        assert rungs_of(comparison_of(*others, moved()))[-1].base is None
    assert rungs_of(comparison_of(replace(plain, inner_steps=12), moved()))[-1].base is None
    assert rungs_of(comparison_of(row_of("b", 100.0, 100.0), moved()))[-1].base is None
    named = rungs_of(comparison_of(plain, moved(), ladder={"a (moved)": {"role": "intervention", "base": "other"}}))
    assert named[-1].base == "other", "the record knows better"


def test_anybodys_sweeps_can_show_that_the_noise_scale_predicts():
    """Eight tasks whose noise scale is B_crit, three of them with four times the noise."""
    plain = [row_of(name, 10 ** (1 + n / 2), 10 ** (1 + n / 2)) for n, name in enumerate("abcdefgh")]
    noisy = [moved(name, 4 * 10 ** (1 + n / 2), 4 * 10 ** (1 + n / 2)) for n, name in enumerate("abc")]
    for count, state in ((3, "predicts"), (2, "undecided")):
        rungs = rungs_of(comparison_of(*plain, *noisy[:count]))
        found = verdict(rungs, interventions_of(rungs))
        assert found.state == state
        lacking = "It would be “predicts” with 3 interventions that move B_crit as predicted"
        assert (lacking in say_verdict_details(found)) == (count < 3)
    wide = [row_of(name, 10 ** (1 + n / 2), 10 ** (1 + n / 2 + 0.4 * (-1) ** n)) for n, name in enumerate("abcdefgh")]
    found = verdict(rungs_of(comparison_of(*wide)))
    assert (found.state, found.would_predict) == ("undecided", False)
    assert "It would be" not in say_verdict_details(found), "interventions are not all that it lacks"
