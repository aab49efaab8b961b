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
    main = threading.current_thread() is threading.main_thread()
    with contextlib.ExitStack() as restored:
        for number, handler in handlers.items() if main else ():
            before = signal.signal(number, handler)
            if before is not None:  # as where it was not set by Python
                restored.callback(signal.signal, number, before)
        yield


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Where no `StopRequests` takes it, SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that what was begun is cleared away.

    In another thread than the main one nothing changes. Ray's start puts a handler of its own in place of this one.
    """
    with handled({signal.SIGTERM: signal.default_int_handler}):
        yield
