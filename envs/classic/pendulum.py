"""Pendulum, N at a time in NumPy: the dynamics of Gymnasium's `Pendulum-v1`, which steps only one. Nothing else lives here.

A pole hangs from a motor that is too weak to lift it at once: swing it up and hold it there. As in Gymnasium (MIT licence); a
test steps both side by side.
"""

import numpy as np
from gymnasium.spaces import Box

from ..episodes import EpisodesVectorEnv

__all__ = ["PendulumVectorEnv"]

_DT = 0.05
_GRAVITY = 10.0  # mass and length are 1
_MAX_SPEED, _MAX_TORQUE = 8.0, 2.0


class PendulumVectorEnv(EpisodesVectorEnv):
    """N pendulums; every episode is cut after the same number of steps.

    Attributes:
        state: (2, N) float64: the angle, zero where the pole stands, and the angular velocity.
    """

    def __init__(self, num_envs: int) -> None:
        high = np.array([1, 1, _MAX_SPEED], dtype=np.float32)
        torques = Box(-_MAX_TORQUE, _MAX_TORQUE, (1,), dtype=np.float32)
        super().__init__(num_envs, Box(-high, high, dtype=np.float32), torques, 200)

    def start(self, count: int) -> np.ndarray:
        return self.np_random.uniform(-1, 1, size=(2, count)) * [[np.pi], [1.0]]

    def renew(self, state: np.ndarray, which: np.ndarray) -> None:
        state[:, which] = self.start(int(which.sum()))

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        angle, speed = state
        torque = np.clip(actions[:, 0].astype(np.float64), -_MAX_TORQUE, _MAX_TORQUE)
        off = (angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(off**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = np.clip(speed + (1.5 * _GRAVITY * np.sin(angle) + 3 * torque) * _DT, -_MAX_SPEED, _MAX_SPEED)
        return np.stack([angle + speed * _DT, speed]), reward, np.zeros(self.num_envs, dtype=bool)

    def observe(self, state: np.ndarray) -> np.ndarray:
        angle, speed = state
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)
