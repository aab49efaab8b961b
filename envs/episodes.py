"""`EpisodesVectorEnv`: N environments whose state is one array, with a limit of steps. What a step does is up to a task."""

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

__all__ = ["EpisodesVectorEnv"]


class EpisodesVectorEnv(VectorEnv):  # type: ignore[misc]  # gymnasium is untyped
    """Environments that start, move and are seen as a subclass says; ends reset on the next step.

    Args:
        num_envs: N.
        observation_space: of one environment.
        action_space: of one environment.
        max_episode_steps: after which an episode is cut short.

    Attributes:
        state: the state of every environment, (N, …) unless a subclass says otherwise in `renew`.
        steps: (N,) steps of the running episodes.
        prev_done: (N,) episodes that the next step resets.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, observation_space: Space, action_space: Space, max_episode_steps: int) -> None:
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.steps = np.zeros(num_envs, dtype=np.int32)
        self.prev_done = np.zeros(num_envs, dtype=bool)

    def start(self, count: int) -> np.ndarray:
        """States of so many new episodes."""
        raise NotImplementedError

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The states after these actions, the rewards, and which episodes ended."""
        raise NotImplementedError

    def observe(self, state: np.ndarray) -> np.ndarray:
        """What the agent sees of these states."""
        return state

    def renew(self, state: np.ndarray, which: np.ndarray) -> None:
        """Put the states of new episodes into those of the environments of the (N,) bool mask."""
        state[which] = self.start(int(which.sum()))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.start(self.num_envs)
        return self._begin(np.ones(self.num_envs, dtype=bool)), {}

    def restart(self, which: np.ndarray) -> np.ndarray:
        """Begin an episode in the environments of the (N,) bool mask; the observations of all."""
        self.state = self.state.copy()  # what was seen before may be the same array
        self.renew(self.state, which)
        return self._begin(which)

    def _begin(self, which: np.ndarray) -> np.ndarray:
        """Count anew in the environments of the mask, whose states are new; the observations of all."""
        self.steps[which] = 0
        self.prev_done[which] = False
        return self.observe(self.state)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        reset = self.prev_done
        state, reward, terminated = self.move(self.state, actions)
        if reset.any():
            self.renew(state, reset)
        self.state = state
        self.steps = np.where(reset, 0, self.steps + 1).astype(np.int32)
        terminated = terminated & ~reset
        truncated = (self.steps >= self.max_episode_steps) & ~terminated & ~reset
        self.prev_done = terminated | truncated
        return self.observe(state), np.where(reset, 0.0, reward).astype(np.float32), terminated, truncated, {}
