"""Rules by which the learning rate follows the batch size, and an adaptive batch size follows the noise scale."""

import math
from collections import deque
from collections.abc import Sequence

from rlscale.estimate import Estimate
from rlscale.noise import POOL_WINDOW, BlockStatistics, pool

from ..config import FOLLOWED_BLOCKS, Update
from .results import NoiseRecord

__all__ = ["NoiseWindow", "adaptive_batch", "scaled_rate"]

DEFAULT_MINI_BATCH = 256


class NoiseWindow:
    """The latest measurements, as many as are pooled, of the noise that is followed, which every step measures at no cost.

    What an iteration measures beside its steps, between blocks of another kind, is another quantity and left out.

    Args:
        followed: `NoiseSettings.followed_noise`; what ends in `_adam` is in Adam's metric, from the second update on.
        kind: of the steps' blocks, see `rlscale.agents.learning.blocks.step_kind`.
        statistics: of a checkpoint.
    """

    def __init__(self, followed: str, kind: str, statistics: Sequence[BlockStatistics] = ()) -> None:
        self._head, self._metric = followed.removesuffix("_adam"), "adam" if followed.endswith("_adam") else "statistics"
        self._kind = kind
        self._statistics: deque[BlockStatistics] = deque(statistics, maxlen=POOL_WINDOW)

    def add(self, records: Sequence[NoiseRecord]) -> None:
        """Add the measurements of an iteration."""
        wanted = self._head, self._kind
        found = [getattr(record, self._metric) for record in records if (record.head, record.kind) == wanted]
        self._statistics.extend(one for one in found if one is not None and (one.size > 0).sum() >= FOLLOWED_BLOCKS)

    @property
    def statistics(self) -> list[BlockStatistics]:
        """The measurements in the window, for a checkpoint."""
        return list(self._statistics)

    def scale(self) -> Estimate | None:
        """The noise scale over the window; None before the first measurement."""
        return pool(self.statistics).noise_scale if self._statistics else None


def scaled_rate(update: Update, batch: float, scale: Estimate | None) -> float:
    """The learning rate at a batch size by the run's rule, before warm-up and annealing.

    constant: ε. sqrt and linear: ε · (B/b)^½ and ε · B/b, where ε was found at batch size b. noise: ε / (1 + 𝓑/B), the best step
    on a quadratic, where ε is the best full-batch step (McCandlish et al. 2018, equation 2.6).

    Args:
        update: its `learning_rate` is ε, `lr_batch` is b.
        batch: B, observations of one optimizer step.
        scale: 𝓑, or its interval's lower end where it is not resolved; None before the first measurement, which gives ε / 2.
    """
    rate = update.learning_rate
    if update.lr_rule == "noise":
        return rate / (1 + (batch if scale is None else _known(scale)) / batch)
    power = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}[update.lr_rule]
    return rate * (batch / (update.lr_batch or DEFAULT_MINI_BATCH)) ** power


def adaptive_batch(
    exchange_rate: float | None, scale: Estimate | None, *, fragment: float, groups: int, turn: int, before: int, most: int
) -> int:
    """The number of fragments of the next iteration batch.

    B = √(r 𝓑) balances the cost of optimizer steps, each worth r observations, with that of the observations themselves
    (McCandlish et al. 2018, appendix D); without r, B = 𝓑. The number of fragments divides the number of groups, so that the same
    sets of environments come again, or is a number of whole rounds, a power of two. A batch is at most twice and at least half as
    large as the one before, or of the next possible size: 25 groups allow 1, 5 and 25 fragments, and nothing between.

    Args:
        exchange_rate: r, or None.
        scale: 𝓑; None where nothing was measured, and the batch stays. Where it is not resolved only a lower bound is known, and
            the batch does not shrink.
        fragment: observations that one fragment teaches, without the steps that only reset an environment: 𝓑 has none.
        groups: number of groups of environments, which take turns.
        turn: the group that is next.
        before: fragments of the last batch; 0 at the start, and then the result is 1.
        most: number of fragments that fit into memory.
    """
    if not before:
        return 1
    wanted = float(before)
    if scale is not None:
        noise = _known(scale)
        # A root of each: their product may be too large for a number.
        of_noise = (noise if exchange_rate is None else math.sqrt(exchange_rate) * math.sqrt(noise)) / fragment
        wanted = of_noise if scale.value is not None else max(of_noise, wanted)
    sizes = [d for d in range(1, groups) if groups % d == 0 and turn % d == 0]
    if turn == 0:
        sizes += [groups << k for k in range(max(most // groups, 1).bit_length())]
    allowed = [size for size in sizes if size <= max(most, 1)]
    near = [size for size in allowed if before / 2 <= size <= 2 * before]
    smaller = [size for size in allowed if size < before]
    larger = [size for size in allowed if size > before]
    return min(near + smaller[-1:] + larger[:1], key=lambda size: abs(math.log(size / max(wanted, 1.0))))


def _known(scale: Estimate) -> float:
    if scale.value is not None:
        return scale.value
    assert scale.interval is not None
    return scale.interval[0]
