"""What a fleet of Ray actors has asked for and not taken yet: `Request`, and the `Policy` that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from .fleet import LostActor

__all__ = ["Policy", "Request", "bring_ahead"]

AT_ONCE = 8  # fragments that are on their way to this node while another is taken; of those that are finished


class Policy(NamedTuple):
    """Parameters that act, their reference in the object store, and their version."""

    weights: np.ndarray
    reference: Any
    version: int


@dataclass
class Request:
    """A fragment that was requested and not taken yet.

    Attributes:
        group, policy: which group makes it, by which policy.
        actor: number of the actor that makes it.
        summary, fragment, state: references to what the actor returns; the last is the group's state after the fragment.
        at: when it was requested, on this process's monotonic clock.
        lost: the lost actor because of which it was requested again.
        follows: whether it goes on from a fragment that another actor was still to make.
    """

    group: int
    policy: Policy
    actor: int
    summary: Any
    fragment: Any
    state: Any
    at: float
    lost: LostActor | None
    follows: bool


def bring_ahead(requests: Sequence[Request], most: int) -> None:
    """Have Ray copy to this node what other nodes have finished of the first request's batch, while that one is waited for.

    By itself Ray begins to copy a fragment when it is asked for, and fragments are asked for in turn: one that is late would
    let those behind it wait on their nodes, and then come one by one. Of the next batch nothing is copied, which this node's
    object store need not have room for.

    Args:
        requests: in the order in which they are taken.
        most: fragments that this node may hold beside the first.
    """
    import ray

    first = requests[0]
    finished = ray.wait([first.fragment], timeout=0, fetch_local=False)[0]
    behind = islice(requests, 1, 1 + min(most, AT_ONCE if finished else most))
    copied = [request.fragment for request in behind if request.policy.version == first.policy.version]
    if copied:
        ray.wait(copied, num_returns=len(copied), timeout=0)  # each that is finished is copied, also after this returns
