"""What the endurance run concludes from its record: losses that are not told, and memory that grows."""

import pytest

from rlscale.benchmarks.measurements.chaos import where_one_more_would_lie
from rlscale.benchmarks.measurements.endurance import curve_of, growth, untold

ROWS = b"{}\n" * 10  # ten iterations of three bytes each


def killed(session, iterations, what="actor"):
    """A kill when so many iterations had ended."""
    return [session, 3 * iterations, 0.0, what]


def test_every_killed_actor_is_told_once():
    events = [killed(0, 1), killed(0, 4), killed(0, 4)]
    assert untold(events, [30], ROWS, [0, 0, 1, 0, 1, 1, 0, 0, 0, 0]) == 0
    assert untold(events, [30], ROWS, [0, 0, 1, 0, 0, 1, 0, 0, 0, 0]) == 1
    assert untold(events, [30], ROWS, [0] * 10) == 3
    assert untold(events, [], ROWS, [0] * 10) == 3, "while it goes on"


def test_a_loss_that_nobody_waits_for_any_more_need_not_be_told():
    """Neither at the end of the last session, nor just before a session ends with its learner."""
    assert untold([killed(0, 9)], [30], ROWS, [0] * 10) == 0
    events = [killed(0, 2), killed(0, 5), killed(0, 5, "learner"), killed(1, 6)]
    assert untold(events, [15, 30], ROWS, [0, 0, 1, 0, 0, 0, 0, 1, 0, 0]) == 0
    assert untold(events, [15, 30], ROWS, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]) == 1, "what one session tells is not another's"
    events[-1] = killed(1, 9)  # whose first rows are not the first session's
    assert untold(events, [15, 30], ROWS, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]) == 0


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


def test_one_more_value_lies_within_student_s_prediction_interval():
    """Of 1, 2, 3: the mean 2, the deviation 1, and 4.3027 of Student's t with two degrees of freedom times √(1 + 1/3)."""
    assert where_one_more_would_lie([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.9683, 2 + 4.9683), abs=1e-3)
