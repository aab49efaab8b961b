"""`interrupted_by_sigterm`: SIGTERM ends what waits or measures as Ctrl-C does. A run's own stops are in `agents.stopping`.

`handled` is what commands use that want something else of signals.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["handled", "interrupted_by_sigterm"]


@contextlib.contextmanager
def handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Within, signals are handled so, and afterwards as before. In the main thread alone, which they arrive in.

    Args:
        handlers: of each signal, as `signal.signal` takes them.
    """
    before: dict[signal.Signals, Any] = {}
    try:
        for number, handler in handlers.items():
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # as where it was not set by Python
                signal.signal(number, handler)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Where no `StopRequests` takes it, SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that what was begun is cleared away.

    In another thread than the main one nothing changes. Ray's start puts a handler of its own in place of this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled({signal.SIGTERM: signal.default_int_handler}):
        yield
