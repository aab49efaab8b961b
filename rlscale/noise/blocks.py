"""What is kept of a batch cut into blocks: `BlockStatistics`, and how they are computed from the gradients of the blocks.

PyTorch is loaded by these functions alone, when they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["BlockStatistics", "NotFiniteError", "block_products", "block_statistics", "hessian_statistics", "statistics_of"]

_PIECE = 1 << 20  # elements of block gradients that stay in a cache from one product to the next
_FEWEST_COLUMNS, _MOST_COLUMNS = 8_192, 65_536
_DOT = 32_768  # elements of a product g_k·ĝ that are added in the gradients' own precision; more cost digits
_RUN = 1024  # elements whose squares are added in the gradients' own precision


class NotFiniteError(ValueError):
    """Gradients, or what was computed from them, are not finite: no noise can be measured, and a run that learns has diverged."""


@dataclass(frozen=True, eq=False)
class BlockStatistics:
    """All that the estimators need from one batch cut into K blocks: float64 arrays of shape (K,), copies of those given.

    Raises:
        NotFiniteError: a number is not finite.
        ValueError: vectors of different lengths, a negative size, or one block number for two.

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
        # Copies, since a training loop may fill the same buffer at its next update.
        arrays = {name: np.array(value, dtype=np.float64) for name, value in (("size", size), ("square", square), ("dot", dot))}
        count = arrays["size"].shape
        identity = np.arange(*count) if block is None else _whole(block)
        if len(count) != 1 or any(a.shape != count for a in arrays.values()) or identity.shape != count:
            raise ValueError("size, square, dot and block must be vectors of one length, the number of blocks")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise NotFiniteError(f"{name}: not finite")
        if np.any(arrays["size"] < 0):
            raise ValueError("size: a block cannot hold a negative number of observations")
        if len(np.unique(identity)) < len(identity):
            raise ValueError("block: a number occurs twice; every block of an update needs its own")
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "block", identity)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockStatistics):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("size", "square", "dot", "block"))

    __hash__ = None  # type: ignore[assignment]  # arrays can change


def _whole(blocks: Any) -> np.ndarray:
    """The numbers of blocks as integers.

    Raises:
        ValueError: they are no whole numbers, or int64 does not hold them.
    """
    numbers = np.array(blocks)
    kind = numbers.dtype.kind
    if kind != "i" and not (kind in "uf" and all(x % 1 == 0 and -(2**63) <= x < 2**63 for x in numbers.ravel().tolist())):
        raise ValueError("block: the blocks' numbers must be whole numbers, of 64 bits at most")
    return numbers.astype(np.int64)


