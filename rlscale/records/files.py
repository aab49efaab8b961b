"""Files that survive a crash: strict JSON, atomic replacement, torn last lines, one writer a folder.

What the files mean is in `rlscale.records.run` and `rlscale.records.sweep`.
"""

import errno
import fcntl
import gzip
import hashlib
import json
import math
import os
import re
import shlex
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..text import tell

__all__ = [
    "RESTORE",
    "TORN",
    "append_when_there_is_room",
    "dump_json",
    "end_torn_line",
    "fault_of",
    "finite",
    "folder_name",
    "hold_folder",
    "is_full",
    "is_written",
    "lock_folder",
    "make_folder",
    "now",
    "read_lines",
    "read_manifest",
    "read_object",
    "refuse_record",
    "this_process",
    "when_there_is_room",
    "write_atomically",
    "writing",
]

RESTORE = "Restore it from a copy"  # the mend of what is damaged
ROOM_SECONDS = 600
_OF_RECORDS = {"manifest.json", "iterations.jsonl", "checkpoint.pt", "sweep.json", "results.jsonl", "begun.jsonl", "ladder.json"}
TORN = b"\x18"  # ends a line that a crash cut short, once another line follows it


def folder_name(task_id: str) -> str:
    """A task's id as part of a folder's name."""
    return re.sub("[/:@]", "-", task_id)


def dump_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: a figure that is not finite becomes null, never a word that other readers choke on."""
    return json.dumps(finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def finite(value: Any) -> Any:
    """The same with null for every figure that is not finite, and Python's own numbers for NumPy's, which JSON does not know."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def fault_of(stored: Any, needed: Any, name: str = "") -> str | None:
    """What is wrong with an object that was read, for people; None if it holds what is needed. More than that is no fault.

    Args:
        stored: as JSON gave it.
        needed: a type, or several; a list of one such, for a list of them; or what is needed by the name of each field.
        name: of the object within what was read; empty for all of it.
    """
    if isinstance(needed, Mapping):
        if not isinstance(stored, Mapping):
            return f"{name or 'it'} is no object"
        for field, kind in needed.items():
            if type(kind) in (type, tuple) and isinstance(stored.get(field, ...), kind):
                continue  # most fields of most rows: nothing need be said of them
            path = f"{name}.{field}" if name else field
            if fault := fault_of(stored[field], kind, path) if field in stored else f"{path} is missing":
                return fault
        return None
    if isinstance(needed, list):
        if not isinstance(stored, list):
            return f"{name} is no list"
        return next((fault for item in stored if (fault := fault_of(item, needed[0], name))), None)
    return None if isinstance(stored, needed) else f"{name} cannot be {dump_json(stored):.40}"


