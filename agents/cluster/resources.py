"""What a cluster that this process has joined has: nodes, CPUs and GPUs, those that are free, and room for fragments.

How it is joined is in `connect`; whether all processes of a run find room at once, in `placement`. Where a function takes the
address by which the cluster was joined, None says that this machine is all there is.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlscale.cpus import usable_cpus
from rlscale.errors import UsageError

__all__ = [
    "Resources",
    "cpus_by_node",
    "cpus_for_actors",
    "cpus_there",
    "describe_nodes",
    "free_cpus",
    "free_places",
    "free_resources",
    "gpus_there",
    "living_nodes",
    "offered_cpus",
    "share_beside_learner",
    "spilled_files",
    "store_bytes",
]

Resources = Mapping[str, float]  # by Ray's names: CPU, GPU


def living_nodes() -> dict[str, Resources]:
    """What every living node has in all, by the node's id."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def cpus_there() -> int:
    """CPUs that Ray knows, whoever uses them."""
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def gpus_there() -> float:
    """GPUs that Ray knows, whoever uses them."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0))


def free_resources() -> Resources:
    """What nobody has reserved, on all nodes together."""
    import ray

    return ray.available_resources()


def free_cpus() -> int:
    """CPUs of the cluster that nobody has reserved, whole ones of each node: no process runs on halves of two nodes."""
    return sum(_free_by_node())


def free_places(cpus: int) -> int:
    """Processes of so many CPUs for which there is room now, node by node: all CPUs of one are of one node."""
    return sum(free // cpus for free in _free_by_node())


def cpus_by_node(ray_address: str | None) -> tuple[int, ...] | None:
    """CPUs of each node that nobody has reserved; None where this machine is all there is."""
    return None if ray_address is None else _free_by_node()


def _free_by_node() -> tuple[int, ...]:
    from ray._private.state import available_resources_per_node

    return tuple(int(free.get("CPU", 0)) for free in available_resources_per_node().values())


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


def offered_cpus(ray_address: str | None) -> float:
    """CPUs of all nodes, whoever uses them; without a cluster, those of this machine that this process may use."""
    return usable_cpus() if ray_address is None else sum(node.get("CPU", 0.0) for node in living_nodes().values())


def describe_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, those that are alike counted together; nothing that names them, and nothing that varies."""
    kinds = Counter((int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in living_nodes().values())
    return [{"cpus": cpus, "gpus": gpus, "count": count} for (cpus, gpus), count in sorted(kinds.items(), reverse=True)]


def share_beside_learner(ray_address: str | None) -> float:
    """The part of the actors that is put on the machine which this command learns on; they are spread evenly over nodes."""
    if ray_address is None:
        return 1.0
    import ray

    here = ray.get_runtime_context().get_node_id()
    offering = [name for name, node in living_nodes().items() if node.get("CPU", 0) > 0]
    return 1 / len(offering) if here in offering else 0.0


def store_bytes(
    learners: int,
    actors: int | None = None,
    cpus: int = 1,
    *,
    learner: Resources | None = None,
    stream: bool = False,
    lag: int = 0,
) -> int:
    """Bytes of fragments that the object stores can hold at once.

    A fragment lies in the store of the node where it was made, until it is released, and is copied into that of the learner,
    which reads a whole batch; of a stream it reads few at a time, and of two batches (lag 1) one. So what binds is the node that
    makes the largest share for its store, or the one that reads.

    Args:
        learners: one learns in this process, on this node; several may be on any that has room for one.
        actors: dealt out evenly to the nodes that have room for them beside learners, as `SPREAD` does; None: as many as there is
            room for; 0: this process makes the fragments, and puts them into the store here.
        cpus: of each.
        learner: what each of several learners reserves; None: one CPU.
        stream: learners read fragment by fragment.
        lag: batches beyond the first that exist at once.
    """
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes = living_nodes()
    stores = {name: int(resources.get("object_store_memory", 0)) for name, resources in nodes.items()}
    learner = learner or {"CPU": 1.0}
    places = {name: _places(resources, learner) if learners > 1 else 0 for name, resources in nodes.items()}
    left = _beside_learners(nodes, places, learners, learner["CPU"], here)
    room = {name: int(left[name]) // cpus for name in nodes if stores[name]}
    making = sum(room.values()) if actors is None else min(actors, sum(room.values()))
    given = dict.fromkeys(room, 0)
    for _ in range(making):
        emptiest = min((name for name in room if given[name] < room[name]), key=lambda name: given[name])
        given[emptiest] += 1
    share = {name: count / making for name, count in given.items() if count} or {here: 1.0}
    makes = min(stores[name] / part for name, part in share.items())
    if stream:
        return int(makes)
    batches = 1 + lag
    readers = [here] if learners == 1 else [name for name in room if places[name]]
    return int(min([makes, *(stores[name] * batches / (1 + lag * share.get(name, 0.0)) for name in readers)]))


def _places(node: Resources, process: Resources) -> int:
    """How many such processes have room on an empty node."""
    return min(int(node.get(kind, 0) // wanted) for kind, wanted in process.items())


def _beside_learners(
    nodes: Mapping[str, Resources], places: Mapping[str, int], learners: int, cpus: float, here: str
) -> dict[str, float]:
    """CPUs of each node that learners leave: `keep_together` puts them here if it can, else Ray packs the largest nodes first."""
    left = {name: node.get("CPU", 0.0) for name, node in nodes.items()}
    for name in sorted(nodes, key=lambda name: (name == here and places[name] >= learners, left[name]), reverse=True):
        put = min(learners, places[name])
        left[name] -= put * cpus
        learners -= put
    return left


def spilled_files() -> dict[str, int]:
    """Files that this node's object store has written because it was full and not removed yet, with the bytes of each."""
    import ray

    node = ray._private.worker._global_node
    found: dict[str, int] = {}
    if node is not None:
        for path in Path(node.get_session_dir_path()).glob("ray_spilled_objects*/*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                found[str(path)] = path.stat().st_size
    return found
