"""`interrupted_by_sigterm`: SIGTERM ends what waits or measures as Ctrl-C does. A run's own stops are in `agents.stopping`."""

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["interrupted_by_sigterm"]


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Where no `StopRequests` takes it, SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that what was begun is cleared away.

    In another thread than the main one, and once Ray has been imported, which lets SIGTERM raise SystemExit, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
