"""`rlscale workers`: how many rollout workers a task needs on this machine or cluster, how long a run takes and what it costs.

It measures, fits, recommends and shows, in this order: `measuring` measures a few fleets of Ray actors, the emulator and the
learner, each as `calibration` does, which also fits the law of all fleets; `recommendation` picks one; `plan` derives wall time
and cost from it and a sweep's frontier; `display` prints; `run` calls them and writes the record. `options` holds the flags, and
`kept` the fleets that were measured before an interruption.

The laws and the arithmetic of cost are in `rlscale.sizing`. Start with `run.run_workers`.
"""

from .calibration import FleetReading, Shape, fit_fleet, measure_fleet
from .options import WorkersOptions
from .recommendation import Recommendation, recommend
from .run import run_workers

__all__ = [
    "FleetReading",
    "Recommendation",
    "Shape",
    "WorkersOptions",
    "fit_fleet",
    "measure_fleet",
    "recommend",
    "run_workers",
]
