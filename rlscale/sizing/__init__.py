"""How many rollout workers, which batch size, how long and how much money: arithmetic on rates that were measured elsewhere.

Start with `plan`: from a task's frontier, the rate of n workers, a learner's update times and a price it makes a `CostPlan`.

    throughput  the scaling law of n rollout workers, fitted to measured rates: `fit_throughput`
    service     how long a worker's step, a fleet's batch, the hand-over and a learner's update take, and their fits
    cost        what follows for an iteration and for a whole run: `iteration`, `plan`
    machines    how many times as fast several machines would be, where no frontier was measured: `scale_out`

Nothing here measures anything: `rlscale.benchmarks.workers` does, and recommends a fleet.
"""

from .cost import Choice, CostPlan, Iteration, Price, iteration, plan
from .machines import ScaleOut, scale_out
from .service import (
    FleetTime,
    HandOver,
    LearnerTime,
    ServiceTime,
    fit_hand_over,
    fit_learner,
    fit_service,
    hand_over_seconds,
)
from .throughput import ThroughputCurve, fit_throughput

__all__ = [
    "Choice",
    "CostPlan",
    "FleetTime",
    "HandOver",
    "Iteration",
    "LearnerTime",
    "Price",
    "ScaleOut",
    "ServiceTime",
    "ThroughputCurve",
    "fit_hand_over",
    "fit_learner",
    "fit_service",
    "fit_throughput",
    "hand_over_seconds",
    "iteration",
    "plan",
    "scale_out",
]
