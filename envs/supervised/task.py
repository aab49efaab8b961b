"""`SupervisedTask`: what is learned from examples, where these come from, and the defaults of its sweeps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

__all__ = ["Examples", "Objective", "SupervisedTask"]

Objective = Literal["classify", "predict", "autoencode", "variational"]


@dataclass(frozen=True)
class Examples:
    """Independent examples.

    Attributes:
        inputs: (n, channels, height, width) uint8 pictures, or (n, L) uint8 characters.
        targets: (n,) int64 classes of pictures, or (n, L) uint8: the character that follows each.
    """

    inputs: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.inputs)


Loader = Callable[[str | None], tuple[Examples, Examples]]


@dataclass(frozen=True)
class SupervisedTask:
    """A task learned from examples.

    Attributes:
        id: its name, for example `supervised/digits`.
        note: what it is, for `rlscale tasks`.
        preprocessing: what an input is, for people.
        loader: the examples to learn from and those held out, from what `--data` names; None for the task's own source.
        goals: to reach on the held-out examples, ascending: accuracies for `classify`, minus the mean loss for the others.
        objective: `classify` pictures, `predict` the next character, `autoencode` pictures, or the same `variational`.
        length: observations of one example: 1, or the characters of a text's.
        learning_rate: ε* of SGD, the rate that a sweep begins with; see `rlscale.envs.task.SweepDefaults`.
        rate_batch: B* of that rate.
        pilot_batch: observations of a step of a sweep's first runs.
        observations: a run that has spent so many is given up.
    """

    id: str
    note: str
    preprocessing: str
    loader: Loader
    goals: tuple[float, ...]
    objective: Objective = "classify"
    length: int = 1
    learning_rate: float = 0.1
    rate_batch: float = 64.0
    pilot_batch: int = 64
    observations: int = 2_000_000

    def load(self, data: str | None) -> tuple[Examples, Examples]:
        """The examples to learn from, and those held out. Kept, because every trial of a sweep asks for them.

        Args:
            data: file or folder that holds them; None for the task's own source.

        Raises:
            UsageError: they are not there, or cannot be read; says where to get them.
        """
        return _load(self.loader, data)


@lru_cache(maxsize=1)
def _load(loader: Loader, data: str | None) -> tuple[Examples, Examples]:
    return loader(data)
