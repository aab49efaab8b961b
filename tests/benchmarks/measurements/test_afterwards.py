"""The hypotheses for later rungs, on planted ones."""

import math

import pytest
from rungs import comparison_of, row_of, rungs_of

from rlscale.analysis.predictions import ADVISED
from rlscale.analysis.verdict import TaskTable
from rlscale.benchmarks.measurements.ladder.afterwards import (
    BEFORE_THIRD,
    JOINT,
    POLICY,
    THIRD,
    agreement,
    beside_the_paper,
    error_of,
    second_hypothesis,
    third_hypothesis,
)

FACTOR, ALWAYS = THIRD
OPEN = "Open: the hypothesis needs 5 scored tasks whose B_crit span at least 1 decade, and has {} so far."


def test_the_second_hypothesis_errs_in_decades_without_an_offset():
    """Twice and half, tenfold where nothing is resolved; and the mean of the others of 10, 100 and 1,000."""
    ratios = {10.0: 2.0, 100.0: 0.5, 1000.0: None}
    rows = [row_of(f"t{b}", b, 1.0, more=[(ADVISED, b / ratio)] if ratio else []) for b, ratio in ratios.items()]
    counted = TaskTable.of(rungs_of(comparison_of(*rows)), *ADVISED)
    assert error_of(counted) == pytest.approx(((2 * 0.30103**2 + 1) / 3) ** 0.5, rel=1e-5)
    assert math.sqrt(counted.constant) == pytest.approx(((1.5**2 + 0 + 1.5**2) / 3) ** 0.5)


def test_the_second_hypothesis_is_refuted_by_the_mean_of_the_others():
    """Four tasks alike and one four times as large: the constant errs by 0.602 at one, 0.151 at four; the noise scale by 0.4."""
    rows = [row_of(f"classic/{i}", b, 1.0, more=[(ADVISED, b * 10**0.4)]) for i, b in enumerate((100.0,) * 4 + (400.0,))]
    comparison = comparison_of(*rows)
    constant = ((0.60206**2 + 4 * (0.60206 / 4) ** 2) / 5) ** 0.5
    said = second_hypothesis(comparison, rungs_of(comparison))
    assert said.startswith(
        f"Refuted. The prediction errs by 0.400 decades, the mean B_crit of the other tasks by {constant:.3f}. Its own error"
    )
    four = comparison_of(*rows[1:])
    assert second_hypothesis(four, rungs_of(four)).startswith("Open: the hypothesis needs 5 scored tasks, and has 4 so far.")


def later(*pairs, name="classic/later-{}"):
    """Rungs with these B_crit and noise scales of the joint loss."""
    rows = [
        row_of(name.format(i), measured, 1.0, more=[(JOINT, noise)] if noise else []) for i, (measured, noise) in enumerate(pairs)
    ]
    return comparison_of(*rows)


def third(*pairs, **named):
    comparison = later(*pairs, **named)
    return third_hypothesis(comparison, rungs_of(comparison))


SPREAD = (30.0, 200.0, 1000.0, 5000.0, 40_000.0)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.0, "Confirmed. The prediction errs by 0.000 decades"),
        (10**0.2, "Confirmed. The prediction errs by 0.200 decades"),
        (10**0.4, "Undecided. The prediction errs by 0.400 decades"),
        (10**0.6, "Refuted. The prediction errs by 0.600 decades"),
    ],
)
def test_the_third_hypothesis_has_its_factor_fixed(times, said):
    """Errors without an offset: a noise scale that is off by the same factor everywhere is off."""
    assert third(*((b, b / FACTOR / times) for b in SPREAD)).startswith(said)


def test_a_prediction_that_is_not_resolved_errs_by_a_decade():
    assert third(*((b, b / FACTOR) for b in SPREAD[:4]), (SPREAD[4], None)).startswith(
        "Undecided. The prediction errs by 0.447 decades"
    )


