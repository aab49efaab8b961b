"""`rlscale advise`: within minutes, which batch size and how many actors a task is worth here."""

from ..advise import AdviseOptions, run_advise
from ..options import parse

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Train for a minute, measure a few fleets, say what follows.

    Raises:
        UsageError: a task, run, option or cluster that cannot be used.
        LostWorkerError: a Ray process or the head node was lost.
    """
    return run_advise(parse(AdviseOptions, "advise", arguments), ["rlscale", "advise", *arguments])