def block_statistics(
    block_gradients: Any,
    block_sizes: Any,
    *,
    blocks: Any = None,
    metric: Any = None,
    mean_out: torch.Tensor | None = None,
) -> BlockStatistics:
    """Reduce K block gradients to the K-vectors that every estimator here needs.

    The gradients are read once. Products are taken in the gradients' own precision (float32 for float16 and bfloat16), whether
    autocast is on or not, within pieces of some ten thousand elements, and the pieces are added in float64.

    Args:
        block_gradients: the mean gradient of each block over its valid observations: a (K, P) tensor, array or table, or K
            entries, each a flat tensor or parameter-shaped tensors, one after another; sparse ones are made dense.
        block_sizes: (K,) valid observations of each block; a block of size 0 is left out, whatever its gradient.
        blocks: (K,) integers naming the blocks, see `BlockStatistics.block`.
        metric: (P,) diagonal of a matrix M, all positive and finite. Then |g|² is g·Mg and g_k·ĝ is g_k·Mĝ, and the noise scale
            is tr(MΣ) / G·MG. None for the plain one.
        mean_out: optional (P,) tensor that receives ĝ, so that a caller who needs it reads the gradients only once.

    Raises:
        NotFiniteError: a gradient is not finite.
        ValueError: there are fewer than two blocks, shapes differ, a size is negative or not finite, there is no observation at
            all, a block is named twice, the metric is not positive, or `mean_out` has not the shape of a gradient or not the
            precision that it is reduced in; gradients are complex, hold no parameters, or come in a dictionary.
    """
    matrix = _as_matrix(block_gradients)
    sizes = np.asarray(block_sizes, dtype=np.float64)
    if sizes.shape != (matrix.shape[0],):
        raise ValueError(f"block_sizes has shape {sizes.shape}, but there are {matrix.shape[0]} block gradients")
    _check_sizes(sizes)
    if metric is not None:
        metric = _as_matrix([metric], "metric").to(matrix)[0]
        if metric.shape != matrix.shape[1:]:
            raise ValueError(f"metric has shape {tuple(metric.shape)}, but there are {matrix.shape[1]} parameters")
        if not bool(((metric > 0) & metric.isfinite()).all()):
            raise ValueError("metric must be positive and finite")
    if mean_out is not None and (mean_out.shape != matrix.shape[1:] or mean_out.dtype != matrix.dtype):
        raise ValueError(f"mean_out must have {matrix.shape[1]} elements of {matrix.dtype}, in which the gradients are reduced")
    empty = np.flatnonzero(sizes == 0)
    if not matrix[empty].isfinite().all():  # means over no observations, 0/0
        matrix = matrix.clone()
        matrix[empty] = 0
    products = block_products(matrix, sizes=sizes, mean_out=mean_out, metric=metric)
    return statistics_of(products[-1], sizes, blocks)


def hessian_statistics(block_gradients: Any, block_sizes: Any, products: Any, *, blocks: Any = None) -> BlockStatistics:
    """`block_statistics` in the metric of a Hessian H, from Hessian-vector products: |g|² is g·Hg and g_k·ĝ is g_k·Hĝ.

    The noise scale of these statistics is B_noise = tr(HΣ) / (G·HG), the batch size at which the best step on a quadratic gains
    half of what it would without noise (arXiv:1812.06162, equation 2.8). H must be of other observations than the blocks, else
    both err alike. It need not be positive: where G·HG does not stand out from zero, the noise scale is not resolved.

    Args:
        block_gradients: (K, P) mean gradient of each block.
        block_sizes: (K,) valid observations of each block; a block of size 0 is left out, whatever its gradient.
        products: (K, P), H g_k for each block.
        blocks: as for `block_statistics`.

    Raises:
        NotFiniteError: a gradient or a product is not finite.
        ValueError: fewer than two blocks, shapes that differ, or a bad size.
    """
    matrix, moved = _as_matrix(block_gradients), _as_matrix(products, "products")
    sizes = np.asarray(block_sizes, dtype=np.float64)
    if moved.shape != matrix.shape or sizes.shape != (len(matrix),):
        raise ValueError(
            f"block_gradients {tuple(matrix.shape)}, products {tuple(moved.shape)} and {sizes.shape} sizes do not fit"
        )
    _check_sizes(sizes)
    g, hg = (np.where(sizes[:, None] > 0, x.detach().double().cpu().numpy(), 0.0) for x in (matrix, moved))
    if not (np.isfinite(g).all() and np.isfinite(hg).all()):
        raise NotFiniteError("block_gradients: not finite")
    return BlockStatistics(sizes, (g * hg).sum(1), g @ (sizes @ hg / sizes.sum()), blocks)


def _check_sizes(sizes: np.ndarray) -> None:
    """Raises ValueError where (K,) block sizes cannot be."""
    if len(sizes) < 2:
        raise ValueError("block_gradients: a noise scale needs at least two blocks")
    if not np.isfinite(sizes).all() or np.any(sizes < 0) or sizes.sum() <= 0:
        raise ValueError("block_sizes must be zero or more, finite, and not all zero")


