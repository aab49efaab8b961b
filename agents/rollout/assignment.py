"""`GroupAssignment`: which actor holds which group of environments, and how often each group was made afresh.

Plain bookkeeping, so that it can be read and tested without a cluster.
"""

from collections import Counter
from collections.abc import Iterable

__all__ = ["GroupAssignment"]


class GroupAssignment:
    """Deals groups of environments out to actors in turn.

    Args:
        groups: how many there are; their number never changes.
        actors: how many hold them at first, under the numbers 0, 1, …
        generation: of all groups at first.

    Attributes:
        actor_of: (groups,) the number of the actor that holds each group.
        generation: (groups,) of each group; raised whenever its environments are made afresh, so that (generation, group) never
            comes twice in a run and can seed a stream of random numbers.
    """

    def __init__(self, groups: int, actors: int, generation: int) -> None:
        self.actor_of = [group % actors for group in range(groups)]
        self.generation = [generation] * groups

    def groups_of(self, actor: int) -> list[int]:
        """The groups of that actor, ascending."""
        return [group for group, holder in enumerate(self.actor_of) if holder == actor]

    def share_out(self, groups: Iterable[int], actors: Iterable[int]) -> None:
        """Give each of the groups in turn to the actor that then holds the fewest."""
        counts = Counter(self.actor_of)
        held = {actor: counts[actor] for actor in actors}
        for group in groups:
            emptiest = min(held, key=lambda actor: (held[actor], actor))
            held[emptiest] += 1
            self.actor_of[group] = emptiest

    def make_room(self, newcomer: int, actors: Iterable[int]) -> list[tuple[int, int]]:
        """Move groups from the fullest actors to a new one, as many as it can hold without becoming the fullest.

        Returns:
            The groups that moved, each with the actor that held it before.
        """
        held: dict[int, list[int]] = {actor: [] for actor in actors if actor != newcomer}
        for group, holder in enumerate(self.actor_of):
            if holder in held:
                held[holder].append(group)
        mine = self.actor_of.count(newcomer)
        moved = []
        while held:
            fullest = max(held, key=lambda actor: (len(held[actor]), -actor))
            if len(held[fullest]) <= mine + 1:
                break
            group = held[fullest].pop()
            self.actor_of[group] = newcomer
            moved.append((group, fullest))
            mine += 1
        return moved
