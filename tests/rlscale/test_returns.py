"""The mean return that is shown: of the last 100 episodes, wherever it is shown."""

import numpy as np
import pytest

from rlscale.returns import RecentReturn


def test_it_is_the_mean_of_the_fewest_last_iterations_that_hold_a_hundred_episodes():
    """Against a slow reference, over iterations with 0 to 60 episodes."""
    rng = np.random.default_rng(0)
    recent, iterations = RecentReturn(), []
    for _ in range(200):
        episodes = int(rng.integers(0, 60) * (rng.random() < 0.6))
        mean = float(rng.normal()) if episodes else None
        recent.add(episodes, mean)
        iterations += [(episodes, mean)] if episodes else []
        kept = []
        for one in reversed(iterations):
            if sum(n for n, _ in kept) >= 100:
                break
            kept.append(one)
        total = sum(n for n, _ in kept)
        assert recent.episodes == total
        assert recent.mean == (pytest.approx(sum(n * m for n, m in kept) / total) if total else None)


def test_a_goal_needs_a_hundred_episodes():
    recent = RecentReturn()
    assert recent.mean is None
    assert not recent.reached(-1000.0)
    recent.add(99, 50.0)
    assert not recent.reached(10.0)
    recent.add(1, 50.0)
    assert recent.reached(50.0)
    assert not recent.reached(50.1)
    assert not recent.reached(None)
