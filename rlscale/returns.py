"""`RecentReturn`: the mean return of a run as it is shown everywhere, in progress lines, reports and where a goal ends a run."""

from collections import deque

__all__ = ["EPISODES", "RecentReturn"]

EPISODES = 100


class RecentReturn:
    """Mean raw return of the last 100 finished episodes, or of all while there are fewer.

    Episodes arrive as the means of those that finished in an iteration; as many iterations count as are needed for 100.
    """

    def __init__(self) -> None:
        self._iterations: deque[tuple[int, float]] = deque()
        self.episodes = 0

    def add(self, episodes: int, return_mean: float | None) -> None:
        """Take in the episodes that finished in an iteration; None where there were none."""
        if not episodes or return_mean is None:
            return
        self._iterations.append((episodes, return_mean))
        self.episodes += episodes
        while self.episodes - self._iterations[0][0] >= EPISODES:
            self.episodes -= self._iterations.popleft()[0]

    @property
    def mean(self) -> float | None:
        """The mean return; None before an episode has finished."""
        return sum(count * mean for count, mean in self._iterations) / self.episodes if self.episodes else None

    def reached(self, goal: float | None) -> bool:
        """Whether 100 episodes or more have that mean return; False for no goal."""
        return goal is not None and self.episodes >= EPISODES and (self.mean or 0.0) >= goal
