"""The head node of a Ray cluster: whether it answers, before a run joins the cluster and while the run is under way.

Ray has no call of its own for this: `ray.init` tries for minutes, and says nothing for one minute when a head node dies.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

from rlscale.errors import UsageError

from .processes import LostWorkerError
from .sigterm import handled

__all__ = ["HEAD_SECONDS", "LostHeadError", "answers", "require_head", "watched"]

PATIENCE_SECONDS = 3.0  # with one attempt
HEAD_SECONDS = 15.0  # without an answer, after which the head node counts as dead
PAUSE_SECONDS = 2.0  # between attempts
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty frame of HTTP/2: length, type, flags, stream


class LostHeadError(LostWorkerError):
    """The head node of the cluster is gone, and with it every process of the run but this one."""

    def __init__(self) -> None:
        super().__init__("the head of the Ray cluster does not answer any more")


@contextlib.contextmanager
def watched(address: str) -> Iterator[None]:
    """Within, try the head node every two seconds, in a thread, and end a call of Ray once it has not answered for 15 seconds.

    Ray itself would wait for a minute, and then abort the process. `LostHeadError` interrupts the main thread only within a call
    of Ray. It may finish what it computes itself, so that the learner's state is always that of a whole iteration. In another
    thread than the main one nothing is tried: signals arrive nowhere else.

    Args:
        address: `host:port` of the head node.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        heard = time.monotonic()
        while not ended.wait(PAUSE_SECONDS):
            if answers(address):
                heard = time.monotonic()
            elif time.monotonic() - heard > HEAD_SECONDS:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    thread = threading.Thread(target=watch, name="head watch", daemon=True)
    with handled({signal.SIGUSR1: _interrupt}):
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("ray."):
            raise LostHeadError
        frame = frame.f_back


def answers(address: str) -> bool:
    """Whether Ray's control service answers at `host:port`."""
    try:
        _greet(address)
    except OSError:
        return False
    return True


def require_head(address: str) -> None:
    """Refuse an address at which no head node answers within seconds; Ray itself would try for minutes.

    Raises:
        UsageError: it is no address, nothing answers there, or another program does.
    """
    _, separator, port = address.rpartition(":")
    no_address = UsageError("--ray-address", f"{address!r} is not host:port", "Use for example 127.0.0.1:6379, or auto")
    if not separator or not port.isdecimal():
        raise no_address
    mend = "Check the address, or start a cluster with 'ray start --head'"
    try:
        _greet(address)
    except (ValueError, OverflowError):  # a name that no host can have, or far too large a port
        raise no_address from None
    except ConnectionAbortedError:
        raise UsageError("--ray-address", f"what answers at {address} is not a Ray head", mend) from None
    except OSError as error:
        raise UsageError("--ray-address", f"nothing answers at {address} ({error.strerror or error})", mend) from None


def _greet(address: str) -> None:
    """Exchange the first words of HTTP/2, which Ray's control service speaks: each side sends its settings (RFC 9113, 3.4).

    Raises:
        ConnectionAbortedError: the answer is not HTTP/2.
        OSError: there is no answer.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
        answer = connection.recv(len(SETTINGS))
    if answer[3:4] != SETTINGS[3:4]:  # the frame's type
        raise ConnectionAbortedError("not HTTP/2")
