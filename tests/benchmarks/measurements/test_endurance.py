"""What the endurance run concludes from its record: losses that are not told, and memory that grows."""

import pytest

from rlscale.benchmarks.measurements.endurance import curve_of, growth, same_until, untold

ROWS = b"{}\n" * 10  # ten iterations of three bytes each


def killed(session, iterations, what="actor"):
    """A kill when so many iterations had ended."""
    return [session, 3 * iterations, 0.0, what]


def told(*iterations, sessions=(), gaps=()):
    """Ten rows of two actors that tell a loss in each of these; `gaps`: iterations whose replacement did not start at first.

    Actors of a session are numbered from 0, and every loss is that of the actor that has worked longest.
    """
    rows = []
    for iteration in range(10):
        if iteration in (0, *sessions):
            working, given = [0, 1], 2
        losses = []
        if iteration in iterations:
            given += iteration in gaps
            losses.append({"what": "died", "actor": working.pop(0), "replaced_by": given})
            working.append(given)
            given += 1
        rows.append({"losses": losses, "actors": 2})
    return rows


def test_every_killed_actor_is_told_once():
    events = [killed(0, 1), killed(0, 4), killed(0, 4)]
    assert untold(events, [30], ROWS, told(2, 4, 5)) == 0
    assert untold(events, [30], ROWS, told(2, 5)) == 1
    assert untold(events, [30], ROWS, told()) == 3
    assert untold(events, [], ROWS, told()) == 3, "while it goes on"


def test_a_replacement_that_is_killed_before_it_has_started_is_no_loss():
    """Actor 2 was to replace actor 0, and never started; 3 did."""
    rows = told(2, 5, gaps=(2,))
    assert [loss["replaced_by"] for row in rows for loss in row["losses"]] == [3, 4]
    assert untold([killed(0, 1), killed(0, 1), killed(0, 4)], [30], ROWS, rows) == 0
    assert untold([killed(0, 1), killed(0, 1), killed(0, 4), killed(0, 4)], [30], ROWS, rows) == 1


def test_a_loss_that_nobody_waits_for_any_more_need_not_be_told():
    """Neither at the end of the last session, nor just before a session ends with its learner."""
    assert untold([killed(0, 9)], [30], ROWS, told()) == 0
    events = [killed(0, 2), killed(0, 5), killed(0, 5, "learner"), killed(1, 6)]
    assert untold(events, [15, 30], ROWS, told(2, 7, sessions=(5,))) == 0
    assert untold(events, [15, 30], ROWS, told(2, sessions=(5,))) == 1, "what one session tells is not another's"
    events[-1] = killed(1, 9)  # whose first rows are not the first session's
    assert untold(events, [15, 30], ROWS, told(2, sessions=(5,))) == 0


def test_growth_is_an_hours_and_leaves_the_first_two_minutes_out():
    rising = [[60.0 * minute, 200.0 + minute / 6, 30.0] for minute in range(30)]
    jump = [[0.0, 50.0, 3.0], [60.0, 90.0, 9.0]]
    shifted = [[seconds + 120, *rest] for seconds, *rest in rising]
    assert growth(jump + shifted, 1) == pytest.approx(10)
    assert growth(jump + shifted, 2) == 0
    assert growth(rising[:11], 1) is None


def test_a_point_of_the_curve_weights_every_episode_alike():
    rows = [
        {"observations": 20_000, "episodes": 1, "return_mean": 1.0},
        {"observations": 40_000, "episodes": 3, "return_mean": 5.0},
        {"observations": 60_000, "episodes": 0, "return_mean": None},
        {"observations": 120_000, "episodes": 2, "return_mean": 7.0},
    ]
    assert curve_of(rows) == [[50_000, 4.0], [150_000, 7.0]]


def test_rows_are_the_same_until_the_first_that_learned_otherwise():
    """Whatever the clock and the faults decided."""
    rows = [{"iteration": n, "policy_loss": 0.5 * n, "seconds": 2.0 * n, "losses": [], "actors": 4} for n in range(5)]
    late = [{**row, "seconds": 3.0, "learning_observations_per_second": 9.0, "losses": [1], "actors": 2} for row in rows]
    assert same_until(rows, late) == same_until(rows, late[:5]) == 5
    assert same_until(rows[:3], late) == same_until(late, rows[:3]) == 3
    late[2]["policy_loss"] = 1.0000001
    assert same_until(rows, late) == 2
