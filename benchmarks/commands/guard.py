"""A run on an existing cluster in a process of its own, watched by the one that was started.

Ray ends a process at once, without a word, when that process touches an object after Ray's own node on its machine has died, or
when the head has not answered for a minute. So no code of ours could then close the record there. What a run does is in
`rlscale.agents.train`.
"""

import atexit
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from rlscale.agents.cluster.sigterm import handled
from rlscale.errors import UsageError
from rlscale.records import Run, read_run

__all__ = ["guarded_folder", "mark_own_end", "run_guarded"]

_FOLDER = "RLSCALE_GUARDED_RUN"  # set in the watched process
_MARKS = "RLSCALE_GUARD_MARKS"  # likewise: the end of a pipe for the mark that it ended by itself


def guarded_folder() -> str | None:
    """Of the run, in a process that is watched already; None elsewhere."""
    return os.environ.get(_FOLDER)


def mark_own_end() -> None:
    """Have a process that is watched leave a mark when it ends by itself: where Ray ends it, Python's own end does not come."""
    if _MARKS in os.environ:
        atexit.register(os.write, int(os.environ.pop(_MARKS)), b".")


def run_guarded(folder: Path, go_on: str) -> int:
    """Run this same command again in a process that is watched, and close its record if it could not.

    Args:
        folder: of the run's record.
        go_on: the command that resumes it.

    Returns:
        The exit code: that process's where it ended by itself; 2 if Ray ended it, 1 if anybody else did.
    """
    # The interpreter's own words, so that it finds the same packages. Ctrl-C reaches both processes, other signals only this one.
    marks, its_marks = os.pipe()
    environment = {**os.environ, _FOLDER: str(folder), _MARKS: str(its_marks)}
    process = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=environment, pass_fds=[its_marks])
    os.close(its_marks)
    with handled({signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda number, _: process.send_signal(number)}):
        code = process.wait()
    os.set_blocking(marks, False)  # processes that it forked may live on and hold the other end
    with suppress(BlockingIOError), os.fdopen(marks, "rb", buffering=0) as marked:
        if marked.read(1) and code >= 0:
            return code
    try:
        if code in (0, 2, 130):
            return code
        if read_run(folder).state != "interrupted":  # the record is closed: the run's own doing, or that of a session before
            if code < 0:
                print(f"rlscale: the run's process was killed by signal {-code}. Go on with: {go_on}", file=sys.stderr)
            return 1 if code < 0 else code
        run = Run.resume(folder)
    except UsageError:  # it ended before there was a record
        if code < 0:
            print(f"rlscale: the run's process was killed by signal {-code} before its record began", file=sys.stderr)
        return 1 if code < 0 else code
    ended = "Ray has ended the run's process: its node or its head is gone"
    reason = f"the run's process was killed by signal {-code}" if code < 0 else ended
    run.give_up_waiting = lambda: True  # the run has waited for room already, if that is what ended it
    with suppress(OSError):
        run.set_state("failed", reason)
    run.close()
    print(f"rlscale: {reason}. The record is in {folder}; go on from its last checkpoint with: {go_on}", file=sys.stderr)
    return 1 if code < 0 else 2
