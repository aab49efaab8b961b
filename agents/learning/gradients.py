"""`BlockGradients`: writes the gradient of each block of observations into its row of a matrix.

Small blocks share a pass through the network. Then autograd only goes from layer to layer, and each layer computes every
block's gradient of its own parameters (`rlscale.agents.networks.layers`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch

from rlscale.envs import Task

from ..config import TrainConfig
from ..devices import upload
from ..networks import ForwardTape, Layer, PolicyOutput, PolicyValueNet
from .batch import IterationBatch
from .frames import Positions
from .losses import ppo_losses
from .proximal import AveragedPolicy

__all__ = ["FIGURES", "LAST_LAYER", "BlockGradients", "BlockPart"]

LAST_LAYER = "policy_last_layer"
FIGURES = ("policy_loss", "value_loss", "entropy", "joint_loss", "approx_kl", "clip_fraction")


@dataclass(frozen=True)
class BlockPart:
    """Observations of one block, or of a part of it.

    Attributes:
        row: the block's row in the matrices.
        positions: flat positions in the batch, (n,) int64.
        divisor: number of valid observations in the whole block.
        first: the row holds nothing yet, so it is overwritten instead of added to.
    """

    row: int
    positions: np.ndarray
    divisor: float
    first: bool = True


class BlockGradients:
    """Gradients of a network's losses over blocks of observations, a chunk at a time, which bounds the memory they take.

    Args:
        network: a row of gradients has the order of its parameters.
        config: the run's settings.
        task: the run's task.
        device: where the network is.
        bfloat16: autocast the network to bfloat16; gradients stay float32.
        average: the proximal policy; None for the one that an update starts from.

    Attributes:
        lagged: the policy that an update starts from is the proximal one, and not the one that acted; see `ppo_losses`.
    """

    def __init__(
        self,
        network: PolicyValueNet,
        config: TrainConfig,
        task: Task,
        device: torch.device,
        bfloat16: bool,
        average: AveragedPolicy | None = None,
    ) -> None:
        self._network, self._device, self._bfloat16, self._average = network, device, bfloat16, average
        self._parameters = list(network.parameters())
        layers = [layer for layer in network.modules() if isinstance(layer, Layer)]
        bounds = pairwise(accumulate((_size(layer) for layer in layers), initial=0))
        self._slices = {layer: ParameterSlice(layer, *of_layer) for layer, of_layer in zip(layers, bounds, strict=True)}
        self._last_layer = ParameterSlice(network.policy_head, 0, _size(network.policy_head))
        assert [id(p) for layer in layers for p in layer.parameters()] == [id(p) for p in self._parameters]
        self._update = config.update
        self.lagged = config.rollout.lag > 0 and average is None
        self._chunk = config.update.chunk or (
            4096 if device.type != "cpu" else 512 if math.prod(task.observation_shape) > 4096 else 1024
        )

    def add(self, batch: IterationBatch, parts: Sequence[BlockPart], matrices: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Add the gradient of every head's loss over each part, divided by its divisor, to its row of the head's matrix.

        Args:
            batch: holds the observations.
            parts: as many as fit into a chunk share a pass through the network.
            matrices: one for each wanted head, (K, P) float32, or (K, the last layer's parameters) for `policy_last_layer`.
                `joint`, if it is among them, comes last; `policy_last_layer` needs it.

        Returns:
            (6,) sums of the losses and diagnostics over the valid positions, in the order of `FIGURES`.
        """
        sums = torch.zeros(len(FIGURES), device=self._device)
        passes = list(self._shared_passes(parts))
        pieces = [piece for together in passes for piece in together]
        lengths = [len(piece.positions) for piece in pieces]
        divisors = np.repeat(np.array([piece.divisor for piece in pieces], dtype=np.float32), lengths)
        # What an accelerator has to be told goes to it here, at once, and the loop over the blocks never waits for it.
        positions = Positions.of(np.concatenate([piece.positions for piece in pieces]), self._device)
        divisor = upload(torch.from_numpy(divisors), self._device)
        start = 0
        # Autocast keeps converted weights until the outermost context ends: here until after all passes.
        with torch.autocast(self._device.type, enabled=False):
            for together in passes:
                stop = start + sum(len(piece.positions) for piece in together)
                at = slice(start, stop)
                sums += self._pass(batch, together, positions.part(at), divisor[at], matrices)
                start = stop
        return sums

    def _pass(
        self,
        batch: IterationBatch,
        parts: Sequence[BlockPart],
        positions: Positions,
        divisor: torch.Tensor,
        matrices: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Add the gradients of parts that go through the network together: `positions` are theirs, `divisor` is each one's."""
        u, index = self._update, positions.index
        # A single block needs no tape: autograd's own sum over the observations is 1 to 6% faster.
        tape: ForwardTape | None = [] if len(parts) > 1 else None
        observations = batch.observations(positions)
        output = self._forward(self._network, observations, tape)
        action, proximal = batch.action[index], None
        if self._average is not None:
            with torch.no_grad():
                proximal = self._log_prob(self._forward(self._average.network, observations), action)
        elif self.lagged:
            # In the only step of an iteration the present policy is the one it starts from.
            proximal = self._log_prob(output, action) if batch.proximal is None else batch.proximal[index]
        distribution, policy, entropy_policy = self._network.distribution, output.policy, None
        if LAST_LAYER in matrices:  # two views of the same numbers, so that the gradients of two losses arrive separately
            policy, entropy_policy = output.policy.view_as(output.policy), output.policy.view_as(output.policy)
        losses = ppo_losses(
            policy=distribution(policy),
            value=output.value,
            action=action,
            behaviour_log_prob=batch.log_prob[index],
            advantage=batch.advantage[index],
            value_target=batch.target[index],
            clip=u.clip,
            value_coef=u.value_coef,
            entropy_coef=u.entropy_coef,
            proximal_log_prob=proximal,
            entropy_policy=None if entropy_policy is None else distribution(entropy_policy),
        )
        valid = batch.valid[index].float()
        weight = valid / divisor
        heads: dict[str, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {
            head: ((getattr(losses, head),), (weight,)) for head in matrices if head != LAST_LAYER
        }
        runs = list(_runs(parts))
        if entropy_policy is not None:
            # Losses depend on the parameters through the outputs alone. From the joint loss's gradient there follows the
            # network's, and from its policy part, which arrives separately, the last layer's: nothing is differentiated twice.
            outputs = policy, entropy_policy, output.value
            of_policy, of_entropy, of_value = torch.autograd.grad(losses.joint, outputs, weight, retain_graph=True)
            for rows, mine, first in runs:
                views = self._last_layer.views(matrices[LAST_LAYER][rows])
                self._network.policy_head.add_gradients(output.features[mine], of_policy[mine], *views, first=first)
            heads["joint"] = (output.policy, output.value), (of_policy + of_entropy, of_value)
        *_, last = heads
        for head, (of, by) in heads.items():
            self._fill(matrices[head], runs, tape, of, by, keep=head != last)
        return torch.stack([x.detach() for x in losses]) @ valid

    def _fill(
        self,
        matrix: torch.Tensor,
        runs: Sequence[_Run],
        tape: ForwardTape | None,
        of: Sequence[torch.Tensor],
        by: Sequence[torch.Tensor],
        *,
        keep: bool,
    ) -> None:
        """Write the gradient of each block into its row of one head's matrix.

        Args:
            matrix: of the head.
            runs: the parts of this pass.
            tape: the layers' calls; None if autograd is to sum over the observations.
            of: where the chain rule starts: the losses, or outputs of the network.
            by: the gradients there.
            keep: keep the graph for another head.
        """
        if tape is None:
            ((rows, _, first),) = runs
            grads = torch.autograd.grad(of, self._parameters, by, retain_graph=keep, materialize_grads=True)
            row, pieces = matrix[rows.start], [x.reshape(-1) for x in grads]
            if first:
                torch.cat(pieces, out=row)
            else:
                row += torch.cat(pieces)
            return
        gradients = torch.autograd.grad(of, [call.output for call in tape], by, retain_graph=keep, allow_unused=True)
        for rows, mine, first in runs:
            for (layer, input, _), gradient in zip(tape, gradients, strict=True):
                weight, bias = self._slices[layer].views(matrix[rows])
                if gradient is not None:
                    layer.add_gradients(input[mine], gradient[mine], weight, bias, first=first)
                elif first:  # a layer that the loss does not depend on
                    weight.zero_()
                    bias.zero_()

    @torch.no_grad()
    def look_ahead(self, batch: IterationBatch) -> None:
        """Fill `batch.proximal`: log-probabilities of its actions under the policy that the update starts from."""
        batch.proximal = torch.empty_like(batch.log_prob)
        everything = Positions.of(np.arange(batch.steps * batch.environments), self._device)
        for chunk in self._chunks(everything.host):
            positions = everything.part(slice(chunk[0], chunk[-1] + 1))
            output = self._forward(self._network, batch.observations(positions))
            batch.proximal[positions.index] = self._log_prob(output, batch.action[positions.index])

    @torch.no_grad()
    def _log_prob(self, output: PolicyOutput, action: torch.Tensor) -> torch.Tensor:
        """Log-probability (n,) of each action under the policy of that output; carries no gradient."""
        return self._network.distribution(output.policy).log_prob(action)

    def _forward(self, network: PolicyValueNet, observations: torch.Tensor, tape: ForwardTape | None = None) -> PolicyOutput:
        """A network's output for those observations."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            output: PolicyOutput = network(observations, tape)
        return output

    def _chunks(self, positions: np.ndarray) -> list[np.ndarray]:
        return np.array_split(positions, -(-len(positions) // self._chunk))

    def _shared_passes(self, parts: Sequence[BlockPart]) -> Iterator[list[BlockPart]]:
        """Parts that go through the network together: those larger than a chunk in pieces, smaller ones as many as fit."""
        together: list[BlockPart] = []
        room = self._chunk
        for part in parts:
            for number, piece in enumerate(self._chunks(part.positions)):
                if len(piece) > room:
                    yield together
                    together, room = [], self._chunk
                together.append(replace(part, positions=piece, first=part.first and number == 0))
                room -= len(piece)
        if together:
            yield together


class _Run(NamedTuple):
    """Parts of one pass that share their calls: they have neighbouring rows and equally many observations."""

    rows: slice
    observations: slice
    first: bool


def _runs(parts: Sequence[BlockPart]) -> Iterator[_Run]:
    numbered, start = enumerate(parts), 0
    for (_, length, first), run in groupby(numbered, lambda x: (x[1].row - x[0], len(x[1].positions), x[1].first)):
        rows = [part.row for _, part in run]
        stop = start + length * len(rows)
        yield _Run(slice(rows[0], rows[-1] + 1), slice(start, stop), first)
        start = stop


class ParameterSlice(NamedTuple):
    """Where a layer's gradients lie in a flat row: first its weight's, then its bias's."""

    layer: Layer
    start: int
    stop: int

    def views(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weight gradients (K, …) and bias gradients (K, …) in rows (K, P)."""
        weight, middle = self.layer.weight, self.start + self.layer.weight.numel()
        return torch.unflatten(rows[:, self.start : middle], 1, weight.shape), rows[:, middle : self.stop]


def _size(layer: Layer) -> int:
    """Number of the layer's parameters."""
    return sum(parameter.numel() for parameter in layer.parameters())
