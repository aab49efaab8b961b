"""Sweeps as rungs: their roles, and which other one an altered one was moved from."""

from dataclasses import replace

import pytest
from rungs import comparison_of, row_of

from rlscale.analysis.rungs import interventions_of, rungs_of
from rlscale.analysis.verdict import verdict
from rlscale.report.ladder_charts import verdict_figure
from rlscale.report.words import say_conclusion, say_verdict_details


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


@pytest.mark.parametrize("noisy_first", [False, True])
def test_a_pair_in_folders_of_one_name_is_of_two_sweeps_in_either_order(noisy_first):
    """Four times B_crit with four times the noise scale: `sweeps/a`, and with --out `noisy/a`."""
    rows = replace(row_of("a", 100.0, 50.0), source="sweeps/a"), replace(moved(predicted=200.0), source="noisy/a")
    found = rungs_of(comparison_of(*(reversed(rows) if noisy_first else rows)))
    (pair,) = interventions_of(found)
    assert (pair.measured.value, pair.predicted.value) == (4.0, 4.0)
    layers = verdict_figure(found).chart.to_dict()["layer"]
    (line,) = [
        part["data"]["values"] for part in layers if part["mark"]["type"] == "line" and "pair" in part["data"]["values"][0]
    ]
    assert [(point["x"], point["y"]) for point in line] == [(50.0, 100.0), (200.0, 400.0)]


@pytest.mark.parametrize(("predicted", "said"), [(200.0, "moved B_crit as"), (100.0, "did not move B_crit as")])
def test_of_the_two_sweeps_of_a_pair_alone_it_is_said_whether_b_crit_moved_as_predicted(predicted, said):
    """It is four times as large; the noise scale is four times and twice as large."""
    found = rungs_of(comparison_of(row_of("a", 100.0, 50.0), moved(predicted=predicted)))
    assert say_conclusion(found).startswith("One task is no conclusion; here, for a (moved) to a return of 1, ")
    assert say_conclusion(found).endswith(f" times B_crit. The one intervention {said} predicted.")
    assert say_conclusion(found[:1]).endswith(" times B_crit.")


def test_the_base_that_a_record_names_is_the_folder_beside_its_own():
    """Two ladders have a rung of that name."""
    rows = [replace(row_of("a", 100.0, 100.0), name=f"a ({home}/a)", source=f"{home}/a") for home in ("mine", "yours")]
    noisy = replace(moved(), source="mine/noisy")
    ladder = {noisy.name: {"role": "intervention", "base": "a"}}
    for order in ((*rows, noisy), (*reversed(rows), noisy)):
        assert rungs_of(comparison_of(*order, ladder=ladder))[-1].base == "a (mine/a)"
    assert interventions_of(rungs_of(comparison_of(rows[1], noisy, ladder=ladder))) == []


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
