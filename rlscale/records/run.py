"""The record of a run: a folder with a manifest, a row per iteration, checkpoints, snapshots and TensorBoard events.

    manifest.json      what was run, on what, in which state (rewritten atomically)
    iterations.jsonl   one row per iteration, append-only; docs/glossary.md defines every field
    checkpoint.pt      the latest checkpoint (replaced atomically, with a checksum)
    snapshots/         policies on a geometric grid of optimizer steps, when asked for
    tensorboard/       events, when asked for

What is in a checkpoint is the business of `rlscale.agents.checkpoints`; how a record is shown, of `rlscale.report.run_page`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..noise import BlockStatistics
from .files import (
    TORN,
    append_when_there_is_room,
    dump_json,
    end_torn_line,
    fault_of,
    is_full,
    is_written,
    lock_folder,
    now,
    read_lines,
    read_manifest,
    this_process,
    when_there_is_room,
    write_atomically,
    writing,
)
from .noise import fault_of_noise, metric_prefix, unpack_statistics

__all__ = [
    "SCHEMA",
    "Run",
    "RunRecord",
    "is_run",
    "read_checkpoint",
    "read_run",
    "read_run_manifest",
]

SCHEMA = 1
_MANIFEST, _ROWS, _CHECKPOINT = "manifest.json", "iterations.jsonl", "checkpoint.pt"
_CHECKPOINT_MAGIC = b"rlscale checkpoint 1\n"
# What pages, listings and a resumed run take from a record without asking whether it is there, for `fault_of`.
_FIGURE = (int, float, type(None))
_NEEDED = {
    "state": str,
    "created": str,
    "task": {"id": str, "goals": [(int, float)], "preprocessing": str, "frame_skip": (int, str)},
    "config": dict,
    "command": [str],
    "commit": (str, type(None)),
    "seed": (int, type(None)),
    "machine": dict,
    "device": str,
    "precision": str,
    "threads": int,
    "versions": dict,
    "parameters": int,
    "segments": [{"first_iteration": int, "environments": str}],
    "process": int,
}
_NEEDED_IN_ROW = {
    "iteration": int,
    "observations": int,
    "optimizer_steps": int,
    "seconds": _FIGURE,
    "batch_observations": int,
    "episodes": int,
    "return_mean": _FIGURE,
    "episode_length_mean": _FIGURE,
    "learning_rate": _FIGURE,
    "sampling_seconds": _FIGURE,
    "transfer_seconds": _FIGURE,
    "learning_seconds": _FIGURE,
    "noise": [{"head": str, "kind": str, "size": list, "square": list, "dot": list}],
}


@dataclass(frozen=True)
class RunRecord:
    """A run as read back.

    Attributes:
        folder: where it is.
        manifest: see `Run.create`.
        rows: one dictionary per iteration, in order; where a resumed run made an iteration again, only the later row.
    """

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    rows: list[dict[str, Any]] = field(repr=False)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped`, `failed`, or `interrupted`: the record says running but its process is gone."""
        state: str = self.manifest["state"]
        return "interrupted" if state == "running" and not is_written(self.manifest) else state

    def column(self, field: str) -> np.ndarray:
        """(rows,) float64 of one numeric field; NaN where a row has none, or something else there."""
        values = [row.get(field) for row in self.rows]
        return np.array([value if isinstance(value, int | float) else math.nan for value in values], dtype=np.float64)

    def noise(self, head: str, kind: str | None = None, metric: str = "plain") -> list[tuple[dict[str, Any], BlockStatistics]]:
        """Every measurement of that head in order, each with the row it stands in.

        Args:
            head: which loss.
            kind: keeps one kind of blocks.
            metric: `plain` or `adam`; a measurement that was not made in Adam's metric is left out.

        Raises:
            UsageError: there is no such metric.
        """
        square = f"{metric_prefix(metric)}square"
        return [
            (row, unpack_statistics(entry, metric))
            for row in self.rows
            for entry in row.get("noise", ())
            if entry["head"] == head and (kind is None or entry["kind"] == kind) and square in entry
        ]


