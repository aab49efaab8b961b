"""The machine and the software that a run was made with, for its manifest; how the machine's memory is used."""

import ctypes
import hashlib
import os
import platform
import subprocess
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import rlscale
from rlscale.cpus import usable_cpus

from .devices import device_name

__all__ = [
    "busy_cpus",
    "cpu_field",
    "describe_machine",
    "find_code",
    "find_commit",
    "find_versions",
    "keep_freed_memory",
]

_PACKAGES = ("rlscale", "torch", "ray", "gymnasium", "ale-py", "numpy")


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks of up to 32 MiB instead of giving them back to the kernel.

    Gradients and activations are megabytes each, and come and go with every block. Given back each time, every one of
    their pages has to be faulted in again: that was a fifth of the learner's time. Does nothing but on glibc.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    mallopt(mmap_threshold, 32 << 20)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 64 << 20)


def find_versions() -> dict[str, str | None]:
    """Versions of Python and of the packages a result depends on."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


@cache
def find_commit() -> str | None:
    """Commit of the checkout this code runs from, with `+changes-` and their digest where it was edited; None outside a checkout.

    Asked once a process: what runs is what was loaded, whatever is committed later.
    """
    root = Path(rlscale.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD").decode().strip()
        changes = _git(root, "diff", "--no-ext-diff", "HEAD")
        return f"{head}+changes-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else head
    except (OSError, subprocess.CalledProcessError):
        return None


def find_code() -> str:
    """What tells the code of two measurements apart: the commit; outside a checkout `installed-` and a digest of the modules.

    Two installed versions of the code may have the same version number.
    """
    if (commit := find_commit()) is not None:
        return commit
    package, digest = Path(rlscale.__file__).parent, hashlib.sha256()
    for folder, inner, names in os.walk(package, followlinks=True):  # an unpacked checkout has links to agents and others
        inner.sort()
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return f"installed-{digest.hexdigest()[:8]}"


def _git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True).stdout


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, memory and accelerator; nothing that names the machine or its owner."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_field("model name") or platform.processor(),
        "cores": usable_cpus(),
        "memory_gib": round(memory / 2**30, 1),
        "accelerator": device_name(device),
    }


def busy_cpus(seconds: float = 0.5) -> float | None:
    """How many CPUs of this machine work on anything, on average over so many seconds; None where the system does not say.

    To be asked before a measurement begins, when all of that is other programs' work.
    """
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    if before is None or after is None:
        return None
    return max(after - before, 0.0) / os.sysconf("SC_CLK_TCK") / seconds


def _cpu_ticks() -> float | None:
    """Clock ticks that all CPUs have worked, without those in which they waited."""
    try:
        user, nice, system, *_ = map(float, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    except (OSError, ValueError):
        return None
    return user + nice + system


def cpu_field(name: str) -> str:
    """A line of /proc/cpuinfo, of the first CPU; empty where there is none."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip() if name != "flags" else line.partition(":")[2]
    except OSError:
        pass
    return ""
