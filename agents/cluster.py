"""Reaching Ray: a local instance of a stated size, or an existing cluster that is asked first whether it is there."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from rlscale.errors import UsageError

__all__ = ["connect", "disconnect", "free_cpus", "spilled_bytes", "store_bytes"]

PATIENCE_SECONDS = 3.0


def connect(address: str | None, cpus: int, store: int | None = None) -> None:
    """Connect to Ray; a connection that stands already is used as it is.

    Args:
        address: `host:port` or `auto` of an existing cluster; None starts an instance in this machine.
        cpus: CPUs that the actors need; what a started instance gets.
        store: bytes of the object store of a started instance; None leaves it to Ray.

    Raises:
        UsageError: nothing answers at the address (within seconds; Ray itself would try for more than a minute), or the
            cluster is too small.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keeps Ray from a warning on every CPU actor
    # Lost actors and nodes are told by the run, in a line; Ray would print a paragraph for each.
    told = "A worker died or was killed|has been marked dead|cannot be scheduled right now"
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", told)
    import ray

    if ray.is_initialized():
        _require_cpus(cpus)
        return
    # Ray puts the current folder first on its processes' path. Stand in our own root for that moment: a user's folder may
    # well hold an `envs` or `agents` of its own. (Actors get the user's folder back, behind ours: `agents.fleet`.)
    with contextlib.chdir(Path(__file__).resolve().parent.parent):
        options: dict[str, Any] = dict(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
        if address is None:
            # Ray would start workers at niceness 15. They are the run: beside one ordinary program it came almost to a halt.
            os.environ.setdefault("RAY_worker_niceness", "0")
            ray.init(address="local", num_cpus=cpus, object_store_memory=store, include_dashboard=False, **options)
        else:
            known = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
            if known != "auto":
                _ask(known)
            try:
                ray.init(address=address, **options)
            except (ConnectionError, RuntimeError) as error:
                detail = str(error).strip().splitlines()[0].rstrip(".")
                raise UsageError(
                    "--ray-address", f"cannot join {address}: {detail}", "Start one with 'ray start --head'"
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


def store_bytes() -> int:
    """Size of the object store of the node that this process is connected to, and so of what it can hold at once."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return int(next(node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here))


def free_cpus() -> int:
    """CPUs of the cluster that nobody has reserved."""
    import ray

    return int(ray.available_resources().get("CPU", 0))


def spilled_bytes() -> int:
    """Bytes that this node's object store has written to disk because it was full, as far as they are still there."""
    import ray

    node = ray._private.worker._global_node
    if node is None:
        return 0
    total = 0
    with contextlib.suppress(OSError):
        for folder in Path(node.get_session_dir_path()).glob("ray_spilled_objects*"):
            total += sum(path.stat().st_size for path in folder.iterdir())
    return total


def disconnect() -> None:
    """Leave the cluster, or end the local instance."""
    import ray

    if ray.is_initialized():
        ray.shutdown()


def _ask(address: str) -> None:
    """Whether Ray's control service answers there, and lets us in."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():
        raise UsageError("--ray-address", f"{address!r} is not host:port", "Use for example 127.0.0.1:6379, or auto")
    mend = "Check the address, or start a cluster with 'ray start --head'"
    try:
        answer = _call(host, int(port))
    except OSError as error:
        problem = error.strerror or str(error) or "no answer"
        raise UsageError("--ray-address", f"nothing answers at {address} ({problem})", mend) from None
    if b"application/grpc" not in answer:
        raise UsageError("--ray-address", f"what answers at {address} is not a Ray head", mend)
    if _UNAUTHENTICATED in answer and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise UsageError(
            "--ray-address",
            f"the cluster at {address} asks for a token",
            "Set RAY_AUTH_MODE=token; Ray reads the token from RAY_AUTH_TOKEN or ~/.ray/auth_token",
        )


def _call(host: str, port: int) -> bytes:
    """Ask for the cluster's id by one gRPC call, written out by hand: HTTP/2 frames with literal headers (RFC 7540, 7541).

    Ray's own client would try for more than 20 seconds, whoever listens there, before it gave up.
    """
    headers = b"\x83\x86"  # :method POST, :scheme http
    headers += b"\x04" + _literal("/ray.rpc.NodeInfoGcsService/GetClusterId") + b"\x01" + _literal(f"{host}:{port}")
    headers += b"\x0f\x10" + _literal("application/grpc") + b"\x00" + _literal("te") + _literal("trailers")
    settings, request, body = _frame(4, 0, 0, b""), _frame(1, 4, 1, headers), _frame(0, 1, 1, bytes(5))
    answer = b""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + request + body)
        while b"grpc-status" not in answer and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                received = connection.recv(4096)
            except TimeoutError:
                break
            if not received:
                break
            answer += received
    if not answer:
        raise TimeoutError("no answer")
    return answer


_UNAUTHENTICATED = b"grpc-status\x0216"


def _literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
