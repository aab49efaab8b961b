"""`interrupted_by_sigterm`: SIGTERM ends what waits or measures as Ctrl-C does. A run's own stops are in `agents.stopping`."""

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["interrupted_by_sigterm"]


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Where no `StopRequests` takes it, SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that what was begun is cleared away.

    In another thread than the main one nothing changes. Ray's start puts a handler of its own in place of this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if before is not None:  # as where the handler was not set by Python
            signal.signal(signal.SIGTERM, before)
