"""`control_groups`: where this process's limits of memory and CPU time are written, in a container or a batch system's job."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["control_groups"]

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


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
