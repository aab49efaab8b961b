"""`make_env`, which makes the environments of any task, and those of ale-py and Gymnasium behind `rlscale.envs.interface`.

Those of MinAtar and EnvPool have modules of their own. Learning does not live here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .interface import Step, TaskEnv
from .registry import ATARI_FRAME_SKIP, ATARI_STACK, Task

__all__ = ["AtariEnv", "GymnasiumEnv", "make_env"]


def make_env(task: Task, num_envs: int, *, threads: int = 1, cut_on_life_loss: bool = True) -> TaskEnv:
    """N environments of the task.

    Args:
        task: from `envs.find_task`.
        num_envs: N, at least 1.
        threads: threads that step Atari and EnvPool environments; others are stepped by the caller's thread.
        cut_on_life_loss: Atari: a lost life ends the return (`terminated`) while the game goes on.
    """
    if task.kind == "atari":
        return AtariEnv(task, num_envs, threads=threads, cut_on_life_loss=cut_on_life_loss)
    if task.kind == "pool":
        from .envpool import PoolEnv

        return PoolEnv(task.id.removeprefix("pool/"), num_envs, threads=threads)
    if task.kind == "minatar":
        from .minatar.env import MinAtarEnv

        return MinAtarEnv(task.id.removeprefix("minatar/"), num_envs)
    return GymnasiumEnv(task, num_envs)


class AtariEnv:
    """Atari games through `ale_py.vector_env.AtariVectorEnv` (ale-py is licensed under the GPL-2.0)."""

    def __init__(self, task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        height, width = task.frame_shape
        rom = task.id.removeprefix("atari/").partition("@")[0]
        self.num_envs = num_envs
        self._env = AtariVectorEnv(
            rom,
            num_envs,
            num_threads=min(threads, num_envs),
            img_height=height,
            img_width=width,
            stack_num=ATARI_STACK,
            frameskip=ATARI_FRAME_SKIP,
            reward_clipping=False,  # the raw score is reported; the learner clips
            episodic_life=False,  # true would restart the whole game at every lost life
            life_loss_info=cut_on_life_loss,
        )
        self._frames = np.zeros(num_envs, dtype=np.int64)
        self._episode_frames = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        observation, info = self._env.reset(seed=np.asarray(seeds, dtype=np.int64))
        self._remember(info)
        return observation

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Start only the environments of the (N,) bool mask anew; the observations of all."""
        observation, info = self._env.reset(seed=np.asarray(seeds[which], dtype=np.int64), options={"reset_mask": which})
        self._remember(info)
        return observation

    def _remember(self, info: dict[str, np.ndarray]) -> None:
        self._frames, self._episode_frames = info["frame_number"].astype(np.int64), info["episode_frame_number"].astype(np.int64)

    def step(self, actions: np.ndarray) -> Step:
        # In the order of the environments, not of completion: ale-py waits for all of them and sorts them.
        observation, reward, terminated, truncated, info = self._env.step(actions)
        frames, episode_frames = self._frames, self._episode_frames
        self._remember(info)
        # A lost life looks like an end, so ends do not tell what was reset; the two frame counters do: they advance
        # together until a reset sets back the episode's own.
        reset = self._episode_frames - episode_frames != self._frames - frames
        return Step(observation, reward.astype(np.float32), terminated, truncated, reset)

    def get_state(self) -> dict[str, Any] | None:
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("Atari environments have no state to restore")

    def close(self) -> None:
        self._env.close()


class GymnasiumEnv:
    """Any `gymnasium.vector.VectorEnv`: classic control, registered ids one after another, or a user's own."""

    def __init__(self, task: Task, num_envs: int) -> None:
        self.num_envs = num_envs
        self._task = task
        self._env = _vector_env(task, num_envs)
        self._ended = np.zeros(num_envs, dtype=bool)
        self._first_action = int(self._env.single_action_space.start)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        # Natively vectorized environments draw from one generator and take one seed for all.
        one_seed = self._task.kind in ("classic", "custom")
        observation, _ = self._env.reset(seed=int(seeds[0]) if one_seed else [int(seed) for seed in seeds])
        self._ended = np.zeros(self.num_envs, dtype=bool)
        return self._flatten(observation)

    def step(self, actions: np.ndarray) -> Step:
        observation, reward, terminated, truncated, _ = self._env.step(actions + self._first_action)
        reset, self._ended = self._ended, np.asarray(terminated | truncated, dtype=bool)
        return Step(
            self._flatten(observation),
            np.asarray(reward, dtype=np.float32),
            np.array(terminated, dtype=bool),
            np.array(truncated, dtype=bool),
            reset,
        )

    def _flatten(self, observation: np.ndarray) -> np.ndarray:
        from gymnasium.spaces import Discrete

        if isinstance(self._env.single_observation_space, Discrete):
            start = int(self._env.single_observation_space.start)
            return np.eye(self._task.frame_shape[0], dtype=np.float32)[np.asarray(observation) - start]
        # The environment may reuse its buffer at the next step; astype copies. Always row by row: the last bits of a matrix
        # product depend on the layout, and a copy of a state that goes on would have another one.
        return np.asarray(observation).reshape(self.num_envs, -1).astype(self._task.frame_dtype, order="C")

    def get_state(self) -> dict[str, Any] | None:
        if self._task.kind != "classic":
            return None
        env = self._env
        return {
            "state": env.state.copy(),
            "steps": env.steps.copy(),
            "ended": env.prev_done.copy(),
            "generator": env.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        env = self._env
        env.reset(seed=0)
        env.state, env.steps, env.prev_done = state["state"].copy(), state["steps"].copy(), state["ended"].copy()
        env.np_random.bit_generator.state = state["generator"]
        self._ended = state["ended"].copy()

    def close(self) -> None:
        self._env.close()


def _vector_env(task: Task, num_envs: int) -> Any:
    if task.make is not None:
        return task.make(num_envs)
    if task.id == "classic/cartpole":
        from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

        return CartPoleVectorEnv(num_envs)
    if task.id == "classic/acrobot":
        from .classic.acrobot import AcrobotVectorEnv

        return AcrobotVectorEnv(num_envs)
    import gymnasium
    from gymnasium.vector import SyncVectorEnv

    name = task.id.removeprefix("gym/")
    return SyncVectorEnv([lambda: gymnasium.make(name)] * num_envs)
