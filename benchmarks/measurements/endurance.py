"""One run through a thousand kills of its actors, learners and nodes, resumed whenever it ends, beside one without any.

    python -m rlscale.benchmarks.measurements.endurance [--kills N] [--kill-seconds N]

The run is `rlscale train TASK --actors auto --learners 2` on a Ray cluster of this script's own, two nodes on this machine. Every
few seconds a random rollout actor gets SIGKILL, now and then one of the learners, and now and then the second node dies and
comes back. A killed learner ends the run; so does a node on which one is. It is resumed at once, until there were so many kills.

What is checked in the record: every iteration has one fragment of every group, no fragment entered twice, every killed actor is
told, and every row is, to the last bit, that of the same run without a kill: environments that can be saved go on where a lost
actor left them. Only a group that was made afresh, after four losses over one fragment, ends that. What is read beside it, each
half minute: anonymous memory, file handles and threads of the run's own process, its learners, and Ray's daemons.
"""

import bisect
import contextlib
import math
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from rlscale.records import RunRecord, read_run

from .measuring import NO_HEADS, print_table, processes_below, returns_of, settings_of, train, write_result

__all__ = ["Watched", "growth", "science_of", "untold"]

TASK = "minatar/breakout"  # whose environments can be saved
SEED = 1000  # of both runs and of the kills
SETTINGS = (
    "--environments 64 --rollout-length 32 --fragment-environments 8 --epochs 2 --mini-batch 1024 "
    "--learning-rate 5e-3 --entropy-coef 0.03 --threads 1"
)
STORE_BYTES = 256 << 20  # of each node's object store
LEARNER_SHARE, NODE_SHARE = 0.01, 0.02  # of the kills; a node goes with all that is on it
SAMPLE_SECONDS = 30.0
SETTLED = 120.0  # seconds of a process's life that its growth is not read from: caches fill, libraries load
BIN = 50_000  # observations of a point of the learning curve
WORDS = [TASK, *shlex.split(SETTINGS), *NO_HEADS, "--seed", str(SEED), "--actors", "auto", "--learners", "2"]  # of both runs
GUARDED = b"RLSCALE_GUARDED_RUN="  # in the environment of a run's process, not in that of the guard that started it
WATCHED = {"run": b"rlscale\0train", "learner": b"LearnerActor", "raylet": b"raylet/raylet", "gcs": b"gcs_server"}


@dataclass(frozen=True)
class Options:
    """One run through many kills, and the same run without any."""

    kills: int = 1000
    """Kills after which it ends: of actors, learners and nodes."""
    kill_seconds: float = 6.0
    """Mean time between two kills; each lies between half of it and one and a half."""
    out: Path = Path("results/endurance.json")
    """Where the record goes."""


@dataclass
class Watched:
    """One process that is looked at each half minute.

    Attributes:
        what: a key of `WATCHED`.
        samples: [seconds since the start of the run, anonymous MiB, file handles, threads] each.
    """

    what: str
    samples: list[list[float]] = field(default_factory=list)

    @classmethod
    def look(cls, pid: int) -> list[float]:
        """Its anonymous memory in MiB, file handles and threads.

        Raises:
            OSError: it is gone.
        """
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        return [int(status["RssAnon"].split()[0]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])]


def main() -> None:
    options = tyro.cli(Options)
    with tempfile.TemporaryDirectory() as folder:
        disturbed = Endurance(options, Path(folder) / "run").run()
        rows = read_run(Path(folder) / "run").rows
    readings = readings_of(options, disturbed, None)
    write_result(options.out, readings)
    most = str(disturbed["observations"])
    others = train(*WORDS, "--observations", most).rows
    readings["undisturbed"] = {
        "iterations": len(others),
        **returns_of(others),
        "same_until": same_until(rows, others),
        "curve": curve_of(others),
    }
    write_result(options.out, readings)
    report(readings)


def readings_of(options: Options, disturbed: dict[str, Any], undisturbed: dict[str, Any] | None) -> dict[str, Any]:
    """The record, also while the run goes on."""
    return {"options": settings_of(options), "train": WORDS, "disturbed": disturbed, "undisturbed": undisturbed}


