"""`RolloutWorker`: steps its environments with a frozen policy and yields fixed T x N fragments.

A worker's environments come in groups of N, each with its own stream of random numbers; one call of `sample` lets one group make
one fragment. Where workers run (in this process or as Ray actors) is decided by `agents.setup`. Nothing here
learns.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlscale.envs import Network, Step, Task, make_env

from ..devices import fetch, upload, use_device
from ..machine import keep_freed_memory
from ..networks import ActingNetwork, distribution_of, flatten_parameters, make_network
from .fragments import Fragment

__all__ = ["RolloutWorker", "WorkerSettings"]

Policy = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of a fleet have in common.

    Attributes:
        task: the task; travels to the actors, a user's own environment included.
        environments: environments of each group, N.
        rollout_length: T.
        network: architecture.
        bfloat16: run the network in bfloat16.
        threads: threads of each worker, for emulation and for the network; 0 leaves torch's setting alone.
        cut_on_life_loss: a lost life ends the return.
        random_first_steps: up to so many random steps per environment before the first fragment.
        seed: of the run.
        generation: that all groups begin with. It counts how often the run was resumed with fresh environments and, from there
            on, how often a group was made afresh (`assignment`); no stream of random numbers is used twice.
        width: units of the network's hidden dense layers; None for its own.
        groups: groups of each worker at first. Group g of worker w is number g x workers + w of the fleet.
        workers: of the fleet at first.
        device: where the policy acts.
        clones: copies of every environment in a fragment; N counts them.
    """

    task: Task
    environments: int
    rollout_length: int
    network: Network
    bfloat16: bool
    threads: int
    cut_on_life_loss: bool
    random_first_steps: int
    seed: int
    generation: int = 0
    width: int | None = None
    groups: int = 1
    workers: int = 1
    device: str = "cpu"
    clones: int = 1

    @property
    def stepped(self) -> int:
        """Environments of each group that are stepped."""
        return self.environments // self.clones


