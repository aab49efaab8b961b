"""`usable_cpus`: how many CPUs this process may use, as threads, jobs and actors are counted by it."""

import math
import os
from pathlib import Path

from .control_groups import control_groups

__all__ = ["usable_cpus"]


def usable_cpus() -> int:
    """The CPUs that this process may run on, or as many as its control groups give it the time of, if those are fewer.

    A container's limit (`docker run --cpus 4`, a pod's `limits: cpu`) is such a time and leaves the process on all CPUs.
    """
    quotas = [_quota(group) for group in control_groups("cpu")]
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *quotas])))


def _quota(group: Path) -> float:
    """CPUs whose time the control group may take; infinite where it has no limit."""
    try:  # version 2: both numbers in one file
        taken, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            taken, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return math.inf
    try:
        quota = int(taken) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return quota if quota > 0 else math.inf  # -1: none
