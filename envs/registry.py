"""`Task`: everything that defines what is learned, and the names under which tasks are found.

Vector environments are made in `vector`; nothing here steps one, except to read the spaces of a task that is not known
in advance (`gym/<id>` and a user's own `module:callable`).
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from rlscale.errors import UsageError

__all__ = ["Task", "TaskListing", "find_task", "list_tasks"]

Network = Literal["nature_cnn", "small_cnn", "minatar_cnn", "mlp"]

ATARI_FRAME = 84
SMALLEST_ATARI_FRAME = 36  # below this the Nature network's third convolution has nothing left to see
ATARI_STACK = 4
ATARI_FRAME_SKIP = 4


@dataclass(frozen=True)
class Task:
    """A task, and the defaults that go with it.

    Attributes:
        id: its name, for example `atari/pong`; `find_task(task.id)` gives the same task again.
        frame_shape: shape of one stored observation frame: (height, width), which are stacked, (channels, height, width), or
            (features,).
        frame_dtype: numpy name of the frame's type, `uint8` or `float32`.
        frame_stack: frames that make one observation; the oldest comes first.
        actions: number of discrete actions.
        preprocessing: what happens between the simulator and the frame, for people.
        frame_skip: simulator frames per observation.
        rollout_length: default steps of one fragment.
        environments: default number of environments.
        discount: default γ.
        network: default network.
        clip_reward: learn from the reward's sign (the raw reward is still recorded).
        goals: raw returns worth reaching, ascending; empty when none are known.
        make: for a user's own task only: `make(num_envs)` returns a `gymnasium.vector.VectorEnv`.
    """

    id: str
    frame_shape: tuple[int, ...]
    frame_dtype: Literal["uint8", "float32"]
    frame_stack: int
    actions: int
    preprocessing: str
    frame_skip: int
    rollout_length: int
    environments: int
    discount: float
    network: Network
    clip_reward: bool = False
    goals: tuple[float, ...] = ()
    make: Callable[[int], Any] | None = None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """(stack or channels, height, width) of an image task, (features,) of any other."""
        return (self.frame_stack, *self.frame_shape) if len(self.frame_shape) == 2 else self.frame_shape

    @property
    def kind(self) -> str:
        """`atari`, `classic`, `minatar`, `pool`, `gym` or `custom`: who makes its environments."""
        return "custom" if self.make is not None else self.id.split("/", 1)[0]


@dataclass(frozen=True)
class TaskListing:
    """One line of `rlscale tasks`."""

    id: str
    note: str


# Goals in raw score. Pong's are the paper's; a game without an entry has no goals of its own yet.
_ATARI_GOALS: dict[str, tuple[float, ...]] = {
    "pong": (-19.0, 0.0, 19.0),
    "breakout": (2.0, 10.0, 50.0, 200.0, 400.0),
}

_CLASSIC = {
    "classic/cartpole": dict(
        features=4, actions=2, environments=32, rollout_length=32, discount=0.98, goals=(100.0, 200.0, 400.0)
    ),
    "classic/acrobot": dict(features=6, actions=3, environments=32, rollout_length=32, discount=0.99, goals=(-200.0, -100.0)),
}


# MinAtar's games: returns on the way from a random policy's to a good one's. Which were reached is in docs/tasks.md.
_MINATAR_GOALS: dict[str, tuple[float, ...]] = {
    "asterix": (1.0, 2.0),
    "breakout": (2.0, 4.0),
    "freeway": (2.0, 10.0),
    "seaquest": (1.0, 2.0),
    "space_invaders": (8.0, 16.0, 30.0),
}


_FOOTBALL = ("1_vs_1_easy", "5_vs_5", "11_vs_11_easy_stochastic")  # the rungs of the ladder; other scenarios work too


def list_tasks() -> list[TaskListing]:
    """Every task with a name of its own, then the two forms that take any environment."""
    atari = [TaskListing(f"atari/{rom}", "Atari 2600, 84x84 grey, 4 frames") for rom in sorted(_atari_roms())]
    classic = [TaskListing(name, "Gymnasium classic control, vectorized natively") for name in _CLASSIC]
    return [
        *classic,
        *(TaskListing(f"minatar/{game}", "miniature Atari, 10x10 cells, vectorized natively") for game in _MINATAR_GOALS),
        *atari,
        TaskListing("atari/<rom>@<pixels>", "the same game at another frame size, for example atari/pong@42"),
        *(TaskListing(f"pool/football/{rung}", "Google Research Football; needs the extra envpool") for rung in _FOOTBALL),
        TaskListing("pool/<id>", "any EnvPool id with discrete actions and an array observation; needs the extra envpool"),
        TaskListing("gym/<id>", "any registered Gymnasium id with discrete actions, for example gym/LunarLander-v3"),
        TaskListing("<module>:<callable>", "your own: callable(num_envs) returns a gymnasium.vector.VectorEnv"),
    ]


def find_task(task_id: str) -> Task:
    """The task of that name.

    Raises:
        UsageError: no such task (names the nearest), or its environment cannot be made or used.
    """
    if task_id.startswith("gym/"):
        return _gym(task_id)
    if task_id.startswith("pool/"):
        return _pool(task_id.removeprefix("pool/"))
    if ":" in task_id:
        return _custom(task_id)
    if task_id in _CLASSIC:
        entry: dict[str, Any] = dict(_CLASSIC[task_id])
        features = entry.pop("features")
        return Task(
            id=task_id,
            frame_shape=(features,),
            frame_dtype="float32",
            frame_stack=1,
            preprocessing="none",
            frame_skip=1,
            network="mlp",
            **entry,
        )
    if task_id.startswith("minatar/") and task_id.removeprefix("minatar/") in _MINATAR_GOALS:
        return _minatar(task_id.removeprefix("minatar/"))
    if task_id.startswith("atari/"):
        rom, _, size = task_id.removeprefix("atari/").partition("@")
        if rom in _atari_roms():
            return _atari(rom, size)
    raise UsageError("TASK", f"there is no task {task_id!r}", _suggest(task_id))


def _suggest(task_id: str) -> str:
    names = [listing.id for listing in list_tasks() if "<" not in listing.id]
    near = difflib.get_close_matches(task_id, names, n=3, cutoff=0.6)
    if not near:
        tail = task_id.rsplit("/", 1)[-1]
        by_tail = {name.split("/", 1)[1]: name for name in names}
        near = [by_tail[n] for n in difflib.get_close_matches(tail.lower().split("-")[0], by_tail, n=3, cutoff=0.6)]
    listing = "'rlscale tasks' lists all"
    return f"Did you mean {' or '.join(near)}? {listing}" if near else f"{listing[0].upper()}{listing[1:]}"


@lru_cache(maxsize=1)
def _atari_roms() -> frozenset[str]:
    from ale_py.roms import get_all_rom_ids

    return frozenset(get_all_rom_ids())


def _atari(rom: str, size: str) -> Task:
    if size and not size.isdecimal():
        raise UsageError("TASK", f"the frame size {size!r} is not a number", f"Use for example atari/{rom}@42")
    pixels = int(size) if size else ATARI_FRAME
    if not SMALLEST_ATARI_FRAME <= pixels <= 210:
        raise UsageError("TASK", f"frame size {pixels} is out of range", f"Choose between {SMALLEST_ATARI_FRAME} and 210")
    return Task(
        id=f"atari/{rom}" if pixels == ATARI_FRAME else f"atari/{rom}@{pixels}",
        frame_shape=(pixels, pixels),
        frame_dtype="uint8",
        frame_stack=ATARI_STACK,
        actions=_atari_actions(rom),
        preprocessing=f"grey, {pixels}x{pixels}, maximum over 2 frames, up to 30 no-op starts, fire on reset, "
        "reward clipped to its sign",
        frame_skip=ATARI_FRAME_SKIP,
        rollout_length=128,
        environments=16,
        discount=0.99,
        network="nature_cnn",
        clip_reward=True,
        goals=_ATARI_GOALS.get(rom, ()),
    )


def _minatar(game: str) -> Task:
    from .minatar import env as minatar  # under another licence than this file: loaded when one of its games is asked for

    return Task(
        id=f"minatar/{game}",
        frame_shape=(minatar.channels(game), 10, 10),
        frame_dtype="uint8",
        frame_stack=1,
        actions=minatar.actions(game),
        preprocessing="10x10 cells of 0 or 1, one channel per kind of object, actions repeated with probability 0.1, minimal "
        "action set",
        frame_skip=1,
        rollout_length=16,
        environments=128,
        discount=0.99,
        network="minatar_cnn",
        goals=_MINATAR_GOALS[game],
    )


@lru_cache(maxsize=256)
def _atari_actions(rom: str) -> int:
    """Size of the game's minimal action set, read from the emulator."""
    import ale_py
    from ale_py.roms import get_rom_path

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(get_rom_path(rom))
    return len(ale.getMinimalActionSet())


