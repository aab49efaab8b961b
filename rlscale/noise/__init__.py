"""The gradient noise scale, estimated from the gradients of blocks of one batch.

`blocks` reduces the gradients of blocks to `BlockStatistics`, three numbers for each block; `scale` makes a noise scale with an
interval of them, of one batch or of a window of updates; `run` averages over whole runs. Start with `block_statistics` and
`noise_scale`. How statistics are recorded is in `rlscale.records`. PyTorch is loaded by `block_statistics` alone, when it is
called.

With g_k the mean gradient of block k over its n_k observations, N = Σ n_k and ĝ = Σ n_k g_k / N:

    tr Σ = (Σ n_k |g_k|² - N |ĝ|²) / (K - 1)                  covariance trace of one observation's gradient
    |G|² = (N² |ĝ|² - Σ n_k² |g_k|²) / (N² - Σ n_k²)          squared norm of the true gradient, unbiased
    B_simple = tr Σ / |G|²                                    the simple noise scale, in observations

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, equation 2.9 and
appendices A.1 and D; the jackknife and Fieller intervals are described in docs/noise.md. All blocks must have been taken
at the same parameters, before clipping.
"""

from .blocks import BlockStatistics, NotFiniteError, block_products, block_statistics, hessian_statistics, statistics_of
from .run import RUN_WINDOW, average_windows, ratio_of_sums, run_average
from .scale import POOL_WINDOW, NoiseEstimate, estimate, fieller, noise_scale, pool, usable

__all__ = [
    "POOL_WINDOW",
    "RUN_WINDOW",
    "BlockStatistics",
    "NoiseEstimate",
    "NotFiniteError",
    "average_windows",
    "block_products",
    "block_statistics",
    "estimate",
    "fieller",
    "hessian_statistics",
    "noise_scale",
    "pool",
    "ratio_of_sums",
    "run_average",
    "statistics_of",
    "usable",
]
