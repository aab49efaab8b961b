"""The gradient noise scale, estimated from the gradients of blocks of one batch.

Start with `block_statistics` and `noise_scale`; `pool` and `run_average` take several updates. PyTorch is loaded by
`block_statistics` alone, when it is called.

With g_k the mean gradient of block k over its n_k observations, N = Σ n_k and ĝ = Σ n_k g_k / N:

    tr Σ = (Σ n_k |g_k|² - N |ĝ|²) / (K - 1)                  covariance trace of one observation's gradient
    |G|² = (N² |ĝ|² - Σ n_k² |g_k|²) / (N² - Σ n_k²)          squared norm of the true gradient, unbiased
    B_simple = tr Σ / |G|²                                    the simple noise scale, in observations

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, equation 2.9 and
appendices A.1 and D; the jackknife and Fieller intervals are described in docs/noise.md. All blocks must have been taken
at the same parameters, before clipping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from .estimate import Estimate

if TYPE_CHECKING:
    import torch

__all__ = ["BlockStatistics", "NoiseEstimate", "block_statistics", "estimate", "fieller", "noise_scale", "pool", "run_average"]

_PIECE = 1 << 20  # elements of block gradients that stay in a cache from one product to the next
_FEWEST_COLUMNS, _MOST_COLUMNS = 8_192, 65_536
_DOT = 32_768  # elements of a product g_k·ĝ that are added in the gradients' own precision; more cost digits
_RUN = 1024  # elements whose squares are added in the gradients' own precision


@dataclass(frozen=True)
class BlockStatistics:
    """All that the estimators need from one batch cut into K blocks: float64 arrays of shape (K,).

    Attributes:
        size: n_k, valid observations of block k; a block may be empty.
        square: |g_k|², squared norm of the block's mean gradient.
        dot: g_k·ĝ, with the batch gradient ĝ = Σ n_k g_k / N.
        block: (K,) integers, the block's number; 0 … K-1 by default. Over several updates the same number means the same set of
            environments; `pool` and `run_average` leave one number out at a time.
    """

    size: np.ndarray
    square: np.ndarray
    dot: np.ndarray
    block: np.ndarray

    def __init__(self, size: Any, square: Any, dot: Any, block: Any = None) -> None:
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in (("size", size), ("square", square), ("dot", dot))}
        count = arrays["size"].shape
        identity = np.arange(*count) if block is None else np.asarray(block, dtype=np.int64)
        if len(count) != 1 or any(a.shape != count for a in arrays.values()) or identity.shape != count:
            raise ValueError("size, square, dot and block must be vectors of one length, the number of blocks")
        if np.any(arrays["size"] < 0):
            raise ValueError("size: a block cannot hold a negative number of observations")
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "block", identity)


@dataclass(frozen=True)
class NoiseEstimate:
    """A simple noise scale and the figures behind it.

    Attributes:
        trace_cov: tr Σ per observation (mean over updates when pooled).
        grad_sq: unbiased |G|²; negative when noise drowns it, and then `b_simple` is None.
        b_simple: tr Σ / |G|² in observations; None when not resolved (the interval has no upper end).
        interval: 95% interval of B_simple; the upper end may be `inf`.
        blocks: number of blocks that hold observations (distinct ones when pooled).
        observations: number of valid observations.
        updates: number of batches.
        top_tenth_share: share of the noise Σ n_k |g_k - ĝ|² that the noisiest tenth of the blocks carries. Far above 0.1
            means heavy tails: then trust the interval less and use more blocks.
        reason: why `b_simple` is None; None when it is resolved.
    """

    trace_cov: float
    grad_sq: float
    b_simple: float | None
    interval: tuple[float, float]
    blocks: int
    observations: float
    updates: int = 1
    top_tenth_share: float = math.nan
    reason: str | None = None

    @property
    def noise_scale(self) -> Estimate:
        """B_simple as the project-wide `Estimate`."""
        return Estimate(self.b_simple, self.interval, self.reason)


def block_statistics(
    block_gradients: Any,
    block_sizes: Any,
    *,
    blocks: Any = None,
    mean_out: torch.Tensor | None = None,
) -> BlockStatistics:
    """Reduce K block gradients to the K-vectors that every estimator here needs.

    The gradients are read once. Products are taken in the gradients' own precision within pieces of some ten thousand elements,
    and the pieces are added in float64.

    Args:
        block_gradients: the mean gradient of each block over its valid observations: a (K, P) tensor or array, or K
            entries, each a flat tensor or a list of parameter-shaped tensors.
        block_sizes: (K,) valid observations of each block; a block of size 0 is left out of ĝ.
        blocks: (K,) integers naming the blocks, see `BlockStatistics.block`.
        mean_out: optional (P,) tensor that receives ĝ, so that a caller who needs it reads the gradients only once.

    Raises:
        ValueError: there are fewer than two blocks, shapes differ, a size is negative, there is no observation at all, or a
            gradient is not finite.
    """
    matrix = _as_matrix(block_gradients)
    sizes = np.asarray(block_sizes, dtype=np.float64)
    if sizes.shape != (matrix.shape[0],):
        raise ValueError(f"block_sizes has shape {sizes.shape}, but there are {matrix.shape[0]} block gradients")
    if len(sizes) < 2:
        raise ValueError("block_gradients: a noise scale needs at least two blocks")
    if np.any(sizes < 0) or sizes.sum() <= 0:
        raise ValueError("block_sizes must be zero or more, and not all zero")
    return statistics_of(block_products(matrix, sizes=sizes, mean_out=mean_out), sizes, blocks)


def block_products(
    matrix: torch.Tensor,
    *,
    sizes: np.ndarray | None = None,
    mean: torch.Tensor | None = None,
    mean_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """|g_k|² and g_k·ĝ of K block gradients, which stay on their device.

    A training loop calls this at once and `statistics_of` later, so that it does not wait for an accelerator.

    Args:
        matrix: (K, P) block gradients.
        sizes: (K,) valid observations of each block, when these are all the blocks there are; ĝ is then their weighted mean.
        mean: (P,) ĝ, when other processes hold blocks as well.
        mean_out: optional (P,) tensor that receives ĝ; with `sizes` only.

    Returns:
        (2, K) float64: |g_k|², then g_k·ĝ.
    """
    import torch

    with torch.no_grad():
        weights = None
        if mean is None:
            assert sizes is not None, "give the sizes, or the mean"
            weights = torch.as_tensor(sizes / sizes.sum(), dtype=matrix.dtype, device=matrix.device)
        # On an accelerator the launch of a kernel costs more than the cache saves, so the pieces are fewer and larger.
        count, width = matrix.shape
        columns = min(max(_PIECE // count, _FEWEST_COLUMNS), _MOST_COLUMNS) if matrix.device.type == "cpu" else _PIECE
        columns -= columns % _RUN
        if mean is None:
            mean = torch.empty(width, dtype=matrix.dtype, device=matrix.device) if mean_out is None else mean_out
        # Unlike `vecdot`, a norm needs no memory for the squares; but it adds them one after another, so each covers a short run.
        norms, dots = [torch.linalg.vector_norm(matrix[:, width - width % _RUN :], dim=1, keepdim=True)], []
        for start in range(0, width, columns):
            piece, piece_mean = matrix[:, start : start + columns], mean[start : start + columns]
            if weights is not None:
                torch.mv(piece.T, weights, out=piece_mean)
            runs = piece.shape[1] // _RUN
            norms.append(torch.linalg.vector_norm(piece[:, : runs * _RUN].reshape(count, runs, _RUN), dim=2))
            parts = zip(torch.split(piece, _DOT, dim=1), torch.split(piece_mean, _DOT), strict=True)
            dots += [part @ part_mean for part, part_mean in parts]
        return torch.stack([torch.cat(norms, 1).double().square().sum(1), torch.stack(dots).double().sum(0)])


def statistics_of(products: torch.Tensor, sizes: np.ndarray, blocks: Any = None) -> BlockStatistics:
    """`BlockStatistics` from the (2, K) result of `block_products`.

    Raises:
        ValueError: a gradient was not finite.
    """
    square, dot = products.cpu().numpy()
    if not (np.isfinite(square).all() and np.isfinite(dot).all()):
        raise ValueError("block_gradients: not finite")
    return BlockStatistics(sizes, square, dot, blocks)


def noise_scale(statistics: BlockStatistics) -> NoiseEstimate:
    """Noise scale of one batch from its blocks, with a delete-one-block jackknife and Fieller's interval.

    Raises:
        ValueError: fewer than two blocks hold observations.
    """
    return pool([statistics])


estimate = noise_scale  # its former name


def pool(statistics: Sequence[BlockStatistics]) -> NoiseEstimate:
    """Noise scale over a window of updates: the sum of the numerators divided by the sum of the denominators.

    The interval leaves out one block number at a time, from every update of the window at once, because the noise of an
    environment persists across successive updates.

    Raises:
        ValueError: the list is empty, or in some update fewer than two blocks hold observations.
    """
    trace, grad = _leave_one_out(statistics)
    return _resolve(trace.sum(0), grad.sum(0), trace, grad, statistics)


def run_average(statistics: Sequence[BlockStatistics], batch_size: float, window: int = 20) -> NoiseEstimate:
    """Noise scale over a run, averaged over full-batch steps from the start (paper, equation D.1).

    A critical batch size measured at a goal is the mean of the momentary noise scale over *full-batch* steps, and an
    optimizer step at batch size B makes 1 / (1 + 𝓑/B) of one. In each window of updates Q = |G|² + tr Σ / B, and the
    result is Σ(tr Σ / Q) / Σ(|G|² / Q). The few early updates with a huge gradient would dominate a ratio of plain sums.
    Windows are needed because the Q of a single update is biased.

    Args:
        statistics: one entry per update, from the start of the run to the goal.
        batch_size: B, observations per optimizer step of that run.
        window: updates per window; within a window the noise scale should not change much.

    Returns:
        A `NoiseEstimate` whose `b_simple` is the average described above. Its `trace_cov` and `grad_sq` are plain means over the
        updates, for orientation; `b_simple` is not their ratio.

    Raises:
        ValueError: the list is empty, the batch size or the window is not positive, or in some update fewer than two blocks hold
            observations.
    """
    if not batch_size > 0:
        raise ValueError("batch_size must be positive")
    if window < 1:
        raise ValueError("window must be at least 1")

    trace, grad = _leave_one_out(statistics)
    starts = np.arange(0, len(trace), window)
    trace_sum, grad_sum = np.add.reduceat(trace, starts), np.add.reduceat(grad, starts)
    updates = np.diff(np.append(starts, len(trace)))[:, None]
    q = (grad_sum + trace_sum / batch_size) / updates
    q = np.where(q > 0, q, np.nan)  # E|ĝ|² cannot be negative: such a window holds only noise
    return _resolve((trace_sum / q).sum(0), (grad_sum / q).sum(0), trace, grad, statistics)


def _as_matrix(block_gradients: Any) -> torch.Tensor:
    """(K, P) tensor from a matrix, or from K flat or parameter-shaped gradients."""
    import torch

    if isinstance(block_gradients, np.ndarray):
        block_gradients = torch.from_numpy(np.ascontiguousarray(block_gradients))
    if isinstance(block_gradients, torch.Tensor):
        if block_gradients.ndim != 2:
            raise ValueError(f"block_gradients must have two dimensions (blocks, parameters), not {block_gradients.ndim}")
        matrix = block_gradients
    else:
        rows = [
            torch.cat([torch.as_tensor(part).reshape(-1) for part in (row if isinstance(row, list | tuple) else [row])])
            for row in block_gradients
        ]
        if len({len(row) for row in rows}) > 1:
            raise ValueError("block_gradients: the blocks differ in their number of parameters")
        if not rows:
            raise ValueError("block_gradients: a noise scale needs at least two blocks")
        matrix = torch.stack(rows)
    return matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()


def _trace_and_grad(count: Any, n: Any, n_sq: Any, n_square: Any, nn_square: Any, mean_sq: Any) -> tuple[Any, Any]:
    """tr Σ and |G|² from K, Σn, Σn², Σn|g|², Σn²|g|² (sums over the blocks) and |ĝ|²."""
    return (n_square - n * mean_sq) / (count - 1), (n**2 * mean_sq - nn_square) / (n**2 - n_sq)


def _leave_one_out(statistics: Sequence[BlockStatistics]) -> tuple[np.ndarray, np.ndarray]:
    """tr Σ and |G|² of every update, each (updates, 1 + J): from all blocks, then without each of the J block numbers."""
    if not statistics:
        raise ValueError("statistics: at least one update is needed")
    names = np.unique(np.concatenate([s.block[s.size > 0] for s in statistics]))
    traces, grads = [], []
    for s in statistics:
        kept = s.size > 0
        n_k, square, dot = s.size[kept], s.square[kept], s.dot[kept]
        count = len(n_k)
        if count < 2:
            raise ValueError("statistics: every update needs at least two blocks with observations")
        n = n_k.sum()
        mean_sq = (n_k * dot).sum() / n
        sums = np.array([count, n, (n_k**2).sum(), (n_k * square).sum(), (n_k**2 * square).sum(), mean_sq])
        whole = np.array(_trace_and_grad(*sums))
        replicates = np.repeat(whole[:, None], len(names) + 1, axis=1)
        if count > 2:
            reduced = sums[:, None] - np.array([np.ones(count), n_k, n_k**2, n_k * square, n_k**2 * square, np.zeros(count)])
            reduced[5] = (n**2 * mean_sq - 2 * n * n_k * dot + n_k**2 * square) / (n - n_k) ** 2
            # The jackknife's factor is (K - 1) / K of this update, but `_resolve` applies that of all J block numbers.
            own = math.sqrt((count - 1) / count * len(names) / (len(names) - 1))
            where = 1 + np.searchsorted(names, s.block[kept])
            replicates[:, where] += own * (np.array(_trace_and_grad(*reduced)) - whole[:, None])
        traces.append(replicates[0])
        grads.append(replicates[1])
    return np.array(traces), np.array(grads)


def _resolve(
    numerator: np.ndarray, denominator: np.ndarray, trace: np.ndarray, grad: np.ndarray, statistics: Sequence[BlockStatistics]
) -> NoiseEstimate:
    """Ratio and interval of a numerator and a denominator, each (1 + J,): from the whole sample, then from its replicates."""
    a, b = float(numerator[0]), float(denominator[0])
    blocks = len(numerator) - 1
    trace_cov, grad_sq = float(trace[:, 0].mean()), float(grad[:, 0].mean())
    observations = float(sum(s.size.sum() for s in statistics))
    common = (blocks, observations, len(statistics), _top_tenth_share(statistics))

    def unresolved(low: float, reason: str) -> NoiseEstimate:
        return NoiseEstimate(trace_cov, grad_sq, None, (low, math.inf), *common, reason)

    if min(int((s.size > 0).sum()) for s in statistics) < 3:
        return unresolved(0.0, "an interval needs at least three blocks in every update")
    if not (np.isfinite(numerator).all() and np.isfinite(denominator).all()):
        return unresolved(0.0, "|G|² + tr Σ / B is not positive in some window: use longer windows")
    covariance = (blocks - 1) * np.cov(numerator[1:], denominator[1:], ddof=0)
    t = float(stdtrit(blocks - 1, 0.975))
    low, high = fieller(a, b, covariance, t)
    if math.isinf(high):
        return unresolved(low, "|G|² does not stand out from the noise")
    if (numerator > 0).all() and (denominator > 0).all():
        # With few effective dimensions tr Σ is skewed like a χ², and Fieller's set is too short at its upper end. The jackknife
        # of the log ratio is right there, and not longer than Fieller's set where that is right. So take the hull of both.
        spread = t * math.sqrt((blocks - 1) * float(np.var(np.log(numerator[1:] / denominator[1:]))))
        low, high = min(low, a / b * math.exp(-spread)), max(high, a / b * math.exp(spread))
    return NoiseEstimate(trace_cov, grad_sq, a / b, (low, high), *common)


def fieller(a: float, b: float, covariance: np.ndarray, t: float) -> tuple[float, float]:
    """All ratios ρ ≥ 0 for which a - ρb is within t standard errors of zero (Fieller 1954).

    Args:
        a, b: numerator and denominator; b may be negative.
        covariance: (2, 2) covariance of the two.
        t: quantile of Student's distribution.

    Returns:
        The lowest and the highest such ratio; the highest is inf where b does not stand out from zero.
    """
    vaa, vab, vbb = float(covariance[0, 0]), float(covariance[0, 1]), float(covariance[1, 1])
    quadratic, linear, constant = b * b - t * t * vbb, a * b - t * t * vab, a * a - t * t * vaa
    discriminant = linear * linear - quadratic * constant
    if b > 0 and quadratic > 0:
        root = math.sqrt(max(discriminant, 0.0))  # never negative here but for rounding
        return max((linear - root) / quadratic, 0.0), (linear + root) / quadratic
    if quadratic == 0 or discriminant < 0 or constant <= 0:
        return 0.0, math.inf
    # The set is unbounded: it excludes the ratios between the two roots, and zero is one of those.
    roots = sorted(((linear - math.sqrt(discriminant)) / quadratic, (linear + math.sqrt(discriminant)) / quadratic))
    return max(roots[1], 0.0), math.inf


def _top_tenth_share(statistics: Sequence[BlockStatistics]) -> float:
    """Share of Σ n_k |g_k - ĝ|², summed over the updates by block number, in the noisiest tenth of the blocks."""
    noise: dict[int, float] = {}
    for s in statistics:
        n = s.size.sum()
        mean_sq = (s.size * s.dot).sum() / n
        for name, value in zip(s.block, s.size * (s.square - 2 * s.dot + mean_sq), strict=True):
            noise[int(name)] = noise.get(int(name), 0.0) + float(value)
    values = np.sort(np.maximum(list(noise.values()), 0.0))[::-1]
    total = values.sum()
    return float(values[: max(1, round(len(values) / 10))].sum() / total) if total > 0 else math.nan
