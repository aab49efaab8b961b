"""Reaching Ray: a local instance of a stated size, or an existing cluster that is asked first whether it is there."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rlscale
from rlscale.errors import UsageError
from rlscale.text import first_line

from .head_node import require_head, watched
from .sigterm import interrupted_by_sigterm

__all__ = [
    "connect",
    "connected",
    "disconnect",
    "free_cpus",
    "free_places",
    "head_address",
    "spilled_files",
    "store_bytes",
    "watch_head",
]

# Where the package lies: in site-packages, or in a checkout. Not by this file's own name, which a link leads out of the package.
_PACKAGE = Path(rlscale.__file__).parent

# Ray reads these when it is imported, and here it never is before; where somebody else has imported it, its own words stay.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keeps Ray from a warning on every CPU actor
# Lost actors and nodes are told by the run, in a line; Ray would print a paragraph for each, on standard output.
_TOLD = "A worker died or was killed|has been marked dead|cannot be scheduled right now"
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _TOLD)


def connect(address: str | None, cpus: int, store: int | None = None, *, learner_cpus: int = 0) -> None:
    """Connect to Ray; a connection that stands already is used as it is.

    Args:
        address: `host:port` or `auto` of an existing cluster; None starts an instance in this machine.
        cpus: CPUs that the Ray processes need; what a started instance gets.
        store: bytes of the object store of a started instance; None leaves it to Ray.
        learner_cpus: how many of the CPUs are several learners'.

    Raises:
        UsageError: nothing answers at the address (within seconds; Ray itself would try for more than a minute), or the
            cluster is too small.
    """
    import ray

    if ray.is_initialized():
        _require_cpus(cpus, learner_cpus)
        return
    if address is None and any(letter.isspace() for letter in sys.executable):  # Ray hands it to a shell as it is
        problem = f"it cannot start processes by {sys.executable}, whose path has a space"
        raise UsageError("Ray", problem, "Make the environment in a folder without one, or use no actors")
    options: dict[str, Any] = dict(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
    # Ray puts the current folder first on its processes' path, and a user's may well hold an `envs` or `agents` of its own. So
    # stand elsewhere for that moment. (Actors get the user's folder back, behind ours: `enter_user_folder`.)
    if address is None:
        # Ray would start workers at niceness 15. They are the run: beside one ordinary program it came almost to a halt.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            with contextlib.chdir(_PACKAGE.parent):
                ray.init(address="local", num_cpus=cpus, object_store_memory=store, include_dashboard=False, **options)
        except Exception as error:  # Ray has no class of its own for a node that is not there in time
            problem = f"it did not start on this machine: {first_line(error).rstrip('.')}"
            raise UsageError("Ray", problem, "Try again when the machine is less busy") from error
    else:
        known = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
        if known != "auto":
            require_head(known.removeprefix("ray://"))
        # Our package, wherever it lies (checkout or site-packages): Ray copies it to every node that runs one of us.
        code = {"py_modules": [str(_PACKAGE)], "excludes": ["__pycache__"]}
        try:
            with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
                ray.init(address=address, runtime_env=code, **options)
        except ValueError as error:  # of `ray job submit`
            raise UsageError(
                "--ray-address",
                f"the job's own runtime_env is in the way: {first_line(error)}",
                "Leave py_modules and excludes out",
            ) from None
        except (ConnectionError, RuntimeError) as error:
            mend = "Use the cluster's version of Ray; if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            if known == "auto":
                mend = "Start one with 'ray start --head'"
            detail = first_line(error).rstrip(".")
            raise UsageError("--ray-address", f"cannot join {address}: {detail}", mend) from None
    _require_cpus(cpus, learner_cpus)


def _require_cpus(cpus: int, learner_cpus: int) -> None:
    import ray

    available = int(ray.cluster_resources().get("CPU", 0))
    if available < cpus:
        disconnect()
        # Some commands have --actors and --actor-cpus, others --cpus, so none of these is named.
        needed, fewer = f"the actors need {cpus} CPUs", "fewer actors or fewer CPUs"
        if learner_cpus:
            needed, fewer = (
                f"the run's processes need {cpus} CPUs, {learner_cpus} of them its learners",
                "fewer --threads or --learners",
            )
        raise UsageError("--ray-address", f"{needed}, the cluster has {available}", f"Use {fewer}, or start more nodes")


def head_address() -> str:
    """`host:port` of the head of the cluster that this process has joined."""
    import ray

    return ray.get_runtime_context().gcs_address


def watch_head(address: str | None) -> contextlib.AbstractContextManager[object]:
    """`watched`, the head of the cluster that was joined by that address; nothing where it is our own instance (None)."""
    return contextlib.nullcontext() if address is None else watched(head_address())


def store_bytes(learners: int, actors: int | None = None, cpus: int = 1, *, stream: bool = False, lag: int = 0) -> int:
    """Bytes of fragments that the object stores can hold at once.

    A fragment lies in the store of the node where it was made, until it is released, and is copied into that of the learner,
    which reads a whole batch; of a stream it reads few at a time, and of two batches (lag 1) one. So what binds is the node that
    makes the largest share for its store, or the one that reads.

    Args:
        learners: one learns in this process, on this node; several may have been put on any.
        actors: dealt out evenly to the nodes that have room for them, as `SPREAD` does; None: as many as there is room for; 0:
            this process makes the fragments, and puts them into the store here.
        cpus: of each.
        stream: learners read fragment by fragment.
        lag: batches beyond the first that exist at once.
    """
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    stores = {name: int(resources.get("object_store_memory", 0)) for name, resources in nodes.items()}
    room = {name: int(resources.get("CPU", 0)) // cpus for name, resources in nodes.items() if stores[name]}
    places = sum(room.values())
    making = places if actors is None else min(actors, places)
    given = dict.fromkeys(room, 0)
    for _ in range(making):
        emptiest = min((name for name in room if given[name] < room[name]), key=lambda name: given[name])
        given[emptiest] += 1
    share = {name: count / making for name, count in given.items() if count} or {here: 1.0}
    makes = min(stores[name] / part for name, part in share.items())
    if stream:
        return int(makes)
    batches = 1 + lag
    reads = {name: stores[name] * batches / (1 + lag * share.get(name, 0.0)) for name in ([here] if learners == 1 else share)}
    return int(min(makes, *reads.values()))


def free_cpus() -> int:
    """CPUs of the cluster that nobody has reserved."""
    import ray

    return int(ray.available_resources().get("CPU", 0))


def free_places(cpus: int) -> int:
    """Processes of so many CPUs for which there is room now, node by node: all CPUs of one are of one node."""
    if cpus == 1:
        return free_cpus()
    from ray._private.state import available_resources_per_node

    return sum(int(free.get("CPU", 0)) // cpus for free in available_resources_per_node().values())


def spilled_files() -> dict[str, int]:
    """Files that this node's object store has written because it was full and not removed yet, with the bytes of each."""
    import ray

    node = ray._private.worker._global_node
    found: dict[str, int] = {}
    if node is not None:
        for path in Path(node.get_session_dir_path()).glob("ray_spilled_objects*/*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                found[str(path)] = path.stat().st_size
    return found


def disconnect() -> None:
    """Leave the cluster, or end the local instance."""
    import ray

    if ray.is_initialized():
        ray.shutdown()


@contextlib.contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Connected to Ray as by `connect`, and at the end no longer. Meanwhile SIGTERM raises KeyboardInterrupt."""
    connect(address, cpus)
    try:
        with interrupted_by_sigterm():  # Ray's own handler writes the stack of the process
            yield
    finally:
        disconnect()
