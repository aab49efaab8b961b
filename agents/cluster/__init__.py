"""What a run needs of Ray: reaching a cluster, room in it, a living head node, and processes that may be lost.

`connect` starts a local instance of Ray or joins an existing cluster. `resources` says what a cluster that was joined has, and
what of it is free. `placement` says what each process of a run reserves and whether there is room for all of them. `head_node`
notices a dead head node long before Ray does. `processes` has what every Ray process of a run shares: its settings, the user's
folder, and what the loss of a process means. `sigterm` makes SIGTERM an interrupt, where Ray would write the stack of the
process.

What the processes do is elsewhere: the rollout actors in `..rollout`, the learners in `..learning`. Start with `connect`.
"""

from .connect import connect, connected, disconnect, head_address, watch_head
from .head_node import LostHeadError
from .placement import BusyClusterError, keep_together, learner_resources, require_room, rollout_resources
from .processes import LostWorkerError
from .resources import free_places, spilled_files, store_bytes

__all__ = [
    "BusyClusterError",
    "LostHeadError",
    "LostWorkerError",
    "connect",
    "connected",
    "disconnect",
    "free_places",
    "head_address",
    "keep_together",
    "learner_resources",
    "require_room",
    "rollout_resources",
    "spilled_files",
    "store_bytes",
    "watch_head",
]
