"""`GradientSums`: block gradients of losses that another library's learner computes, and the noise statistics that follow.

Our own learner computes its block gradients in `gradients`. The plug-ins (`rlscale.agents.rllib`, `rlscale.agents.sb3`) have only
a loss of some observations at a time, which autograd differentiates.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch

from rlscale.noise import NotFiniteError, block_products, statistics_of

from ..devices import fetch, upload
from ..networks import columns_of
from .optimizer import IN_METRIC, POLICY_PART
from .results import NoiseRecord

__all__ = ["GradientSums", "deal_lengths", "noise_records"]

_logger = logging.getLogger(__name__)
FEWEST_OF_AN_INTERVAL = 3  # blocks


class GradientSums:
    """Sums of gradients over the observations of each of K blocks, for every head.

    Args:
        parameters: P numbers in all, in the order of the columns.
        blocks: K.
        device: where the gradients are.

    Attributes:
        matrices: (K, P) of each head that was added.
        sizes: (K,) float64, observations of each block so far.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], blocks: int, device: torch.device) -> None:
        self._parameters = parameters
        shape = blocks, sum(p.numel() for p in parameters)
        self.matrices: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(shape, device=device))
        self.sizes = torch.zeros(blocks, dtype=torch.float64, device=device)
        self._of_policy = [False] * len(parameters)

    def add(self, block: int, losses: Mapping[str, torch.Tensor], count: int) -> None:
        """Add observations to a block.

        Args:
            block: its number.
            losses: the mean of each head's loss over these observations; the joint loss, which needs all of the graph, last.
            count: how many observations these are.
        """
        *_, last = losses
        for head, loss in losses.items():
            gradient = torch.autograd.grad(loss * count, self._parameters, retain_graph=head != last, allow_unused=True)
            if head == "policy":
                self._of_policy = [g is not None for g in gradient]
            filled = [torch.zeros_like(p) if g is None else g for g, p in zip(gradient, self._parameters, strict=True)]
            self.matrices[head][block] += torch.cat([g.reshape(-1) for g in filled])
        self.sizes[block] += count

    @property
    def policy_columns(self) -> list[slice]:
        """Columns of the parameters that the policy loss depends on."""
        return columns_of(self._parameters, self._of_policy)


def noise_records(
    matrices: Mapping[str, torch.Tensor],
    sizes: np.ndarray,
    optimizer_step: int,
    metric: torch.Tensor | None,
    policy_columns: Sequence[slice],
) -> list[NoiseRecord]:
    """The noise statistics of every head; a head whose gradients are not finite is left out, and the log says so.

    Args:
        matrices: of each head the sums over each block, (K, P); they become means in place.
        sizes: (K,) observations of each block; a block can be empty.
        optimizer_step: steps made before.
        metric: (P,), Adam's; None where there is none.
        policy_columns: on which the joint loss is measured as well.
    """
    records: list[NoiseRecord] = []
    if (sizes > 0).sum() < 2:
        _warn_of_one_block()
        return records
    products: list[torch.Tensor] = []  # of all heads before any is fetched, so that the host waits for an accelerator once
    heads: list[tuple[str, ...]] = []
    for head, matrix in matrices.items():
        matrix /= upload(torch.from_numpy(sizes), matrix.device).clamp(min=1)[:, None]
        names, part = ((head, POLICY_PART), policy_columns) if head == "joint" and policy_columns else ((head,), ())
        products.append(block_products(matrix, sizes=sizes, metric=metric if head in IN_METRIC else None, part=part))
        heads.append(names)
    for of, fetched in zip(heads, fetch(products), strict=True):
        try:
            for name, found in zip(of, torch.unflatten(fetched, 0, (len(of), -1)), strict=True):
                measured = (statistics_of(one, sizes) for one in found)
                records.append(NoiseRecord(name, "rollout", optimizer_step, *measured))
        except NotFiniteError as error:  # other libraries go on after such gradients, and so must the measurement
            _logger.warning("The noise of head %s was not measured: %s", of[0], error)
    return records


@cache
def _warn_of_one_block() -> None:
    """Once a process: a job of one environment would say it at most of its updates."""
    _logger.warning("The noise was not measured: all of the train batch lies in one block. Use eight environments or more.")


def deal_lengths(lengths: Sequence[int], blocks: range) -> list[int]:
    """The block of each of several pieces of experience of those lengths, so that blocks hold about equally many observations.

    The observations of a piece depend on each other, and of unequal blocks of such tr Σ would come out too low (`rlscale.noise`
    takes the variance of a block's sum for proportional to its observations). So there are no more blocks than pieces as long as
    the longest would fill, but three if there are as many pieces; the longest pieces first, each goes to the block that holds
    least.
    """
    count = min(len(blocks), len(lengths), max(sum(lengths) // max(lengths), FEWEST_OF_AN_INTERVAL))
    held, numbers = [0] * count, [0] * len(lengths)
    for piece in sorted(range(len(lengths)), key=lambda piece: -lengths[piece]):
        least = held.index(min(held))
        held[least] += lengths[piece]
        numbers[piece] = blocks.start + least
    return numbers
