"""`Homes`: which actor holds which group of environments, and how often each group was made afresh.

Plain bookkeeping, so that it can be read and tested without a cluster; what is done about a lost actor is in `fleet`.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Homes"]


class Homes:
    """Groups are dealt out to the actors in turn; later they move, and are then made afresh.

    Args:
        groups: how many there are; their number never changes.
        actors: how many hold them at first, under the numbers 0, 1, …
        generation: of all groups at first.

    Attributes:
        home: (groups,) the number of the actor that holds each group.
        generation: (groups,) of each group; raised whenever its environments are made afresh, so that (generation, group) never
            comes twice in a run and may seed a stream of random numbers.
    """

    def __init__(self, groups: int, actors: int, generation: int) -> None:
        self._actors = actors
        self.home = [group % actors for group in range(groups)]
        self.generation = [generation] * groups

    def held(self) -> list[dict[int, int]]:
        """For each of the actors that it begins with, the generations of its groups, by number."""
        return [{group: self.generation[group] for group in self.held_by(actor)} for actor in range(self._actors)]

    def held_by(self, actor: int) -> list[int]:
        """The groups of that actor, ascending."""
        return [group for group, home in enumerate(self.home) if home == actor]

    def move(self, group: int, actor: int) -> None:
        """Give the group to that actor, which makes its environments afresh."""
        self.home[group] = actor
        self.generation[group] += 1

    def share_out(self, groups: Iterable[int], actors: Iterable[int]) -> None:
        """Give each of the groups to whoever of the actors holds the fewest then."""
        held = {actor: len(self.held_by(actor)) for actor in actors}
        for group in groups:
            emptiest = min(held, key=lambda actor: (held[actor], actor))
            held[emptiest] += 1
            self.move(group, emptiest)

    def make_room(self, newcomer: int, actors: Iterable[int]) -> list[tuple[int, int]]:
        """Move groups from the fullest actors to a new one, until it holds as many as it can without being the fullest.

        Returns:
            The groups that moved, each with the actor that held it before.
        """
        held = {actor: self.held_by(actor) for actor in actors if actor != newcomer}
        mine = len(self.held_by(newcomer))
        moved = []
        while held:
            fullest = max(held, key=lambda actor: (len(held[actor]), -actor))
            if len(held[fullest]) <= mine + 1:
                break
            group = held[fullest].pop()
            self.move(group, newcomer)
            moved.append((group, fullest))
            mine += 1
        return moved
