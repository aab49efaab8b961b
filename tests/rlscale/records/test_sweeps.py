"""Records of sweeps that were put together by hand."""

import shutil

from planted import Planted, make_plan, write_sweep

from rlscale.records import read_sweep


def test_results_of_another_sweep_are_left_out_and_named(tmp_path):
    """They were never measured against this plan's goals, and would count as runs that missed them."""
    own = write_sweep(tmp_path / "own", Planted(scatter=0.1))
    other = write_sweep(tmp_path / "other", Planted(scatter=0.1), plan=make_plan(goals=(7.5, 9.5)))
    assert {crossing.goal for result in other.results.values() for crossing in result.goals} == {7.5, 9.5}
    shutil.copy(other.folder / "results.jsonl", own.folder)
    mixed = read_sweep(own.folder)
    assert mixed.results == {}
    assert len(mixed.left_out) == len(other.results)
    assert all("is of another sweep, with other goals, and was left out" in said for said in mixed.left_out)
    assert read_sweep(other.folder).left_out == ()
