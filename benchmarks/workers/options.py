"""The options of `rlscale workers`, and the check that they fit each other."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rlscale.agents.checks import require_not_negative, require_positive
from rlscale.errors import UsageError
from rlscale.text import parse_duration

from ..options import check_cpus, refuse_given

__all__ = ["WorkersOptions", "check_options"]


@dataclass(frozen=True)
class WorkersOptions:
    """Say how many rollout workers a task needs here: measure a few fleets, predict the others, recommend one."""

    task: Annotated[str, tyro.conf.Positional]
    """The task, for example atari/pong."""
    cpus: int | None = None
    """CPUs that actors may use; None: all of this machine, or of the cluster those that nobody has reserved."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    seconds: float = 3.0
    """Seconds that each fleet is measured for, at least."""
    lag: Literal[0, 1] = 0
    """1: sample the next batch while learning, on processors of their own."""
    sweep: str | None = None
    """Folder of a sweep of the task: for its frontier, plan wall time and cost of every batch size."""
    goal: float | None = None
    """The sweep's goal to plan for; None: the highest that is identified."""
    deadline: str | None = None
    """The run must end within, for example 90min or 8h: the cheapest plan that does."""
    budget: float | None = None
    """The run may cost, in the currency of the prices: the fastest plan that does."""
    price_cpu_hour: float | None = None
    """Price of one CPU for an hour; None: costs are in CPU hours."""
    price_gpu_hour: float | None = None
    """Price of the learner's GPU for an hour, where it has one."""
    again: bool = False
    """Measure anew what an earlier command measured here; without it only what it left out is measured."""
    validate: bool = False
    """Measure fleets that were not used for the fit, and say how far the predictions were off."""
    actor_device: str = "cpu"
    """Where policies act."""
    device: str = "auto"
    """Where the learner works."""
    out: str | None = None
    """Folder for the record and the page; None: workers/<task>."""


def check_options(options: WorkersOptions) -> float | None:
    """The deadline in seconds.

    Raises:
        UsageError: names the option that does not fit.
    """
    positive = {"cpus": options.cpus, "seconds": options.seconds, "budget": options.budget}
    require_positive(positive)
    check_cpus(options.cpus, options.ray_address)
    require_not_negative({"price-cpu-hour": options.price_cpu_hour, "price-gpu-hour": options.price_gpu_hour})
    if options.sweep is None:
        names = "goal", "deadline", "budget", "price_cpu_hour", "price_gpu_hour"
        problem = "how long a run takes follows from a sweep of its task"
        refuse_given(options, names, problem, "Name the folder of one with --sweep, or leave it out")
    if options.price_gpu_hour is not None and options.price_cpu_hour is None:
        mend = "Give --price-cpu-hour as well, 0 where it is in the GPU's price"
        raise UsageError("--price-gpu-hour", "it cannot be added to CPU hours without a price", mend)
    if options.budget is not None and options.price_cpu_hour is None:
        raise UsageError("--budget", "there is no price that it could be compared with", "Give --price-cpu-hour")
    return None if options.deadline is None else parse_duration(options.deadline, "--deadline")
