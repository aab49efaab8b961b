"""Peak memory of a training run, all of its processes together, against the size of its batch: held, and streamed.

    python -m rlscale.benchmarks.measurements.memory [--sizes N ...] [--streamed N ...] [--out FILE]

Each reading is one real `rlscale train atari/pong` on two Ray actors, of one iteration and one optimizer step, in a session of
its own. Five times a second the proportional set sizes of all its processes are added up, so that private memory and shared
memory (the object store) both count once. Memory does not drift as time does: one reading of a size is enough to see the curve.
The record is rewritten after each run. Ctrl-C ends the current run.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from rlscale.records import read_run

from .measuring import NATURE, NO_HEADS, print_table, write_result

FRAME_BYTES = 84 * 84
ROLLOUT = 128
STREAMED = 32  # environments of a streamed run, however large its batch
EVERY_SECONDS = 0.2
PATIENCE_SECONDS = 30.0  # for processes to end
MARK = "RLSCALE_MEASURED_RUN"
TOGETHER = ["--epochs", "1", "--mini-batch", "None", "--advantage-scale", "running", "--optimizer-steps", "1"]


@dataclass
class Family:
    """The processes of one run, and the most memory that they had together.

    A process belongs to it once its parent does, or its session, or the mark in its environment says so: Ray's daemons begin
    sessions of their own, would outlive their parent, and Ray's workers write their title over their environment.

    Attributes:
        root: process id of the run, which leads a session.
        mark: value of the environment variable `MARK` that the run was started with.
        members: start time of every process that ever belonged to it; ids come again.
        others: likewise, of those whose environment does not bear the mark, so that each is read once.
        peak: bytes of all together at their most.
        shared: of these, bytes in shared memory: the object store.
        samples: how often memory was looked at.
    """

    root: int
    mark: str
    members: dict[int, str] = field(default_factory=dict)
    others: dict[int, str] = field(default_factory=dict)
    peak: int = 0
    shared: int = 0
    samples: int = 0

    def living(self) -> list[int]:
        """Members that live, those that are new since the last look among them."""
        parents: dict[int, int] = {}
        starts: dict[int, str] = {}
        found = set()
        for entry in os.listdir("/proc"):
            stat = _stat(int(entry)) if entry.isdigit() else None
            if stat is None:
                continue
            process = int(entry)
            state, parent, session, starts[process] = stat
            parents[process] = parent
            if state == "Z":
                continue
            member = self.members.get(process) == starts[process] or session == self.root
            if member or (self.others.get(process) != starts[process] and self._marked(process)):
                found.add(process)
            else:
                self.others[process] = starts[process]
        grown = True
        while grown:
            children = {process for process, parent in parents.items() if parent in found} - found
            grown = bool(children)
            found |= children
        self.members.update({process: starts[process] for process in found})
        return sorted(found)

    def look(self) -> None:
        """Add up the memory of the living, and keep it if it is the most so far."""
        total = shared = 0
        for process in self.living():
            try:
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            except OSError:  # gone meanwhile
                continue
            total, shared = total + _field(rollup, "Pss"), shared + _field(rollup, "Pss_Shmem")
        self.samples += 1
        if total > self.peak:
            self.peak, self.shared = total, shared

    def end(self) -> None:
        """Wait until nobody is left, and kill who stays."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.living() and time.monotonic() < deadline:
            time.sleep(EVERY_SECONDS)
        for process in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _marked(self, process: int) -> bool:
        try:
            return f"{MARK}={self.mark}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:  # gone, or another user's
            return False