class Run:
    """A run being written. Only one process can hold it, until `close`.

    Attributes:
        give_up_waiting: asked while the disk is full: whether to wait for room no longer.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], field: str = "--resume") -> None:
        self.folder, self.manifest = folder, manifest
        self.give_up_waiting: Callable[[], bool] = lambda: False
        self._lock = lock_folder(folder, field)
        self._rows = (folder / _ROWS).open("ab", buffering=0)

    @classmethod
    def create(cls, folder: Path, manifest: Mapping[str, Any], field: str = "--run") -> Run:
        """Start the record of a new run.

        Args:
            folder: of the run, made here.
            manifest: what is known of it.
            field: what the user named the folder with.

        Raises:
            UsageError: the folder exists, or cannot be written.
            OSError: the disk is full. No folder is left behind.
        """
        with writing(folder, field):
            if folder.exists():
                mend = "Choose another name, or go on with it: --resume " + shlex.quote(str(folder))
                raise UsageError(field, f"{folder} exists already and is never overwritten", mend)
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        full = {"schema": SCHEMA, "state": "running", "reason": None, "created": now(), **manifest, **this_process()}
        try:
            write_atomically(folder / _MANIFEST, dump_json(full, indent=1).encode())
            return cls(folder, full, field)
        except (OSError, UsageError):  # there is no room for it, or it cannot be locked
            shutil.rmtree(folder)
            raise

    @classmethod
    def resume(cls, folder: Path, field: str = "--resume") -> Run:
        """Go on with the record of an earlier run; arguments as of `create`.

        Raises:
            UsageError: there is no run, another process holds it, or it cannot be written.
        """
        manifest = read_run_manifest(folder, field)
        try:
            run = cls(folder, manifest, field)
        except OSError as error:
            raise UsageError(field, f"cannot write {folder}: {error.strerror}", "Check its permissions") from None
        end_torn_line(folder / _ROWS)
        return run

    def set_state(self, state: str, reason: str | None = None, **changes: Any) -> None:
        """Rewrite the manifest with a new state: running, finished, stopped or failed (with its reason)."""
        self.manifest = {**self.manifest, **changes, **this_process(), "state": state, "reason": reason, "updated": now()}
        path = self.folder / _MANIFEST
        self._write(when_there_is_room, lambda: write_atomically(path, dump_json(self.manifest, indent=1).encode()), path)

    def begin_segment(self, facts: Mapping[str, Any], first_iteration: int, environments: str) -> None:
        """Say in the manifest that a session begins, and what is known of it.

        Args:
            facts: as for `create`; they take the place of the session's before.
            first_iteration: that the session makes.
            environments: `new`, `as they were` or `seeded afresh`.
        """
        segment = {**facts, "first_iteration": first_iteration, "environments": environments}
        del segment["task"]
        self.set_state("running", **facts, segments=[*self.manifest["segments"], segment])

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of one iteration; it is on its way to disk when this returns."""
        self._write(append_when_there_is_room, self._rows, (dump_json(row) + "\n").encode())

    def save_checkpoint(self, payload: bytes) -> None:
        """Replace the checkpoint; a crash at any moment leaves either the old or the new one whole."""
        digest = hashlib.sha256(payload).hexdigest().encode()
        path = self.folder / _CHECKPOINT

        def write() -> None:
            os.fsync(self._rows.fileno())  # never a checkpoint that is ahead of its rows
            write_atomically(path, _CHECKPOINT_MAGIC + digest + b"\n" + payload)

        self._write(when_there_is_room, write, path)

    def save_snapshot(self, optimizer_steps: int, payload: bytes) -> None:
        """Keep a policy for later evaluation, under its number of optimizer steps."""
        path = self.folder / "snapshots" / f"{optimizer_steps:010d}.npy"

        def write() -> None:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, payload)

        self._write(when_there_is_room, write, path)

    def _write(self, patiently: Callable[..., None], *what: Any) -> None:
        """Where the disk stayed full, what is still to be written, such as that the run failed, is not waited for again.

        Raises:
            OSError: the disk stayed full.
            UsageError: the folder is gone, or cannot be written any more.
        """
        try:
            patiently(*what, self.give_up_waiting)
        except OSError as error:
            self.give_up_waiting = lambda: True
            if is_full(error):
                raise
            problem = f"the record in {self.folder} cannot be written any more: {error.strerror}"
            raise UsageError("--run", problem, "Put the folder back, or mend its disk, and resume the run") from error

    def discard(self) -> None:
        """Close, and remove the folder of a run that never began: over NFS a folder with an open file cannot be removed."""
        self.close()
        shutil.rmtree(self.folder)

    def snapshot_steps(self, up_to: int) -> list[int]:
        """Optimizer steps of the snapshots kept so far, ascending; later ones than `up_to` are removed.

        Those are of a course that a resumed run has left.
        """
        steps = []
        for path in sorted((self.folder / "snapshots").glob("*.npy")):
            if not path.stem.isdecimal():  # a file of the user's
                continue
            if int(path.stem) <= up_to:
                steps.append(int(path.stem))
            else:
                path.unlink()
        return steps

    def close(self) -> None:
        """Let go of the folder; a second time does nothing."""
        if not self._rows.closed:
            self._rows.close()
            os.close(self._lock)


