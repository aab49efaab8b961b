"""Reaching Ray: a local instance of a stated size, or an existing cluster that is asked first whether it is there.

What the cluster has, once it is joined, is asked in `resources`.
"""

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
from .resources import cpus_there
from .sigterm import interrupted_by_sigterm

__all__ = [
    "connect",
    "connected",
    "disconnect",
    "head_address",
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
    available = cpus_there()
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
