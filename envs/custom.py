"""A user's own environments, `<module>:<class or callable>`; docs/tasks.md says how to write them."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlscale.errors import UsageError
from rlscale.text import first_line

from .interface import TaskEnv
from .task import Task, TaskListing
from .vector import SyncEnvs, SyncTaskEnv, VectorTaskEnv, refuse_statistics, task_of_spaces

__all__ = ["find_task", "list_tasks"]


def list_tasks() -> list[TaskListing]:
    """The form of their names."""
    what = "your own: a gymnasium.Env, or a callable(num_envs) that returns a gymnasium.vector.VectorEnv"
    return [TaskListing("<module>:<name>", what)]


def find_task(name: str) -> Task:
    """The task of that class of environments, or of that callable; imports its module and makes one to read its spaces.

    Raises:
        UsageError: the module, the callable or what it returns cannot be used.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            "TASK", f"cannot import {error.name!r}", "Run from the folder that holds the module, or install it"
        ) from error
    except Exception as error:
        raise UsageError("TASK", f"importing {module_name!r} failed: {first_line(error)}", "Mend the module") from error
    try:
        make = getattr(module, attribute)
    except AttributeError as error:
        place = (module.__spec__ and module.__spec__.origin) or "no file"
        mend = "Write module:name; if that is another file than yours, give yours another name"
        raise UsageError("TASK", f"module {module_name!r} ({place}) has no {attribute!r}", mend) from error
    env = _several(name, make, 1)
    if not isinstance(env, VectorEnv):
        mend = "Return a gymnasium.vector.VectorEnv, such as SyncVectorEnv([make_one] * num_envs)"
        raise UsageError("TASK", f"{name} returned {type(env).__name__}", mend)
    for attribute in ("num_envs", "single_observation_space", "single_action_space"):
        if not hasattr(env, attribute):
            raise UsageError("TASK", f"{name} returned environments without {attribute}", "Set it, as VectorEnv's docs say")
    if env.num_envs != 1:
        raise UsageError("TASK", f"{name}(1) returned {env.num_envs} environments", "Return as many as it is asked for")
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        mend = "Let it, as SyncVectorEnv does by default, and set metadata['autoreset_mode'] = AutoresetMode.NEXT_STEP"
        raise UsageError("TASK", f"{name} does not say that it resets on the step after an end", mend)
    try:
        task = task_of_spaces(name, env.single_observation_space, env.single_action_space, make_env=make_env, user_make=make)
        if isinstance(env, SyncVectorEnv):
            _try_one(name, env.envs[0])
    finally:
        env.close()
    refuse_statistics(name, env)  # last: it may make one more, and there may be room for one at a time
    return task


def _try_one(name: str, env: Any) -> None:
    """Play one step of a single environment: Gymnasium's vector environment does not say what is wrong with one.

    Raises:
        UsageError: it does not return what `gymnasium.Env` returns.
    """
    calls: list[tuple[str, Callable[[], Any], int]] = [
        ("reset", lambda: env.reset(seed=0, options=None), 2),
        ("step", lambda: env.step(env.action_space.sample()), 5),
    ]
    for method, play, count in calls:
        mend = f"Mend the environment: return what gymnasium.Env.{method} returns"
        try:
            answer = play()
        except Exception as error:
            said = f"{name}: {method} failed: {type(error).__name__}: {first_line(error)}"
            raise UsageError("TASK", said, "Mend the environment") from error
        if not (isinstance(answer, tuple) and len(answer) == count):
            what = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
            raise UsageError("TASK", f"{name}: {method} returned {what}, not {count} values", mend)
        shape, wanted = np.shape(answer[0]), env.observation_space.shape
        if shape != wanted:
            raise UsageError("TASK", f"{name}: {method} gave an observation of shape {shape}, its space has {wanted}", mend)
        given, kept = np.asarray(answer[0]).dtype, env.observation_space.dtype
        if not np.can_cast(given, kept, "same_kind"):
            raise UsageError("TASK", f"{name}: {method} gave observations of type {given}, its space has {kept}", mend)
        for what, value in zip(("reward", "terminated", "truncated"), answer[1:4] if count == 5 else (), strict=False):
            if np.shape(value):
                raise UsageError("TASK", f"{name}: {method} gave {what} of shape {np.shape(value)}, not one value", mend)


def _several(name: str, make: Callable[..., Any], num_envs: int) -> Any:
    """What the user's callable makes of N environments; N of a class of single ones.

    Raises:
        UsageError: it fails.
    """
    try:
        return SyncEnvs([make] * num_envs) if inspect.isclass(make) and issubclass(make, Env) else make(num_envs)
    except Exception as error:
        problem = f"{name}({num_envs}) failed: {type(error).__name__}: {first_line(error)}"
        raise UsageError("TASK", problem, "Mend the callable") from error


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """What the user's callable makes of N environments.

    Raises:
        UsageError: it fails, or makes another number of them.
    """
    assert task.user_make is not None
    env = _several(task.id, task.user_make, num_envs)
    if env.num_envs != num_envs:
        problem = f"{task.id}({num_envs}) returned {env.num_envs} environments"
        raise UsageError("TASK", problem, "Return as many as it is asked for")
    kind = SyncTaskEnv if isinstance(env, SyncVectorEnv) else VectorTaskEnv
    return kind(task, env, one_seed=True)
