"""The classic control tasks: their names, goals and environments."""

from dataclasses import replace
from typing import Any

from ..actions import BoxActions
from ..interface import TaskEnv
from ..task import SweepDefaults, Task, TaskListing, TrainingDefaults
from ..vector import ArraysTaskEnv, RestartableTaskEnv

__all__ = ["find_task", "list_tasks"]

_SWEEP = SweepDefaults(learning_rate=3e-3, rate_batch=512.0, observations=4_000_000)
_TASKS: dict[str, dict[str, Any]] = {
    "cartpole": dict(frame_shape=(4,), actions=2, discount=0.98, goals=(100.0, 200.0, 400.0)),
    "acrobot": dict(
        frame_shape=(6,),
        actions=3,
        goals=(-200.0, -100.0),
        sweep=replace(_SWEEP, random_first_steps=500),
    ),
    "pendulum": dict(
        frame_shape=(3,),
        actions=BoxActions((-2.0,), (2.0,)),
        discount=0.95,
        reward_scale=0.02,  # rewards are -16 … 0
        goals=(-600.0, -300.0, -200.0),
        sweep=SweepDefaults(
            learning_rate=0.01, rate_batch=8192.0, observations=6_000_000, rollout_length=20, random_first_steps=200
        ),
    ),
}


def list_tasks() -> list[TaskListing]:
    """All of them."""
    return [TaskListing(f"classic/{name}", "Gymnasium classic control, vectorized natively") for name in _TASKS]


def find_task(name: str) -> Task | None:
    """The task of that name; None where there is none."""
    if name not in _TASKS:
        return None
    return Task(
        id=f"classic/{name}",
        frame_dtype="float32",
        preprocessing="none",
        make_env=make_env,
        training=TrainingDefaults(environments=32),
        **(dict(sweep=_SWEEP) | _TASKS[name]),
    )


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """N environments, all stepped in one NumPy call."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    from .acrobot import AcrobotVectorEnv
    from .pendulum import PendulumVectorEnv

    if task.id == "classic/cartpole":
        return ArraysTaskEnv(task, CartPoleVectorEnv(num_envs), one_seed=True)
    makers = {"classic/acrobot": AcrobotVectorEnv, "classic/pendulum": PendulumVectorEnv}
    return RestartableTaskEnv(task, makers[task.id](num_envs), one_seed=True)
