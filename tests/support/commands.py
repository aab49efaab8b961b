"""`rlscale train` as a process: start it, wait for rows of its record, resume it, and what the record tells of its losses."""

import os
import subprocess
import sys
import time
from pathlib import Path

from rlscale.records.run import read_run

COMMAND = [sys.executable, "-m", "rlscale"]
SEEN = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])  # the tests' own environments
SMALL = ["--environments", "8", "--rollout-length", "16", "--epochs", "2", "--mini-batch", "64", "--threads", "1"]


class Command(subprocess.Popen):
    """A process that is ended, not waited for, when a test fails inside its `with` block."""

    def __exit__(self, kind, *rest):
        if kind is not None:
            self.terminate()
            try:
                self.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
        super().__exit__(kind, *rest)


def start(folder: Path, *words: str, **environment: str) -> Command:
    """What it shows goes to a file `shown`."""
    with (folder / "shown").open("w") as shown:
        return Command(
            [*COMMAND, "train", *words],
            cwd=folder,
            stdout=shown,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows_of(run: Path) -> int:
    try:
        return len((run / "iterations.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def goes_on(folder: Path, task: str, lost: int) -> None:
    """Resumed, the run loses at most the iteration that was under way."""
    record = read_run(folder / "mine")
    before = record.rows[-1]["iteration"]
    done = subprocess.run(
        [*COMMAND, "train", task, "--resume", "mine", "--observations", "100000000", "--seconds", "1"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": SEEN},
    )
    assert done.returncode == 0, done.stderr
    after = read_run(folder / "mine")
    first = after.manifest["segments"][-1]["first_iteration"]
    assert before + 1 - first <= lost
    assert after.rows[-1]["iteration"] > before
    steps = [row["optimizer_steps"] for row in after.rows]
    assert steps == sorted(set(steps))


def losses_of(run: Path) -> list[dict]:
    """All that the record tells so far."""
    return [loss for row in read_run(run).rows for loss in row["losses"]]


def fragments_of(rows) -> list[tuple[int, int, int]]:
    """(group, generation, index) of every fragment that entered an update."""
    return [
        (group, generation, index)
        for row in rows
        for first, last, generation, start, end in row["fragment_ids"]
        for group in range(first, last + 1)
        for index in range(start, end + 1)
    ]
