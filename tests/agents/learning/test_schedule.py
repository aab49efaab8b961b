"""Learning rates at other batch sizes, and a batch size that follows the noise: exact values, and a planted truth."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from rlscale.agents.config import Update
from rlscale.agents.learning.results import NoiseRecord
from rlscale.agents.learning.schedule import NoiseWindow, adaptive_batch, scaled_rate
from rlscale.estimate import Estimate
from rlscale.noise import BlockStatistics, block_statistics


def resolved(value):
    return Estimate(value, (value / 2, value * 2))


UNRESOLVED = Estimate(None, (600.0, math.inf), "not resolved")


@pytest.mark.parametrize(
    ("rule", "expected"), [("constant", 0.01), ("sqrt", 0.04), ("linear", 0.16), ("noise", 0.01 / (1 + 1000 / 4096))]
)
def test_rates_by_rule(rule, expected):
    update = Update(learning_rate=0.01, lr_rule=rule)
    assert scaled_rate(update, 4096, resolved(1000)) == pytest.approx(expected)


def test_the_batch_that_a_rate_was_found_at():
    update = Update(learning_rate=0.01, lr_rule="sqrt", lr_batch=1024)
    assert scaled_rate(update, 4096, None) == pytest.approx(0.02)
    assert scaled_rate(replace(update, lr_rule="linear"), 256, None) == pytest.approx(0.0025)


def test_the_noise_rule_without_a_resolved_scale():
    update = Update(learning_rate=0.01, lr_rule="noise")
    assert scaled_rate(update, 512, None) == pytest.approx(0.005)
    assert scaled_rate(update, 600, UNRESOLVED) == pytest.approx(0.005)  # at least 600: at most half of it


def sizes(scale, before, *, turn=0, groups=64, most=1024, exchange=None, fragment=128):
    return adaptive_batch(exchange, scale, fragment=fragment, groups=groups, turn=turn, before=before, most=most)


def test_an_adaptive_batch_starts_with_one_fragment():
    assert sizes(None, 0) == 1
    assert sizes(None, 4) == 4  # no measurement since


def test_an_adaptive_batch_goes_to_the_noise_scale_by_factors_of_two():
    assert sizes(resolved(128 * 16), 16) == 16
    assert sizes(resolved(128 * 1000), 4) == 8
    assert sizes(resolved(1.0), 8) == 4
    assert sizes(resolved(128 * 8), 16, exchange=128 * 32.0) == 16  # sqrt(32 * 8) = 16
    assert sizes(resolved(128 * 8), 16, exchange=128 * 8.0) == 8


def test_an_adaptive_batch_grows_at_the_highest_exchange_rates():
    """Their product with the noise scale is no finite number: a step is worth more than any batch."""
    assert sizes(resolved(1e9), 4, exchange=1e308) == 8
    assert sizes(resolved(1e308), 64, exchange=sys.float_info.max, most=128) == 128
    assert sizes(UNRESOLVED, 4, exchange=1e308) == 8


@pytest.mark.parametrize("groups", [1, 5, 7, 22, 24, 25, 33, 35, 39, 125])
def test_an_adaptive_batch_arrives_whatever_the_number_of_groups(groups):
    """Sizes that divide the groups may lie further apart than a factor of two: then it goes to the next one."""

    def end(scale, before):
        turn = 0
        for _ in range(60):
            before = sizes(resolved(128 * scale), before, turn=turn, groups=groups, most=10**6)
            turn = (turn + before) % groups
        return before

    assert 1000 / 2 <= end(1000, 1) <= 1000 * 2
    assert end(1, 8 * groups) == 1


def test_an_unresolved_scale_never_shrinks_a_batch():
    assert sizes(UNRESOLVED, 16) == 16
    assert sizes(UNRESOLVED, 2) == 4  # 600 / 128 is above 4


def test_sets_of_environments_come_again():
    """Up to all groups a batch starts at a multiple of its own size; beyond, it is whole rounds and begins with the first."""
    assert sizes(resolved(128 * 16), 8, turn=8) == 8
    assert sizes(resolved(128 * 16), 8, turn=16) == 16
    assert sizes(resolved(128 * 500), 64, turn=0) == 128
    assert sizes(resolved(128 * 500), 32, turn=32) == 32
    assert sizes(resolved(128 * 1e6), 128, turn=0, most=200) == 128  # what fits
    turn = before = 0
    rng = np.random.default_rng(0)
    for _ in range(500):
        count = sizes(resolved(float(rng.lognormal(8, 2))), before, turn=turn)
        assert before == 0 or before / 2 <= count <= 2 * before
        assert turn % count == 0 if count < 64 else (turn == 0 and count % 64 == 0)
        turn, before = (turn + count) % 64, count


@pytest.mark.parametrize("followed", ["policy_last_layer", "joint", "joint_adam"])
def test_the_window_reads_the_planted_scale(followed):
    """20 updates of 32 blocks with tr Σ / |G|² = 400 in observations; older and other measurements do not count."""
    rng = np.random.default_rng(1)
    mean = np.zeros(50)
    mean[0] = 1.0

    def measure(trace):
        blocks = mean + rng.normal(size=(32, 50)) * math.sqrt(trace / 50 / 16)
        return block_statistics(blocks, np.full(32, 16.0))

    def update(step, trace):
        """The planted scale in what is followed, 1 in everything else."""
        scales = {"policy_last_layer": 1.0, "joint": 1.0, "joint_adam": 1.0, "value": 1.0, followed: trace}
        adam = None if step == 0 else measure(scales["joint_adam"])  # there is no metric before the second update
        return [
            NoiseRecord("policy_last_layer", "rollout", step, measure(scales["policy_last_layer"])),
            NoiseRecord("joint", "rollout", step, measure(scales["joint"]), adam),
            NoiseRecord("value", "rollout", step, measure(scales["value"]), measure(1.0)),
        ]

    window = NoiseWindow(followed, "rollout")
    assert window.scale() is None
    for step in range(40):
        window.add(update(step, 40_000.0 if step < 20 else 400.0))
    scale = window.scale()
    assert scale.value == pytest.approx(400, rel=0.15)
    again = NoiseWindow(followed, "rollout", window.statistics)
    assert again.scale() == scale
    assert len(window.statistics) == 20
    two = BlockStatistics([5, 5], [1, 1], [1, 1])
    window.add([NoiseRecord(followed.removesuffix("_adam"), "rollout", 41, two, two)])
    assert len(window.statistics) == 20  # two blocks tell nothing
    assert window.scale() == scale


@pytest.mark.parametrize(("kind", "other"), [("mini-batch", "rollout"), ("rollout", "mini-batch")])
def test_the_window_reads_the_optimizer_steps_alone(kind, other):
    """The joint loss of a whole iteration is measured as well, now and then, between blocks of another kind."""
    window = NoiseWindow("joint", kind)
    of_steps, of_iteration = BlockStatistics([4, 4, 4], [2, 2, 2], [1, 1, 1]), BlockStatistics([9, 9, 9], [7, 7, 7], [1, 1, 1])
    window.add([NoiseRecord("joint", other, 0, of_iteration), *(NoiseRecord("joint", kind, step, of_steps) for step in range(3))])
    assert window.statistics == [of_steps] * 3
