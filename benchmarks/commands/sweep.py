"""`rlscale sweep`: measures the critical batch size of tasks, then compares what was measured as `rlscale compare` does."""

import shlex
from pathlib import Path

from rlscale.agents.cluster import LostWorkerError
from rlscale.records import read_sweep

from ..console import plain_console, say
from ..options import parse
from ..sweep.options import SweepOptions
from ..sweep.run import run_sweeps
from .compare import CompareOptions, run_compare

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Run the sweeps that the arguments describe; 1 where every run of a sweep failed.

    Raises:
        UsageError: options, a task or a folder that cannot be used.
        LostWorkerError: no worker starts any more; what had ended is recorded.
        OSError: the record cannot be written; likewise.
    """
    options = parse(SweepOptions, "sweep", arguments)
    console, command = plain_console(), ["rlscale", "sweep", *arguments]
    try:
        folders = run_sweeps(options, command, console)
    except KeyboardInterrupt:
        say(console, f"stopped; what had ended is recorded in {options.out}")
        say(console, f"go on with:  {shlex.join(command)}")
        return 130
    except (LostWorkerError, OSError) as error:
        error.add_note(f"What had ended is recorded in {options.out}; go on with: {shlex.join(command)}")
        raise
    page = str(Path(options.out) / "comparison.html") if options.report else None
    code = run_compare(CompareOptions(folders=tuple(map(str, folders)), out=page))
    nothing = any(all(result.failed for result in read_sweep(folder).results.values()) for folder in folders)
    return code or int(nothing)
