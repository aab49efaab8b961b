"""`FrozenRun`: environments that play on with the policy of a checkpoint, in the midst of their episodes. Nothing here learns.

It hands out the state of its environments for branches to start from, and measures the gradient noise at the checkpoint's
parameters.
"""

from typing import Any

import numpy as np

from .learning import NoiseRecord, arrange_slots
from .learning.frozen import FrozenLearner, HessianNoise
from .rollout.fleet import LocalFleet
from .setup import RunSetup

__all__ = ["FrozenRun"]


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
