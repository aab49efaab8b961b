"""More machines: exact wall times on planted laws."""

import math

import pytest

from rlscale.sizing import FleetTime, HandOver, LearnerTime, ServiceTime, fit_throughput, scale_out


def fleet(fixed, environment):
    """One worker: a step takes fixed + environments · environment seconds; ten steps a fragment; nothing else takes time."""
    curve = fit_throughput([1, 1, 1, 1], [100.0, 100.0, 100.0, 100.0])
    service = ServiceTime(fixed, environment, 0.0, (1,), 0.0)
    return FleetTime(service, ((1, 1.0),), curve, HandOver(), (1.0,), 1.0, 10)


def test_each_number_of_machines_has_the_batch_that_makes_it_fastest():
    """By hand, over batches of 10 · n · 2^k: T = (1 + B_crit / B) (10 (fixed + e) + L)."""
    law, learner = fleet(1.0, 0.01), LearnerTime(2.0, 0.0, 0.0, 0.0)

    def wall(machines, each):
        return (1 + 1000 / (10 * machines * each)) * (10 * (1.0 + 0.01 * each) + 2.0)

    found = scale_out(1000.0, law, learner, workers=1, machines=(1, 2, 8))
    for one in found:
        times = {each: wall(one.machines, each) for each in (2**k for k in range(13))}
        best = min(times, key=times.get)
        assert one.batch_size == 10 * one.machines * best
        assert one.speedup == pytest.approx(min(wall(1, 2**k) for k in range(13)) / times[best])
        assert one.cost == pytest.approx(one.machines / one.speedup)
        assert one.bound == "sampling"
    assert [one.machines for one in found] == [1, 2, 8]


def test_where_the_learner_is_the_limit_machines_give_nothing():
    """Sampling is free, a batch takes the learner B seconds: the smallest batch is best, and more machines make it larger."""
    found = scale_out(100.0, fleet(1e-9, 1e-9), LearnerTime(0.0, 0.0, 1.0, 0.0), workers=1, machines=(1, 2, 4))
    assert [(one.machines, one.batch_size, one.bound) for one in found] == [(1, 10, "learning")]


@pytest.mark.parametrize(("critical", "machines"), [(0.0, (1,)), (100.0, (0, 1)), (math.inf, (1,)), (math.nan, (1,))])
def test_what_cannot_be(critical, machines):
    with pytest.raises(ValueError, match="must be positive"):
        scale_out(critical, fleet(1.0, 0.0), LearnerTime(0.1, 0.0, 0.0, 0.0), workers=1, machines=machines)
