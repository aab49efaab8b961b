"""Acrobot, N at a time in NumPy: the dynamics of Gymnasium's `Acrobot-v1`, which steps only one. Nothing else lives here.

Dynamics: Sutton and Barto's book, integrated by one fourth-order Runge-Kutta step of 0.2 s, as in Gymnasium (MIT licence);
a test steps both side by side.
"""

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

__all__ = ["AcrobotVectorEnv"]

_DT = 0.2
_GRAVITY = 9.8
_COM = 0.5  # distance of a link's centre of mass from its joint; masses, lengths and moments of inertia are all 1
_MAX_VELOCITY = np.array([4 * np.pi, 9 * np.pi])[:, None]


class AcrobotVectorEnv(VectorEnv):  # type: ignore[misc]  # gymnasium is untyped
    """N acrobots; ends reset on the next step.

    Attributes:
        state: (4, N) float64: two angles, two angular velocities.
        steps: (N,) steps of the running episodes.
        prev_done: (N,) episodes that the next step resets.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, max_episode_steps: int = 500) -> None:
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        high = np.array([1, 1, 1, 1, *_MAX_VELOCITY[:, 0]], dtype=np.float32)
        self.single_observation_space = Box(-high, high, dtype=np.float32)
        self.single_action_space = Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.state = np.zeros((4, num_envs))
        self.steps = np.zeros(num_envs, dtype=np.int32)
        self.prev_done = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self._start(self.num_envs)
        self.steps[:] = 0
        self.prev_done[:] = False
        return self._observation(), {}

    def _start(self, count: int) -> np.ndarray:
        return self.np_random.uniform(-0.1, 0.1, size=(4, count))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        reset = self.prev_done
        state = _runge_kutta(self.state, actions - 1.0)
        state[:2] = (state[:2] + np.pi) % (2 * np.pi) - np.pi
        state[2:] = np.clip(state[2:], -_MAX_VELOCITY, _MAX_VELOCITY)
        state[:, reset] = self._start(int(reset.sum()))
        self.state = state
        self.steps = np.where(reset, 0, self.steps + 1).astype(np.int32)
        terminated = (-np.cos(state[0]) - np.cos(state[1] + state[0]) > 1.0) & ~reset
        truncated = (self.steps >= self.max_episode_steps) & ~reset
        reward = np.where(terminated | reset, 0.0, -1.0).astype(np.float32)
        self.prev_done = terminated | truncated
        return self._observation(), reward, terminated, truncated, {}

    def _observation(self) -> np.ndarray:
        first, second, *velocities = self.state
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
