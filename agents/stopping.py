"""`StopRequests`: Ctrl-C, SIGTERM and the end of `--seconds`, each of which ends a run within two seconds.

An iteration that is about to end may end, so that the run can be resumed exactly. Otherwise waiting for its fragments is
interrupted, and so are the making of environments and the start of several learners. Learning never is: the learner's state is
always that of a whole iteration.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from types import FrameType, TracebackType

from .cluster.sigterm import handled
from .learning import RemoteLearners
from .rollout import LocalFleet, RayFleet
from .setup import RunSetup

__all__ = ["StopRequests"]

MOST_SECONDS = 1e9  # the system's timer takes some more, but not all that a person may type
PATIENCE_SECONDS = 1.0  # with the iteration under way
FORKED_SECONDS = 15  # after SIGTERM, until a process that was forked from the run, which may be slow, ends by itself
AGAIN_SECONDS = 0.1  # between attempts to interrupt it, while it learns
# Where a run may be interrupted: the code of the functions that wait for experience, for environments or for learners to meet.
_WAITING = {f.__code__ for f in (LocalFleet.take, RayFleet.take, RunSetup.start_fleet, RemoteLearners.meet)}


class StopRequests:
    """Whether a run shall end. Use as a context manager; in another thread than the main one nothing is asked or interrupted.

    The first SIGINT or SIGTERM asks for a stop and says so, a second SIGINT interrupts at once. Both interrupt by
    KeyboardInterrupt, the only exception that Ray passes on from within its calls.

    Attributes:
        asked: for a stop, by a signal.
        interrupted: where the run waited; its learner's state is that of a whole iteration.
    """

    def __init__(self) -> None:
        self.asked = self.interrupted = False
        self._deadline = float("inf")
        self._handling = ExitStack()
        self._main = threading.current_thread() is threading.main_thread()  # signals arrive nowhere else
        self._process = os.getpid()

    def __enter__(self) -> StopRequests:
        handlers = {signal.SIGINT: self._ask, signal.SIGTERM: self._ask, signal.SIGALRM: self._interrupt}
        self._handling.enter_context(handled(handlers))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._main:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._handling.close()

    @property
    def due(self) -> bool:
        """Whether a stop was asked for, or the time is over."""
        return self.asked or time.monotonic() >= self._deadline

    def end_after(self, seconds: float) -> None:
        """Let the time be over after so many seconds from now, after thirty years at the latest."""
        seconds = min(seconds, MOST_SECONDS)
        self._deadline = time.monotonic() + seconds
        if self._main and not self.asked:
            signal.setitimer(signal.ITIMER_REAL, seconds + PATIENCE_SECONDS, AGAIN_SECONDS)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # Forked from this one, as by Gymnasium's AsyncVectorEnv; the signal went to the whole group, and the run ends it.
            if number == signal.SIGTERM:  # which may be meant for it alone
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(FORKED_SECONDS)
            return
        if self.asked and number == signal.SIGINT:
            self.interrupted = False
            raise KeyboardInterrupt
        first, self.asked = not self.asked, True
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, AGAIN_SECONDS)
        if first:
            with suppress(OSError):  # Ctrl-C ends the `tee` that reads along, and the disk of a log may be full
                os.write(2, b"rlscale: stopping\n")  # what was being printed may not be printed to from within

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code in _WAITING:
                self.interrupted = True
                raise KeyboardInterrupt
            frame = frame.f_back