def read_object(path: Path, field: str, mend: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UsageError: it cannot be read, or holds no object; `field` is what the user named the folder with.
        FileNotFoundError, NotADirectoryError: it is not there.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise UsageError(field, f"cannot read {path}: {error.strerror}", mend) from None
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        raise UsageError(field, f"{path} is damaged", RESTORE)
    return stored


def read_manifest(path: Path, *, what: str, schema: int, needed: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The manifest of a folder, if this version can read it.

    Args:
        path: of the manifest.
        what: the folder should hold: `run` or `sweep`.
        schema: version of the format that is read.
        needed: what it must hold, for `fault_of`.
        field: what the user named the folder with, for the error.

    Raises:
        UsageError: none there, a damaged one, or one of another schema.
    """
    folder, mend = path.parent, f"Name the folder of a {what}"
    try:
        manifest = read_object(path, field, mend)
    except FileNotFoundError:
        if what == "run" and (folder / "sweep.json").exists():
            see = f"See it with: rlscale compare {shlex.quote(str(folder))}"
            raise UsageError(field, f"{folder} is a sweep, not a run", see) from None
        raise UsageError(field, f"{folder} holds no {what} ({path.name} is missing)", mend) from None
    except NotADirectoryError:
        raise UsageError(field, f"{folder} is a file", mend) from None
    if manifest.get("schema") != schema:
        raise UsageError(
            field, f"{folder} has schema {manifest.get('schema')}, this rlscale reads {schema}", "Use the version that wrote it"
        )
    if fault := fault_of(manifest, needed):
        raise UsageError(field, f"{path} is damaged: {fault}", RESTORE)
    return manifest


def read_lines(path: Path, field: str, mend: str) -> tuple[list[bytes], bytes]:
    """The whole lines of a file, those of its compressed `.gz` included, and what a crash left of the last one.

    Raises:
        UsageError: it cannot be read; `field` is what the user named the folder with.
    """
    try:
        content = _content(path)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise UsageError(field, f"cannot read {path}: {reason}", mend) from None
    *lines, torn = content.split(b"\n")
    return lines, torn


def unpack(path: Path) -> None:
    """Put a file in place of its compressed `.gz`, as published records have one, so that lines can be appended to it."""
    if (packed := _packed(path)).exists():
        content = _content(path)
        if not path.exists() or path.read_bytes() != content:
            write_atomically(path, content)
        packed.unlink()


def _content(path: Path) -> bytes:
    """What a file holds: of published records what its compressed `.gz` holds, then the lines that were appended beside that."""
    packed = _packed(path)
    if not packed.exists():
        return path.read_bytes()
    earlier, beside = gzip.decompress(packed.read_bytes()), path.read_bytes() if path.exists() else b""
    # A crash of `unpack` leaves both files, of which the plain one has all lines.
    return beside if beside.startswith(earlier) else earlier + beside


def _packed(path: Path) -> Path:
    """The compressed file that may stand for a file."""
    return path.with_name(f"{path.name}.gz")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file; a crash at any moment leaves either the old or the new one whole. A link stays, to the new one."""
    if path.exists() and not path.is_file():  # a pipe or a terminal, as /dev/stdout is; of a folder it is an error
        with path.open("wb") as file:
            file.write(content)
        return
    real = Path(os.path.realpath(path))
    temporary = real.with_name(real.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()  # half a file on a full disk is in the way
        error.filename = str(path)  # a write that fails does not say of which file it is
        raise


def refuse_record(path: Path, field: str) -> None:
    """Make sure that what is written to `path` takes no record's place.

    Raises:
        UsageError: it is a file of a record, of which the compressed or the plain one may be there, or a folder; `field` is what
            the user named it with.
    """
    if os.path.isdir(path):
        raise UsageError(field, f"{path} is a folder", "Name a file in it")
    plain = path.name.removesuffix(".gz")
    if plain in _OF_RECORDS and any(os.path.exists(path.with_name(name)) for name in (plain, f"{plain}.gz")):
        raise UsageError(field, f"{path} is part of a record, which is never overwritten", "Name another file")


def is_full(error: OSError) -> bool:
    """Whether that went wrong because there is no room left, on the disk or in the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def when_there_is_room(write: Callable[[], None], path: Path, give_up: Callable[[], bool] = lambda: False) -> None:
    """Write; while the disk is full say so, wait and try again, so that a run need not lose what it has learned.

    Args:
        write: raises OSError where there is no room.
        path: that is written, for people.
        give_up: whether to wait no longer.

    Raises:
        OSError: it stayed full for ten minutes or until waiting was given up, or something else is wrong.
    """
    deadline = None
    while True:
        try:
            return write()
        except OSError as error:
            if not is_full(error) or give_up() or (deadline is not None and time.monotonic() > deadline):
                raise
            if deadline is None:
                deadline = time.monotonic() + ROOM_SECONDS
                patience = f"Waiting {ROOM_SECONDS // 60} minutes for some; the run goes on then"
                tell(f"rlscale: no room to write {path}: {error.strerror}. {patience}")
            time.sleep(0.5)


def append_when_there_is_room(file: FileIO, left: bytes, give_up: Callable[[], bool] = lambda: False) -> None:
    """Write all of that to an unbuffered file; waits and errors as of `when_there_is_room`."""

    def write() -> None:
        nonlocal left
        while left:  # a disk that becomes full may take a part
            left = left[file.write(left) or 0 :]

    when_there_is_room(write, Path(file.name), give_up)


def end_torn_line(path: Path) -> None:
    """Close off an unfinished last line, so that the next row starts on its own; the mark tells readers."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(TORN + b"\n")


@contextmanager
def writing(path: Path, field: str, what: str = "folder") -> Iterator[None]:
    """What is written meanwhile goes there; `field` is what the user named the place with, and `what` to choose another of.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        raise UsageError(field, f"cannot write {path}: {problem}", f"Choose a {what} that you may write to") from None


def make_folder(folder: Path, field: str) -> None:
    """Make the folder of a record, or the one above it, before anything is sampled or measured for the record.

    Raises:
        UsageError: it cannot be made or written to; `field` is what the user named it with.
    """
    with writing(folder, field):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def lock_folder(folder: Path, field: str) -> int:
    """Hold the folder for this process, until the returned file descriptor is closed.

    Raises:
        UsageError: another process holds it, or nobody can; `field` is what the user named it with.
    """
    descriptor = -1
    try:
        descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise UsageError(field, *_who_holds(folder)) from None
        mend = "Choose a folder of your own, on a file system with locks"
        raise UsageError(field, f"cannot lock {folder}: {error.strerror}", mend) from None
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(this_process()).encode(), 0)
    return descriptor


def _who_holds(folder: Path) -> tuple[str, str]:
    """What is wrong and its mend, where the folder is locked: the process that holds it, as far as the lock tells."""
    try:
        holder = json.loads((folder / ".lock").read_text(encoding="utf-8"))
        process, here = int(holder["process"]), holder["host"] == this_process()["host"]
    except (OSError, ValueError, KeyError, TypeError):  # one of an earlier version, or not written yet
        return f"{folder} is being written by another process", "Wait for it, or stop it"
    if here and process == os.getpid():
        return f"{folder} is being written by this process already", "Close the session that writes it, or write elsewhere"
    where = "" if here else " on another machine"
    return f"{folder} is being written by process {process}{where}", "Wait for it, or stop it"


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a record, and hold it for this process: two that wrote the record would drop each other's results.

    Raises:
        UsageError: it cannot be made or written to, or another process holds it.
    """
    make_folder(folder, "--out")
    lock = lock_folder(folder, "--out")
    try:
        yield
    finally:
        os.close(lock)


def this_process() -> dict[str, Any]:
    """What the manifest of a run says of the process that writes it; the machine's name is hashed."""
    return {"process": os.getpid(), "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]}


def is_written(manifest: Mapping[str, Any]) -> bool:
    """Whether the process that writes the run lives; from another machine it cannot be told, and counts as living."""
    if manifest.get("host") != this_process()["host"]:
        return True
    try:
        os.kill(int(manifest["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
