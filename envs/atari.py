"""Atari 2600 games, `atari/<rom>` and `atari/<rom>@<pixels>`, through ale-py (which is licensed under the GPL-2.0)."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from rlscale.errors import UsageError

from .interface import Step, TaskEnv
from .task import SMALLEST_IMAGE, EnvCost, Network, SweepDefaults, Task, TaskListing, TrainingDefaults

__all__ = ["AtariEnv", "find_task", "list_tasks", "rom_of"]

_PIXELS, _LARGEST_IMAGE = 84, 210  # of a side

# Goals in raw score. Pong's are the paper's; a game without an entry has no goals of its own yet.
_GOALS: dict[str, tuple[float, ...]] = {
    "pong": (-19.0, 0.0, 19.0),
    "breakout": (2.0, 10.0, 50.0, 200.0, 400.0),
}

# What people use for PPO on every game, with the Nature network.
_USUAL: tuple[Network, TrainingDefaults] = (
    "nature_cnn",
    TrainingDefaults(environments=16, rollout_length=128, epochs=4, learning_rate=2.5e-4, entropy_coef=0.01, gae_lambda=0.95),
)
# What wins Pong soonest on two cores, measured: docs/speed.md, "Time to a stated return".
_QUICKEST: dict[str, tuple[Network, TrainingDefaults]] = {
    f"pong@{_PIXELS}": (
        "small_cnn",
        replace(_USUAL[1], observations=2_500_000, epochs=3, learning_rate=1e-3, anneal=True),
    )
}


def list_tasks() -> list[TaskListing]:
    """Every game that ale-py ships, and the form of name that gives a frame size."""
    games = [TaskListing(f"atari/{rom}", "Atari 2600, 84x84 grey, 4 frames") for rom in sorted(_roms())]
    return [*games, TaskListing("atari/<rom>@<pixels>", "the same game at another frame size, for example atari/pong@42")]


def find_task(name: str) -> Task | None:
    """The game of that name, for example `pong` or `pong@42`; None where ale-py ships no such game.

    Raises:
        UsageError: the frame size cannot be used.
    """
    rom, _, size = name.partition("@")
    if rom not in _roms():
        return None
    if size and not size.isdecimal():
        raise UsageError("TASK", f"the frame size {size!r} is not a number", f"Use for example atari/{rom}@42")
    mend = f"Choose between {SMALLEST_IMAGE} and {_LARGEST_IMAGE}"
    if len(size) > 9:  # Python refuses to convert thousands of digits, and nobody wants to read them
        raise UsageError("TASK", f"a frame size of {len(size):,} digits is out of range", mend)
    pixels = int(size) if size else _PIXELS
    if not SMALLEST_IMAGE <= pixels <= _LARGEST_IMAGE:
        raise UsageError("TASK", f"frame size {pixels} is out of range", mend)
    network, training = _QUICKEST.get(f"{rom}@{pixels}", _USUAL)
    return Task(
        id=f"atari/{rom}" if pixels == _PIXELS else f"atari/{rom}@{pixels}",
        frame_shape=(pixels, pixels),
        frame_dtype="uint8",
        actions=_actions(rom),
        preprocessing=f"grey, {pixels}x{pixels}, maximum over 2 frames, up to 29 no-op starts, fire on reset, "
        "reward clipped to its sign",
        make_env=AtariEnv,
        frame_stack=4,
        frame_skip=4,
        network=network,
        pixels=True,
        clip_reward=True,
        goals=_GOALS.get(rom, ()),
        training=training,
        sweep=SweepDefaults(
            learning_rate=2e-3, rate_batch=2048.0, observations=10_000_000, episodes=16, actors=1, random_first_steps=500
        ),
        # Measured on Linux with ale-py 0.11: the emulator, its thread's buffers and four frames.
        cost=EnvCost(few=8, many=64, most=128, alone=16, memory_bytes=1600 << 10, together=1, threaded=True),
    )


def rom_of(task: Task) -> str:
    """ale-py's name of an Atari task's game."""
    return task.id.removeprefix("atari/").partition("@")[0]


@lru_cache(maxsize=1)
def _roms() -> frozenset[str]:
    from ale_py.roms import get_all_rom_ids

    return frozenset(get_all_rom_ids())


@lru_cache(maxsize=256)
def _actions(rom: str) -> int:
    """Size of the game's minimal action set, read from the emulator."""
    import ale_py
    from ale_py.roms import get_rom_path

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(get_rom_path(rom))
    return len(ale.getMinimalActionSet())


class AtariEnv(TaskEnv):
    """Games that ale-py's own threads step; a seed gives the same course whatever the number of threads.

    Args:
        task: an Atari task.
        num_envs: N.
        threads: ale-py's threads.
        cut_on_life_loss: a lost life ends the return (`terminated`) while the game goes on.
    """

    def __init__(self, task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        height, width = task.frame_shape
        self.num_envs = num_envs
        self._env = AtariVectorEnv(
            rom_of(task),
            num_envs,
            num_threads=min(threads, num_envs),
            img_height=height,
            img_width=width,
            stack_num=task.frame_stack,
            frameskip=task.frame_skip,
            repeat_action_probability=0.0,
            reward_clipping=False,  # the raw score is reported; the learner clips
            episodic_life=False,  # true would restart the whole game at every lost life
            life_loss_info=cut_on_life_loss,
        )
        self._seeded = False

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self._seeded = True
        return self._start(seed=np.asarray(seeds, dtype=np.int64))

    def begin_episodes(self, seeds: np.ndarray) -> np.ndarray:
        if not self._seeded:
            return self.reset(seeds)
        return self._start()  # with a seed ale-py loads the game anew, which takes as long as 250 steps

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        return self._start(seed=np.asarray(seeds[which], dtype=np.int64), options={"reset_mask": which})

    def _start(self, **how: Any) -> np.ndarray:
        observation, info = self._env.reset(**how)
        self._remember(info)
        return observation

    def _remember(self, info: dict[str, np.ndarray]) -> None:
        self._frames, self._episode_frames = info["frame_number"].astype(np.int64), info["episode_frame_number"].astype(np.int64)

    def step(self, actions: np.ndarray) -> Step:
        # In the order of the environments, not of completion: ale-py waits for all of them and sorts them.
        observation, reward, terminated, truncated, info = self._env.step(actions)
        frames, episode_frames = self._frames, self._episode_frames
        self._remember(info)
        # `terminated` does not show which environments were reset, because a lost life looks like an end. The two frame
        # counters do: they advance together until a reset sets the episode's own back.
        reset = self._episode_frames - episode_frames != self._frames - frames
        return Step(observation, reward.astype(np.float32), terminated, truncated, reset)

    def close(self) -> None:
        self._env.close()
