"""`BlockGradients`: forward and backward passes over parts of a batch, whose gradients go into rows of matrices.

Which part is a block, and what becomes of the rows, is in `agents.learner`; the losses are in `agents.losses`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from agents.batch import IterationBatch
from agents.config import TrainConfig
from agents.losses import log_probability, ppo_losses
from agents.networks import PolicyOutput, PolicyValueNet
from envs import Task

__all__ = ["FIGURES", "LAST_LAYER", "BlockGradients"]

LAST_LAYER = "policy_last_layer"
FIGURES = ("policy_loss", "value_loss", "entropy", "joint_loss", "approx_kl", "clip_fraction")


class BlockGradients:
    """Gradients of a network's losses over blocks of observations, in chunks that bound the memory they take.

    Args:
        network: whose parameters, in order, a row holds the gradient of.
        config: of the run.
        task: its task.
        device: where the network is.
        bfloat16: autocast the network to bfloat16; gradients stay float32.

    Attributes:
        lagged: the policy that an update starts from is another than the one that acted; see `ppo_losses`.
    """

    def __init__(self, network: PolicyValueNet, config: TrainConfig, task: Task, device: torch.device, bfloat16: bool) -> None:
        self._network, self._device, self._bfloat16 = network, device, bfloat16
        self._trainable = list(network.parameters())
        self._update = config.update
        self.lagged = config.rollout.lag > 0
        self._chunk = config.update.chunk or (
            4096 if device.type != "cpu" else 256 if math.prod(task.observation_shape) > 4096 else 1024
        )

    def add(
        self,
        batch: IterationBatch,
        positions: np.ndarray,
        row: int,
        matrices: Mapping[str, torch.Tensor],
        divisor: float,
        *,
        first: bool,
    ) -> torch.Tensor:
        """Add the gradient of every head's loss over those positions, divided by `divisor`, to row `row` of its matrix.

        Args:
            batch: what is learned from.
            positions: flat ones in the batch, (n,) int64.
            row: of the matrices.
            matrices: one for each head that is wanted, `joint` among them and last, or heads alone; (K, P) float32,
                `policy_last_layer` (K, the last layer's parameters).
            divisor: valid observations of the whole block.
            first: the row holds nothing yet.

        Returns:
            (6,) sums of the losses and figures over the valid positions, in the order of `FIGURES`.
        """
        u = self._update
        sums = torch.zeros(len(FIGURES), device=self._device)
        *_, last = matrices
        for number, (chunk, index, output) in enumerate(self._passes(batch, positions)):
            count = float(batch.valid_cpu[chunk].sum())
            action, proximal = batch.action[index], None
            if self.lagged:
                # In the only step of an iteration the present policy is the one it starts from.
                proximal = log_probability(output.logits, action) if batch.proximal is None else batch.proximal[index]
            logits, entropy_logits = output.logits, None
            if LAST_LAYER in matrices:  # two views of the same logits: what the losses' gradients are told apart by
                logits, entropy_logits = output.logits.view_as(output.logits), output.logits.view_as(output.logits)
            losses = ppo_losses(
                logits=logits,
                value=output.value,
                action=action,
                behaviour_log_prob=batch.log_prob[index],
                advantage=batch.advantage[index],
                value_target=batch.target[index],
                valid=batch.valid[index],
                clip=u.clip,
                value_coef=u.value_coef,
                entropy_coef=u.entropy_coef,
                proximal_log_prob=proximal,
                entropy_logits=entropy_logits,
            )
            scale, anew = count / divisor, first and number == 0
            heads: dict[str, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor] | None]]
            heads = {head: ((getattr(losses, head) * scale,), None) for head in matrices if head != LAST_LAYER}
            if entropy_logits is not None:
                # Losses depend on the parameters through the outputs alone. The joint loss's gradient there gives the network's,
                # and its policy part, which came apart, the last layer's: nothing is differentiated twice.
                apart = torch.autograd.grad(losses.joint * scale, (logits, entropy_logits, output.value), retain_graph=True)
                policy, entropy, value = apart
                features = output.features.detach().to(policy.dtype)
                _write((policy.T @ features, policy.sum(0)), matrices[LAST_LAYER][row], first=anew)
                heads["joint"] = (output.logits, output.value), (policy + entropy, value)
            for head, (of, by) in heads.items():
                grads = torch.autograd.grad(of, self._trainable, by, retain_graph=head != last, materialize_grads=True)
                _write(grads, matrices[head][row], first=anew)
            sums += count * torch.stack([x.detach() for x in losses])
        return sums

    @torch.no_grad()
    def look_ahead(self, batch: IterationBatch) -> None:
        """Lay log-probabilities of the batch's actions under the policy that its update starts from into `batch.proximal`."""
        batch.proximal = torch.empty_like(batch.log_prob)
        for _, index, output in self._passes(batch, np.arange(batch.steps * batch.environments)):
            batch.proximal[index] = log_probability(output.logits, batch.action[index])

    def _passes(self, batch: IterationBatch, positions: np.ndarray) -> Iterator[tuple[np.ndarray, torch.Tensor, PolicyOutput]]:
        """Positions of each chunk, the same on the device, and what the network says of them."""
        for chunk in np.array_split(positions, -(-len(positions) // self._chunk)):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
                output = self._network(batch.observation(chunk, self._device))
            yield chunk, torch.from_numpy(chunk).to(self._device), output


def _write(grads: Sequence[torch.Tensor], out: torch.Tensor, *, first: bool) -> None:
    """Lay parameter-shaped gradients into the flat `out`, or add them to the part it already holds."""
    pieces = [grad.reshape(-1) for grad in grads]
    if first:
        torch.cat(pieces, out=out)
    else:
        out += torch.cat(pieces)
