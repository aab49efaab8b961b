"""`RolloutWorker`: steps its environments with a frozen policy and yields fixed T x N fragments.

Where workers run (in this process or as Ray actors) is decided in `agents.fleet`. Nothing here learns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agents.fragments import Fragment
from agents.machine import keep_freed_memory
from agents.networks import ActingNetwork, flatten_parameters, make_network
from envs import Step, Task, make_env
from envs.pool import PoolEnv
from envs.tasks import Network
from envs.vector import AtariEnv

__all__ = ["RolloutWorker", "WorkerSettings"]


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of a fleet have in common.

    Attributes:
        task: the task; travels to the actors, a user's own environment included.
        environments: environments of each worker.
        rollout_length: T.
        network: architecture.
        bfloat16: run the network in bfloat16.
        threads: threads of each worker, for emulation and for the network; 0 leaves torch's setting alone.
        cut_on_life_loss: a lost life ends the return.
        random_first_steps: up to so many random steps per environment before the first fragment.
        seed: of the run.
        generation: how often the run was resumed with fresh environments; no stream of random numbers is used twice.
        width: units of the network's hidden dense layers; None for its own.
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


class RolloutWorker:
    """N environments, one policy, one stream of random numbers.

    Args:
        settings: see there.
        actor: index of this worker; decides its seeds.
    """

    def __init__(self, settings: WorkerSettings, actor: int) -> None:
        self.settings, self.actor = settings, actor
        if settings.threads:
            torch.set_num_threads(settings.threads)
        keep_freed_memory()
        task, n = settings.task, settings.environments
        self._env = make_env(
            task, n, threads=settings.threads or torch.get_num_threads(), cut_on_life_loss=settings.cut_on_life_loss
        )
        self._network = make_network(task, settings.network, settings.seed, settings.width)
        self._flat = flatten_parameters(self._network)
        self._acting = ActingNetwork(self._network, settings.bfloat16)
        streams = np.random.SeedSequence([settings.seed, settings.generation, actor]).spawn(2)
        self._generator = np.random.Generator(np.random.Philox(streams[0]))
        self._seeds = np.random.Generator(np.random.Philox(streams[1]))
        self._observation = self._env.reset(self._draw_seeds())
        self._return = np.zeros(n, dtype=np.float64)
        self._length = np.zeros(n, dtype=np.int64)
        self._made = 0
        if settings.random_first_steps:
            self._desynchronize(settings.random_first_steps)

    def _draw_seeds(self) -> np.ndarray:
        return self._seeds.integers(0, 2**31 - 1, size=self.settings.environments)

    def _desynchronize(self, most: int) -> None:
        """Leave environment i where its own number of random steps, uniform in 0 … most, has brought it.

        Atari and EnvPool environments restart one by one, so that at the end each has taken its own number. Others cannot;
        there all take `most` steps and their episodes' random lengths do the rest.
        """
        n = self.settings.environments
        restart_at = most - self._generator.integers(0, most + 1, size=n)
        for step in range(most + 1):
            if isinstance(self._env, AtariEnv | PoolEnv) and (restart_at == step).any():
                self._observation = self._env.restart(restart_at == step, self._draw_seeds())
                self._return[restart_at == step], self._length[restart_at == step] = 0.0, 0
            if step < most:
                action = self._generator.integers(0, self.settings.task.actions, size=n)
                result = self._env.step(action)
                self._observation = result.observation
                self._track(result)

    def _track(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """Add a step to the running episodes; raw returns and lengths of those that it shows to be finished.

        An episode counts as finished when it is reset: before that a lost life looks the same.
        """
        finished = self._return[step.reset], self._length[step.reset]
        self._return = np.where(step.reset, 0.0, self._return + step.reward)
        self._length = np.where(step.reset, 0, self._length + 1)
        return finished

    def set_weights(self, weights: np.ndarray) -> None:
        """Act with these parameters from now on: (P,) float32, in the order of `flatten_parameters`."""
        self._flat.copy_(torch.tensor(weights))
        self._acting = ActingNetwork(self._network, self.settings.bfloat16)

    def sample(self, policy_version: int) -> Fragment:
        """The next T steps of all environments."""
        started = time.perf_counter()
        s = self.settings
        steps, n, stack = s.rollout_length, s.environments, s.task.frame_stack
        frames = np.empty((stack - 1 + steps, n, *s.task.frame_shape), dtype=s.task.frame_dtype)
        action = np.empty((steps, n), dtype=np.int64)
        reward, log_prob, value = (np.empty((steps, n), dtype=np.float32) for _ in range(3))
        terminated, truncated, reset = (np.empty((steps, n), dtype=bool) for _ in range(3))
        returns, lengths = [], []
        uniform = self._generator.random((steps, n), dtype=np.float64)
        if stack > 1:
            frames[: stack - 1] = self._observation[:, :-1].swapaxes(0, 1)
        for t in range(steps):
            observation = self._observation
            frames[stack - 1 + t] = observation[:, -1] if stack > 1 else observation
            log_probs, value[t] = self._act(observation)
            cumulative = np.exp(log_probs).cumsum(axis=1)
            # Scaled by the last sum, which rounding leaves a little off 1: never an action beyond the last.
            action[t] = (cumulative < uniform[t, :, None] * cumulative[:, -1:]).sum(axis=1)
            log_prob[t] = np.take_along_axis(log_probs, action[t][:, None], axis=1)[:, 0]
            result = self._env.step(action[t])
            self._observation = result.observation
            reward[t], terminated[t], truncated[t], reset[t] = result[1:]
            finished = self._track(result)
            returns.append(finished[0])
            lengths.append(finished[1])
        bootstrap_value = self._act(self._observation)[1]
        self._made += 1
        return Fragment(
            frames=frames,
            action=action,
            reward=reward,
            clipped_reward=np.sign(reward) if s.task.clip_reward else reward,
            terminated=terminated,
            truncated=truncated,
            reset=reset,
            log_prob=log_prob,
            value=value,
            bootstrap_value=bootstrap_value,
            episode_return=np.concatenate(returns).astype(np.float32),
            episode_length=np.concatenate(lengths),
            policy_version=policy_version,
            actor=self.actor,
            index=self._made - 1,
            seconds=time.perf_counter() - started,
        )

    def _act(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities (N, actions) and values (N,) of the current observations."""
        output = self._acting(torch.from_numpy(observation))
        return torch.log_softmax(output.logits, dim=-1).numpy(), output.value.numpy()

    def get_state(self) -> dict[str, Any] | None:
        """All that is needed to go on exactly from here, parameters apart; None when the environments cannot be saved."""
        env = self._env.get_state()
        if env is None:
            return None
        return {
            "env": env,
            "observation": self._observation.copy(),
            "return": self._return.copy(),
            "length": self._length.copy(),
            "made": self._made,
            "generator": self._generator.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from where `get_state` was called."""
        self._env.set_state(state["env"])
        self._observation, self._return, self._length = (
            state["observation"].copy(),
            state["return"].copy(),
            state["length"].copy(),
        )
        self._made = state["made"]
        self._generator.bit_generator.state = state["generator"]

    def close(self) -> None:
        self._env.close()
