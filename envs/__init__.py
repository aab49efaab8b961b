"""The tasks: what a name such as `atari/pong` means, and the vector environments behind it. Knows nothing of learning."""

from .interface import Step, TaskEnv
from .registry import Task, find_task, list_tasks
from .vector import make_env

__all__ = ["Step", "Task", "TaskEnv", "find_task", "list_tasks", "make_env"]
