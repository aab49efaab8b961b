"""Quantities as people write and read them, and how an estimate is said."""

import math

import pytest

from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.text import (
    first_line,
    format_bytes,
    format_clock,
    format_duration,
    format_quantity,
    format_return,
    parse_bytes,
    parse_duration,
    stretches,
    true_error,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (4.5678, "4.57"),
        (1234.5, "1,230"),
        (9.994, "9.99"),
        (9.9996, "10.0"),
        (-9.9996, "-10.0"),
        (0.99961, "1.00"),
        (0.0099996, "0.0100"),
        (99.96, "100"),
        (999.6, "1,000"),
        (-45678, "-45,700"),
        (float("inf"), "∞"),
    ],
)
def test_quantities(value, text):
    assert format_quantity(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (32_064.4, 4, "32,064"),
        (1128.0, 3, "1,128"),
        (-14_220.0, 4, "-14,220"),
        (999.96, 4, "1,000"),
        (999.5, 4, "999.5"),
        (999.4, 3, "999"),
        (17.527, 4, "17.53"),
        (21.0, 4, "21"),
        (-0.0625, 3, "-0.0625"),
    ],
)
def test_a_return_in_words_has_no_exponent(value, digits, text):
    assert format_return(value, digits) == text


def test_estimates_read_well():
    assert str(Estimate(1234.0, (900.0, 1800.0))) == "1,230 [900, 1,800]"
    assert str(Estimate(None, (512.0, float("inf")), "noise")) == "not resolved, above 512"
    assert str(Estimate(None, None, "no data")) == "not resolved"
    with pytest.raises(ValueError, match="either a value or the reason"):
        Estimate(None, None)


def test_limits_are_said():
    assert Estimate(None, (0.0, 50.0), "x").say() == "not resolved, below 50.0"
    assert Estimate(None, (50.0, math.inf), "x").say("unknown") == "unknown, above 50.0"
    assert Estimate(None, (0.0, 0.0), "x").say() == "none seen", "a loss may have no noise at all"
    assert Estimate(None, (5.0, 50.0), "x").say("unknown") == "unknown, between 5.00 and 50.0"
    assert Estimate(None, (0.0, math.inf), "x").say() == "not resolved"
    assert Estimate(10.0, (5.0, math.inf)).say() == "10.0 [5.00, ∞]"
    assert Estimate(10.0, None).say() == "10.0"


@pytest.mark.parametrize(
    ("text", "count"), [("12GiB", 12 * 2**30), ("500MB", 500 * 10**6), ("2g", 2 * 10**9), ("1.5 KiB", 1536), ("77", 77)]
)
def test_amounts_of_memory(text, count):
    assert parse_bytes(text, "--memory") == count


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "0", "12 apples", "GiB"])
def test_what_is_no_amount_of_memory(text):
    with pytest.raises(UsageError, match=r"--memory: .* is no amount of memory"):
        parse_bytes(text, "--memory")


def test_bytes_for_people():
    assert [format_bytes(x) for x in (12, 999.7, 1000, 2048, 999.8 * 2**20, 7.4e9)] == [
        "12 B",
        "1000 B",
        "1000 B",
        "2 KiB",
        "1000 MiB",
        "6.89 GiB",
    ]


def test_times():
    texts = ("45s", "90min", "1.5h", "2 d", "3m")
    assert [parse_duration(text, "--deadline") for text in texts] == [45, 5400, 5400, 172800, 180]
    for text in ("", "8", "h", "-1h", "0h", "8 weeks", "9" * 400 + "h", "9" * 307 + "d"):
        with pytest.raises(UsageError, match="--deadline"):
            parse_duration(text, "--deadline")


def test_times_for_people():
    expected = ["0.123 s", "12.3 s", "40 s", "2 min 5 s", "3 h 20 min"]
    assert [format_duration(seconds) for seconds in (0.1234, 12.34, 40.2, 125, 12_000)] == expected
    assert [format_clock(seconds) for seconds in (5.9, 65, 7210)] == ["0:05", "1:05", "2:00:10"]


@pytest.mark.parametrize(
    ("numbers", "groups"),
    [([], []), ([7], [[7]]), ([2, 4, 5, 6, 9, 10], [[2], [4, 5, 6], [9, 10]]), ([-1, 0, 2], [[-1, 0], [2]])],
)
def test_consecutive_numbers_stand_together(numbers, groups):
    assert stretches(numbers) == groups


def test_what_another_process_says_is_what_went_wrong_there_not_where():
    """The first line of Ray's own error names a process and a node, which belong in no record."""
    from ray.exceptions import RayTaskError

    wrong = UsageError("--network", "it does not fit", "Choose another")
    handed_on = RayTaskError("sample", "\x1b[36mray::RolloutActor.sample()\x1b[39m (pid=12, ip=10.1.2.3)\nUsageError: …", wrong)
    assert first_line(handed_on) == first_line(handed_on.as_instanceof_cause()) == "--network: it does not fit. Choose another"
    assert true_error(handed_on.as_instanceof_cause()) is wrong
    assert first_line(ValueError("")) == "ValueError"
