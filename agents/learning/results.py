"""What the learning of one iteration reports: noise measurements (`NoiseRecord`) and the whole result (`UpdateResult`)."""

from dataclasses import dataclass
from typing import Any

from rlscale.noise import BlockStatistics
from rlscale.records.noise import pack_statistics

__all__ = ["NoiseRecord", "UpdateResult"]


@dataclass(frozen=True)
class NoiseRecord:
    """Block statistics of one noise measurement.

    Attributes:
        head: the loss that was measured: `joint`, `policy`, `value`, `entropy`, `policy_last_layer` (the policy loss, with
            respect to its last layer only), or `joint_policy_parameters` (the joint loss, with respect to the policy's trunk and
            head).
        kind: `rollout` when blocks are sets of environments, `mini-batch` when they are shuffled transitions.
        optimizer_step: number of optimizer steps that the run had made before the measurement.
        statistics: see `rlscale.noise`.
        adam: the same in Adam's metric before the update, see `rlscale.agents.learning.preconditioner`. None before the second
            update, for another optimizer, and for `entropy` and `policy_last_layer`.
    """

    head: str
    kind: str
    optimizer_step: int
    statistics: BlockStatistics
    adam: BlockStatistics | None = None

    def entry(self) -> dict[str, Any]:
        """What a row of the record holds of it, in the row's list `noise`."""
        packed = pack_statistics(self.statistics, self.adam)
        return {"head": self.head, "kind": self.kind, "optimizer_step": self.optimizer_step, **packed}


@dataclass(frozen=True)
class UpdateResult:
    """What the learner reports about one iteration.

    Attributes:
        figures: losses, diagnostics and the gradient's norm, as means over the iteration's optimizer steps.
        noise: the noise measurements of the iteration.
        noise_seconds: time spent on the measurement alone; on an accelerator, on launching it.
        observations: number of valid observations in the iteration batch.
        explained_variance: share of the value targets' variance that the behaviour policy's values explain.
        learning_rate: of the last optimizer step.
        optimizer_steps: number of optimizer steps that the run has made so far.
    """

    figures: dict[str, float]
    noise: list[NoiseRecord]
    noise_seconds: float
    observations: int
    explained_variance: float
    learning_rate: float
    optimizer_steps: int
