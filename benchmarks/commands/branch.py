"""`rlscale branch`: the critical batch size of a run where it stands, from short branches that start at its checkpoint."""

import signal

from rlscale.agents.cluster.sigterm import handled

from ..branch.options import BranchOptions
from ..branch.run import run_branches
from ..console import plain_console
from ..options import parse

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Measure the noise at the checkpoint, make the branches, say what they show.

    Raises:
        UsageError: a run, option or folder that cannot be used, or so many branches diverged that too few are left.
        KeyboardInterrupt: stopped, by Ctrl-C or SIGTERM; what had ended is recorded.
    """
    options = parse(BranchOptions, "branch", arguments)
    with handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.default_int_handler)):
        run_branches(options, ["rlscale", "branch", *arguments], plain_console())
    return 0
