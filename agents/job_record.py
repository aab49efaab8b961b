"""What the records of another library's jobs have in common: the command and the manifest.

The plug-ins that write such records are `rlscale.agents.rllib` and `rlscale.agents.sb3`; supervised runs use the manifest too.
What a row holds of a noise measurement is in `learning.results`, the records themselves are in `rlscale.records`.
"""

import os
import sys
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from rlscale.errors import UsageError
from rlscale.records.run import Run

from .config import FEWEST_BLOCKS
from .machine import find_commit, find_versions

__all__ = ["check_measurement", "command_line", "job_config", "job_facts", "open_job", "refuse_existing"]


def check_measurement(every: Any, blocks: Any) -> None:
    """Make sure that noise can be measured so often and in so many blocks; numbers of NumPy's are whole numbers too.

    Raises:
        UsageError: `every` is no whole number of 1 or more, or `blocks` none of 3 or more.
    """
    if not isinstance(every, Integral) or every < 1:
        raise UsageError("every", f"{every!r} is no period", "Give a whole number, at least 1")
    if not isinstance(blocks, Integral) or blocks < 3:
        raise UsageError("blocks", f"an interval needs three blocks, not {blocks!r}", "Give at least 3, better 16")


def refuse_existing(folder: Path) -> None:
    """Make sure that no record is written over another.

    Raises:
        UsageError: the folder exists.
    """
    if os.path.lexists(folder):  # Path.exists raises where a name is too long or a folder private
        raise UsageError("run", f"{folder} exists already and is never overwritten", "Name another folder, one for each job")


def open_job(folder: Path, facts: dict[str, Any], *, go_on: bool) -> Run:
    """The record of a job: a new one, or the one that is there where the job goes on.

    Raises:
        UsageError: it is there and the job is new, or it cannot be written.
    """
    if go_on:
        return Run.resume(folder, "run")
    refuse_existing(folder)
    return Run.create(folder, {**facts, "segments": []}, "run")


def command_line() -> list[str]:
    """The command that the user typed. To be called where the job is configured: the algorithm may run in a process of Ray's."""
    name = Path(sys.argv[0]).name
    return [] if name == "default_worker.py" else [name, *sys.argv[1:]]  # the arguments of Ray's worker name the machine


def job_config(library: str, settings: Mapping[str, Any], every: int, blocks: int, environments: int) -> dict[str, Any]:
    """The settings of a job, as far as they are plain values, and how noise is measured in it.

    Args:
        library: whose settings they are.
        settings: of the job; a number that was drawn by NumPy becomes Python's own, for the record is JSON.
        every, blocks: see `NoiseCallback`.
        environments: that the job samples from.
    """
    kept = {key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()}
    return {
        library: {key: value for key, value in kept.items() if isinstance(value, str | int | float | bool | None)},
        "noise": {
            "every": every,
            "blocks": blocks,
            "blocks_of": "environments" if environments >= FEWEST_BLOCKS else "episodes",
        },
    }


def job_facts(
    *,
    task: str,
    preprocessing: str,
    config: dict[str, Any],
    seed: int | None,
    command: list[str],
    machine: dict[str, Any],
    device: str,
    threads: int,
    parameters: int,
) -> dict[str, Any]:
    """What the manifest says of a job: what our own runs say, as far as another library's job tells it."""
    return {
        "task": {"id": task, "preprocessing": preprocessing, "frame_skip": "unknown", "goals": [], "clip_reward": "unknown"},
        "config": config,
        "seed": seed,
        "command": command,
        "commit": find_commit(),
        "versions": find_versions(),
        "machine": machine,
        "device": device,
        "precision": "float32",
        "threads": threads,
        "parameters": parameters,
    }
