"""Registered Gymnasium environments, `gym/<id>`, stepped one after another in the caller's thread."""

from typing import Any

import gymnasium
import numpy as np

from rlscale.errors import UsageError
from rlscale.text import first_line

from .interface import TaskEnv
from .task import Task, TaskListing
from .vector import SyncEnvs, SyncTaskEnv, refuse_statistics, task_of_spaces

__all__ = ["find_task", "list_tasks"]


_EXTRAS = {"box2d": "Box2D", "mujoco": "MuJoCo"}  # extras of rlscale, named after Gymnasium's folder of what needs them


def list_tasks() -> list[TaskListing]:
    """Box2D's and MuJoCo's tasks, which need not be installed, and the form of all names."""
    newest: dict[tuple[str, str], tuple[int, str]] = {}  # of each environment, where several versions are registered
    for name, spec in gymnasium.registry.items():
        if (extra := _extra_of(spec)) is not None:
            newest[extra, spec.name] = max(newest.get((extra, spec.name), (-1, "")), (spec.version or 0, name))
    named = [
        TaskListing(f"gym/{name}", f"Gymnasium's, simulated by {_EXTRAS[extra]}; needs the extra {extra}")
        for (extra, _), (_, name) in sorted(newest.items())
    ]
    return [*named, TaskListing("gym/<id>", "any registered Gymnasium id with discrete or continuous actions")]


def _extra_of(spec: Any) -> str | None:
    """The extra that an environment needs; None for one that needs none, or one that Gymnasium has no more."""
    place = spec.entry_point.split(".") if isinstance(spec.entry_point, str) else []
    return place[2] if place[:2] == ["gymnasium", "envs"] and place[2] in _EXTRAS else None


def find_task(name: str) -> Task:
    """The task of that Gymnasium id; its spaces are read from an environment, which this makes and closes.

    Raises:
        UsageError: Gymnasium cannot make it, or what it makes cannot be learned.
    """
    try:
        env = gymnasium.make(name)
    except Exception as error:  # an id may be unknown, misspelt, or need a package: all are the user's to mend
        extra = _extra_of(gymnasium.registry[name]) if name in gymnasium.registry else None
        if extra is not None and isinstance(error, ModuleNotFoundError | gymnasium.error.DependencyNotInstalled):
            mend = f"Install it: pip install 'rlscale[{extra}]'"
            raise UsageError("TASK", f"gym/{name} needs {_EXTRAS[extra]}", mend) from error
        problem = f"Gymnasium cannot make {name!r}: {first_line(error).rstrip('.')}"
        raise UsageError("TASK", problem, "Check the id, or install what it needs") from error
    try:
        refuse_statistics(f"gym/{name}", env)
        skip = getattr(env.unwrapped, "frame_skip", None)  # MuJoCo's; others may mean something else by it
        skip = int(skip) if isinstance(skip, int | np.integer) else 1
        return task_of_spaces(f"gym/{name}", env.observation_space, env.action_space, make_env=make_env, frame_skip=skip)
    finally:
        env.close()


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """N environments in Gymnasium's `SyncVectorEnv`, each with a seed of its own."""
    name = task.id.removeprefix("gym/")
    return SyncTaskEnv(task, SyncEnvs([lambda: gymnasium.make(name)] * num_envs), one_seed=False)
