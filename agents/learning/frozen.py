"""`FrozenLearner`: the gradient noise at one set of parameters, which it never changes.

A run measures its noise while it learns, so every measurement is at other parameters. Here as many batches as are wanted are
measured at the parameters of a checkpoint: in the plain metric, in Adam's, and in that of the Hessian of the joint loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlscale.noise import BlockStatistics, hessian_statistics

from .batch import IterationBatch
from .frames import Positions
from .learner import Learner
from .losses import ppo_losses
from .optimizer import StepGradients
from .results import NoiseRecord

__all__ = ["FrozenLearner", "HessianNoise", "hessian_products", "pooled"]

HEADS = ("policy", "value")  # the losses that are measured besides the joint one


@dataclass(frozen=True)
class HessianNoise:
    """Statistics in the metric of the joint loss's Hessian, of all parameters and of the policy's: see `hessian_statistics`."""

    joint: BlockStatistics
    policy_parameters: BlockStatistics


class FrozenLearner(Learner):
    """A learner that measures batches at the parameters of `set_state` and makes no step; the only one, and of held batches."""

    _previous: IterationBatch | None = None

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._state = state

    def measure(self) -> tuple[list[NoiseRecord], HessianNoise | None]:
        """The noise in the batch whose fragments were accepted, in place of `finish`.

        The Hessian is that of the batch before, so that it does not err with this batch's gradients; None in the first batch, and
        where nothing was measured because fewer than two blocks hold an observation.

        Raises:
            ValueError: the batch has fewer than two environments.
        """
        placed, self._held = self._held, []
        batch = self._read(placed)
        self.scale_square = self._state["scale_square"]  # of the checkpoint, whatever this batch says
        self._optimizer.begin()
        if self._blocks.environments < 2 * self._config.rollout.clones:
            raise ValueError("a noise scale needs at least two environments")
        gradients = self._measure(batch, [*HEADS, "joint"])
        records = self._optimizer.finish(batch.moments).noise
        previous, self._previous = self._previous, batch
        return records, None if previous is None or gradients is None else self._in_hessian(previous, gradients)

    def _in_hessian(self, batch: IterationBatch, gradients: StepGradients) -> HessianNoise:
        matrix = gradients.matrices["joint"]
        part = torch.zeros_like(matrix[0])
        for columns in self._optimizer._policy_columns:
            part[columns] = 1.0
        # Of the policy's parameters alone: H's own block, since the others are held.
        found = []
        for mask in (None, part):
            vectors = matrix if mask is None else matrix * mask
            products = hessian_products(self, batch, vectors)
            moved = products if mask is None else products * mask
            found.append(hessian_statistics(vectors, gradients.sizes, moved, blocks=gradients.names))
        return HessianNoise(*found)


def hessian_products(learner: Learner, batch: IterationBatch, vectors: torch.Tensor) -> torch.Tensor:
    """H v for each row of `vectors`, (V, P), with H the Hessian of the mean joint loss over the batch's valid observations.

    By differentiating twice, a chunk of observations at a time, in float32.
    """
    config, device = learner._config.update, learner._device
    parameters, distribution = list(learner.network.parameters()), learner.network.distribution
    total = torch.zeros_like(vectors)
    every = np.flatnonzero(batch.valid_cpu)
    for chunk in np.array_split(every, -(-len(every) // learner._gradients._chunk)):
        positions = Positions.of(chunk, device)
        index = positions.index
        output = learner.network(batch.observations(positions))
        losses = ppo_losses(
            policy=distribution(output.policy),
            value=output.value,
            action=batch.action[index],
            behaviour_log_prob=batch.log_prob[index],
            advantage=batch.advantage[index],
            value_target=batch.target[index],
            clip=None,  # at the parameters that acted a clip changes nothing, but for rounding
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
        )
        first = torch.autograd.grad(losses.joint.sum() / len(every), parameters, create_graph=True)
        flat = torch.cat([g.reshape(-1) for g in first])
        for row, vector in enumerate(vectors):
            second = torch.autograd.grad(flat, parameters, vector, retain_graph=True, materialize_grads=True)
            total[row] += torch.cat([g.reshape(-1) for g in second])
    return total


def pooled(records: Sequence[Sequence[NoiseRecord]], head: str, *, adam: bool = False) -> list[BlockStatistics]:
    """The statistics of one head over all batches, plain or in Adam's metric."""
    found = [record.adam if adam else record.statistics for batch in records for record in batch if record.head == head]
    return [statistics for statistics in found if statistics is not None]
