"""The options of `rlscale workers`, and the check that they fit each other."""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rlscale.agents.checks import require_not_negative, require_positive
from rlscale.agents.cluster import free_cpus
from rlscale.cpus import usable_cpus
from rlscale.errors import UsageError
from rlscale.records.files import lock_folder, make_folder
from rlscale.text import parse_duration

from ..options import refuse_given

__all__ = [
    "WorkersOptions",
    "check_cpus",
    "check_options",
    "cpus_by_node",
    "cpus_for_actors",
    "describe_nodes",
    "gpus_there",
    "hold_folder",
    "offered_cpus",
    "share_beside_learner",
]


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


def check_cpus(cpus: int | None, ray_address: str | None) -> None:
    """Actors that share a CPU are slower than fewer of them.

    Raises:
        UsageError: more CPUs than this machine has.
    """
    here = usable_cpus()
    if ray_address is None and cpus is not None and cpus > here:
        raise UsageError("--cpus", f"this machine has {here}, not {cpus}", "Give fewer, or a cluster with --ray-address")


def cpus_for_actors(cpus: int | None, ray_address: str | None) -> int:
    """CPUs that actors may use: those that were asked for, or else all of this machine, or what is free of the cluster joined.

    Raises:
        UsageError: nothing is free, or fewer than were asked for.
    """
    if ray_address is None:
        return cpus or usable_cpus()
    free, mend = free_cpus(), "Wait until some are free ('ray status' shows them)"
    if not free:
        raise UsageError("--ray-address", "all CPUs of the cluster are in use", mend)
    if cpus is not None and cpus > free:
        raise UsageError("--cpus", f"{free} of the cluster are free, not {cpus}", f"{mend}, or give fewer")
    return cpus or free


def describe_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, those that are alike counted together; nothing that names them, and nothing that varies."""
    import ray

    kinds = Counter(
        (int(r.get("CPU", 0)), int(r.get("GPU", 0))) for r in (node["Resources"] for node in ray.nodes() if node["Alive"])
    )
    return [{"cpus": cpus, "gpus": gpus, "count": count} for (cpus, gpus), count in sorted(kinds.items(), reverse=True)]


def cpus_by_node(ray_address: str | None) -> tuple[int, ...] | None:
    """CPUs of each node of the cluster joined that nobody has reserved; None where this machine is all there is."""
    if ray_address is None:
        return None
    from ray._private.state import available_resources_per_node

    return tuple(int(free.get("CPU", 0)) for free in available_resources_per_node().values())


def gpus_there() -> float:
    """GPUs that Ray knows; this process must have joined it."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0))


def share_beside_learner(ray_address: str | None) -> float:
    """The part of the actors that is put on the machine which this command learns on; they are spread evenly over nodes."""
    if ray_address is None:
        return 1.0
    import ray

    here = ray.get_runtime_context().get_node_id()
    offering = [node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU", 0) > 0]
    return 1 / len(offering) if here in offering else 0.0


def offered_cpus(ray_address: str | None) -> float:
    """CPUs of all nodes of the cluster joined, whoever uses them; inf where this machine is all there is."""
    if ray_address is None:
        return math.inf
    import ray

    return sum(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a record, and hold it for this process: two that wrote the record would drop each other's results.

    Raises:
        UsageError: it cannot be made or written to, or another process holds it.
    """
    make_folder(folder, "--out")
    lock = lock_folder(folder, "--out")
    try:
        yield
    finally:
        os.close(lock)


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