def science_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a run's record without what the clock, the faults and the number of actors decide."""
    others = {"actors", "losses", "spilled_bytes"}
    return {name: value for name, value in row.items() if name not in others and not name.endswith(("second", "seconds"))}


def same_until(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> int:
    """From the first on, so many rows are the same in both runs."""
    pairs = zip(rows, others, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if science_of(one) != science_of(other)), min(len(rows), len(others)))


class Endurance:
    """The disturbed run: starts it, kills its processes, resumes it, watches it.

    Attributes:
        events: [session, bytes of the record's rows so far, seconds since the start, what was killed].
        sessions: of each start or resume that has ended: exit code, seconds, bytes of the record's rows, and the last line of its
            errors.
        watched: by process id.
    """

    def __init__(self, options: Options, run: Path) -> None:
        self.options, self.folder, self.rng = options, run, random.Random(SEED)
        self.rows = run / "iterations.jsonl"
        self.events: list[list[Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.watched: dict[int, Watched] = {}

    def run(self) -> dict[str, Any]:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 3, "object_store_memory": STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            self._second = self._add_node()
            self._start()
            try:
                with contextlib.suppress(KeyboardInterrupt):  # fewer kills, and what there is is kept
                    self._disturb()
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(timeout=300)
                self._ended()
            finally:
                self._process.kill()
        finally:
            self._cluster.shutdown()
        return self._facts()

    def _add_node(self) -> Any:
        return self._cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)

    def _start(self) -> None:
        """A session: the run's first, or one that resumes it."""
        words = ["--resume", str(self.folder)]
        if not self.sessions:
            words = [*WORDS, "--run", str(self.folder), "--ray-address", self._cluster.address, "--observations", "1000000000"]
        self._shown = tempfile.TemporaryFile("w+")  # noqa: SIM115  read when the session ends
        command = [sys.executable, "-m", "rlscale", "train", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._shown)
        self._began, self._before = time.monotonic(), self._size()

    def _ended(self) -> None:
        """Note how a session ended; a run that ended for another reason than a lost process ends this one too."""
        self._shown.seek(0)
        said = [line for line in self._shown.read().splitlines() if line.startswith("rlscale:")]
        self._shown.close()
        seconds = time.monotonic() - self._began
        last = said[-1] if said else None
        self.sessions.append({"code": self._process.returncode, "seconds": seconds, "rows": self._size(), "said": last})
        print(f"session {len(self.sessions)} ended after {seconds:.0f} s: {last or 'nothing said'}", flush=True)
        if self._process.returncode not in (0, 1):
            sys.exit(f"the run ended with {self._process.returncode}")

    def _size(self) -> int:
        return self.rows.stat().st_size if self.rows.exists() else 0

    def _disturb(self) -> None:
        started = next_sample = time.monotonic()
        next_kill, node_back, is_ending = started, math.inf, False
        while len(self.events) < self.options.kills:
            time.sleep(0.1)
            now = time.monotonic()
            if self._process.poll() is not None:
                self._ended()
                self._start()
                is_ending = False
            if now >= node_back:
                self._second, node_back = self._add_node(), math.inf
            if now >= next_sample:
                self._sample(now - started)
                next_sample = now + SAMPLE_SECONDS
            if now < next_kill or self._size() == self._before or is_ending:
                continue
            next_kill = now + self.options.kill_seconds * self.rng.uniform(0.5, 1.5)
            what = self._kill(node_back == math.inf)
            if what is None:
                continue
            self.events.append([len(self.sessions), self._size(), round(now - started, 1), what])
            if what == "node":
                node_back = now + self.rng.uniform(10, 30)
            is_ending = what == "learner"  # nothing more is killed until the session has ended
            if len(self.events) % 50 == 0:
                print(f"{len(self.events)} kills in {now - started:.0f} s, {len(self.sessions)} resumes", flush=True)
                write_result(self.options.out, readings_of(self.options, self._facts(), None))

    def _kill(self, has_second: bool) -> str | None:
        """Kill something; what it was, None where there is none of it."""
        draw = self.rng.random()
        if draw < NODE_SHARE and has_second:
            self._cluster.remove_node(self._second)
            return "node"
        what, name = ("learner", b"LearnerActor") if draw > 1 - LEARNER_SHARE else ("actor", b"RolloutActor")
        found = processes_below(os.getpid(), name)
        if not found:
            return None
        try:
            os.kill(self.rng.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return None
        return what

    def _sample(self, seconds: float) -> None:
        for what, name in WATCHED.items():
            for pid in processes_below(os.getpid(), name):
                try:
                    if what == "run" and GUARDED not in Path(f"/proc/{pid}/environ").read_bytes():
                        continue  # the guard, which only waits for the run
                    self.watched.setdefault(pid, Watched(what)).samples.append([round(seconds), *Watched.look(pid)])
                except (OSError, KeyError):  # gone, or not yet waited for
                    continue

    def _facts(self) -> dict[str, Any]:
        record = read_run(self.folder)
        facts = facts_of(record)
        losses = facts.pop("losses")
        whole = [watched for watched in self.watched.values() if len(watched.samples) > 1]
        return {
            **facts,
            "kills": Counter(event[3] for event in self.events),
            "events": self.events,
            "sessions": self.sessions,
            "losses": Counter(loss["what"] for loss in losses),
            "afresh": [row["iteration"] for row in record.rows if any(loss["afresh"] for loss in row["losses"])],
            "untold": untold(self.events, [session["rows"] for session in self.sessions], self.rows.read_bytes(), record.rows),
            "recovery_seconds": [loss["recovery_seconds"] for loss in losses],
            "watched": [vars(watched) for watched in whole],
            "curve": curve_of(record.rows),
            "folder_bytes": sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()),
        }


def facts_of(record: RunRecord) -> dict[str, Any]:
    """What a run's record says, and whether every iteration has one fragment of every group."""
    rows = record.rows
    rollout = record.manifest["config"]["rollout"]
    environments = record.manifest["memory"]["environments"]
    groups, fragment = rollout["environments"] // environments, environments * rollout["rollout_length"]
    entered = [
        (group, generation, index)
        for row in rows
        for first, last, generation, start, end in row["fragment_ids"]
        for group in range(first, last + 1)
        for index in range(start, end + 1)
    ]
    whole = all(
        sorted(group for first, last, *_ in row["fragment_ids"] for group in range(first, last + 1)) == list(range(groups))
        and row["fragments"] == groups
        for row in rows
    )
    return {
        "iterations": len(rows),
        "observations": rows[-1]["observations"],
        "seconds": rows[-1]["seconds"],
        "steps_per_iteration": sorted({row["fragments"] * fragment for row in rows}),  # those that only reset included
        "every_group_once_an_iteration": whole,
        "fragments": len(entered),
        "fragments_twice": len(entered) - len(set(entered)),
        "losses": [loss for row in rows for loss in row["losses"]],
        "longest_iteration_seconds": max(
            after["seconds"] - before["seconds"] for before, after in zip([{"seconds": 0.0}, *rows], rows, strict=False)
        ),
        **returns_of(rows),
    }


def untold(events: Sequence[Sequence[Any]], sessions: Sequence[int], lines: bytes, rows: Sequence[Mapping[str, Any]]) -> int:
    """Killed actors that the record should tell and does not.

    A loss is noticed when the actor's next fragment is due, in the iteration under way or in the next. Where the session ended
    before that, there is nothing to tell: the resumed run gives all groups to new actors. Nor is there of a replacement that was
    killed before it had started, and had sampled nothing: the next one has the next number, so they are counted by the gaps.

    Args:
        events: as `Endurance.events`.
        sessions: bytes of the rows at the end of each session that has ended.
        lines: of the record, one an iteration, never shortened.
        rows: the same, read.
    """
    ends = [position for position, byte in enumerate(lines) if byte == ord("\n")]
    missing, first = 0, 0
    for session in range(max((event[0] for event in events), default=-1) + 1):
        kills = [bisect.bisect_left(ends, size) for number, size, _, what in events if (number, what) == (session, "actor")]
        last = bisect.bisect_left(ends, sessions[session]) if session < len(sessions) else len(ends)
        if kills:
            told = sum(loss["what"] != "node lost" for row in rows[kills[0] : last] for loss in row["losses"])
            missing += max(sum(kill + 2 < last for kill in kills) - told - never_started(rows[first:last]), 0)
        first = last
    return missing


def never_started(rows: Sequence[Mapping[str, Any]]) -> int:
    """Actors of a session that got a number and neither worked at its end nor were lost; one may have been starting then."""
    losses = [loss for row in rows for loss in row["losses"]]
    lost = {loss["actor"] for loss in losses}
    given = max((number for loss in losses for number in (loss["actor"], loss["replaced_by"]) if number is not None), default=-1)
    return max(given + 1 - len(lost) - rows[-1]["actors"], 0) if rows else 0


def growth(samples: Sequence[Sequence[float]], column: int) -> float | None:
    """Rise of a column of `Watched.samples` in an hour, by Theil and Sen's median slope; None for less than ten minutes."""
    settled = [sample for sample in samples if sample[0] - samples[0][0] >= SETTLED]
    if not settled or settled[-1][0] - settled[0][0] < 600:
        return None
    from scipy.stats import theilslopes

    return 3600 * float(theilslopes([s[column] for s in settled], [s[0] for s in settled])[0])


def curve_of(rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    """[observations, mean return of the episodes that finished in the last `BIN` of them] each."""
    points: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        points.setdefault(row["observations"] // BIN, []).append(row)
    finished = {number: [row for row in members if row["episodes"]] for number, members in points.items()}
    return [
        [(number + 1) * BIN, sum(r["return_mean"] * r["episodes"] for r in members) / sum(r["episodes"] for r in members)]
        for number, members in finished.items()
        if members
    ]


def report(readings: dict[str, Any]) -> None:
    """Tables for people."""
    run = readings["disturbed"]
    recovered = [seconds for seconds in run["recovery_seconds"] if seconds is not None]
    facts: list[Sequence[object]] = [
        ["kills", ", ".join(f"{what}: {count}" for what, count in run["kills"].items())],
        ["sessions", len(run["sessions"])],
        ["iterations", f"{run['iterations']:,}"],
        ["environment steps of each", " and ".join(f"{size:,}" for size in run["steps_per_iteration"])],
        ["every group once in every iteration", "yes" if run["every_group_once_an_iteration"] else "NO"],
        ["fragments that entered twice", run["fragments_twice"]],
        ["lost actors told", ", ".join(f"{count} {what}" for what, count in run["losses"].items())],
        ["lost actors not told", run["untold"]],
        ["recovery, s: median, most", f"{statistics.median(recovered):.1f}, {max(recovered):.1f}" if recovered else "none"],
    ]
    print_table(f"{TASK} through {len(run['events']):,} kills", ["what", "found"], facts)
    rows: list[Sequence[object]] = []
    for watched in run["watched"]:
        samples = watched["samples"]
        slopes = [growth(samples, column) for column in (1, 2, 3)]
        if slopes[0] is not None:
            hours = f"{(samples[-1][0] - samples[0][0]) / 3600:.2f}"
            rows.append([watched["what"], hours, f"{samples[-1][1]:.0f}", *(f"{slope:+.1f}" for slope in slopes)])
    columns = ["process", "hours watched", "MiB at last", "MiB an hour", "handles an hour", "threads an hour"]
    print_table("Processes that were watched for ten minutes and more", columns, rows)
    if (other := readings["undisturbed"]) is not None:
        same = f"{other['same_until']:,} of {run['iterations']:,}"
        afresh = ", ".join(f"{iteration:,}" for iteration in run["afresh"]) or "none"
        rows = [[same, afresh, f"{other['end']:.2f}, {other['whole']:.2f}", f"{run['end']:.2f}, {run['whole']:.2f}"]]
        columns = ["iterations that are the same", "groups made afresh in", "mean return, last fifth and whole", "with kills"]
        print_table("Beside the same run without kills", columns, rows)


if __name__ == "__main__":
    main()
