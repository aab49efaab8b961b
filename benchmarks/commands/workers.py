"""`rlscale workers`: measures a machine or cluster and recommends how many rollout workers to use."""

import shlex

from rlscale.agents.cluster import LostWorkerError

from ..options import parse
from ..workers import WorkersOptions, run_workers

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Measure, recommend, plan.

    Raises:
        UsageError: a task, option, cluster or sweep that cannot be used, or a deadline or budget that no plan meets.
        LostWorkerError: a Ray process or the head node was lost; the measured fleets are kept, as after Ctrl-C.
    """
    command = ["rlscale", "workers", *arguments]
    options = parse(WorkersOptions, "workers", arguments)
    try:
        return run_workers(options, command)
    except (KeyboardInterrupt, LostWorkerError) as error:
        error.add_note(f"Fleets that were measured are kept; go on with: {shlex.join(command)}")
        raise