def main(
    sizes: tuple[int, ...] = (10, 12, 14, 16, 18, 20),
    streamed: tuple[int, ...] = (12, 14, 16, 18),
    out: Path = Path("results/memory.json"),
) -> None:
    """Measure the peak memory of a run against the size of its batch.

    Args:
        sizes: Batches that are held: 10 for one of 2^10 observations.
        streamed: Batches that are streamed, likewise.
        out: Where the record goes.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run under way is ended as well
    readings: list[dict[str, Any]] = []
    for size, streams in [(size, False) for size in sizes] + [(size, True) for size in streamed]:
        readings.append(measure(1 << size, streams))
        write_result(out, readings)
        print(line(readings[-1]), flush=True)
    rows = [
        [
            f"{reading['batch_size']:,}",
            "streamed" if reading["streamed"] else "held",
            f"{reading['peak_bytes'] / 2**20:,.0f}",
            f"{reading['frame_bytes'] / 2**20:,.0f}",
            f"{(reading['peak_bytes'] - reading['frame_bytes']) / 2**20:,.0f}",
            f"{reading['ratio']:.3g}",
            "yes" if reading["joint_noise"] else "NO",
            f"{reading['spilled_bytes'] / 2**20:,.0f} MiB",
        ]
        for reading in readings
        if "failed" not in reading
    ]
    columns = [
        "observations",
        "batch",
        "peak, MiB",
        "frames, MiB",
        "peak - frames, MiB",
        "peak / frames",
        "joint noise",
        "spilled",
    ]
    print_table("Peak memory of a run on two actors", columns, rows)


def measure(batch: int, streamed: bool) -> dict[str, Any]:
    """Run one iteration of so many observations and watch its memory."""
    # A stream differs in nothing but its length: the same environments, and as many blocks, whose gradients take memory too.
    environments = STREAMED if streamed else max(8, min(64, batch // ROLLOUT))
    reading: dict[str, Any] = {"batch_size": batch, "streamed": streamed, "environments": environments}
    with tempfile.TemporaryDirectory() as folder:
        run, errors = Path(folder) / "run", Path(folder) / "errors"
        words = ["train", "atari/pong", "--network", NATURE, "--actors", 2, "--environments", environments]
        words += [
            "--rollout-length",
            ROLLOUT,
            "--batch-size",
            batch,
            *TOGETHER,
            *NO_HEADS,
            *(["--stream", "--blocks", "16"] if streamed else []),
            "--run",
            run,
        ]
        mark = uuid.uuid4().hex
        started = time.perf_counter()
        with errors.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "rlscale", *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                env={**os.environ, MARK: mark},
            )
        family, over = Family(process.pid, mark), threading.Event()
        watcher = threading.Thread(target=watch, args=(family, over))
        watcher.start()
        try:
            code = process.wait()
        finally:
            seconds = time.perf_counter() - started
            over.set()
            watcher.join()
            stop(process)
            family.end()
        reading |= {
            "frame_bytes": FRAME_BYTES * batch,
            "peak_bytes": family.peak,
            "ratio": family.peak / (FRAME_BYTES * batch),
            "shared_bytes": family.shared,
            "processes": len(family.members),
            "samples": family.samples,
            "seconds": seconds,
        }
        if code:
            last = errors.read_text(errors="replace").strip().splitlines()[-3:]
            return {**reading, "failed": " ".join(text.strip() for text in last) or f"exit status {code}"}
        record = read_run(run)
    plan, row = record.manifest["memory"], record.rows[-1]
    sizes = [entry["size"] for entry in row["noise"] if entry["head"] == "joint"]
    return {
        **reading,
        "observations": row["observations"],
        "optimizer_steps": row["optimizer_steps"],
        "joint_noise": len(sizes) == 1 and sum(sizes[0]) == row["batch_observations"],
        "blocks": len(sizes[0]) if sizes else 0,
        "spilled_bytes": sum(r["spilled_bytes"] for r in record.rows),
        "memory": plan,
        "bytes_per_observation": plan["fragment_bytes"] / (plan["environments"] * ROLLOUT),
        "sampling_seconds": row["sampling_seconds"],
        "learning_seconds": row["learning_seconds"],
    }


def watch(family: Family, over: threading.Event) -> None:
    """Look at its memory until the run is over."""
    while not over.wait(EVERY_SECONDS):
        family.look()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a run that still goes on: the first signal asks it to, the second interrupts its iteration."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0 if number == signal.SIGINT else PATIENCE_SECONDS)


def line(reading: dict[str, Any]) -> str:
    """One run in one line."""
    what = f"{reading['batch_size']:>9,} {'streamed' if reading['streamed'] else 'held':8} {reading['seconds']:5.0f} s"
    if "failed" in reading:
        return f"{what}  failed: {reading['failed']}"
    travel = f"{reading['bytes_per_observation']:,.0f} bytes/observation"
    return f"{what}  peak {reading['peak_bytes'] / 2**20:,.0f} MiB, {travel}"


def _stat(process: int) -> tuple[str, int, int, str] | None:
    """State, parent, session and start time of a process; None when it is gone."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1]), int(words[3]), words[19]


def _field(rollup: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


if __name__ == "__main__":
    tyro.cli(main)
