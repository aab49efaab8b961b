# SPDX-License-Identifier: GPL-3.0-only
"""`MinAtarEnv`, N environments of a MinAtar game, and `GAMES`, the rules by the names of the games.

Here live sticky actions, resets on the step after an end, and saving. Nothing here uses the original package; a test plays both
side by side, step for step.

The games are by Kenny Young and Tian Tian (MinAtar, arXiv:1903.03176), vectorized here; this file is under the GPL-3.0, see
`rlscale.envs.minatar`.
"""

from typing import Any

import numpy as np

from ..interface import Step, TaskEnv
from ..task import Task
from .asterix import Asterix
from .base import Game, Streams
from .breakout import Breakout
from .freeway import Freeway
from .seaquest import Seaquest
from .space_invaders import SpaceInvaders

__all__ = ["GAMES", "MinAtarEnv"]

GAMES: dict[str, type[Game]] = {
    "asterix": Asterix,
    "breakout": Breakout,
    "freeway": Freeway,
    "seaquest": Seaquest,
    "space_invaders": SpaceInvaders,
}
_STICKY = 0.1  # probability that the last action is repeated in place of the chosen one


def make_env(task: Task, num_envs: int, *, threads: int, cut_on_life_loss: bool) -> TaskEnv:
    """N environments of the task's game, all stepped in the caller's thread."""
    return MinAtarEnv(task.id.removeprefix("minatar/"), num_envs)


class MinAtarEnv(TaskEnv):
    """N environments of one game as MinAtar makes them by default: actions stick with probability 0.1, difficulty ramps.

    Each environment draws from a stream of its own, so its course depends on its seed and its actions, not on N.
    """

    def __init__(self, game: str, num_envs: int) -> None:
        self.num_envs = num_envs
        self._streams = Streams(num_envs)
        self._game = GAMES[game](num_envs, self._streams)
        self._last_action = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=bool)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start all anew, environment i from `seeds[i]`; the observations, (N, C, 10, 10) uint8 of 0 and 1."""
        return self.restart(np.ones(self.num_envs, dtype=bool), seeds)

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """As in `TaskEnv`; each goes on as if it had been alone with its seed."""
        self._streams.seed(seeds, which)
        self._last_action[which] = 0
        self._ended[which] = False
        self._game.restart(np.flatnonzero(which))
        return self._game.observation()

    def step(self, actions: np.ndarray) -> Step:
        """Take `actions`, (N,) int64, each below the game's number of actions; environments that ended before reset instead."""
        reset = self._ended
        live = ~reset
        restarting = np.flatnonzero(reset)
        # An end does not make an environment forget its last action: the original does not either.
        if restarting.size:
            playing = np.flatnonzero(live)
            sticks = np.zeros(self.num_envs, dtype=bool)
            sticks[playing] = self._streams.uniform(playing) < _STICKY
            self._last_action = np.where(sticks | reset, self._last_action, actions)
        else:
            sticks = self._streams.uniform(slice(None)) < _STICKY
            self._last_action = np.where(sticks, self._last_action, actions)
        reward, terminated = self._game.play(self._last_action, live)
        if restarting.size:
            reward[restarting] = 0
            terminated[restarting] = False
            self._game.restart(restarting)
        self._ended = terminated.copy()
        return Step(self._game.observation(), reward.astype(np.float32), terminated, np.zeros(self.num_envs, dtype=bool), reset)

    def get_state(self) -> dict[str, Any]:
        """All that is needed to go on exactly from here, as arrays."""
        return {
            "game": self._game.get_state(),
            "streams": self._streams.state.copy(),
            "last_action": self._last_action.copy(),
            "ended": self._ended.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called, on the same game and N."""
        self._game.set_state(state["game"])
        self._streams.state = state["streams"].copy()
        self._last_action, self._ended = state["last_action"].copy(), state["ended"].copy()

    def draw_from(self, seeds: np.ndarray) -> None:
        """As in `TaskEnv`."""
        self._streams.seed(seeds, np.ones(self.num_envs, dtype=bool))