def _gym(task_id: str) -> Task:
    import gymnasium

    name = task_id.removeprefix("gym/")
    try:
        env = gymnasium.make(name)
    except Exception as error:  # an id may be unknown, misspelt, or need a package: all are the user's to mend
        detail = str(error).strip().splitlines()[0].rstrip(".")
        raise UsageError("TASK", f"Gymnasium cannot make {name!r}: {detail}", "Check the id, or install what it needs") from error
    try:
        frame_shape, dtype, actions = _spaces(task_id, env.observation_space, env.action_space)
    finally:
        env.close()
    return _plain(task_id, frame_shape, dtype, actions)


def _pool(name: str) -> Task:
    from .envpool import pool_name, pool_spaces

    frame_shape, dtype, actions = pool_spaces(name)
    name = pool_name(name)
    image, football = len(frame_shape) == 3, name.startswith("football/")
    return Task(
        id=f"pool/{name}",
        frame_shape=frame_shape,
        frame_dtype=dtype,
        frame_stack=1,
        actions=actions,
        preprocessing="as EnvPool gives it, channels first" if image else "as EnvPool gives it, flattened",
        frame_skip=10 if football else 1,
        rollout_length=128 if image else 32,
        environments=16,
        discount=0.993 if football else 0.99,
        network="nature_cnn" if image and min(frame_shape[1:]) >= SMALLEST_ATARI_FRAME else "mlp",
        goals=(0.0, 0.5, 1.0) if football else (),
    )


