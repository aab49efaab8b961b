"""The law of many workers: planted parameters come back, intervals cover, and what the readings cannot tell is not told."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from rlscale.sizing import fit_throughput

RATE, CONTENTION, COHERENCY = 1800.0, 0.04, 7e-4


def law(n, rate=RATE, contention=CONTENTION, coherency=COHERENCY):
    n = np.asarray(n, dtype=float)
    return rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1))


@pytest.mark.parametrize(
    ("contention", "coherency"), [(0.04, 7e-4), (0.3, 0.02), (0.0, 1e-3), (0.1, 0.0), (0.0, 0.0), (1.0, 0.0), (2e-4, 3e-7)]
)
def test_planted_parameters_come_back(contention, coherency):
    counts = [1, 2, 4, 8, 16, 64]
    curve = fit_throughput(counts, law(counts, RATE, contention, coherency))
    assert curve.rate.value == pytest.approx(RATE, rel=1e-4)
    assert curve.contention.value == pytest.approx(contention, rel=1e-2, abs=2e-6)
    assert curve.coherency.value == pytest.approx(coherency, rel=1e-2, abs=2e-8)
    assert curve.residual < 1e-5
    assert curve.predict(32).value == pytest.approx(law(32, RATE, contention, coherency), rel=1e-4)
    assert curve.predict(256).value == pytest.approx(law(256, RATE, contention, coherency), rel=2e-2)


def test_the_peak():
    """√((1-σ)/κ), by the law itself and by a search among all counts."""
    counts = [1, 2, 4, 8, 16]
    curve = fit_throughput(counts, law(counts))
    assert curve.peak.value == pytest.approx(math.sqrt((1 - CONTENTION) / COHERENCY), rel=1e-2)
    rates = [curve.predict(n).value for n in range(1, 100)]
    assert 1 + int(np.argmax(rates)) == round(curve.peak.value)
    rising = fit_throughput(counts, law(counts, coherency=0.0))
    assert rising.peak.value is None
    assert rising.peak.interval[1] == math.inf


def test_readings_that_fall_from_the_first_worker_on_give_a_peak_without_a_warning():
    """Their interval holds the law that does not rise at all, σ = 1 and κ = 0, whose peak is 0/0 by the formula."""
    assert fit_throughput([1, 2, 4, 8], [1478.8, 1079.2, 534.2, 366.6]).peak.interval[0] == 1.0


@pytest.mark.parametrize(("counts", "noise"), [([1, 2, 4, 8], 0.02), ([1, 2, 4, 8, 16], 0.05)])
def test_intervals_cover(counts, noise):
    """Of 100 draws at 95% at least 88; and they are no wider than they must be: at 80% some fail."""
    rng = np.random.default_rng(0)
    readings = np.repeat(counts, 3)
    truth = {"rate": RATE, "contention": CONTENTION, "coherency": COHERENCY, "inside": law(3), "outside": law(2 * counts[-1])}
    covered = {confidence: dict.fromkeys(truth, 0) for confidence in (0.95, 0.8)}
    for _ in range(100):
        rates = law(readings) * np.exp(noise * rng.normal(size=readings.size))
        for confidence, hits in covered.items():
            curve = fit_throughput(readings, rates, confidence=confidence)
            found = {"inside": curve.predict(3), "outside": curve.predict(2 * counts[-1])}
            found |= {name: getattr(curve, name) for name in ("rate", "contention", "coherency")}
            for name, estimate in found.items():
                assert estimate.interval[0] <= estimate.value <= estimate.interval[1]
                hits[name] += estimate.interval[0] <= truth[name] <= estimate.interval[1]
    assert min(covered[0.95].values()) >= 88, covered
    assert max(covered[0.8].values()) <= 97, covered


def test_fewer_counts_identify_less():
    """Two or three: Amdahl's law. One: the rate at that count. The rest says what to measure."""
    curve = fit_throughput([1, 2, 4, 4], law([1, 2, 4, 4], coherency=0.0))
    assert curve.contention.value == pytest.approx(CONTENTION, rel=1e-2)
    assert curve.coherency.value is None
    assert curve.peak.value is None
    assert "measure 1 more" in curve.coherency.reason
    assert curve.predict(3).value == pytest.approx(law(3, coherency=0.0), rel=1e-4)
    beyond = curve.predict(8)
    assert beyond.value is None
    assert beyond.interval[0] == 0.0
    assert beyond.interval[1] == pytest.approx(law(8, coherency=0.0), rel=1e-3)  # no coherency cost could only lower it
    one = fit_throughput([1, 1], [1800.0, 1900.0])
    assert one.rate.value == pytest.approx(math.sqrt(1800 * 1900))
    assert one.contention.value is None
    assert one.predict(1).interval[0] < 1800 < 1900 < one.predict(1).interval[1]
    assert one.predict(2).value is None
    four = fit_throughput([4], [7000.0])
    assert four.rate.value is None
    assert four.predict(4).value == pytest.approx(7000)
    assert four.predict(4).interval is None


