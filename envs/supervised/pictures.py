"""Pictures with classes: scikit-learn's digits.

A fifth of the examples is held out, drawn by a fixed seed, so that the goal means the same in every run of every sweep.
"""

import numpy as np

from rlscale.errors import UsageError

from .task import Examples

__all__ = ["hold_out", "load_digits"]

SPLIT_SEED = 20181214
MOST_HELD_OUT = 2_000  # an accuracy of 0.9 is then known to 0.7%


def hold_out(pictures: np.ndarray, classes: np.ndarray) -> tuple[Examples, Examples]:
    """Shuffle by a fixed seed and hold out a fifth, at most 2,000.

    Args:
        pictures: (n, channels, height, width) uint8.
        classes: (n,) integers from 0.
    """
    order = np.random.default_rng(SPLIT_SEED).permutation(len(pictures))
    held = min(len(order) // 5, MOST_HELD_OUT)
    parts = order[held:], order[:held]
    learned, kept = (Examples(np.ascontiguousarray(pictures[part]), classes[part].astype(np.int64)) for part in parts)
    return learned, kept


def load_digits(data: str | None) -> tuple[Examples, Examples]:
    """scikit-learn's 1,797 digits of 8×8 pixels.

    Raises:
        UsageError: scikit-learn is not installed, or data were named.
    """
    if data is not None:
        raise UsageError("--data", "supervised/digits brings its own examples", "Leave it out")
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise UsageError("TASK", "supervised/digits needs scikit-learn", "Install it: pip install scikit-learn") from None
    images, classes = datasets.load_digits(return_X_y=True)
    return hold_out(np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), classes)
