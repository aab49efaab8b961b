"""Compact records of sweeps: the plan and the results, which are committed; records of single runs stay where they are."""

import gzip
import json
import shutil
from pathlib import Path

from rlscale.records import folder_name
from rlscale.records.files import write_atomically

__all__ = ["RECORD", "folder_in", "keep_record", "restore_record"]

RECORD = "ladder.json"  # beside a compact record: how far the rung is
_MANIFEST, _RESULTS = "sweep.json", "results.jsonl"


def folder_in(home: Path) -> Path | None:
    """The sweep below a folder in which `rlscale sweep … --out sweeps` was run; None while it has not begun."""
    found = sorted((home / "sweeps").glob(f"*/{_MANIFEST}"))
    return found[0].parent if found else None


def keep_record(sweep: Path, record: Path) -> None:
    """Copy a sweep's plan and results to its compact record."""
    record.mkdir(parents=True, exist_ok=True)
    shutil.copy(sweep / _MANIFEST, record)
    write_atomically(record / f"{_RESULTS}.gz", gzip.compress((sweep / _RESULTS).read_bytes(), mtime=0))


def restore_record(record: Path, home: Path) -> None:
    """Put a sweep that was kept where it can go on, if it is not there.

    The manifest comes last: a folder without one is restored once more, after whatever moment this was killed at.
    """
    if folder_in(home) is None and (record / _MANIFEST).exists():
        manifest = (record / _MANIFEST).read_bytes()
        folder = home / "sweeps" / folder_name(json.loads(manifest)["task"]["id"])
        folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(record / f"{_RESULTS}.gz") as stored, (folder / _RESULTS).open("wb") as file:
            shutil.copyfileobj(stored, file)
        write_atomically(folder / _MANIFEST, manifest)
