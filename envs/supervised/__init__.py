"""Supervised tasks, `supervised/<name>`: examples to learn from and others held out, for the paper's own rows.

They have no environment, so they are no `Task`: `rlscale sweep` alone takes them, and `find_task` says so. `task` says what a
task is, `table` has the names with the defaults of each; `pictures` and `text` load the examples, from installed packages or
from the user's own files, and never download anything. Networks, losses and learning are in `rlscale.agents.supervised`.
"""

from .table import find_supervised, list_tasks
from .task import Examples, SupervisedTask

__all__ = ["Examples", "SupervisedTask", "find_supervised", "list_tasks"]