def test_one_count_has_students_interval():
    """Of the mean logarithm of its readings."""
    rates = np.array([1800.0, 1900.0, 1750.0, 1850.0])
    logs = np.log(rates)
    half = student.ppf(0.975, 3) * logs.std(ddof=1) / 2
    found = fit_throughput([1] * 4, rates).rate
    assert found.interval == pytest.approx((math.exp(logs.mean() - half), math.exp(logs.mean() + half)), rel=1e-6)


def test_large_counts_alone_do_not_tell_one_worker():
    """σ may then be as large as one likes, and λ with it; the rates of the counts that were measured stay known."""
    even = fit_throughput([8, 16, 32], [100.0, 101.0, 99.0])
    assert even.contention.interval[1] == even.rate.interval[1] == math.inf
    assert even.predict(1) == even.rate
    assert even.predict(16).interval[1] < 130
    falling = fit_throughput([8, 16, 32], [100.0, 80.0, 60.0])  # more steeply than any law: the best σ is beyond all bounds
    assert falling.rate.value is falling.contention.value is falling.predict(1).value is None
    assert falling.rate.reason == "8 workers and more cannot tell it; measure one alone"
    assert falling.predict(16).value == pytest.approx(78, rel=0.05)
    assert math.isfinite(fit_throughput([1, 1, 2, 2, 4, 4], law([1, 1, 2, 2, 4, 4])).contention.interval[1])


def test_a_count_that_errs_widens_the_interval():
    """Readings that agree with each other but not with the law do not make it certain."""
    counts = np.repeat([1, 2, 4, 8, 16], 3)
    off = np.repeat([1.0, 1.05, 0.95, 1.05, 1.0], 3)
    sure, unsure = (
        fit_throughput(counts, law(counts) * np.tile([0.999, 1.0, 1.001], 5)),
        fit_throughput(counts, law(counts) * off),
    )
    width = [c.predict(16).interval[1] / c.predict(16).interval[0] - 1 for c in (sure, unsure)]
    assert width[1] > 10 * width[0]


@pytest.mark.parametrize(
    ("workers", "rates", "message"),
    [
        ([1, 2], [100.0], "one entry"),
        ([], [], "one entry"),
        ([0, 1], [1.0, 2.0], "workers must be positive"),
        ([0.5, 1], [1.0, 2.0], "workers must be at least 1"),
        ([1, 2], [1.0, 0.0], "observations_per_second must be positive"),
        ([1, 2], [1.0, math.nan], "observations_per_second must be positive"),
    ],
)
def test_bad_readings(workers, rates, message):
    with pytest.raises(ValueError, match=message):
        fit_throughput(workers, rates)
    with pytest.raises(ValueError, match="at least 1"):
        fit_throughput([1], [1.0]).predict(0)


def test_readings_that_agree_do_not_hide_that_their_counts_err():
    """Three equal readings a count are three times the squares of one: the variance is of five counts, t of 15 readings."""
    counts, off = np.array([1, 2, 4, 8, 16]), np.array([1.0, 1.05, 0.95, 1.05, 1.0])
    thrice = fit_throughput(np.repeat(counts, 3), np.repeat(law(counts) * off, 3))
    once = fit_throughput(counts, law(counts) * off, confidence=1 - 2 * student.sf(student.ppf(0.975, 15 - 3), 5 - 3))
    for workers in (1, 4, 16):
        assert thrice.predict(workers).interval == pytest.approx(once.predict(workers).interval, rel=1e-3)
