"""Acrobot, N at a time in NumPy: the dynamics of Gymnasium's `Acrobot-v1`, which steps only one. Nothing else lives here.

Dynamics: Sutton and Barto's book, integrated by one fourth-order Runge-Kutta step of 0.2 s, as in Gymnasium (MIT licence);
a test steps both side by side.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["AcrobotVectorEnv"]

_DT = 0.2
_GRAVITY = 9.8
_COM = 0.5  # distance of a link's centre of mass from its joint; masses, lengths and moments of inertia are all 1
_MAX_VELOCITY = np.array([4 * np.pi, 9 * np.pi])[:, None]


class AcrobotVectorEnv(EpisodesVectorEnv):
    """N acrobots.

    Attributes:
        state: (4, N) float64: two angles, two angular velocities.
    """

    def __init__(self, num_envs: int) -> None:
        high = np.array([1, 1, 1, 1, *_MAX_VELOCITY[:, 0]], dtype=np.float32)
        super().__init__(num_envs, Box(-high, high, dtype=np.float32), Discrete(3), 500)

    def start(self, count: int) -> np.ndarray:
        return self.np_random.uniform(-0.1, 0.1, size=(4, count))

    def renew(self, state: np.ndarray, which: np.ndarray) -> None:
        state[:, which] = self.start(int(which.sum()))

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state = _runge_kutta(state, actions - 1.0)
        state[:2] = (state[:2] + np.pi) % (2 * np.pi) - np.pi
        state[2:] = np.clip(state[2:], -_MAX_VELOCITY, _MAX_VELOCITY)
        terminated = -np.cos(state[0]) - np.cos(state[1] + state[0]) > 1.0
        return state, np.where(terminated, 0.0, -1.0), terminated

    def observe(self, state: np.ndarray) -> np.ndarray:
        first, second, *velocities = state
        return np.stack([np.cos(first), np.sin(first), np.cos(second), np.sin(second), *velocities], axis=1).astype(np.float32)


def _runge_kutta(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    k1 = _derivative(state, torque)
    k2 = _derivative(state + _DT / 2 * k1, torque)
    k3 = _derivative(state + _DT / 2 * k2, torque)
    k4 = _derivative(state + _DT * k3, torque)
    return state + _DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _derivative(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """d(state)/dt, (4, N), of the equations in Sutton and Barto's book."""
    angle1, angle2, velocity1, velocity2 = state
    cosine, sine = np.cos(angle2), np.sin(angle2)
    d1 = _COM**2 + (1 + _COM**2 + 2 * _COM * cosine) + 2
    d2 = _COM**2 + _COM * cosine + 1
    phi2 = _COM * _GRAVITY * np.cos(angle1 + angle2 - np.pi / 2)
    phi1 = (
        -_COM * velocity2**2 * sine
        - 2 * _COM * velocity2 * velocity1 * sine
        + (_COM + 1) * _GRAVITY * np.cos(angle1 - np.pi / 2)
        + phi2
    )
    acceleration2 = (torque + d2 / d1 * phi1 - _COM * velocity1**2 * sine - phi2) / (_COM**2 + 1 - d2**2 / d1)
    acceleration1 = -(d2 * acceleration2 + phi1) / d1
    return np.stack([velocity1, velocity2, acceleration1, acceleration2])
