"""The toy tasks: their names, goals and environments."""

from functools import partial
from typing import Any

from ..interface import TaskEnv
from ..task import SweepDefaults, Task, TaskListing, TrainingDefaults
from ..vector import RestartableTaskEnv

__all__ = ["find_task", "list_tasks"]

_NOTES = {
    "frozenlake": "Gymnasium's FrozenLake-v1, 4x4 and slippery, as a table",
    "frozenlake8x8": "Gymnasium's FrozenLake8x8-v1, slippery, as a table",
    "cliffwalking": "Gymnasium's CliffWalking-v1 with a limit of 200 steps, as a table",
    "taxi": "Gymnasium's Taxi-v3 as a table",
    "blackjack": "Gymnasium's Blackjack-v1, vectorized natively",
    "digits": "name scikit-learn's 8x8 digits, one a step: a positive control",
    "catch": "bsuite's Catch: a ball falls, a paddle of one cell is to be below it",
    "umbrella": "bsuite's Umbrella of 10 steps with 20 distractors: the first action decides the last reward",
    "connect-four": "Connect Four against a player who drops discs at random",
    "2048": "the game 2048: push equal tiles together",
    "snake": "Snake on 8x8 cells: apples eaten",
}
_TASKS: dict[str, dict[str, Any]] = {
    "frozenlake": dict(frame_shape=(16,), actions=4, goals=(0.3, 0.6)),
    "frozenlake8x8": dict(frame_shape=(64,), actions=4, goals=(0.3, 0.6)),
    "cliffwalking": dict(frame_shape=(48,), actions=4, goals=(-100.0, -25.0)),
    "taxi": dict(frame_shape=(500,), actions=6, goals=(-100.0, 0.0)),
    "blackjack": dict(frame_shape=(45,), actions=2, goals=(-0.15, -0.1)),
    "digits": dict(frame_shape=(64,), actions=10, goals=(0.9, 0.95)),
    "catch": dict(frame_shape=(50,), actions=3, goals=(0.0, 0.8)),
    "umbrella": dict(frame_shape=(23,), actions=2, goals=(0.5, 0.8)),
    "connect-four": dict(frame_shape=(84,), actions=7, goals=(0.6, 0.9)),
    "2048": dict(frame_shape=(256,), actions=4, goals=(2000.0, 3000.0), reward_scale=0.01),  # rewards are 0 to 1024
    "snake": dict(frame_shape=(192,), actions=4, goals=(3.0, 8.0)),
}
_PREPROCESSING = {  # the others: one-hot
    "digits": "pixels from 0 to 1",
    "catch": "as they are",
    "umbrella": "as they are",
    "connect-four": "the discs of both players, cell by cell",
    "snake": "body, head and apple, cell by cell",
}
_EPISODES = {
    "blackjack": 4096,
    "digits": 1024,
    "catch": 1024,
    "umbrella": 4096,
    "connect-four": 1024,
}  # of one evaluation, where luck rules an episode


def list_tasks() -> list[TaskListing]:
    """All of them."""
    return [TaskListing(f"toy/{name}", note) for name, note in _NOTES.items()]


def find_task(name: str) -> Task | None:
    """The task of that name; None where there is none."""
    if name not in _TASKS:
        return None
    return Task(
        id=f"toy/{name}",
        frame_dtype="float32",
        preprocessing=_PREPROCESSING.get(name, "one-hot"),
        make_env=make_env,
        training=TrainingDefaults(environments=32),
        sweep=SweepDefaults(learning_rate=3e-3, rate_batch=512.0, observations=4_000_000, episodes=_EPISODES.get(name, 64)),
        **_TASKS[name],
    )


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """N environments, all stepped in one NumPy call."""
    from .blackjack import BlackjackVectorEnv
    from .bsuite import CatchVectorEnv, UmbrellaVectorEnv
    from .connect_four import ConnectFourVectorEnv
    from .digits import DigitsVectorEnv
    from .game_2048 import Game2048VectorEnv
    from .snake import SnakeVectorEnv
    from .table import TableVectorEnv

    makers: dict[str, Any] = {
        "toy/frozenlake": partial(TableVectorEnv, name="FrozenLake-v1", max_episode_steps=100, is_slippery=True),
        "toy/frozenlake8x8": partial(TableVectorEnv, name="FrozenLake8x8-v1", max_episode_steps=200, is_slippery=True),
        "toy/cliffwalking": partial(TableVectorEnv, name="CliffWalking-v1", max_episode_steps=200),
        "toy/taxi": partial(TableVectorEnv, name="Taxi-v3", max_episode_steps=200),
        "toy/blackjack": BlackjackVectorEnv,
        "toy/digits": DigitsVectorEnv,
        "toy/catch": CatchVectorEnv,
        "toy/umbrella": UmbrellaVectorEnv,
        "toy/connect-four": ConnectFourVectorEnv,
        "toy/2048": Game2048VectorEnv,
        "toy/snake": SnakeVectorEnv,
    }
    return RestartableTaskEnv(task, makers[task.id](num_envs), one_seed=True)
