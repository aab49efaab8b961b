"""What every Ray process of a run needs: its settings, the user's folder, and how its loss is told.

Which processes there are is in `rollout.actors` and `learning.remote_learners`; how Ray itself is reached, in `connect`.
"""

import inspect
import os
import sys
from contextlib import ExitStack
from typing import Any

import torch

from rlscale.envs import Task
from rlscale.text import first_line

__all__ = ["LostWorkerError", "describe_loss", "enter_user_folder", "kind_of_loss", "pickle_settings"]


class LostWorkerError(RuntimeError):
    """A process of the run died or could not go on; what it was making is lost, and with it the iteration."""


def enter_user_folder(folder: str) -> None:
    """Make the user's folder this process's own, if this node has it: the user's environment may import from it."""
    sys.path.append(folder)
    if os.path.isdir(folder):
        os.chdir(folder)  # Ray starts its processes in our own root, see rlscale.agents.cluster.connect


def kind_of_loss(error: Exception) -> str | None:
    """How a Ray process was lost: `died`, `out of memory` or `no room`; None for an error of the code it ran, which is a mistake.

    An object that went down with its node counts as `died`.
    """
    from ray import exceptions

    cause = getattr(error, "cause", None)
    short = exceptions.OutOfMemoryError | MemoryError | torch.OutOfMemoryError  # Ray's own, Python's, an accelerator's
    if isinstance(error, short) or isinstance(cause, short) or "can't allocate memory" in str(cause):
        return "out of memory"
    full = exceptions.ObjectStoreFullError | exceptions.OutOfDiskError
    if isinstance(error, full) or isinstance(cause, full):
        return "no room"
    gone = exceptions.RayActorError | exceptions.ObjectLostError | exceptions.NodeDiedError | exceptions.WorkerCrashedError
    return "died" if isinstance(error, gone) else None


_WORDS = {"died": "died", "out of memory": "ran out of memory", "no room": "found no room in the object store"}


def describe_loss(error: Exception, when: str) -> str | None:
    """The same in a few words, for one line; None where it is no loss."""
    kind = kind_of_loss(error)
    if kind is None:
        return None
    if kind == "died" and "creation task" in str(error):  # its cause, for example a module that the node lacks, stands at the end
        return f"died {when}: {str(error).strip().splitlines()[-1].strip()}"
    return f"{_WORDS[kind]} {when}: {first_line(error)}"


def pickle_settings(settings: Any, task: Task) -> bytes:
    """Settings that hold the task, with a user's own environment pickled by value so that no node needs its module.

    That is the module that they named, and the one that defines what it offers, which need not be the same.
    """
    from ray import cloudpickle

    make = task.user_make
    names = set() if make is None else {task.id.partition(":")[0]}
    if inspect.isroutine(make) or inspect.isclass(make):  # of any other object it is its class that has a module
        names.add(make.__module__)
    with ExitStack() as registered:
        for name in names:
            if (module := sys.modules.get(name)) is not None and getattr(module, "__file__", None):
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
        return cloudpickle.dumps(settings)
