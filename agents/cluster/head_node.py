"""The head of a Ray cluster: whether it answers, before a run joins it and while the run is under way.

What is done with an answer is in `connect` (joining) and `train` (a run that loses its head).
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from rlscale.errors import UsageError

from .processes import LostWorkerError

__all__ = ["HEAD_SECONDS", "HeadWatch", "LostHeadError", "answers", "ask_head"]

PATIENCE_SECONDS = 3.0  # with one call
HEAD_SECONDS = 15.0  # without an answer, after which the head counts as dead
PAUSE_SECONDS = 2.0  # between calls


class LostHeadError(LostWorkerError):
    """The head of the cluster is gone, and with it every process of the run but this one."""

    def __init__(self) -> None:
        super().__init__("the head of the Ray cluster does not answer any more")


class HeadWatch:
    """Asks the head every two seconds, in a thread; without an answer for 15 seconds ends what this process waits for.

    Ray itself would wait for a minute, and then abort the process. The main thread is only interrupted within a call of Ray, by
    `LostHeadError`: what it computes meanwhile it may finish, so that what the learner knows is always that of a whole iteration.

    Args:
        address: `host:port` of the head.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head watch", daemon=True)
        self._before: Any = None
        self._main = threading.current_thread() is threading.main_thread()  # signals arrive nowhere else

    def __enter__(self) -> HeadWatch:
        if self._main:
            self._before = signal.signal(signal.SIGUSR1, _interrupt)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._main:
            self._thread.join()
            signal.signal(signal.SIGUSR1, self._before)

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._ended.wait(PAUSE_SECONDS):
            if answers(self._address):
                heard = time.monotonic()
            elif time.monotonic() - heard > HEAD_SECONDS:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("ray."):
            raise LostHeadError
        frame = frame.f_back


def answers(address: str) -> bool:
    """Whether Ray's control service answers at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        return b"application/grpc" in _call(host, int(port))
    except OSError:
        return False


def ask_head(address: str) -> None:
    """Whether Ray's control service answers at `host:port`, and lets us in.

    Raises:
        UsageError: it does not, within seconds.
    """
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