def block_products(
    matrix: torch.Tensor,
    *,
    sizes: np.ndarray | None = None,
    mean: torch.Tensor | None = None,
    mean_out: torch.Tensor | None = None,
    metric: torch.Tensor | None = None,
    part: Sequence[slice] = (),
) -> torch.Tensor:
    """|g_k|² and g_k·ĝ of K block gradients, which stay on their device.

    A training loop calls this at once and `statistics_of` later, so that it does not wait for an accelerator.

    Args:
        matrix: (K, P) block gradients.
        sizes: (K,) valid observations of each block, when these are all the blocks there are; ĝ is then their weighted mean.
        mean: (P,) ĝ, when other processes hold blocks as well.
        mean_out: optional (P,) tensor that receives ĝ; with `sizes` only.
        metric: (P,), see `block_statistics`.
        part: columns whose products are wanted by themselves as well; sorted, and none touches another.

    Returns:
        (n, 2, K) float64, |g_k|² and g_k·ĝ: the plain ones; those in the metric, if there is one; and the same again of the part,
        if there is one.
    """
    import torch

    with torch.no_grad(), _without_autocast(matrix.device.type):
        weights = None
        if mean is None:
            assert sizes is not None, "give the sizes, or the mean"
            weights = torch.from_numpy(sizes / sizes.sum()).to(matrix.dtype)
            if matrix.device.type != "cpu":  # from page-locked memory, so that the host need not wait
                weights = weights.pin_memory().to(matrix.device, non_blocking=True)
        # On an accelerator the launch of a kernel costs more than the cache saves, so the pieces are fewer and larger.
        count, width = matrix.shape
        columns = min(max(_PIECE // count, _FEWEST_COLUMNS), _MOST_COLUMNS) if matrix.device.type == "cpu" else _PIECE
        columns -= columns % _RUN
        if mean is None:
            mean = torch.empty(width, dtype=matrix.dtype, device=matrix.device) if mean_out is None else mean_out
        # Unlike `vecdot`, a norm needs no memory for the squares; but it adds them one after another, so each covers a short run.
        norms, dots = [torch.linalg.vector_norm(matrix[:, width - width % _RUN :], dim=1, keepdim=True)], []
        weighted, within, weighted_within = [], [], []
        for start in range(0, width, columns):
            piece, piece_mean = matrix[:, start : start + columns], mean[start : start + columns]
            if weights is not None:
                torch.mv(piece.T, weights, out=piece_mean)
            runs = piece.shape[1] // _RUN
            norms.append(torch.linalg.vector_norm(piece[:, : runs * _RUN].reshape(count, runs, _RUN), dim=2))
            mine = [x @ m for x, m in zip(torch.split(piece, _DOT, dim=1), torch.split(piece_mean, _DOT), strict=True)]
            dots += mine
            for segment, inside in _segments(start, start + piece.shape[1], part):
                here, here_mean = matrix[:, segment], mean[segment]
                if metric is not None:
                    found = _products(here, here_mean, metric[segment])
                    weighted.append(found)
                    if inside:
                        weighted_within.append(found)
                if inside:  # the products of a whole piece are there already
                    whole = here.shape[1] == piece.shape[1] == runs * _RUN
                    within.append(([norms[-1].square().sum(1)], mine) if whole else _products(here, here_mean))
        plain = torch.stack([torch.cat(norms, 1).double().square().sum(1), torch.stack(dots).double().sum(0)])
        sums = (  # parts of Σ m g_k² and of Σ m g_k ĝ, each (K,), added in float64
            torch.stack([torch.stack([*chain.from_iterable(parts)]).double().sum(0) for parts in zip(*found, strict=True)])
            for found in (weighted, within, weighted_within)
            if found
        )
        return torch.stack([plain, *sums])


def _without_autocast(kind: str) -> AbstractContextManager[Any]:
    """No autocast on that kind of device: it would round gradients of float32 in some of the products, and not in others."""
    import torch

    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def _segments(start: int, stop: int, part: Sequence[slice]) -> list[tuple[slice, bool]]:
    """The columns from `start` to `stop`, cut where the part begins and ends, and whether each segment lies in the part."""
    cuts = sorted({start, stop, *(edge for s in part for edge in (s.start, s.stop) if start < edge < stop)})
    return [(slice(a, b), any(s.start <= a and b <= s.stop for s in part)) for a, b in pairwise(cuts)]


def _products(
    piece: torch.Tensor, mean: torch.Tensor, metric: torch.Tensor | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parts of Σ m g_k² and of Σ m g_k ĝ over some columns, with m = 1 where there is no metric."""
    squares, dots = [], []
    for start in range(0, len(mean), _DOT):
        x, by = piece[:, start : start + _DOT], mean[start : start + _DOT]
        if metric is None:
            squares.append(x.square().sum(1))
            dots.append(x @ by)
        else:
            weight = metric[start : start + _DOT]
            squares.append(x.square() @ weight)
            dots.append(x @ (weight * by))
    return squares, dots


def statistics_of(products: torch.Tensor, sizes: np.ndarray, blocks: Any = None) -> BlockStatistics:
    """`BlockStatistics` from one (2, K) part of what `block_products` returns.

    Raises:
        NotFiniteError: a gradient was not finite.
    """
    square, dot = products.cpu().numpy()
    if not (np.isfinite(square).all() and np.isfinite(dot).all()):
        raise NotFiniteError("block_gradients: not finite, or their squares are not")
    return BlockStatistics(sizes, square, dot, blocks)


def _as_matrix(given: Any, name: str = "block_gradients") -> torch.Tensor:
    """(K, P) dense tensor of float32 or float64 from a matrix, or from K flat or parameter-shaped gradients.

    Raises:
        ValueError: it is none, holds no parameters or complex numbers; `name` is what the caller gave it as.
    """
    import torch

    if isinstance(given, Mapping):
        vmap = "of a dictionary as torch.func.vmap gives it, torch.cat([g.flatten(1) for g in given.values()], 1)"
        raise ValueError(f"{name}: give one entry for each block and no dictionary; {vmap}")
    given = _as_array(given)
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(np.ascontiguousarray(given))
    if isinstance(given, torch.Tensor):
        if given.ndim != 2:
            raise ValueError(f"{name} must have two dimensions (blocks, parameters), not {given.ndim}")
        matrix = given.to_dense()
    else:
        parts = [[row] if _is_one(row) else list(row) for row in given]
        if any(isinstance(part, Mapping) for row in parts for part in row):
            raise ValueError(f"{name}: give a dictionary's tensors as a list, always in the same order: list(g.values())")
        if any(part is None for row in parts for part in row):
            raise ValueError(f"{name}: a parameter has no gradient (None); call torch.autograd.grad with materialize_grads=True")
        flat = [[torch.as_tensor(_as_array(part)).to_dense().reshape(-1) for part in row] for row in parts]
        rows = [torch.cat(row) if row else torch.empty(0) for row in flat]
        if len({len(row) for row in rows}) > 1:
            raise ValueError(f"{name}: the blocks differ in their number of parameters")
        if not rows:
            raise ValueError(f"{name}: a noise scale needs at least two blocks")
        matrix = torch.stack(rows)
    if matrix.is_complex():
        raise ValueError(f"{name}: complex numbers; give their real and imaginary parts, as torch.view_as_real does")
    if not matrix.shape[1]:
        raise ValueError(f"{name}: there are no parameters")
    return matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()


def _as_array(given: Any) -> Any:
    """A table or another library's array as NumPy's, since its iteration may name columns; anything else as it is."""
    import torch

    return np.array(given) if hasattr(given, "__array__") and not isinstance(given, torch.Tensor | np.ndarray) else given


def _is_one(row: Any) -> bool:
    """Whether that is one gradient, and not several of them: a tensor, the array of any library, or what is none at all."""
    return isinstance(row, Mapping) or hasattr(row, "__array__") or not isinstance(row, Iterable)
