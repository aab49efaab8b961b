"""Block statistics as the rows of a run hold them: lists of one number a block, in the plain metric and in Adam's.

What is measured is in `rlscale.noise`; the row around it is `rlscale.records.run`'s.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..errors import UsageError
from ..noise import BlockStatistics

__all__ = ["fault_of_noise", "metric_prefix", "pack_statistics", "unpack_statistics"]

_METRICS = {"plain": "", "adam": "adam_"}


def metric_prefix(metric: str) -> str:
    """What the names of a metric's fields begin with.

    Raises:
        UsageError: there is no such metric.
    """
    if metric not in _METRICS:
        raise UsageError("metric", f"there is no {metric!r}", f"Choose one of {', '.join(_METRICS)}")
    return _METRICS[metric]


def pack_statistics(statistics: BlockStatistics, adam: BlockStatistics | None = None) -> dict[str, list[float]]:
    """Block statistics as JSON lists with nine significant digits, more than float32 gradients carry.

    Args:
        statistics: plain ones.
        adam: of the same blocks in Adam's metric.
    """

    def short(values: np.ndarray) -> list[float]:
        return [float(f"{value:.9g}") for value in values]

    packed: dict[str, list[float]] = {
        "size": statistics.size.astype(int).tolist(),
        "square": short(statistics.square),
        "dot": short(statistics.dot),
    }
    if (statistics.block != np.arange(len(statistics.block))).any():
        packed["block"] = statistics.block.tolist()
    if adam is not None:
        packed |= {"adam_square": short(adam.square), "adam_dot": short(adam.dot)}
    return packed


def unpack_statistics(packed: Mapping[str, Sequence[float]], metric: str = "plain") -> BlockStatistics:
    """The inverse of `pack_statistics` for one metric, `plain` or `adam`.

    Raises:
        UsageError: there is no such metric.
    """
    prefix = metric_prefix(metric)
    return BlockStatistics(packed["size"], packed[f"{prefix}square"], packed[f"{prefix}dot"], packed.get("block"))


def fault_of_noise(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the measurements of a row, for people; None if each has one number a block."""
    for entry in entries:
        vectors = [entry[name] for name in ("size", "square", "dot", "block", "adam_square", "adam_dot") if name in entry]
        if len(set(map(len, vectors))) > 1 or not set(map(type, chain.from_iterable(vectors))) <= {int, float}:
            return f"noise of the {entry['head']} loss is not one number a block"
    return None
