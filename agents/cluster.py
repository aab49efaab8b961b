"""Reaching Ray: a local instance of a stated size, or an existing cluster that is asked first whether it is there."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Any

from rlscale.errors import UsageError

__all__ = ["connect", "disconnect"]

PATIENCE_SECONDS = 3.0
_SETTINGS_FRAME = 4
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS_FRAME, 0, 0, 0, 0, 0])


def connect(address: str | None, cpus: int) -> None:
    """Connect to Ray; a connection that stands already is used as it is.

    Args:
        address: `host:port` or `auto` of an existing cluster; None starts an instance in this machine.
        cpus: CPUs that the actors need; what a started instance gets.

    Raises:
        UsageError: nothing answers at the address (within seconds; Ray itself would try for more than a minute), or the
            cluster is too small.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keeps Ray from a warning on every CPU actor
    import ray

    if ray.is_initialized():
        _require_cpus(cpus)
        return
    # Ray puts the current folder first on its processes' path. Stand in our own root for that moment: a user's folder may
    # well hold an `envs` or `agents` of its own. (Actors get the user's folder back, behind ours: `agents.fleet`.)
    with contextlib.chdir(Path(__file__).resolve().parent.parent):
        options: dict[str, Any] = dict(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
        if address is None:
            ray.init(num_cpus=cpus, include_dashboard=False, **options)
        else:
            if address != "auto":
                _ask(address)
            try:
                ray.init(address=address, **options)
            except ConnectionError as error:
                detail = str(error).strip().splitlines()[0].rstrip(".")
                raise UsageError(
                    "--ray-address", f"no cluster at {address}: {detail}", "Start one with 'ray start --head'"
                ) from None
    _require_cpus(cpus)


def _require_cpus(cpus: int) -> None:
    import ray

    available = int(ray.cluster_resources().get("CPU", 0))
    if available < cpus:
        disconnect()
        raise UsageError(
            "--actors", f"the actors need {cpus} CPUs, the cluster has {available}", "Use fewer actors, or fewer --actor-cpus"
        )


def disconnect() -> None:
    """Leave the cluster, or end the local instance."""
    import ray

    if ray.is_initialized():
        ray.shutdown()


def _ask(address: str) -> None:
    """Whether Ray's control service answers there."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():
        raise UsageError("--ray-address", f"{address!r} is not host:port", "Use for example 127.0.0.1:6379, or auto")
    mend = "Check the address, or start a cluster with 'ray start --head'"
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
            # Ray speaks gRPC, and a gRPC server answers an HTTP/2 greeting with a settings frame at once. A stranger who
            # listens on that port would otherwise hold ray.init for more than a minute.
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(9)
    except OSError as error:
        problem = error.strerror or str(error) or "no answer"
        raise UsageError("--ray-address", f"nothing answers at {address} ({problem})", mend) from None
    if len(answer) < 4 or answer[3] != _SETTINGS_FRAME:
        raise UsageError("--ray-address", f"what answers at {address} is not a Ray head", mend)
