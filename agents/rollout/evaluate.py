"""`Evaluator`: the return of a frozen policy, one whole episode in each of its environments.

So no episode counts twice and short ones are not favoured, which is what the mean of *finished* episodes gets wrong. Which
policies are evaluated is decided in `rlscale.crossing`; these steps are no part of a run's observations.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from rlscale.crossing import Evaluated
from rlscale.envs import Network, Task, make_env

from ..networks import ActingNetwork, flatten_parameters, make_network

__all__ = ["Evaluation", "Evaluator", "Moment"]

LONGEST_EPISODE = 27_000  # agent steps, the limit of an Atari game; one that goes on counts with its return so far


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation gave and what it cost.

    Attributes:
        returns: (episodes,) float64, raw.
        steps: environment steps of the episodes; an environment whose episode is over is not counted while it waits.
        unfinished: episodes cut off at 27,000 steps.
        seconds: it took.
    """

    returns: np.ndarray
    steps: int
    unfinished: int
    seconds: float

    def at(self, optimizer_steps: int) -> Evaluated:
        """Mean and standard error, as the evaluation of the policy after so many steps."""
        count = len(self.returns)
        error = float(self.returns.std(ddof=1)) / math.sqrt(count)
        return Evaluated(optimizer_steps, float(self.returns.mean()), error, count)


class Moment(NamedTuple):
    """What one step of an evaluation showed.

    Attributes:
        observation: (episodes, *task.observation_shape), after the step.
        reward: (episodes,) float32, raw; of an episode that is over it means nothing.
        played: (episodes,) bool, the episodes that this step belongs to.
        going_on: (episodes,) bool, those that it did not end.
    """

    observation: np.ndarray
    reward: np.ndarray
    played: np.ndarray
    going_on: np.ndarray


class Evaluator:
    """Environments and a network kept for evaluating many policies of one run.

    Args:
        task: the task.
        network: architecture.
        width: units of its hidden layers, None for its own.
        episodes: environments, each of which plays one episode; at least 2.
        bfloat16: act in bfloat16, as the run does.
        seed: of the run; evaluations of different policies draw different numbers.
        threads: that step Atari environments.
    """

    def __init__(
        self, task: Task, network: Network, width: int | None, *, episodes: int, bfloat16: bool, seed: int, threads: int
    ) -> None:
        if episodes < 2:
            raise ValueError("episodes: a standard error needs at least two")
        self._task, self._seed, self._episodes, self._bfloat16 = task, seed, episodes, bfloat16
        # A lost life is no end here: the score of the whole game counts. Groups whose episodes are over are not stepped.
        size = episodes if task.cost.together is None else task.cost.together * threads
        parts = [slice(first, min(first + size, episodes)) for first in range(0, episodes, size)]
        self._groups = [(part, make_env(task, part.stop - part.start, threads=threads, cut_on_life_loss=False)) for part in parts]
        self._network = make_network(task, network, seed, width)
        self._flat = flatten_parameters(self._network)

    @property
    def parameters(self) -> int:
        """P, of the network."""
        return self._flat.numel()

    def evaluate(self, weights: np.ndarray, key: int) -> Evaluation:
        """Play one episode in every environment with these parameters, (P,) float32, sampling actions as in training.

        Args:
            key: which policy this is (its optimizer steps); with the seed it decides all randomness. (Atari games and EnvPool's
                environments go on with their own generators, so there the order of evaluations counts too.)
        """
        started = time.perf_counter()
        returns = np.zeros(self._episodes)
        steps = 0
        for moment in self.play(weights, key):
            returns[moment.played] += moment.reward[moment.played]
            steps += int(moment.played.sum())
        return Evaluation(returns, steps, int(moment.going_on.sum()), time.perf_counter() - started)

    def play(self, weights: np.ndarray, key: int) -> Iterator[Moment]:
        """The steps of `evaluate`, one by one; first, with nothing played, the observations that episodes begin with."""
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self._seed, 0xE7A1, key])))
        self._flat.copy_(torch.tensor(weights))
        policy = ActingNetwork(self._network, self._bfloat16)
        seeds = generator.integers(0, 2**31 - 1, size=self._episodes)
        observation = np.concatenate([env.begin_episodes(seeds[part]) for part, env in self._groups])
        playing = np.ones(self._episodes, dtype=bool)
        yield Moment(observation, np.zeros(self._episodes, dtype=np.float32), ~playing, playing)
        action = self._task.room_for_actions(self._episodes)
        steps = 0
        while playing.any() and steps < LONGEST_EPISODE:
            seen = observation if playing.all() else observation[playing]
            action[playing] = self._network.distribution(policy(torch.from_numpy(seen)).policy).sample(generator)
            observation, reward, ended = observation.copy(), np.zeros(self._episodes, dtype=np.float32), ~playing
            for part, env in self._groups:
                if playing[part].any():
                    observation[part], reward[part], terminated, truncated, _ = env.step(action[part])
                    ended[part] |= terminated | truncated
            going_on = ~ended
            yield Moment(observation, reward, playing, going_on)
            playing = going_on
            steps += 1

    def close(self) -> None:
        for _, env in self._groups:
            env.close()
