"""Which of the learning rates that were tried at a batch size is the best.

The sweep chooses its next runs by this rule, and its display and the comparison page show the same choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import TrialResult

__all__ = ["CHOOSING_STAGES", "RateChoice", "choose_rate"]

CHOOSING_STAGES = ("coarse", "fine")  # the learning rate is chosen on the runs of these stages, one run a rate


@dataclass(frozen=True)
class RateChoice:
    """The learning rate of one batch size.

    Attributes:
        best: the run at the best rate; None where no rate reached any goal.
        on_edge: no slower, or no faster, rate was tried than the best one, so a better one may lie beyond.
    """

    best: TrialResult | None
    on_edge: bool

    @property
    def rate_index(self) -> int | None:
        """k of the best rate; None where no rate reached any goal."""
        return None if self.best is None else self.best.rate_index


def choose_rate(tried: Sequence[TrialResult]) -> RateChoice:
    """The best of the rates that were tried at one batch size.

    The best rate reaches the last goal in the fewest optimizer steps S; where none does, the most goals, then the fewest steps.
    One run's ln S is lucky or unlucky by a third, and a rate on the brink of instability may look best by luck. As soon as
    rates between those of the coarse grid have been tried (stage `fine`), ln S is therefore averaged over the rates within an
    octave, with weights 1, 2/3 and 1/3 at distances of 0, ½ and 1 octave; a run that missed the goal counts with twice the
    steps it made.

    Args:
        tried: runs of `CHOOSING_STAGES` at one batch size, failed ones included: they count as tried, and never as the best.
    """
    tried = sorted(tried, key=lambda run: run.rate_index)
    goals = max((len(run.reached) for run in tried), default=0)
    if not goals:
        return RateChoice(None, False)
    reach = 3 if any(run.stage == "fine" for run in tried) else 1  # in half-octaves; runs so far away weigh nothing

    def log_steps(run: TrialResult) -> float:
        steps = run.goals[goals - 1].optimizer_steps
        return math.log(2 * max(run.optimizer_steps, 1) if steps is None else steps)

    def score(run: TrialResult) -> tuple[float, int]:
        weighted = [(1 - abs(other.rate_index - run.rate_index) / reach, other) for other in tried if other.goals]
        near = [(weight, log_steps(other)) for weight, other in weighted if weight > 0]
        return sum(weight * steps for weight, steps in near) / sum(weight for weight, _ in near), abs(run.rate_index)

    best = min((run for run in tried if len(run.reached) == goals), key=score)
    return RateChoice(best, len(tried) > 1 and best in (tried[0], tried[-1]))
