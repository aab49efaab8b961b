"""Classic control, `classic/<name>`: small tasks that are learned in seconds, all environments stepped in one NumPy call.

CartPole's environments are Gymnasium's own vectorized ones; Gymnasium steps only one Acrobot or Pendulum at a time, so
`acrobot` and `pendulum` hold vectorized copies of them. Start with `env`, which lists the tasks and makes their environments.
"""

from .env import find_task, list_tasks

__all__ = ["find_task", "list_tasks"]