class RolloutWorker:
    """Groups of environments and one policy.

    Args:
        settings: see there.
        actor: index of this worker, for the record. Seeds depend on the run, the group and its generation alone.
        groups: generation of each group that it begins with, by number; None: those that fall to it when the run begins.
    """

    def __init__(self, settings: WorkerSettings, actor: int, groups: Mapping[int, int] | None = None) -> None:
        self.settings, self.actor = settings, actor
        if settings.threads:
            torch.set_num_threads(settings.threads)
        keep_freed_memory()
        self._device = torch.device(settings.device)
        use_device(self._device)
        self._network = make_network(settings.task, settings.network, settings.seed, settings.width).to(self._device)
        self._flat = flatten_parameters(self._network)
        self._acting = ActingNetwork(self._network, settings.bfloat16)
        self._version: int | None = None
        if groups is None:
            groups = {actor + g * settings.workers: settings.generation for g in range(settings.groups)}
        self._groups: dict[int, _Group] = {}
        for number, generation in groups.items():
            self.make_group(number, generation)

    def set_weights(self, weights: np.ndarray) -> None:
        """Act with these parameters from now on: (P,) float32, in the order of `flatten_parameters`."""
        self._flat.copy_(upload(torch.tensor(weights), self._device))
        self._acting.follow(self._network)

    def use_policy(self, weights: np.ndarray, version: int) -> None:
        """Act with the parameters of that policy version, unless it acts with them already."""
        if version != self._version:
            self.set_weights(weights)
            self._version = version

    def make_group(self, number: int, generation: int) -> None:
        """Make a group's environments with the seeds of that generation; if it is here and of that generation it is kept."""
        if number in self._groups:
            if self._groups[number].generation == generation:
                return
            self.drop_group(number)
        self._groups[number] = _Group(self.settings, self.actor, number, generation)

    def take_over_group(self, number: int, generation: int, state: dict[str, Any]) -> None:
        """Have a group go on exactly from a state that `state_of` gave, in whichever worker."""
        if number in self._groups:
            self._groups[number].generation = generation
        else:
            self._groups[number] = _Group(self.settings, self.actor, number, generation, has_begun=True)
        self._groups[number].set_state(state)
        self._version = None  # the same number may stand for other parameters there

    def drop_group(self, number: int) -> None:
        """End a group's environments, if it is here."""
        if number in self._groups:
            self._groups.pop(number).close()

    def sample(self, policy_version: int, group: int | None = None) -> Fragment:
        """The next T steps of the environments of the group with that number in the fleet; None: of this worker's first."""
        number = next(iter(self._groups)) if group is None else group
        return self._groups[number].sample(self._act, policy_version)

    def _act(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What actions are drawn from, (N, D), and values (N,) of the current observations."""
        output = self._acting(upload(torch.from_numpy(observation), self._device))
        numbers, value = fetch([self._network.distribution(output.policy).numbers(), output.value])
        return numbers.numpy(), value.numpy()

    def state_of(self, group: int) -> dict[str, Any] | None:
        """All that this group needs to go on exactly from here, parameters apart; None where its environments cannot be saved."""
        return self._groups[group].get_state()

    def draw_from(self, stream: np.random.SeedSequence) -> None:
        """Go on from here with other random numbers, those of the stream, for actions and environments."""
        for group, own in zip(self._groups.values(), stream.spawn(len(self._groups)), strict=True):
            group.draw_from(own)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


class _Group:
    """N environments and their stream of random numbers.

    Args:
        settings: of the worker.
        actor: its index.
        number: of the group in the whole fleet; with the generation it decides its seeds.
        generation: how often the group had been made before in this run.
        has_begun: its state comes from elsewhere, so that no random first steps are needed.
    """

    def __init__(self, settings: WorkerSettings, actor: int, number: int, generation: int, has_begun: bool = False) -> None:
        self.settings, self.actor, self.number, self.generation = settings, actor, number, generation
        n = settings.stepped
        self.env = make_env(
            settings.task, n, threads=settings.threads or torch.get_num_threads(), cut_on_life_loss=settings.cut_on_life_loss
        )
        self._begin_streams(np.random.SeedSequence([settings.seed, generation, number]))
        self._return = np.zeros(n, dtype=np.float64)
        self._length = np.zeros(n, dtype=np.int64)
        self._made = 0
        self._distribution = distribution_of(settings.task.actions)
        self.observation = self.env.reset(self._draw_seeds())
        if settings.random_first_steps and not has_begun:
            self._desynchronize(settings.random_first_steps)

    def _begin_streams(self, stream: np.random.SeedSequence) -> None:
        self._generator, self._seeds = (np.random.Generator(np.random.Philox(own)) for own in stream.spawn(2))

    def draw_from(self, stream: np.random.SeedSequence) -> None:
        """Go on from here with other random numbers, those of the stream, for actions and environments."""
        self._begin_streams(stream)
        self.env.draw_from(self._draw_seeds())

    def _draw_seeds(self) -> np.ndarray:
        return self._seeds.integers(0, 2**31 - 1, size=self.settings.stepped)

    def _desynchronize(self, most: int) -> None:
        """Leave environment i where its own number of random steps, uniform in 0 … most, has brought it.

        Some environments restart one by one (`TaskEnv.restart`), so that at the end each has taken its own number. Others cannot;
        there all take `most` steps and their episodes' random lengths do the rest.
        """
        n = self.settings.stepped
        restart_at = most - self._generator.integers(0, most + 1, size=n)
        for step in range(most + 1):
            restarted = restart_at == step
            seeds = self._draw_seeds() if restarted.any() else None
            actions = self.settings.task.random_actions(self._generator, n) if step < most else None
            if seeds is not None and (observation := self.env.restart(restarted, seeds)) is not None:
                self.observation = observation
                self._return[restarted], self._length[restarted] = 0.0, 0
            if actions is not None:
                self._step(actions)

    def _step(self, actions: np.ndarray) -> tuple[Step, np.ndarray, np.ndarray]:
        """Step the environments; also returns the raw returns and the lengths of the episodes that have finished.

        An episode counts as finished when it is reset: before that a lost life looks the same.
        """
        step = self.env.step(actions)
        self.observation = step.observation
        finished = step.reset
        returns, lengths = self._return[finished], self._length[finished]
        self._return = np.where(finished, 0.0, self._return + step.reward)
        self._length = np.where(finished, 0, self._length + 1)
        return step, returns, lengths

    def sample(self, act: Policy, policy_version: int) -> Fragment:
        """The next T steps of all environments."""
        started = time.perf_counter()
        s = self.settings
        steps, n, stack = s.rollout_length, s.stepped, s.task.frame_stack
        frames = np.empty((stack - 1 + steps, n, *s.task.frame_shape), dtype=s.task.frame_dtype)
        action = s.task.room_for_actions(steps, n)
        reward, log_prob, value = (np.empty((steps, n), dtype=np.float32) for _ in range(3))
        terminated, truncated, reset = (np.empty((steps, n), dtype=bool) for _ in range(3))
        returns, lengths = [], []
        noise = self._distribution.noise(self._generator, action.shape)
        for t in range(steps):
            if stack == 1:
                frames[t] = self.observation
            elif t == 0:
                frames[:stack] = self.observation.swapaxes(0, 1)
            else:
                frames[stack - 1 + t] = self.observation[:, -1]
            numbers, value[t] = act(self.observation)
            action[t], log_prob[t] = self._distribution.draw(numbers, noise[t])
            step, finished_returns, finished_lengths = self._step(action[t])
            reward[t], terminated[t], truncated[t], reset[t] = step[1:]
            returns.append(finished_returns)
            lengths.append(finished_lengths)
        self._made += 1
        fragment = Fragment(
            observations=int((~reset).sum()),
            frames=frames,
            action=action,
            reward=reward,
            clipped_reward=_learned(reward, s.task),
            terminated=terminated,
            truncated=truncated,
            reset=reset,
            log_prob=log_prob,
            value=value,
            bootstrap_value=act(self.observation)[1],
            episode_return=np.concatenate(returns).astype(np.float32),
            episode_length=np.concatenate(lengths),
            policy_version=policy_version,
            actor=self.actor,
            group=self.number,
            generation=self.generation,
            index=self._made - 1,
            seconds=time.perf_counter() - started,
        )
        return fragment if s.clones == 1 else fragment.cloned(s.clones)

    def get_state(self) -> dict[str, Any] | None:
        """All that is needed to go on exactly from here; None when the environments cannot be saved."""
        env = self.env.get_state()
        if env is None:
            return None
        return {
            "env": env,
            "observation": self.observation.copy(),
            "return": self._return.copy(),
            "length": self._length.copy(),
            "made": self._made,
            "generator": self._generator.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called."""
        self.env.set_state(state["env"])
        self.observation = state["observation"].copy()
        self._return, self._length = state["return"].copy(), state["length"].copy()
        self._made = state["made"]
        self._generator.bit_generator.state = state["generator"]

    def close(self) -> None:
        self.env.close()


def _learned(reward: np.ndarray, task: Task) -> np.ndarray:
    """The reward that is learned from."""
    if task.clip_reward:
        reward = np.sign(reward)
    return reward if task.reward_scale == 1 else reward * np.float32(task.reward_scale)