def is_run(folder: Path | str) -> bool:
    """Whether the folder holds a run, of whatever version; not where that cannot be seen, and reading it says why."""
    return os.path.exists(Path(folder) / _MANIFEST)  # Path.exists raises where a name is too long or a folder private


def read_checkpoint(folder: Path, field: str = "--resume") -> bytes:
    """The payload of a run's checkpoint, whoever holds the run.

    Raises:
        UsageError: there is none, it cannot be read, or it is not whole.
    """
    path = folder / _CHECKPOINT
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            field,
            f"{path} does not exist: the run ended before its first checkpoint, it is a sweep's, or it was copied without one",
            "Restore it, or start the run again under another name",
        ) from None
    except OSError as error:
        raise UsageError(field, f"cannot read {path}: {error.strerror}", "Check its permissions, or restore it") from None
    magic, _, rest = stored.partition(b"\n")
    digest, _, payload = rest.partition(b"\n")
    if magic + b"\n" != _CHECKPOINT_MAGIC or hashlib.sha256(payload).hexdigest().encode() != digest:
        raise UsageError(
            field,
            f"{path} is truncated or damaged ({len(stored):,} bytes)",
            "Restore it from a copy, or start the run again under another name",
        )
    return payload


def read_run_manifest(folder: Path, field: str = "RUN") -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        UsageError: no run there, one of another schema, or a damaged manifest; `field` is what the user named the folder with.
    """
    return read_manifest(folder / _MANIFEST, what="run", schema=SCHEMA, needed=_NEEDED, field=field)


def read_run(folder: Path | str, field: str = "RUN") -> RunRecord:
    """Read a run, finished or not. A torn last line, as a crash leaves it, is passed over.

    Args:
        folder: of the run.
        field: what the user named it with, for the error.

    Raises:
        UsageError: no run there, one of another schema, a damaged manifest, or a damaged line among good ones.
    """
    folder = Path(folder)
    manifest = read_run_manifest(folder, field)
    lines, _ = read_lines(folder / _ROWS, field, "Name the folder of a run")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            fault = fault_of(row, _NEEDED_IN_ROW) or fault_of_noise(row["noise"])
        except ValueError:
            if line.endswith(TORN):  # a torn line that a resumed run has closed off
                continue
            fault = "it is no JSON"
        if fault:
            raise UsageError(
                field, f"line {number} of {folder / _ROWS} is damaged: {fault}", "Restore the file, or remove that line"
            )
        while rows and rows[-1]["iteration"] >= row["iteration"]:  # the run was resumed from an earlier checkpoint
            rows.pop()
        rows.append(row)
    return RunRecord(folder, manifest, rows)
