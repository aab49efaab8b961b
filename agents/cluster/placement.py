"""Where a run's Ray processes are put: is there room for all of them, actors spread over nodes, learners kept together.

How a cluster is reached is in `connect`, what it has in `resources`; which processes there are, in `fleet` and `remote_learners`.
"""

import math
from collections.abc import Sequence
from typing import Any

from rlscale.errors import UsageError

from .resources import Resources, cpus_there, free_resources, gpus_there, living_nodes

__all__ = [
    "SPREAD",
    "BusyClusterError",
    "keep_together",
    "learner_resources",
    "require_room",
    "rollout_resources",
    "share_of_gpu",
]

SPREAD = "SPREAD"  # Ray's strategy for rollout actors: evenly over the nodes that have room, and a lost one anywhere
ROOM_SECONDS = 10.0
_NODE = "ray.io/node-id"  # a label that Ray gives to every node


class BusyClusterError(UsageError):
    """A cluster that is large enough has no room now: the same may be asked again later."""


def rollout_resources(most: int, cpus: int, device: str) -> dict[str, float]:
    """What Ray reserves for each rollout actor: half of all GPUs are shared by those that act on one, the rest is to learn with.

    Of several GPUs whole ones are shared, each by equally many actors: a share lies on one GPU.

    Args:
        most: actors that there may come to be. Fewer share the GPUs where the cluster has not CPUs for so many.
        cpus: of each.
        device: where they act.

    Raises:
        UsageError: they are to act on a GPU, and Ray knows of none.
    """
    if device == "cpu":
        return {"CPU": float(cpus)}
    gpus = gpus_there()
    if not gpus:
        raise UsageError("--actor-device", "Ray knows of no GPU", "Use --actor-device cpu")
    most = max(min(most, cpus_there() // cpus), 1)
    return {"CPU": float(cpus), "GPU": share_of_gpu(gpus // 2 or gpus / 2, most)}


def share_of_gpu(gpus: float, processes: int) -> float:
    """What each of so many processes gets where all share these GPUs; a share lies on one, and each has as many as any other."""
    whole = max(int(gpus), 1)
    return int(min(gpus, 1.0) / math.ceil(processes / whole) * 10_000) / 10_000  # Ray counts in ten-thousandths


def learner_resources(threads: int, device: str) -> dict[str, float]:
    """What Ray reserves for each of several learners: a GPU of its own where it learns on one."""
    return {"CPU": float(threads)} | ({"GPU": 1.0} if device != "cpu" else {})


def require_room(processes: Sequence[Resources], learners: int = 0) -> None:
    """Whether all of a run's processes find room at once, now.

    Ray itself is asked, by reserving a place for each and giving it back: it alone knows which nodes are how full. So a cluster
    that would still grow for them counts as too small.

    Args:
        processes: what each of them reserves.
        learners: how many of them, from the first on, are learners; the others are actors.

    Raises:
        UsageError: the cluster is too small, or others use it; says what is asked, there and free.
    """
    if not processes:
        return
    nodes = list(living_nodes().values())
    kinds = [kind for kind in ("CPU", "GPU") if _sum(processes, kind)]
    asked = {kind: _count(_sum(processes, kind), kind) for kind in kinds}
    if short := [kind for kind in kinds if _sum(processes, kind) > _sum(nodes, kind)]:
        there = " and ".join(_count(_sum(nodes, kind), kind) for kind in short)
        over = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
        problem = f"the run needs {' and '.join(asked[kind] for kind in short)}, the cluster has {there}{over}"
        raise _refusal(short, problem, learners, len(processes) - learners)
    for number, process in enumerate(processes):
        if not any(all(node.get(kind, 0) >= wanted for kind, wanted in process.items()) for node in nodes):
            one = " and ".join(_count(wanted, kind) for kind, wanted in process.items())
            problem = f"one process of the run needs {one}, and no node of the cluster has so many"
            if number < learners and "GPU" not in process:
                raise UsageError("--threads", problem, "Use fewer, or larger nodes")
            raise _refusal(list(process), problem, 0, len(processes) - learners)
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([dict(process) for process in processes], strategy=SPREAD)
    found = group.wait(ROOM_SECONDS)
    remove_placement_group(group)
    if not found:
        free = free_resources()
        said = " and ".join(f"{asked[kind]}; of the {_sum(nodes, kind):g} there {free.get(kind, 0):g} are free" for kind in kinds)
        short = [kind for kind in kinds if _sum(processes, kind) > free.get(kind, 0)]
        parted = "" if short else ", in parts too small for one process"
        raise _refusal(short, f"the run needs {said}{parted}", learners, len(processes) - learners, wait=True)


def keep_together(process: Resources, count: int) -> Any:
    """A reserved place for each of several learners: on this process's node if they find room there, else on as few as can be.

    Returns:
        Ray's placement group; whoever asked removes it.

    Raises:
        UsageError: there is no room.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    here = ray.get_runtime_context().get_node_id()
    wanted = [dict(process)] * count
    total = living_nodes().get(here, {})
    if all(total.get(kind, 0) >= each * count for kind, each in process.items()):
        group = placement_group(wanted, strategy="PACK", bundle_label_selector=[{_NODE: here}] * count)
        if group.wait(ROOM_SECONDS):
            return group
        remove_placement_group(group)
    group = placement_group(wanted, strategy="PACK")
    if group.wait(ROOM_SECONDS):
        return group
    remove_placement_group(group)
    require_room(wanted, count)
    raise UsageError("--learners", f"{count} learners found no room in the cluster", "Use fewer, or wait until others have done")


def _sum(parts: Sequence[Resources], kind: str) -> float:
    return sum(part.get(kind, 0) for part in parts)


def _count(number: float, kind: str) -> str:
    return f"{number:g} {kind}" + ("" if number == 1 else "s")


def _refusal(short: Sequence[str], problem: str, learners: int, actors: int, wait: bool = False) -> UsageError:
    """What can be changed depends on which kinds of resource are short, and on whose processes there are how many."""
    use = "Wait for others to end ('ray status' shows what is used), or use" if wait else "Use"
    if "GPU" in short:
        return UsageError("--learners", problem, f"{use} fewer learners, or --device cpu and --actor-device cpu")
    if learners and actors:
        return UsageError("--learners", problem, f"{use} fewer learners, fewer --threads or fewer actors")
    if learners:
        return UsageError("--learners", problem, f"{use} fewer learners, or fewer --threads")
    return UsageError("--actors", problem, f"{use} fewer actors, or fewer --actor-cpus")
