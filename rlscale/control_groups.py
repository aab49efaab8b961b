"""`control_groups`: where this process's limits of memory and CPU time are written, in a container or a batch system's job; and
`available_bytes`: the memory that they leave. How many CPUs is in `rlscale.cpus`.
"""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_bytes", "control_groups"]

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
# Files of a control group: the limit, what is used, and statistics with the name of what is cached of files not read lately. That
# counts as used, and yet the kernel gives it to whoever needs memory.
_VERSION_2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
_VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"


def control_groups(controller: str) -> Iterator[Path]:
    """Folders of the groups that this process is in: its own and those above it, each of which may have a limit.

    Args:
        controller: `memory` or `cpu`. Version 1 has a hierarchy for each, version 2 one for all.

    Yields:
        Those that are there. In a container its own group may be seen as the root.
    """
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        lines = []
    paths = {ROOT: "/", ROOT / controller: "/"}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            paths[ROOT / controller if controllers else ROOT] = path
    for root, path in paths.items():
        group = root / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(root) and folder.is_dir():
                yield folder


def available_bytes() -> int:
    """Memory that this process and its children could take now: the machine's, or what its control groups leave."""
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    available = int(found.group(1)) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for group, (limit, used, statistics, inactive) in itertools.product(control_groups("memory"), (_VERSION_2, _VERSION_1)):
        try:
            most = (group / limit).read_text().strip()
            if most != "max":
                free = int(most) - int((group / used).read_text())
                available = min(available, free + _statistic(group / statistics, inactive))
        except (OSError, ValueError):
            continue
    return available


def _statistic(path: Path, name: str) -> int:
    """A number from a control group's memory statistics; 0 where it is not there."""
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0
