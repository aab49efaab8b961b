"""Pendulum, N at a time in NumPy: the dynamics of Gymnasium's `Pendulum-v1`, which steps only one. Nothing else lives here.

A pole hangs from a motor that is too weak to lift it at once: swing it up and hold it there. As in Gymnasium (MIT licence); a
test steps both side by side.
"""

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

__all__ = ["PendulumVectorEnv"]

_DT = 0.05
_GRAVITY = 10.0  # mass and length are 1
_MAX_SPEED, _MAX_TORQUE = 8.0, 2.0


class PendulumVectorEnv(VectorEnv):  # type: ignore[misc]  # gymnasium is untyped
    """N pendulums; every episode is cut after the same number of steps, and the next step resets.

    Attributes:
        state: (2, N) float64: the angle, zero where the pole stands, and the angular velocity.
        steps: (N,) steps of the running episodes.
        prev_done: (N,) episodes that the next step resets.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, max_episode_steps: int = 200) -> None:
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        high = np.array([1, 1, _MAX_SPEED], dtype=np.float32)
        self.single_observation_space = Box(-high, high, dtype=np.float32)
        self.single_action_space = Box(-_MAX_TORQUE, _MAX_TORQUE, (1,), dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.state = np.zeros((2, num_envs))
        self.steps = np.zeros(num_envs, dtype=np.int32)
        self.prev_done = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.restart(np.ones(self.num_envs, dtype=bool)), {}

    def restart(self, which: np.ndarray) -> np.ndarray:
        """Begin an episode in the environments of the (N,) bool mask; the observations of all."""
        self.state[:, which] = self._start(int(which.sum()))
        self.steps[which] = 0
        self.prev_done[which] = False
        return self._observation()

    def _start(self, count: int) -> np.ndarray:
        return self.np_random.uniform(-1, 1, size=(2, count)) * [[np.pi], [1.0]]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        reset, (angle, speed) = self.prev_done, self.state
        torque = np.clip(actions[:, 0].astype(np.float64), -_MAX_TORQUE, _MAX_TORQUE)
        off = (angle + np.pi) % (2 * np.pi) - np.pi
        reward = np.where(reset, 0.0, -(off**2 + 0.1 * speed**2 + 0.001 * torque**2)).astype(np.float32)
        speed = np.clip(speed + (1.5 * _GRAVITY * np.sin(angle) + 3 * torque) * _DT, -_MAX_SPEED, _MAX_SPEED)
        state = np.stack([angle + speed * _DT, speed])
        state[:, reset] = self._start(int(reset.sum()))
        self.state = state
        self.steps = np.where(reset, 0, self.steps + 1).astype(np.int32)
        truncated = (self.steps >= self.max_episode_steps) & ~reset
        self.prev_done = truncated
        return self._observation(), reward, np.zeros(self.num_envs, dtype=bool), truncated.copy(), {}

    def _observation(self) -> np.ndarray:
        angle, speed = self.state
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)
