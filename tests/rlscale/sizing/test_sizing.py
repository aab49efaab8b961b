"""Sizing: planted parts come back, an iteration's time by hand, and a frontier with a known optimum."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlscale.frontier import Surface, fit
from rlscale.sizing import (
    FleetTime,
    HandOver,
    LearnerTime,
    Price,
    fit_hand_over,
    fit_learner,
    fit_service,
    fit_throughput,
    hand_over_seconds,
    iteration,
    plan,
)


def test_service_times_come_back():
    grid = [(n, k) for n in (8, 32, 128) for k in (1, 2, 4)]
    n, k = np.array(grid, dtype=float).T
    service = fit_service(n, k, 3e-3 + n * (2e-4 + 4e-4 / k))
    assert (service.fixed, service.serial, service.parallel) == pytest.approx((3e-3, 2e-4, 4e-4), rel=1e-6)
    assert service.residual < 1e-9
    assert service.seconds(64, 2) == pytest.approx(3e-3 + 64 * 4e-4)


def test_one_number_of_threads_says_nothing_of_others():
    service = fit_service([8, 64], [2, 2], [0.01, 0.045])
    assert service.seconds(8, 2) == pytest.approx(0.01)
    assert service.seconds(64, 2) == pytest.approx(0.045)
    with pytest.raises(ValueError, match="only 2 was measured"):
        service.seconds(8, 1)


def test_a_fleet_by_hand():
    """Two threads share what three workers take from each other; hand-over comes once an iteration."""
    service = fit_service([8, 64, 8, 64], [1, 1, 2, 2], [0.011, 0.067, 0.007, 0.035])  # 3 ms + N (0 + 1 ms / threads)
    curve = fit_throughput([1, 2, 4, 8], [n * 900 / (1 + 0.1 * (n - 1)) for n in (1, 2, 4, 8)])
    slowdowns = tuple((n, 1 + 0.1 * (n - 1)) for n in (1, 2, 4))
    handing = HandOver(fixed=0.1, worker=0.02, byte=1e-6)
    fleet = FleetTime(
        service, slowdowns, curve, handing, (1.0,), observation_bytes=50, rollout_length=100, scatter=0.05, freedom=10
    )
    assert fleet.seconds(1, 8) == pytest.approx(0.1 + 0.02 + 0.04 + 1.1)
    assert fleet.seconds(4, 8) == pytest.approx(0.1 + 0.08 + 0.16 + 1.1 * 1.3)
    assert fleet.seconds(2, 64, 2) == pytest.approx(0.1 + 0.04 + 0.64 + 3.5 * 1.3 / 1.1)
    assert fleet.working_seconds(2, 64, 2) == pytest.approx(3.5 * 1.3 / 1.1)
    assert fleet.working_seconds(3, 8) == pytest.approx(
        1.1 * math.exp(np.interp(math.log(3), np.log([2, 4]), np.log([1.1, 1.3])))
    )
    assert fleet.working_seconds(16, 8) == pytest.approx(1.1 * 2.5, rel=1e-3)  # beyond the readings: the law
    rate = fleet.rate(4, 8)
    assert rate.value == pytest.approx(3200 / (0.34 + 1.43))
    assert rate.interval == pytest.approx((rate.value / math.exp(2.228 * 0.05), rate.value * math.exp(2.228 * 0.05)), rel=1e-3)
    assert FleetTime(service, slowdowns, curve, handing, (1.0,), 50, 100).rate(4, 8).interval is None


def test_stragglers_are_waited_for_while_others_are_handed_over():
    """One fragment in ten takes three times as long: of 1, 4 or 64 workers the slowest is 1.2, 1.7 or 3 times the usual."""
    service = fit_service([1, 10], [1, 1], [0.001, 0.01])
    curve = fit_throughput([1, 2, 4, 8], [1000, 2000, 4000, 8000])
    spread = (1.0,) * 9 + (3.0,)
    free = FleetTime(service, ((1, 1.0), (64, 1.0)), curve, HandOver(), spread, 1, 1000)
    for workers in (1, 4, 64):
        expected = 10 * (3 - 2 * 0.9**workers)
        assert free.seconds(workers, 10) == pytest.approx(expected, rel=0.02)
    queueing = FleetTime(service, ((1, 1.0), (64, 1.0)), curve, HandOver(worker=0.1), spread, 1, 1000)
    assert queueing.seconds(64, 10) == pytest.approx(30 + 0.1 * 6.4, rel=0.02)  # the others' 5.8 s pass meanwhile
    slow = FleetTime(service, ((1, 1.0), (64, 1.0)), curve, HandOver(worker=1.0), spread, 1, 1000)
    assert slow.seconds(64, 10) == pytest.approx(10 + 64, rel=0.01)  # the link never rests


def test_what_a_hand_over_took():
    """The queue of `FleetTime`, read backwards."""
    rng = np.random.default_rng(0)
    for each in (0.0, 0.01, 0.5):
        ends = rng.exponential(size=20)
        whole = max(end + each * (20 - k) for k, end in enumerate(np.sort(ends)))
        assert hand_over_seconds(whole, ends) == pytest.approx(20 * each, abs=1e-12)


def test_a_hand_over_comes_back():
    n, size = np.array([(n, b) for n in (1, 4, 16) for b in (1e6, 1e8)]).T
    took = 0.01 + 0.002 * n + size / 2e9
    found = fit_hand_over(n, size, took, 1 + took)
    assert (found.fixed, found.worker, found.byte) == pytest.approx((0.01, 0.002, 5e-10), rel=1e-6)
    assert found.seconds(8, 1e8) == pytest.approx(0.01 + 0.016 + 0.05)
    assert fit_hand_over([1, 1], [1e6, 1e8], [-1e-4, -1e-4], [1, 1]) == HandOver()


def test_of_one_size_alone_no_other_is_predicted():
    with pytest.raises(ValueError, match="batch_sizes: measure two or more; of 1024 alone"):
        fit_learner([1024, 1024], [16, 16], [0.5, 0.6])
    with pytest.raises(ValueError, match="environments: measure two or more"):
        fit_service([64], [1], [0.5])


def test_no_part_is_negative():
    """A step that takes less time with more environments is a reading, not a law."""
    service = fit_service([8, 64, 64], [1, 1, 2], [0.02, 0.019, 0.025])
    assert min(service.fixed, service.serial, service.parallel) >= 0
    assert service.residual > 0.05


def test_learner_times_come_back():
    b, k = np.array([(b, k) for b in (1024, 8192) for k in (8, 32)], dtype=float).T
    learner = fit_learner(b, k, 0.05 + 0.004 * k + 2e-4 * b)
    assert (learner.fixed, learner.block, learner.observation) == pytest.approx((0.05, 0.004, 2e-4), rel=1e-6)
    assert learner.seconds(4096, 16) == pytest.approx(0.05 + 0.064 + 0.8192)
    same = fit_learner([1024, 8192], [16, 16], [0.3, 1.7])
    assert same.block == 0
    assert same.seconds(8192) == pytest.approx(1.7)


def test_an_iteration_by_hand():
    waiting = iteration(4000, 2000, 3.0)
    assert waiting.seconds == pytest.approx(2 + 3)
    assert waiting.sampling_seconds == pytest.approx(2.0)
    assert waiting.bound == "learning"
    assert waiting.staleness == 0
    assert waiting.workers_idle == pytest.approx(1 - 2 / 5)
    assert waiting.learner_idle == pytest.approx(1 - 3 / 5)
    beside = iteration(4000, 2000, 3.0, lag=1)
    assert beside.seconds == pytest.approx(3.0)
    assert beside.staleness == 1
    assert iteration(4000, 500, 3.0, lag=1).bound == "sampling"


SIZES = [2.0**k for k in range(6, 15)]
S_MIN, B_CRIT = 100.0, 1000.0


@pytest.fixture(scope="module")
def frontier():
    return fit(SIZES, [S_MIN * (1 + B_CRIT / b) for b in SIZES])


def test_the_optimum_of_a_known_frontier(frontier):
    """One worker of rate λ, free learning: cost ∝ E(B) is least at the smallest size, time S(B)·B/λ too. With a learner that
    takes f seconds an iteration, time S(B)(f + B/λ) is least at B = √(f λ B_crit)."""
    curve = fit_throughput([1, 2, 4, 8], [1000, 2000, 4000, 8000])
    free = LearnerTime(1e-12, 0.0, 1e-15, 0.0)
    price = Price(cpu_hour=3600.0, learner_cpus=0.0)  # one unit a worker's second
    cheap = plan(frontier, curve, free, price, batch_sizes=SIZES, workers=[1, 8]).cheapest()
    assert cheap.batch_size == SIZES[0]
    assert cheap.cost == pytest.approx(S_MIN * (SIZES[0] + B_CRIT) / 1000, rel=1e-3)
    sizes = np.geomspace(64, 16384, 400)
    fixed = LearnerTime(4.0, 0.0, 1e-15, 0.0)
    fast = plan(frontier, curve, fixed, price, batch_sizes=sizes, workers=[1]).fastest()
    assert fast.batch_size == pytest.approx(math.sqrt(4.0 * 1000 * B_CRIT), rel=0.02)
    assert fast.seconds == pytest.approx(S_MIN * (1 + B_CRIT / 2000) * (4 + 2), rel=1e-3)
    assert fast.observations == pytest.approx(fast.optimizer_steps * fast.batch_size)


def test_the_pareto_set_and_its_questions(frontier):
    curve = fit_throughput([1, 2, 4, 8, 16], [1000 * n / (1 + 0.1 * (n - 1)) for n in (1, 2, 4, 8, 16)])
    learner = LearnerTime(0.1, 0.0, 1e-4, 0.0)
    price = Price(cpu_hour=0.04, gpu_hour=2.0, worker_cpus=2, learner_cpus=4, learner_gpus=1)
    assert price.of_hour(8) == pytest.approx(0.04 * 20 + 2)
    turns = Price(cpu_hour=0.04, worker_cpus=2, learner_cpus=4, beside=1.0)
    assert [turns.of_hour(n) for n in (1, 2, 8)] == pytest.approx([0.16, 0.16, 0.64])
    # Four nodes of sixteen CPUs, one of them the learner's: a quarter of the workers takes turns with it.
    spread = Price(cpu_hour=1.0, learner_cpus=16, beside=0.25)
    assert [spread.of_hour(n) for n in (8, 16, 32, 64)] == [22, 28, 40, 64]
    found = plan(frontier, curve, learner, price, batch_sizes=SIZES, workers=range(1, 17))
    assert len(found.choices) == len(SIZES) * 16
    for choice in found.choices:
        beaten = any(
            o.seconds <= choice.seconds and o.cost <= choice.cost and (o.seconds, o.cost) != (choice.seconds, choice.cost)
            for o in found.choices
        )
        assert beaten != (choice in found.pareto)
        assert choice.cost == pytest.approx(price.of_hour(choice.workers) * choice.seconds / 3600)
    front = found.pareto
    assert front[0] == found.fastest()
    assert front[-1] == found.cheapest()
    deadline = math.sqrt(front[0].seconds * front[-1].seconds)
    cheapest = found.cheapest(deadline)
    assert cheapest.cost == min(c.cost for c in found.choices if c.seconds <= deadline)
    fastest = found.fastest(budget=cheapest.cost)
    assert fastest.seconds == min(c.seconds for c in found.choices if c.cost <= cheapest.cost)
    assert found.cheapest(front[0].seconds / 2) is None
    assert found.fastest(front[-1].cost / 2) is None


def test_workers_share_a_batch(frontier):
    """1,000 observations of 100 steps on five workers: two environments each; on ten one each; eleven cannot."""
    service = fit_service([1, 10], [1, 1], [0.01 + 0.001, 0.01 + 0.01])
    fleet = FleetTime(
        service, ((1, 1.0), (16, 1.0)), fit_throughput([1, 2, 4, 8], [100, 200, 400, 800]), HandOver(0.5), (1.0,), 1, 100
    )
    learner = LearnerTime(1.0, 0, 1e-9, 0)
    found = plan(frontier, fleet, learner, Price(1.0), batch_sizes=[1000], workers=[5, 10, 11])
    assert [c.workers for c in found.choices] == [5, 10]
    assert found.choices[0].iteration.seconds == pytest.approx(0.5 + 100 * 0.012 + 1.0)
    assert found.choices[1].iteration.seconds == pytest.approx(0.5 + 100 * 0.011 + 1.0)
    with pytest.raises(ValueError, match="too small for these workers"):
        plan(frontier, fleet, learner, Price(1.0), batch_sizes=[1000], workers=[11])


def test_the_interval_of_a_plan_is_that_of_the_rate(frontier):
    rng = np.random.default_rng(0)
    counts = np.repeat([1, 2, 4, 8], 3)
    curve = fit_throughput(counts, 1000 * counts * np.exp(0.03 * rng.normal(size=counts.size)))
    choice = plan(frontier, curve, LearnerTime(1.0, 0, 1e-9, 0), Price(1.0), batch_sizes=[1000], workers=[4]).choices[0]
    low, high = curve.predict(4).interval
    assert choice.interval == pytest.approx((200 * (1 + 1000 / high), 200 * (1 + 1000 / low)), rel=1e-3)
    assert choice.interval[0] < choice.seconds < choice.interval[1]


def test_the_interval_of_a_plan_is_that_of_one_run(frontier):
    """Runs scatter by 0.2 in ln S about nine sizes' law of two parameters; the learner's fit errs by 10%, at half of the time."""
    curve = fit_throughput([1, 1, 2, 2], [1000, 1000, 2000, 2000])
    scattered = replace(frontier, residual=0.2)
    learner = LearnerTime(1.0, 0, 1e-9, 0.0)
    t7 = 2.3646
    assert scattered.run_half_width == pytest.approx(t7 * 0.2 * math.sqrt(9 / 7), rel=1e-4)
    assert Surface(*vars(scattered).values()).run_half_width == pytest.approx(12.706 * 0.2 * 3, rel=1e-4), "eight parameters"

    def ends(learner):
        price = Price(1.0)
        choice = plan(scattered, curve, learner, price, batch_sizes=[1000], workers=[1]).choices[0]
        return [math.log(end / choice.seconds) for end in choice.interval]

    half = scattered.run_half_width
    assert ends(learner) == pytest.approx([-half, half], rel=1e-3)
    low, high = ends(replace(learner, residual=0.1))
    assert high == pytest.approx(math.hypot(half, math.log((1 + math.exp(0.1)) / 2)), rel=1e-3)
    assert low == pytest.approx(-math.hypot(half, math.log((1 + math.exp(-0.1)) / 2)), rel=1e-3)


def test_what_cannot_be_planned(frontier):
    curve, learner = fit_throughput([1, 2], [1000, 1900]), LearnerTime(1.0, 0, 1e-9, 0)
    with pytest.raises(ValueError, match="4 workers: coherency is not identified"):
        plan(frontier, curve, learner, Price(1.0), batch_sizes=[100], workers=[4])
    with pytest.raises(ValueError, match="each name one"):
        plan(frontier, curve, learner, Price(1.0), batch_sizes=[], workers=[1])
    for wrong in ({"cpu_hour": -1.0}, {"cpu_hour": math.nan}, {"acting_gpus": -3}, {"worker_cpus": -1}, {"beside": 2}):
        with pytest.raises(ValueError, match="price must not be negative, nor what is hired"):
            Price(**{"cpu_hour": 1.0} | wrong)
    for sizes, workers in (([100], [0]), ([0], [1])):
        with pytest.raises(ValueError, match="batch_sizes must be positive, and workers at least 1"):
            plan(frontier, curve, learner, Price(1.0), batch_sizes=sizes, workers=workers)
    with pytest.raises(ValueError, match="not identified"):
        plan(fit([64, 128], [100, 90]), curve, learner, Price(1.0), batch_sizes=[100], workers=[1])
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="must be positive"):
            iteration(*wrong)
    with pytest.raises(ValueError, match="lag"):
        iteration(1, 1, 1, lag=2)


def test_a_plan_at_lag_1_takes_the_longer_of_sampling_and_learning():
    """Two seconds of sampling 4,000 observations and one of learning."""
    sizes = [2.0**k for k in range(6, 15)]
    frontier, curve = fit(sizes, [100 * (1 + 1000 / b) for b in sizes]), fit_throughput([1, 2], [1000, 2000])
    learner = LearnerTime(1.0, 0, 1e-9, 0)
    in_turn, at_once = (
        plan(frontier, curve, learner, Price(1.0), batch_sizes=[4000], workers=[2], lag=lag).choices[0] for lag in (0, 1)
    )
    assert (in_turn.iteration.seconds, at_once.iteration.seconds) == pytest.approx((3.0, 2.0), rel=1e-3)
    assert at_once.seconds == pytest.approx(2 * at_once.optimizer_steps, rel=1e-3)
