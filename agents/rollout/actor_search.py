"""`ActorSearch`: how many rollout actors a run keeps that weighs them against their price (`--actors auto --actor-price`).

The run itself is the measurement: a few iterations with each number of actors that is tried. What starts and ends actors is the
fleet. How many to buy before there is a run is `rlscale.sizing`'s question.
"""

import statistics
from dataclasses import dataclass

from .ray_fleet import RayFleet

__all__ = ["ActorSearch", "ActorTrial", "useful_counts"]

WINDOW = 8  # iterations that are measured with each number of actors; their median forgives one that is disturbed


@dataclass(frozen=True)
class ActorTrial:
    """What a number of actors gave.

    Attributes:
        actors: that number.
        observations_per_second: of the run, end to end; the median over the iterations of the trial.
        next: number of actors that the run has from here on.
        settled: whether it stays at that.
    """

    actors: int
    observations_per_second: float
    next: int
    settled: bool


class ActorSearch:
    """Finds the number of actors n at which observations per second are cheapest: the largest rate(n) / (1 + price · n).

    Goodput is throughput times the worth of an observation, which falls as the batch grows (the paper's equation 2.11). A run's
    batch does not depend on its actors, so that worth is the same for each n and falls out of the comparison.

    Actors double while that pays. Then the numbers about the best one are halved until it has no untried neighbour. That finds
    the largest value if there is one peak, as there is where each actor adds no more than the one before. Once settled, it stays.

    Args:
        fleet: of the run; told here how many actors it should have, one at first.
        price: of an actor, as a share of what the rest of the run costs. At 0 it is the fastest number.
        groups: of environments, which are dealt out to the actors.
        settle: first iterations with a new number that are not measured: its environments were being made.
    """

    def __init__(self, fleet: RayFleet, price: float, groups: int, settle: int) -> None:
        self._fleet, self._price, self._settle = fleet, price, settle
        self._counts = useful_counts(groups)
        self._tried: dict[int, float] = {}
        self._window: list[float] = []
        self._wanted, self._settled = 1, False
        fleet.resize(1)

    def add(self, observations: int, seconds: float) -> ActorTrial | None:
        """Take in an iteration; the trial that it completes, if it does.

        Args:
            observations: of its batch.
            seconds: that it took.
        """
        if self._settled:
            return None
        if self._fleet.actors != self._wanted:
            self._window.clear()
            if not self._fleet.short:
                return None
            # There is no room for so many: what there is now is the most.
            self._counts = [count for count in self._counts if count < self._fleet.actors] + [self._fleet.actors]
            self._wanted = self._fleet.actors
            self._fleet.resize(self._wanted)
            if self._wanted in self._tried:
                return self._go_on(self._wanted)
        self._window.append(observations / seconds)
        if len(self._window) < self._settle + WINDOW:
            return None
        self._tried[self._wanted] = statistics.median(self._window[self._settle :])
        return self._go_on(self._wanted)

    def _go_on(self, tried: int) -> ActorTrial:
        """Choose the number that comes after this one."""
        self._window.clear()
        following = self._following()
        self._settled = following is None
        self._wanted = self._best() if following is None else following
        self._fleet.resize(self._wanted)
        return ActorTrial(tried, self._tried[tried], self._wanted, self._settled)

    def _best(self) -> int:
        return max(self._tried, key=lambda actors: (self._tried[actors] / (1 + self._price * actors), -actors))

    def _following(self) -> int | None:
        """The number to try next; None where none is left."""
        best = self._best()
        above = min((n for n in self._tried if n > best), default=None)
        if above is None and (further := [n for n in self._counts if n > best]):
            return next((n for n in further if n >= 2 * best), further[-1])
        below = max((n for n in self._tried if n < best), default=0)
        untried = [n for n in self._counts if below < n < (best if above is None else above) and n != best]
        parts = [n for n in untried if n < best], [n for n in untried if n > best]
        larger = max(parts, key=len)
        return larger[len(larger) // 2] if larger else None


def useful_counts(groups: int) -> list[int]:
    """The numbers of actors, ascending, that no smaller number equals: an iteration takes as long as the fullest actor, ⌈G/n⌉."""
    return sorted({-(-groups // fullest) for fullest in range(1, groups + 1)})
