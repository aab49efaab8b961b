"""PPO updates whose gradient is accumulated over blocks of observations, so that every update yields its noise statistics.

What lives here, in the order in which a fragment passes it: `batch` lays fragments side by side, their frames in `frames`, and
`advantages` estimates advantages; `blocks` chooses which observations form a block; `losses` is PPO's loss, `proximal` the
averaged policy that PPO-EWMA clips about, and `gradients` the loss's gradient for each block; `optimizer` turns those into an
optimizer step and noise statistics, plain ones and those in Adam's metric (`preconditioner`). `Learner` holds these together
in one process, `RemoteLearners` (`remote_learners`) shares every update between several; both report as in `results`.
`schedule` adapts the learning rate and the batch size. `sums` holds the block gradients of losses that another library's
learner computes, `frozen` measures at parameters that stay as they are. What does not: the noise scale itself
(`rlscale.noise`), the networks, and how fragments are made (`rlscale.agents.rollout`).

Start with `Learner.begin`, `accept` and `finish`.
"""

from .batch import FragmentSlot, IterationBatch, arrange_slots
from .blocks import equal_share, step_kind, what_is_followed
from .frames import Positions
from .learner import Learner
from .preconditioner import adam_metric
from .remote_learners import RemoteLearners, learn_batch
from .results import NoiseRecord, UpdateResult
from .schedule import NoiseWindow, adaptive_batch, scaled_rate
from .sums import GradientSums, deal_lengths, noise_records

__all__ = [
    "FragmentSlot",
    "GradientSums",
    "IterationBatch",
    "Learner",
    "NoiseRecord",
    "NoiseWindow",
    "Positions",
    "RemoteLearners",
    "UpdateResult",
    "adam_metric",
    "adaptive_batch",
    "arrange_slots",
    "deal_lengths",
    "equal_share",
    "learn_batch",
    "noise_records",
    "scaled_rate",
    "step_kind",
    "what_is_followed",
]
