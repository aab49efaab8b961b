"""Which run comes next, where that can be said by hand."""

import math

import pytest

from rlscale.benchmarks.sweep.design import RunSoFar, next_run

SIZES = tuple(5 * 2**j for j in range(14))
PILOT = [
    RunSoFar(640, rate, steps, steps * 640, n) for n, (rate, steps) in enumerate(((0.01, 400), (0.04, math.inf), (0.0025, 900)))
]


def following(runs, noise_scale):
    return next_run(runs, pilot_size=640, pilot_rate=0.01, noise_scale=noise_scale, sizes=SIZES, ratio=2.0)


@pytest.mark.parametrize(
    ("noise_scale", "smallest"), [(640.0, 80), (10_000.0, 1280), (None, 80), (320.0, 40), (40.0, 40), (0.5, 40)]
)
def test_the_span_begins_at_an_eighth_of_the_noise_scale_or_of_half_the_pilots_size(noise_scale, smallest):
    """A run at five observations would take 128 times the pilot's steps: no noise scale of the pilot is worth that."""
    first = following(PILOT, noise_scale)
    assert (first.stage, first.batch_size) == ("span", smallest)


def test_an_unknown_surface_is_spanned_at_the_pilots_fastest_rate():
    first = following(PILOT, 640.0)
    assert first.learning_rate == pytest.approx(0.01 * math.sqrt(80 / 640), rel=1e-3)
    assert first.most_steps == 4 * 400 * 640 / 80
