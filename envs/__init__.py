"""The tasks: what a name such as `atari/pong` means, and the vector environments behind it. Nothing here learns.

Start with `task`: a `Task` says what is learned, makes its environments, and carries the defaults of its family. `registry`
holds the one table of families; each family is one module or folder (`atari`, `classic`, `custom`, `envpool`, `gymnasium`,
`minatar`, `toy`), which is loaded when one of its tasks is asked for and holds everything that is special about it. `supervised`
holds tasks of another kind, with examples instead of an environment.
`interface` is what all their environments have in common, `actions` says what actions they can take, and `vector` adapts those
that follow Gymnasium's vector interface. `episodes` is the frame of our own whose state is one array.

Networks, rollouts and learning are in `rlscale.agents`, which must not need to know which family a task belongs to.
"""

from .actions import Actions, BoxActions
from .interface import Step, TaskEnv
from .registry import find_task, list_tasks
from .task import Network, Task, make_env

__all__ = ["Actions", "BoxActions", "Network", "Step", "Task", "TaskEnv", "find_task", "list_tasks", "make_env"]
