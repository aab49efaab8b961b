"""A checkpoint before it learns on: `TrainedPolicy`, to act with, and `FrozenRun`, environments in the midst of their episodes.

A `FrozenRun` plays on with the checkpoint's policy, hands out the state of its environments for branches to start from, and
measures the gradient noise at the checkpoint's parameters. Nothing here learns.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlscale.envs import BoxActions, Task, find_task
from rlscale.errors import UsageError
from rlscale.records import read_run
from rlscale.records.run import read_checkpoint, read_run_manifest

from .config import TrainConfig, config_of_run
from .learning import NoiseRecord, arrange_slots
from .learning.frozen import FrozenLearner, HessianNoise
from .memory import count_parameters
from .networks import PARAMETER_ORDER, ActingNetwork, flatten_parameters, make_network
from .resuming import check_network
from .rollout.fleet import LocalFleet
from .setup import RunSetup

__all__ = ["FrozenRun", "TrainedPolicy", "read_state"]


class TrainedPolicy:
    """The policy of a run's last checkpoint, to act with in a program of your own, on the CPU.

    Args:
        run: the run's folder.

    Attributes:
        task: that it was trained on; `rlscale.envs.make_env(task, n)` makes n of its environments.

    Raises:
        UsageError: there is no run or no checkpoint, or it cannot be used; the message says why.
    """

    def __init__(self, run: str | Path) -> None:
        config = config_of_run(read_run(Path(run)))
        self.task = find_task(config.task)
        self._network = make_network(self.task, config.update.network, 0, config.update.width)
        flatten_parameters(self._network).copy_(read_state(Path(run), config, self.task)["learner"]["parameters"])
        self._acting = ActingNetwork(self._network, bfloat16=False)

    def act(self, observation: np.ndarray, generator: np.random.Generator | None = None) -> np.ndarray:
        """Actions for n observations: the most likely ones, or drawn as in training where a generator is given.

        Args:
            observation: (n, *task.observation_shape), as the task's environments give them.
            generator: draws the actions.

        Returns:
            (n,) int64 of discrete actions, (n, k) float32 of continuous ones, which an environment clips to its bounds.
        """
        distribution = self._network.distribution(self._acting(torch.from_numpy(observation)).policy)
        if generator is not None:
            return distribution.sample(generator)
        numbers = distribution.numbers().numpy()
        return numbers[:, : len(self.task.actions)] if isinstance(self.task.actions, BoxActions) else numbers.argmax(axis=1)


def read_state(folder: Path, config: TrainConfig, task: Task) -> dict[str, Any]:
    """The session's state in the last checkpoint of a run with those settings, of that task.

    Raises:
        UsageError: there is none, it is damaged or of another task, its parameters are in an earlier version's order, or the task
            has other spaces now.
    """
    stored: dict[str, Any] = torch.load(io.BytesIO(read_checkpoint(folder, "RUN")), map_location="cpu", weights_only=False)
    recorded = read_run_manifest(folder, "RUN")["task"]["id"]
    if stored.get("task", recorded) != recorded:
        raise UsageError("RUN", f"its checkpoint is of {stored['task']}, not of {recorded}", "Restore it from a copy")
    if stored.get("parameter_order", 1) != PARAMETER_ORDER:
        raise UsageError("RUN", "its checkpoint is an earlier rlscale's", "Train it again")
    check_network("RUN", stored, task, count_parameters(config, task))
    return stored


class FrozenRun:
    """Environments that play by a frozen policy.

    Args:
        setup: of a run like the checkpoint's, in this process; its batch is what `measure` measures.
        learner: the learner's state in the checkpoint.

    Attributes:
        observations: sampled so far.
    """

    def __init__(self, setup: RunSetup, learner: dict[str, Any]) -> None:
        self._setup = setup
        self._learner = FrozenLearner(setup.config, setup.task, setup.compute.device, bfloat16=False)
        self._learner.set_state(learner)
        self._weights = self._learner.weights()
        fleet = setup.start_fleet(setup.memory, 0)
        assert isinstance(fleet, LocalFleet), "a run without actors"
        self._fleet = fleet
        self.observations = 0
        self._iteration = 0

    def play(self, steps: int) -> None:
        """Let every environment take at least that many steps, rounded up to whole rollouts."""
        rollouts = -(-steps // self._setup.config.rollout.rollout_length)
        groups = self._setup.memory.groups
        self._fleet.request(self._weights, 0, rollouts * groups)
        for _ in range(rollouts * groups):
            self.observations += self._fleet.take().summary.observations
            self._fleet.release(1)

    def measure(self) -> tuple[list[NoiseRecord], HessianNoise | None]:
        """The noise of one more batch; see `FrozenLearner.measure`."""
        memory, count = self._setup.memory, self._setup.memory.batch_fragments
        self._fleet.request(self._weights, 0, count)
        sampled = [self._fleet.take() for _ in range(count)]
        self.observations += sum(one.summary.observations for one in sampled)
        groups = [one.summary.group for one in sampled]
        slots = arrange_slots(groups, memory.environments)
        self._learner.begin(slots, self._iteration)
        self._iteration += 1
        for one, slot in zip(sampled, slots, strict=True):
            self._learner.accept(one.fragment, slot)
        self._fleet.release(count)
        return self._learner.measure()

    def environments(self) -> dict[str, Any] | None:
        """State of the environments, for `Session.set_state`; None where they cannot be saved."""
        return self._fleet.get_state()

    def go_on_from(self, environments: dict[str, Any], stream: np.random.SeedSequence) -> None:
        """Put the environments into a state that `environments` gave, and draw from that stream from here on."""
        self._fleet.set_state(environments)
        self._fleet.draw_from(stream)

    def close(self) -> None:
        self._fleet.close()