def _custom(task_id: str) -> Task:
    module_name, _, attribute = task_id.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # the console script does not put the current folder on the path, and users expect it
        sys.path.append(here)
    try:
        make = getattr(import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise UsageError(
            "TASK", f"cannot import {error.name!r}", "Run from the folder that holds the module, or install it"
        ) from error
    except AttributeError as error:
        raise UsageError("TASK", f"module {module_name!r} has no {attribute!r}", "Write module:callable") from error
    except Exception as error:
        raise UsageError("TASK", f"importing {module_name!r} failed: {error}", "Mend the module") from error
    try:
        env = make(1)
    except Exception as error:
        raise UsageError("TASK", f"{task_id}(1) failed: {type(error).__name__}: {error}", "Mend the callable") from error
    from gymnasium.vector import AutoresetMode, VectorEnv

    if not isinstance(env, VectorEnv):
        raise UsageError("TASK", f"{task_id} returned {type(env).__name__}", "Return a gymnasium.vector.VectorEnv")
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        raise UsageError(
            "TASK", f"{task_id} does not reset on the next step", "Set metadata['autoreset_mode'] = AutoresetMode.NEXT_STEP"
        )
    frame_shape, dtype, actions = _spaces(task_id, env.single_observation_space, env.single_action_space)
    env.close()
    return _plain(task_id, frame_shape, dtype, actions, make)


def _spaces(task_id: str, observation: Any, action: Any) -> tuple[tuple[int, ...], Literal["uint8", "float32"], int]:
    from gymnasium.spaces import Box, Discrete

    if not isinstance(action, Discrete):
        raise UsageError("TASK", f"{task_id} has {type(action).__name__} actions", "Only Discrete actions can be learned")
    if isinstance(observation, Discrete):
        return (int(observation.n),), "float32", int(action.n)
    if not isinstance(observation, Box):
        raise UsageError(
            "TASK", f"{task_id} has {type(observation).__name__} observations", "Only Box or Discrete can be learned"
        )
    size = 1
    for extent in observation.shape:
        size *= int(extent)
    return (size,), "uint8" if observation.dtype == "uint8" else "float32", int(action.n)


def _plain(
    task_id: str,
    frame_shape: tuple[int, ...],
    dtype: Literal["uint8", "float32"],
    actions: int,
    make: Callable[[int], Any] | None = None,
) -> Task:
    return Task(
        id=task_id,
        frame_shape=frame_shape,
        frame_dtype=dtype,
        frame_stack=1,
        actions=actions,
        preprocessing="flattened",
        frame_skip=1,
        rollout_length=32,
        environments=16,
        discount=0.99,
        network="mlp",
        make=make,
    )
