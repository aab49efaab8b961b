# SPDX-License-Identifier: MIT
"""MinAtar, `minatar/<game>`: miniature Atari games on 10 x 10 cells, all environments stepped at once in NumPy.

This module only describes the tasks. The games are by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176) and are vectorized
here so closely that they count as derived work: every other file of this folder is under the GPL-3.0, and is loaded when one
of the games is asked for.

- `env`: `MinAtarEnv`, which adds sticky actions, resets and saving to the rules of a game. Start here.
- `base`: `Game`, what the rules of a game must define, and the streams of random numbers that they draw from.
- `asterix`, `breakout`, `freeway`, `seaquest`, `space_invaders`: the rules, a file a game.
"""

from ..task import SweepDefaults, Task, TaskListing, TrainingDefaults

__all__ = ["find_task", "list_tasks"]

# Returns on the way from a random policy's to a good one's. Which were reached is in docs/tasks.md.
_GOALS: dict[str, tuple[float, ...]] = {
    "asterix": (1.0, 2.0),
    "breakout": (2.0, 4.0),
    "freeway": (2.0, 10.0),
    "seaquest": (1.0, 2.0),
    "space_invaders": (8.0, 16.0, 30.0),
}


def list_tasks() -> list[TaskListing]:
    """The five games."""
    return [TaskListing(f"minatar/{game}", "miniature Atari, 10x10 cells, vectorized natively") for game in _GOALS]


def find_task(game: str) -> Task | None:
    """The game of that name; None where there is none."""
    if game not in _GOALS:
        return None
    from .env import GAMES, make_env

    return Task(
        id=f"minatar/{game}",
        frame_shape=(GAMES[game].channels, 10, 10),
        frame_dtype="uint8",
        actions=GAMES[game].actions,
        preprocessing="10x10 cells of 0 or 1, one channel per kind of object, actions repeated with probability 0.1, minimal "
        "action set",
        make_env=make_env,
        network="minatar_cnn",
        goals=_GOALS[game],
        training=TrainingDefaults(environments=128, rollout_length=16),
        sweep=SweepDefaults(learning_rate=2e-2, rate_batch=2048.0, observations=12_000_000),
    )
