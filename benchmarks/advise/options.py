"""The options of `rlscale advise`, and the check that they fit each other."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rlscale.agents.checks import require_not_negative, require_positive
from rlscale.errors import UsageError

from ..options import check_cpus, refuse_given

__all__ = ["AdviseOptions", "check_options", "refuse_to_measure"]


@dataclass(frozen=True)
class AdviseOptions:
    """Say in minutes which batch size and how many actors a task is worth here, and what more machines would give."""

    task: Annotated[str | None, tyro.conf.Positional] = None
    """The task, for example atari/pong; not needed with --run."""
    run: str | None = None
    """Folder of a run that exists, one of RLlib or Stable-Baselines3 included: read its noise instead of training."""
    seconds: float = 90.0
    """Seconds of training, in which the noise is measured at every update; not with --run."""
    fleet_seconds: float = 2.0
    """Seconds that each fleet of actors is measured for, at least."""
    cpus: int | None = None
    """CPUs that actors may use; None: all of this machine, or of the cluster."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    price_hour: float | None = None
    """Price of a machine like this one for an hour, or with --ray-address of the whole cluster; None: costs are relative."""
    seed: int = 0
    """Seed of the training run; not with --run."""
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
    if options.run is not None:
        problem = "it is of the training, and with --run nothing is trained"
        refuse_given(options, ("seconds", "seed"), problem, "Leave it out, or leave out --run")
    require_positive({"seconds": options.seconds, "fleet-seconds": options.fleet_seconds, "cpus": options.cpus})
    check_cpus(options.cpus, options.ray_address)
    require_not_negative({"price-hour": options.price_hour})


def refuse_to_measure(options: AdviseOptions, task: str) -> None:
    """Refuse what only fleets of actors need, where none is measured.

    Args:
        options: as typed.
        task: of the run, which is not known here.

    Raises:
        UsageError: names the option.
    """
    problem = f"nothing is measured here, since rlscale does not know the task {task!r} of the run"
    mend = "Leave it out, or name the task as well: rlscale advise TASK --run FOLDER"
    refuse_given(options, ("cpus", "ray_address", "price_hour", "fleet_seconds"), problem, mend)
