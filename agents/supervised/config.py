"""`SupervisedConfig`: every setting of a supervised run."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SupervisedConfig", "SupervisedUpdate"]


@dataclass(frozen=True)
class SupervisedUpdate:
    """How the parameters are changed.

    Attributes:
        optimizer: SGD, without weight decay.
        learning_rate: ε. With momentum m a constant gradient moves the parameters by ε/(1 - m) times itself a step.
        momentum: m, how much of the running sum of gradients is kept each step.
        warm_up: optimizer steps over which the rate rises linearly from zero.
        device: cpu, an accelerator, or auto.
    """

    optimizer: Literal["sgd"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    warm_up: int = 10
    device: str = "auto"


@dataclass(frozen=True)
class SupervisedConfig:
    """One run.

    Attributes:
        task: name of the supervised task.
        data: file or folder that holds its examples; None for the task's own source.
        seed: of everything.
        batch_size: observations per optimizer step, a multiple of the task's `length`.
        blocks: of a noise measurement at every step, at most one an example; 0 measures none.
        update: how the parameters are changed.
    """

    task: str
    data: str | None = None
    seed: int = 0
    batch_size: int = 64
    blocks: int = 0
    update: SupervisedUpdate = field(default_factory=SupervisedUpdate)