def test_the_third_hypothesis_has_to_beat_one_figure_for_all():
    """Off by 0.45 decades everywhere, where 756 is off by half a decade at both ends and right in the middle."""
    near = [ALWAYS * 10**d for d in (-0.5, 0.0, 0.0, 0.0, 0.5)]
    said = third(*((b, b / FACTOR * 10**0.45) for b in near))
    assert said.startswith(
        "Refuted. The prediction errs by 0.450 decades, 756 for every task by 0.316. Its own error is at most 0.5 "
    )


def test_tasks_that_had_been_seen_or_lie_close_together_do_not_test_a_hypothesis():
    assert third(*((b, b / FACTOR) for b in SPREAD[:4])).startswith(OPEN.format(4))
    assert third(*((b, b / FACTOR) for b in (100.0, 200.0, 300.0, 400.0, 990.0))).startswith(OPEN.format(5))
    for name in BEFORE_THIRD:
        assert third((100.0, 300.0), name=name).startswith(OPEN.format(0))


def test_rungs_that_finish_after_the_third_hypothesis_was_judged_change_nothing():
    """Five tasks that it predicts, and two that it misses by a factor of 40, which finished earlier or later."""
    good, bad = [(b, b / FACTOR) for b in SPREAD], [(50.0, 50 / FACTOR / 40), (500.0, 500 / FACTOR / 40)]
    rows = [row_of(f"classic/{i}", b, 1.0, more=[(JOINT, noise)]) for i, (b, noise) in enumerate([*bad, *good])]
    first_five = {row.name: {"state": "finished", "finished": "2026-11-27"} for row in rows}
    later = {row.name: {**first_five[row.name], "finished": "2026-11-28"} for row in rows[:2]}
    comparison = comparison_of(*rows, ladder={**first_five, **later})
    said = third_hypothesis(comparison, rungs_of(comparison))
    assert said.startswith("Confirmed. The prediction errs by 0.000 decades")
    assert "The last 2 of the table finished after that." in said
    together = comparison_of(*rows, ladder=first_five)
    assert third_hypothesis(together, rungs_of(together)).startswith("Refuted.")


def test_several_steps_a_batch_do_not_test_a_hypothesis():
    rows = [row_of(f"classic/{b}", b, 1.0, inner_steps=12, more=[(JOINT, b / FACTOR)]) for b in SPREAD]
    comparison = comparison_of(*rows)
    assert third_hypothesis(comparison, rungs_of(comparison)).startswith(OPEN.format(0))


def test_a_later_rung_shows_what_the_factor_predicts():
    """0.36 x 1,000 is 360, of which 720 is twice as much; the planted intervals are moved by the same factor."""
    line = third((720.0, 1000.0)).splitlines()[-1]
    assert line.startswith("| `later-0` | 720 [509, 1,020] | 360 [300, 432] | 2.00 [")


def test_the_ladder_beside_the_paper():
    """B_crit is twice the joint loss's noise scale everywhere; the policy's is off by factors 1, 10 and 100."""
    rows = [
        [
            row_of(f"t{i}", b / 10, 1.0, goal=0.5, more=[(JOINT, b), (POLICY, b)]),
            row_of(f"t{i}", b, 1.0, more=[(JOINT, b / 2), (POLICY, b / 10**i)]),
        ]
        for i, b in enumerate((100.0, 1000.0, 10_000.0))
    ]
    comparison = comparison_of(*rows)
    said, table = (make(comparison, rungs_of(comparison)) for make in (agreement, beside_the_paper))
    assert (
        "the joint loss predicts a task's B_crit to a factor of 1.0 (B_crit is 2.00 [2.00, 2.00] times this noise scale)" in said
    )
    off = 10 ** (1.5 * (2 / 3) ** 0.5)  # decades 0, 1 and 2, each from the mean of the others: 1.5, 0, 1.5
    assert f"the policy's loss to {off:.1f}, with 0 of 3 not resolved" in said
    assert (
        f"without any noise scale, predicts it to {off:.1f}. On the paper's own table its noise scale predicts to 8.2 and" in said
    )
    assert "| t1 | 100 [70.7, 141] | 1,000 [707, 1,410] | 500 [417, 600] | 2.00 [" in table
    assert "| Dota 5v5 (paper) | not measured | above 8,000,000, its estimate | 24,000,000 | – |" in table
