"""Environments of EnvPool, `pool/<id>`, Google Research Football among them.

EnvPool is the optional extra `envpool`; it is imported when one of its tasks is asked for.
"""

import difflib
import math
import warnings
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np

from rlscale.errors import UsageError
from rlscale.text import first_line

from .actions import Actions, actions_of_space, to_space
from .interface import Step, TaskEnv
from .task import SMALLEST_IMAGE, EnvCost, SweepDefaults, Task, TaskListing, TrainingDefaults
from .vector import shows_pixels

__all__ = ["PoolEnv", "find_task", "list_tasks"]

Dtype = Literal["uint8", "float32"]


class _Layout(NamedTuple):
    """How EnvPool's arrays become frames."""

    frame_shape: tuple[int, ...]
    dtype: Dtype
    actions: Actions
    first_state: int | None  # of a Discrete observation, which becomes one-hot
    channels_last: bool
    pixels: bool = False


def list_tasks() -> list[TaskListing]:
    """The rungs of the football ladder, and the form of all names. EnvPool need not be installed."""
    rungs = ("1_vs_1_easy", "5_vs_5", "11_vs_11_easy_stochastic")  # the other scenarios work too
    return [
        *(TaskListing(f"pool/football/{rung}", "Google Research Football; needs the extra envpool") for rung in rungs),
        TaskListing(
            "pool/<id>", "any EnvPool id with an array observation, discrete or continuous actions; needs the extra envpool"
        ),
    ]


def find_task(name: str) -> Task:
    """The task of that name, which is EnvPool's id or `football/<scenario>`, short for `gfootball/<scenario>-v1`.

    A frame of an image, that is of a uint8 observation with three dimensions, has the shape (channels, height, width); every
    other observation is flattened.

    Raises:
        UsageError: EnvPool is missing or has no such id, or what it makes cannot be learned.
    """
    layout = _layout(_find(name))
    shape, name = layout.frame_shape, _short(name)
    image, football = len(shape) == 3, name.startswith("football/")
    return Task(
        id=f"pool/{name}",
        frame_shape=shape,
        frame_dtype=layout.dtype,
        actions=layout.actions,
        preprocessing="as EnvPool gives it, channels first" if image else "as EnvPool gives it, flattened",
        make_env=make_env,
        frame_skip=10 if football else 1,
        discount=0.993 if football else 0.99,
        network="nature_cnn" if image and min(shape[1:]) >= SMALLEST_IMAGE else "mlp",
        pixels=layout.pixels,
        goals=(0.0, 0.5, 1.0) if football else (),
        training=TrainingDefaults(rollout_length=128 if image else 32),
        sweep=SweepDefaults(episodes=16, actors=1, random_first_steps=500),
        cost=EnvCost(few=8, many=64, most=128, alone=16, memory_bytes=40 << 20 if football else 0, threaded=True),
    )


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """N environments that EnvPool's threads step."""
    return PoolEnv(task.id.removeprefix("pool/"), num_envs, threads=threads)


def _short(name: str) -> str:
    """The one name of an environment that has two: `gfootball/5_vs_5-v1` is `football/5_vs_5`."""
    return name.removeprefix("g").removesuffix("-v1") if name.startswith("gfootball/") else name


def _envpool() -> Any:
    try:
        return import_module("envpool")
    except (ImportError, OSError) as error:  # a file of its own may be missing, too, where its packages of assets are
        said = first_line(error).rstrip(".")
        missing = getattr(error, "name", None) == "envpool"
        problem = "EnvPool is not installed" if missing else f"EnvPool cannot be imported: {said}"
        raise UsageError("TASK", problem, "Install it: pip install 'rlscale[envpool]'") from error


def _find(name: str) -> str:
    """EnvPool's id of that name."""
    ids = _envpool().list_all_envs()
    pool_id = f"g{name}-v1" if name.startswith("football/") else name
    if pool_id in ids:
        return pool_id
    names = {_short(each).lower(): _short(each) for each in ids}
    near = [f"pool/{names[each]}" for each in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)]
    mend = f"Did you mean {' or '.join(near)}?" if near else "EnvPool's documentation lists its ids"
    raise UsageError("TASK", f"EnvPool has no {name!r}", mend)


