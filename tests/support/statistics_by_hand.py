"""Block statistics straight from the definition, or such that their estimates are exactly given ones."""

import numpy as np

from rlscale.noise import BlockStatistics


def statistics_of(gradients: np.ndarray, sizes) -> BlockStatistics:
    """Slow reference: straight from the definition."""
    sizes = np.asarray(sizes, dtype=float)
    mean = sum(n * g for n, g in zip(sizes, gradients, strict=True)) / sizes.sum()
    return BlockStatistics(sizes, [float(g @ g) for g in gradients], [float(g @ mean) for g in gradients])


def relative_error(expected: float, actual: float | None) -> float:
    assert actual is not None
    return abs(actual / expected - 1)


def exact_statistics(trace: float, grad_sq: float, size: int, blocks: int = 4) -> BlockStatistics:
    """Statistics whose estimates are exactly the given ones: |ĝ|² = |G|² + tr Σ / N, and equal |g_k|² that fit."""
    n = size * blocks
    mean_sq = grad_sq + trace / n
    square = mean_sq + trace * (blocks - 1) / n
    return BlockStatistics([size] * blocks, [square] * blocks, [mean_sq] * blocks)
