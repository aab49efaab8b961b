"""How the learning rate follows the batch size, and the batch size the noise scale. Nothing is learned or sampled here."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from rlscale.estimate import Estimate
from rlscale.noise import BlockStatistics, pool

from ..config import Update
from .results import NoiseRecord

__all__ = ["HEAD", "NoiseWindow", "adaptive_batch", "scaled_rate"]

HEAD = "policy_last_layer"
"""Whose noise is followed: on MinAtar within a few tens of percent of the whole policy's, and there at every step for nothing."""
WINDOW = 20
DEFAULT_MINI_BATCH = 256


class NoiseWindow:
    """The last 20 measurements of the head that is followed."""

    def __init__(self, statistics: Sequence[BlockStatistics] = ()) -> None:
        self._statistics: deque[BlockStatistics] = deque(statistics, maxlen=WINDOW)

    def add(self, records: Sequence[NoiseRecord]) -> None:
        """Take in what an iteration measured."""
        self._statistics.extend(r.statistics for r in records if r.head == HEAD and (r.statistics.size > 0).sum() > 2)

    @property
    def statistics(self) -> list[BlockStatistics]:
        """What it holds, for a checkpoint."""
        return list(self._statistics)

    def scale(self) -> Estimate | None:
        """The noise scale over the window; None before the first measurement."""
        return pool(self.statistics).noise_scale if self._statistics else None


def scaled_rate(update: Update, batch: float, scale: Estimate | None) -> float:
    """The learning rate at a batch size, by the rule that the run was given; warm-up and annealing apart.

    constant: ε. sqrt, linear: ε · (B/b)^½ and ε · B/b with ε found at batch size b. noise: ε / (1 + 𝓑/B), the step that is best
    on a quadratic, with ε that of full-batch steps (paper, equation 2.6).

    Args:
        update: its `learning_rate` is ε, `lr_batch` is b.
        batch: B, observations of one optimizer step.
        scale: 𝓑. Where it is not resolved its lower end stands in, and B before there is any measurement: half of ε.
    """
    rate = update.learning_rate
    if update.lr_rule == "noise":
        return rate / (1 + (batch if scale is None else _known(scale)) / batch)
    power = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}[update.lr_rule]
    return rate * (batch / (update.lr_batch or DEFAULT_MINI_BATCH)) ** power


def adaptive_batch(
    exchange_rate: float | None, scale: Estimate | None, *, fragment: int, groups: int, turn: int, before: int, most: int
) -> int:
    """How many fragments the next iteration batch gets.

    B = √(r 𝓑), the size at which an optimizer step worth r observations and the observations themselves are in balance (paper,
    appendix D); without r, B = 𝓑. A batch is at most twice or half the one before it. Up to all groups once its fragments are of
    different environments, a divisor of the groups, so that the same sets of environments come again; beyond, of whole rounds.

    Args:
        exchange_rate: r, or None.
        scale: 𝓑. Where it is not resolved it is only known to be above its lower end, and the batch does not shrink.
        fragment: observations of a fragment.
        groups: that take turns.
        turn: which of them is next.
        before: fragments of the last batch; 0 at the start, which takes one.
        most: fragments that fit.
    """
    if not before or scale is None:
        return before or 1
    noise = _known(scale)
    wanted = (noise if exchange_rate is None else math.sqrt(exchange_rate * noise)) / fragment
    if scale.value is None:
        wanted = max(wanted, before)
    wanted = min(max(wanted, before / 2, 1.0), before * 2.0)
    sizes = [d for d in range(1, groups) if groups % d == 0 and turn % d == 0]
    if turn == 0:
        sizes += [groups << k for k in range(max(most // groups, 1).bit_length())]
    allowed = [size for size in sizes if size <= max(most, 1)]
    return min(allowed, key=lambda size: abs(math.log(size / wanted)))


def _known(scale: Estimate) -> float:
    if scale.value is not None:
        return scale.value
    assert scale.interval is not None
    return scale.interval[0]
