"""A sweep that runs beside its compact record: the plan and the results, which are committed; records of single runs stay."""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlscale.records import folder_name
from rlscale.records.files import write_atomically

__all__ = ["RECORD", "copy_record", "folder_in", "keep_record", "restore_record", "run_sweep"]

RECORD = "ladder.json"  # beside a compact record: how far the rung is
COPY_SECONDS = 300
_MANIFEST, _RESULTS = "sweep.json", "results.jsonl"


def run_sweep(words: Sequence[str], home: Path, record: Path, code: Path, niceness: int = 0) -> int:
    """Run a sweep, from its record where it has begun, to its end or until Ctrl-C stops it; the record is kept on the way.

    Args:
        words: of the command after `rlscale`; the sweep goes to `--out sweeps`.
        home: where it runs.
        record: its compact record, copied every `COPY_SECONDS` and in the end.
        code: the checkout that it runs from.
        niceness: added to this process's own.

    Returns:
        Its exit code, negative where a signal killed it.

    Raises:
        SystemExit: sweep and record each have runs that the other lacks.
    """
    restore_record(record, home)
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    command = ["nice", "-n", str(niceness), sys.executable, "-m", "rlscale", *words]
    process = subprocess.Popen(command, cwd=home, env=environment)
    with contextlib.suppress(KeyboardInterrupt):  # the sweep got the same signal, and says what it keeps
        while True:
            try:
                process.wait(COPY_SECONDS)
                break
            except subprocess.TimeoutExpired:
                copy_record(home, record)
    exit_code = process.wait()
    copy_record(home, record)
    return exit_code


def copy_record(home: Path, record: Path) -> None:
    """Keep the compact record of a sweep that has begun; where the record has more runs, say so instead."""
    folder = folder_in(home)
    if folder is not None and not keep_record(folder, record):
        print(f"{record} has runs that {folder} lacks, and is kept: run the rung to go on from it", file=sys.stderr)


def folder_in(home: Path) -> Path | None:
    """The sweep below a folder in which `rlscale sweep … --out sweeps` was run; None while it has not begun."""
    found = sorted((home / "sweeps").glob(f"*/{_MANIFEST}"))
    return found[0].parent if found else None


def keep_record(sweep: Path, record: Path) -> bool:
    """Copy a sweep's plan and results to its compact record; False where the record has runs that the sweep lacks, and stays.

    Such a record comes from another machine, on which the sweep went on.
    """
    made = _whole((sweep / _RESULTS).read_bytes())
    if not set(_kept(record).splitlines()) <= set(made.splitlines()):
        return False
    record.mkdir(parents=True, exist_ok=True)
    shutil.copy(sweep / _MANIFEST, record)
    write_atomically(record / f"{_RESULTS}.gz", gzip.compress(made, mtime=0))
    return True


def restore_record(record: Path, home: Path) -> None:
    """Put a sweep that was kept where it can go on, if it is not there or has some of the record's runs alone.

    The manifest comes last: a folder without one is restored once more, after whatever moment this was killed at.

    Raises:
        SystemExit: sweep and record each have runs that the other lacks.
    """
    if not (record / _MANIFEST).exists():
        return
    kept, there = _kept(record), folder_in(home)
    if there is not None:
        here, known = (set(runs.splitlines()) for runs in (_whole((there / _RESULTS).read_bytes()), kept))
        if known <= here:
            return
        if not here <= known:
            raise SystemExit(f"{there} and {record} each hold runs that the other lacks: move one of them away")
    manifest = (record / _MANIFEST).read_bytes()
    folder = home / "sweeps" / folder_name(json.loads(manifest)["task"]["id"])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _RESULTS, kept)
    write_atomically(folder / _MANIFEST, manifest)


def _kept(record: Path) -> bytes:
    path = record / f"{_RESULTS}.gz"
    return _whole(gzip.decompress(path.read_bytes())) if path.exists() else b""


def _whole(rows: bytes) -> bytes:
    """Without a last row that is being written."""
    return rows[: rows.rfind(b"\n") + 1]
