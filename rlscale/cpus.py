"""`usable_cpus`: how many CPUs this process may use, as threads, jobs and actors are counted by it."""

import math
import os
from pathlib import Path

__all__ = ["usable_cpus"]

CONTROL_GROUP = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """The CPUs that this process may run on, or as many as its control group gives it the time of, if those are fewer.

    A container's limit (`docker run --cpus 4`, a pod's `limits: cpu`) is such a time and leaves the process on all CPUs.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota())))


def _quota() -> float:
    """CPUs whose time the control group may take; infinite where it has no limit."""
    try:  # version 2: both numbers in one file
        taken, period = (CONTROL_GROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            taken, period = ((CONTROL_GROUP / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return math.inf
    try:
        quota = int(taken) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf
    return quota if quota > 0 else math.inf  # -1: none
