"""`LocalFleet`: a rollout worker in this process. Its methods say what a run needs of a fleet; `RayFleet` has the same ones.

Fragments are requested ahead and taken one by one, always in the order of the groups of environments that make them, whichever
worker is ready first. So a run without faults does not depend on the clock, and both fleets make the same fragments.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .fragments import Fragment, FragmentSummary
from .worker import RolloutWorker, WorkerSettings

__all__ = ["LocalFleet", "LostActor", "Sampled"]


class Sampled(NamedTuple):
    """A fragment that was taken: its summary, itself, and its reference in Ray's object store if it lies there."""

    summary: FragmentSummary
    fragment: Fragment
    reference: Any = None


@dataclass
class LostActor:
    """A rollout actor that was lost.

    Attributes:
        what: `died`, `hung`, `node lost`, `out of memory`, or `no room` in the object store.
        actor: its number.
        groups: that it held, and that are others' now.
        afresh: those of them whose environments were made afresh; the others went on from the end of their last fragment.
        fragments: number that were requested again.
        replaced_by: number of the new actor that got its groups; None where the remaining actors took them.
        noticed: when, on this process's monotonic clock.
        recovery_seconds: from then until the first of those fragments arrived; None until it has.
    """

    what: str
    actor: int
    groups: list[int]
    afresh: list[int]
    fragments: int
    replaced_by: int | None
    noticed: float
    recovery_seconds: float | None = None


class LocalFleet:
    """All groups of environments in this process, one after another: for debugging, tests and many small runs side by side.

    A fragment is made when it is taken. Groups of environments take turns: fragment i of a run is made by group i modulo their
    number.

    Attributes:
        actors: Ray actors that work now; 0, since this process samples.
        generation: the highest that any group of this fleet was made with.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._generations = [settings.generation] * (settings.workers * settings.groups)
        self._worker = RolloutWorker(settings, 0, dict(enumerate(self._generations)))
        self._requested: deque[tuple[np.ndarray, int, int]] = deque()  # parameters, policy version, fragments still to be made
        self._next_group = 0
        self.actors = 0

    @property
    def generation(self) -> int:
        return max(self._generations)

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        """Request that many more fragments, made with these parameters, (P,) float32; they queue up behind earlier ones."""
        self._requested.append((weights, policy_version, fragments))

    def take(self) -> Sampled:
        """The next fragment."""
        weights, version, left = self._requested.popleft()
        if left > 1:
            self._requested.appendleft((weights, version, left - 1))
        group = self._next_group
        self._next_group = (group + 1) % len(self._generations)
        self._worker.use_policy(weights, version)
        fragment = self._worker.sample(version, group)
        return Sampled(fragment.summary, fragment)

    def release(self, fragments: int) -> None:
        """Give up that many of the taken fragments; others may be made in their place. Here nothing waits for room."""

    def lost_actors(self) -> list[LostActor]:
        """The actors that were lost since this was last called."""
        return []

    def get_state(self) -> dict[str, Any] | None:
        """All that is needed to go on exactly from here; None where the environments cannot be saved.

        `states` and `generations` are those of the groups, by number; `requested` holds parameters, policy version and number of
        the fragments still to be taken, the first of them of `next_group`. Either fleet goes on from what the other gave.
        """
        states = [self._worker.state_of(group) for group in range(len(self._generations))]
        if any(state is None for state in states):
            return None
        return {
            "states": states,
            "generations": list(self._generations),
            "requested": list(self._requested),
            "next_group": self._next_group,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called, with as many environments in as many groups."""
        self._generations = list(state["generations"])
        for group, of_group in enumerate(state["states"]):
            self._worker.take_over_group(group, self._generations[group], of_group)
        self._requested, self._next_group = deque(state["requested"]), state["next_group"]

    def draw_from(self, stream: np.random.SeedSequence) -> None:
        """Go on from here with other random numbers, those of the stream, for actions and environments."""
        self._worker.draw_from(stream.spawn(1)[0])

    def close(self) -> None:
        self._worker.close()
