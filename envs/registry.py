"""`find_task` and `list_tasks`: which family of environments a task's name belongs to, in one table."""

import difflib
import os
import sys
from importlib import import_module

from rlscale.errors import UsageError

from .task import Task, TaskListing

__all__ = ["FAMILIES", "find_task", "list_tasks"]

# What stands before the slash of a task's name, and the module of that family, which is loaded when it is asked for.
# The module offers `find_task(name)`, which returns None for a name it does not have, and `list_tasks()`.
FAMILIES = {
    "classic": "rlscale.envs.classic",
    "toy": "rlscale.envs.toy",
    "minatar": "rlscale.envs.minatar",
    "atari": "rlscale.envs.atari",
    "pool": "rlscale.envs.envpool",
    "gym": "rlscale.envs.gymnasium",
}
CUSTOM = "rlscale.envs.custom"  # of names without a slash: a user's own module:callable
SUPERVISED = "rlscale.envs.supervised"  # tasks with examples and no environment, listed with the others


def list_tasks() -> list[TaskListing]:
    """Every task with a name of its own, and the forms of name that take any environment."""
    return [listing for module in (*FAMILIES.values(), SUPERVISED, CUSTOM) for listing in import_module(module).list_tasks()]


def find_task(task_id: str) -> Task:
    """The task of that name.

    Raises:
        UsageError: no such task (names the nearest), one without an environment, or its environment cannot be made or used.
    """
    if import_module(SUPERVISED).find_supervised(task_id) is not None:
        raise UsageError("TASK", f"{task_id} has examples and no environment", f"Only 'rlscale sweep {task_id}' takes it")
    prefix, _, name = task_id.partition("/")
    if ":" in task_id:  # a module of the user's; the console script does not put the current folder on the path
        sys.path += {os.getcwd()} - set(sys.path)
    task: Task | None = None
    if prefix in FAMILIES:
        task = import_module(FAMILIES[prefix]).find_task(name)
    elif ":" in task_id:
        task = import_module(CUSTOM).find_task(task_id)
    if task is None:
        raise UsageError("TASK", f"there is no task {task_id!r}", _suggest(task_id))
    return task


def _suggest(task_id: str) -> str:
    names = [listing.id for listing in list_tasks() if "<" not in listing.id]
    near = difflib.get_close_matches(task_id, names, n=3, cutoff=0.6)
    if not near:
        tail = task_id.rsplit("/", 1)[-1]
        by_tail = {name.split("/", 1)[1]: name for name in names}
        near = [by_tail[n] for n in difflib.get_close_matches(tail.lower().split("-")[0], by_tail, n=3, cutoff=0.6)]
    listing = "'rlscale tasks' lists all"
    return f"Did you mean {' or '.join(near)}? {listing}" if near else f"{listing[0].upper()}{listing[1:]}"
