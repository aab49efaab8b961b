"""What more machines would give: how many times as fast a task would be learned on several machines like the one that was
measured.

The frontier is taken to be the hyperbola with a critical batch size that somebody predicted or measured, so that only ratios of
wall times are known here. Plans with a measured frontier, in seconds and at a price, are in `rlscale.sizing.cost`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .service import FleetTime, LearnerTime

__all__ = ["ScaleOut", "scale_out"]

_MOST_ENVIRONMENTS = 2**12  # of one worker


@dataclass(frozen=True)
class ScaleOut:
    """So many machines at the batch size that makes them fastest.

    Attributes:
        machines: number of them; one learner learns from all.
        batch_size: B, observations of an iteration batch.
        speedup: wall time on one machine at its own best batch size, divided by the wall time here.
        cost: of the whole run, relative to one machine: machines / speedup.
        bound: what takes most of an iteration, `sampling` or `learning`.
    """

    machines: int
    batch_size: int
    speedup: float
    cost: float
    bound: str


def scale_out(
    critical_batch: float,
    fleet: FleetTime,
    learner: LearnerTime,
    *,
    workers: int,
    machines: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
) -> list[ScaleOut]:
    """Relative wall times on several machines, each at its best batch size.

    An iteration makes a batch of B observations on all machines at once and then learns from it: it takes the time of a fleet
    whose workers have B / (machines · workers · T) environments each, plus the learner's L(B). A run takes 1 + B_crit/B times
    the fewest iterations (paper, equation 2.7). Nothing is lost between machines.

    Args:
        critical_batch: B_crit, observations of an iteration batch.
        fleet: of one machine.
        learner: which does not grow with the machines.
        workers: of each machine.
        machines: numbers of them; those that are slower than fewer are left out.

    Raises:
        ValueError: the critical batch size is not positive and finite, or a number of machines is not at least 1.
    """
    if not 0 < critical_batch < math.inf or not all(count >= 1 for count in machines):
        raise ValueError("critical_batch must be positive and finite, and machines at least 1")
    environments = [2**k for k in range(_MOST_ENVIRONMENTS.bit_length())]
    sampling = {count: fleet.seconds(workers, count) for count in environments}

    def best(count: int) -> tuple[float, int, str]:
        """The shortest wall time in fewest iterations' time, the batch size that gives it, and what bounds it."""
        found = []
        for each in environments:
            size = count * workers * each * fleet.rollout_length
            learning = learner.seconds(size)
            bound = "sampling" if sampling[each] >= learning else "learning"
            found.append(((1 + critical_batch / size) * (sampling[each] + learning), size, bound))
        return min(found)

    alone = fastest = best(1)[0]
    found = []
    for count in sorted(machines):
        seconds, size, bound = best(count)
        if seconds <= fastest:
            found.append(ScaleOut(count, size, alone / seconds, count * seconds / alone, bound))
            fastest = seconds
    return found