@lru_cache(maxsize=256)
def _layout(pool_id: str) -> _Layout:
    from gymnasium.spaces import Box, Discrete, MultiBinary

    try:
        spec = _envpool().make_spec(pool_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EnvPool gives bounds in float64 for float32 spaces
            observation, action = spec.observation_space, spec.action_space
    except Exception as error:  # a system library may be missing, or an id may need settings of its own
        said = first_line(error).rstrip(".")
        raise UsageError("TASK", f"EnvPool cannot make {pool_id!r}: {said}", "Install what it needs") from error
    task_id = f"pool/{_short(pool_id)}"
    actions = actions_of_space(task_id, action)
    if spec.config.max_num_players != 1:
        raise UsageError("TASK", f"{task_id} is for {spec.config.max_num_players} players", "Only one player can be learned")
    if isinstance(observation, Discrete):
        return _Layout((int(observation.n),), "float32", actions, int(observation.start), False)
    if not isinstance(observation, Box | MultiBinary):
        raise UsageError("TASK", f"{task_id} has {type(observation).__name__} observations", "Only arrays can be learned")
    shape = tuple(int(extent) for extent in observation.shape)
    if len(shape) == 3 and observation.dtype == np.uint8:
        channels_last = shape[2] < shape[0]  # an image has fewer channels than rows
        shape = (shape[2], *shape[:2]) if channels_last else shape
        return _Layout(shape, "uint8", actions, None, channels_last, shows_pixels(observation))
    dtype: Dtype = "uint8" if observation.dtype == np.uint8 or isinstance(observation, MultiBinary) else "float32"
    return _Layout((math.prod(shape),), dtype, actions, None, False, shows_pixels(observation))


class PoolEnv(TaskEnv):
    """Environments of EnvPool (Apache-2.0; its Atari games contain ALE, which is licensed under the GPL-2.0).

    Environment i depends on its own seed only: neither on the others nor on the number of threads.

    Args:
        name: of the task, without `pool/`.
        num_envs: N.
        threads: EnvPool's threads, which step the environments.
    """

    def __init__(self, name: str, num_envs: int, *, threads: int = 1) -> None:
        self.num_envs = num_envs
        self._pool_id = _find(name)
        self._layout = _layout(self._pool_id)
        self._threads = min(threads, num_envs)
        self._env: Any = None

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """EnvPool takes seeds only when it makes environments, so they are made here.

        Football's engine never gives back its memory, 40 MB an environment, so reset those once a process.
        """
        self.close()
        self._env = _envpool().make(
            self._pool_id,
            "gymnasium",
            num_envs=self.num_envs,
            num_threads=self._threads,
            seed=[int(seed) for seed in seeds],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ = self._env.observation_space, self._env.action_space  # made once, here: see `_layout`
        self._observation = self._arrange(self._env.reset()[0])
        return self._observation

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """As in `TaskEnv`, but EnvPool cannot take new seeds here: each environment goes on with its own generator.

        The same history still has the same future.
        """
        if which.any():
            observation = self._observation.copy()
            observation[which] = self._arrange(self._env.reset(options={"reset_mask": which})[0])
            self._observation = observation
        return self._observation

    def begin_episodes(self, seeds: np.ndarray) -> np.ndarray:
        """Restart the environments that are there: making football's anew would take 40 MB each that are never given back."""
        return self.reset(seeds) if self._env is None else self.restart(np.ones(self.num_envs, dtype=bool), seeds)

    def step(self, actions: np.ndarray) -> Step:
        chosen = to_space(self._layout.actions, actions, self._env.action_space)
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        self._observation = self._arrange(observation)
        return Step(
            self._observation,
            reward.astype(np.float32, copy=False),
            terminated,
            truncated,
            info["elapsed_step"] == 0,  # EnvPool counts the steps of every episode, of every environment, from its reset
        )

    def _arrange(self, observation: np.ndarray) -> np.ndarray:
        """Frames from EnvPool's array, which EnvPool allocates anew at every step."""
        layout = self._layout
        if layout.first_state is not None:
            states = observation.reshape(-1) - layout.first_state
            return np.eye(layout.frame_shape[0], dtype=np.float32)[states]
        if layout.channels_last:
            return np.ascontiguousarray(np.moveaxis(observation, -1, 1))
        return observation.reshape(-1, *layout.frame_shape).astype(layout.dtype, copy=False)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None  # EnvPool ends its threads with the object
