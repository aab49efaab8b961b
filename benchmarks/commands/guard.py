"""A run on an existing cluster in a process of its own, watched by the one that was started.

Ray ends a process at once, without a word, when that process touches an object after Ray's own node on its machine has died, or
when the head has not answered for a minute. So no code of ours could then close the record there. What a run does is in
`rlscale.agents.train`.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from rlscale.agents.cluster.sigterm import handled
from rlscale.errors import UsageError
from rlscale.records import Run, read_run

__all__ = ["guarded_folder", "run_guarded"]

_FOLDER = "RLSCALE_GUARDED_RUN"  # set in the watched process


def guarded_folder() -> str | None:
    """Of the run, in a process that is watched already; None elsewhere."""
    return os.environ.get(_FOLDER)


def run_guarded(folder: Path, go_on: str) -> int:
    """Run this same command again in a process that is watched, and close its record if it could not.

    Args:
        folder: of the run's record.
        go_on: the command that resumes it.

    Returns:
        The exit code: that process's; 2 if Ray ended it, 1 if anybody else did.
    """
    # The interpreter's own words, so that it finds the same packages. Ctrl-C reaches both processes, other signals only this one.
    process = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={**os.environ, _FOLDER: str(folder)})
    with handled({signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda number, _: process.send_signal(number)}):
        code = process.wait()
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
