"""The options of `rlscale advise`, and the check that they fit each other."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rlscale.agents.checks import require_not_negative, require_positive
from rlscale.errors import UsageError

from ..workers.options import check_cpus

__all__ = ["AdviseOptions", "check_options"]


@dataclass(frozen=True)
class AdviseOptions:
    """Say in minutes which batch size and how many actors a task is worth here, and what more machines would give."""

    task: Annotated[str | None, tyro.conf.Positional] = None
    """The task, for example atari/pong; not needed with --run."""
    run: str | None = None
    """Folder of a run that exists, one of RLlib or Stable-Baselines3 included: read its noise instead of training."""
    seconds: float = 90.0
    """Seconds of training, in which the noise is measured at every update."""
    fleet_seconds: float = 2.0
    """Seconds that each fleet of actors is measured for, at least."""
    cpus: int | None = None
    """CPUs that actors may use; None: all of this machine, or of the cluster."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    price_hour: float | None = None
    """Price of a machine like this one for an hour, in any currency; None: costs are relative."""
    seed: int = 0
    """Seed of the training run."""
    json: bool = False
    """Print the advice as JSON, and nothing else."""
    out: str | None = None
    """Folder for the run, the record and the page; None: advice/<task>-<date>-<time>."""


def check_options(options: AdviseOptions) -> None:
    """Check what can be checked before anything is made.

    Raises:
        UsageError: names the option that does not fit.
    """
    if options.task is None and options.run is None:
        raise UsageError("TASK", "there is nothing to advise on", "Name a task, or a run with --run FOLDER")
    require_positive({"seconds": options.seconds, "fleet-seconds": options.fleet_seconds, "cpus": options.cpus})
    check_cpus(options.cpus, options.ray_address)
    require_not_negative({"price-hour": options.price_hour})
