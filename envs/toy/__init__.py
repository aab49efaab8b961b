"""Toy tasks, `toy/<name>`: small enough to be understood by hand, all environments stepped in one NumPy call.

`table` holds tasks that are a table of transitions (Gymnasium's FrozenLake, CliffWalking and Taxi, read from Gymnasium itself),
`blackjack` the card game, `connect_four`, `game_2048` and `snake` the board games, `bsuite` Catch and Umbrella, and `digits`
pictures to be named, one a step. Start with `env`, which lists the tasks and makes their environments; what these have in common
is in `..episodes`.
"""

from .env import find_task, list_tasks

__all__ = ["find_task", "list_tasks"]
