"""How episodes are dealt into blocks where there are few environments; the sums themselves are tested with the plug-ins."""

import numpy as np
import pytest

from rlscale.agents.learning import deal_lengths


@pytest.mark.parametrize(
    ("lengths", "blocks", "numbers"),
    [
        ([10] * 8, range(4), [0, 1, 2, 3] * 2),
        ([10] * 4, range(4, 8), [4, 5, 6, 7]),
        ([10, 10], range(16), [0, 1]),
        ([10, 30, 10, 10], range(16), [1, 0, 2, 1]),
        ([100, 40, 60, 90, 10], range(16), [0, 2, 2, 1, 1]),
    ],
)
def test_blocks_are_about_equally_long(lengths, blocks, numbers):
    assert deal_lengths(lengths, blocks) == numbers


@pytest.mark.parametrize(("mean", "observations"), [(22, 2048), (100, 2048), (500, 8192)])
def test_the_noise_of_dependent_episodes_comes_out_right(mean, observations):
    """All observations of an episode have one gradient z, of unit variance. A batch's mean gradient then has the variance
    Σ L² / N², so that tr Σ = Σ L² / N; what the estimator (Σ n_k |g_k|² - N |ĝ|²) / (K - 1) expects follows from the blocks'
    sums. In blocks of the episodes' own order it expected 0.68 of it, at a mean of 100."""
    rng = np.random.default_rng(0)
    expected = true = 0.0
    for _ in range(100):
        lengths = []
        while (left := observations - sum(lengths)) > 0:
            lengths.append(min(1 + int(rng.exponential(mean)), left))
        dealt, squares = deal_lengths(lengths, range(16)), np.square(lengths)
        sizes, of_sums = np.bincount(dealt, lengths), np.bincount(dealt, squares)
        trace = squares.sum() / observations
        expected += ((of_sums / sizes).sum() - trace) / (len(sizes) - 1)
        true += trace
    assert expected / true == pytest.approx(1, abs=0.04)
