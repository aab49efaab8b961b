"""Registered Gymnasium environments, `gym/<id>`, stepped one after another in the caller's thread."""

from rlscale.errors import UsageError

from .interface import TaskEnv
from .task import Task, TaskListing
from .vector import VectorTaskEnv, task_of_spaces

__all__ = ["find_task", "list_tasks"]


def list_tasks() -> list[TaskListing]:
    """The form of their names."""
    return [TaskListing("gym/<id>", "any registered Gymnasium id with discrete actions, for example gym/LunarLander-v3")]


def find_task(name: str) -> Task:
    """The task of that Gymnasium id; its spaces are read from an environment, which this makes and closes.

    Raises:
        UsageError: Gymnasium cannot make it, or what it makes cannot be learned.
    """
    import gymnasium

    try:
        env = gymnasium.make(name)
    except Exception as error:  # an id may be unknown, misspelt, or need a package: all are the user's to mend
        detail = str(error).strip().splitlines()[0].rstrip(".")
        raise UsageError("TASK", f"Gymnasium cannot make {name!r}: {detail}", "Check the id, or install what it needs") from error
    try:
        return task_of_spaces(f"gym/{name}", env.observation_space, env.action_space, make_env=make_env)
    finally:
        env.close()


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """N environments in Gymnasium's `SyncVectorEnv`, each with a seed of its own."""
    import gymnasium
    from gymnasium.vector import SyncVectorEnv

    name = task.id.removeprefix("gym/")
    return VectorTaskEnv(task, SyncVectorEnv([lambda: gymnasium.make(name)] * num_envs), one_seed=False)
