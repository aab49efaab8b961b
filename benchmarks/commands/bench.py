"""`rlscale bench`: measures a machine or a Ray cluster with a fixed suite, or compares two results.

rlscale bench [--ray-address A] [--rounds N] [--out FILE]        measure; the same command goes on where it stopped
rlscale bench --compare A B                                      ratios with their intervals
"""

import shlex

from rlscale.agents.cluster import LostWorkerError

from ..bench import BenchOptions, run_bench
from ..console import plain_console
from ..options import parse

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Measure or compare, as the arguments say.

    Raises:
        UsageError: a cluster that cannot be used, or files that cannot be compared or continued.
        LostWorkerError: a Ray process or the head node was lost; complete rounds are kept, as after Ctrl-C.
    """
    options, command = parse(BenchOptions, "bench", arguments), ["rlscale", "bench", *arguments]
    try:
        return run_bench(options, command, plain_console())
    except (KeyboardInterrupt, LostWorkerError) as error:
        error.add_note(f"Rounds that were complete are kept; go on with: {shlex.join(command)}")
        raise
