"""A run whose actors are killed every few seconds and that loses a whole node, beside runs that nothing happens to.

    python -m rlscale.benchmarks.measurements.chaos [--seconds N] [--kill-seconds N] [--disturbed N] [--undisturbed N]

The disturbed runs are `rlscale train TASK --actors auto` on a Ray cluster of this script's own, two nodes on this machine.
The second node joins when the run has begun, dies after a third of its time, and comes back after two thirds; meanwhile a
random rollout actor gets SIGKILL every few seconds. Checked in the record: every iteration has one fragment of every group,
and none enters twice. The undisturbed runs make as many observations with other seeds; whether the disturbed ones learn as
well is read from the interval in which one more undisturbed run would lie with a probability of 95%.
"""

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from scipy.stats import t as student

from rlscale.records import RunRecord, read_run

from .measuring import NO_HEADS, print_table, returns_of, settings_of, train, write_result

STORE_BYTES = 256 << 20
SETTINGS = (
    "--environments 64 --rollout-length 32 --fragment-environments 8 --epochs 2 --mini-batch 1024 "
    "--learning-rate 5e-3 --entropy-coef 0.03 --threads 1"
)
STATISTICS = {"end": "last fifth", "whole": "whole run"}


@dataclass(frozen=True)
class Options:
    """Runs with random kills and a lost node beside undisturbed ones."""

    task: str = "minatar/breakout"
    """The task."""
    seconds: float = 120.0
    """Seconds of each disturbed run."""
    kill_seconds: float = 6.0
    """Mean time between two kills; each lies between half of it and one and a half."""
    disturbed: int = 2
    """Disturbed runs."""
    undisturbed: int = 5
    """Undisturbed runs."""
    settings: str = SETTINGS
    """What all runs have in common, as typed after `rlscale train TASK`."""
    out: Path = Path("results/chaos.json")
    """Where the record goes."""


def main() -> None:
    options = tyro.cli(Options)
    if options.disturbed < 1:
        sys.exit("--disturbed: there is nothing to measure; give at least 1")
    runs: list[dict[str, Any]] = []

    def keep(run: dict[str, Any]) -> None:
        runs.append(run)
        print(
            f"{run['kind']} {run['seed']}: {run['observations']:,} observations in {run['seconds']:.0f} s, "
            f"{len(run['losses'])} lost, return {run['end']:.2f} in the last fifth",
            flush=True,
        )
        write_result(options.out, {"options": settings_of(options), "runs": runs})

    for number in range(options.disturbed):
        keep(disturbed(options, 1000 + number))
    observations = min(run["observations"] for run in runs)
    for number in range(options.undisturbed):
        keep(undisturbed(options, number, observations))
    report(options, runs)


def words_of(task: str, settings: str, seed: int, *more: str) -> list[str]:
    """The words after `rlscale train`."""
    return [task, *shlex.split(settings), *NO_HEADS, "--seed", str(seed), *more]


def undisturbed(options: Options, seed: int, observations: int) -> dict[str, Any]:
    """A run on two actors of its own Ray instance."""
    record = train(*words_of(options.task, options.settings, seed, "--actors", "2", "--observations", str(observations)))
    return {"kind": "undisturbed", "seed": seed, "events": [], **facts_of(record)}


def disturbed(options: Options, seed: int) -> dict[str, Any]:
    """A run on a cluster whose actors and second node are taken away."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        with tempfile.TemporaryDirectory() as folder:
            words = words_of(options.task, options.settings, seed, "--actors", "auto", "--ray-address", cluster.address)
            words += ["--observations", "1000000000", "--seconds", str(options.seconds), "--run", f"{folder}/run"]
            with subprocess.Popen([sys.executable, "-m", "rlscale", "train", *words], stdout=subprocess.DEVNULL) as process:
                events = disturb(process, cluster, node, Path(folder) / "run", options, random.Random(seed))
            if process.returncode:
                sys.exit(f"{' '.join(words)} ended with {process.returncode}")
            return {"kind": "disturbed", "seed": seed, "events": events, **facts_of(read_run(Path(folder) / "run"))}
    finally:
        cluster.shutdown()


def disturb(
    process: subprocess.Popen[bytes], cluster: Any, node: dict[str, int], run: Path, options: Options, rng: random.Random
) -> list[list[Any]]:
    """Kill actors, remove and add a node until the process ends; returns [seconds since the first iteration, what was done]."""
    rows = run / "iterations.jsonl"
    while process.poll() is None and not (rows.exists() and rows.stat().st_size):
        time.sleep(0.2)
    started = time.monotonic()
    second = cluster.add_node(**node)
    plan = [(options.seconds / 3, "node removed"), (2 * options.seconds / 3, "node added")]
    at = options.kill_seconds
    while at < options.seconds:
        plan.append((at, "actor killed"))
        at += options.kill_seconds * rng.uniform(0.5, 1.5)
    events: list[list[Any]] = [[0.0, "node added"]]
    for due, what in sorted(plan):
        while process.poll() is None and time.monotonic() - started < due:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        if what == "actor killed":
            actors = processes_below(os.getpid(), b"RolloutActor")
            if not actors:
                continue
            os.kill(rng.choice(actors), signal.SIGKILL)
        elif what == "node removed":
            cluster.remove_node(second)
        else:
            second = cluster.add_node(**node)
        events.append([time.monotonic() - started, what])
    process.wait()
    return events


def processes_below(ancestor: int, name: bytes) -> list[int]:
    """Ids of the descendants of a process whose command line contains a name, oldest first; Ray names its actors so."""
    parents: dict[int, int] = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = []
    for pid in sorted(parents):
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        try:
            if above == ancestor and name in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


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
    finished = [row for row in rows if row["episodes"]]
    return {
        "iterations": len(rows),
        "observations": rows[-1]["observations"],
        "seconds": rows[-1]["seconds"],
        "steps_per_iteration": sorted({row["fragments"] * fragment for row in rows}),  # those that only reset included
        "every_group_once_an_iteration": whole,
        "fragments": len(entered),
        "fragments_twice": len(entered) - len(set(entered)),
        "losses": [loss for row in rows for loss in row["losses"]],
        "actors": [list(pair) for pair in changes([(row["seconds"], row["actors"]) for row in rows])],
        "longest_iteration_seconds": max(
            after["seconds"] - before["seconds"] for before, after in zip([{"seconds": 0.0}, *rows], rows, strict=False)
        ),
        "curve": [[row["observations"], row["return_mean"], row["episodes"]] for row in finished],
        **returns_of(rows),
    }


def changes(values: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The first of every stretch of equal values."""
    return [now for before, now in zip([(0.0, -1), *values], values, strict=False) if before[1] != now[1]]


def where_one_more_would_lie(values: Sequence[float]) -> tuple[float, float]:
    """Where one more value like these, of which there are two or more, would lie with a probability of 95%."""
    middle, spread = statistics.fmean(values), statistics.stdev(values)
    reach = float(student.ppf(0.975, len(values) - 1)) * spread * math.sqrt(1 + 1 / len(values))
    return middle - reach, middle + reach


def report(options: Options, runs: list[dict[str, Any]]) -> None:
    """Tables for people."""
    harmed = [run for run in runs if run["kind"] == "disturbed"]
    plain = [run for run in runs if run["kind"] == "undisturbed"]
    rows = []
    for run in harmed:
        recovered = [loss["recovery_seconds"] for loss in run["losses"] if loss["recovery_seconds"] is not None]
        sizes = run["steps_per_iteration"]
        rows.append(
            [
                run["seed"],
                f"{run['iterations']:,}",
                " and ".join(f"{size:,}" for size in sizes),
                "yes" if run["every_group_once_an_iteration"] else "NO",
                run["fragments_twice"],
                len(run["losses"]),
                f"{statistics.median(recovered):.1f}, {max(recovered):.1f}" if recovered else "none",
                f"{run['longest_iteration_seconds']:.1f}",
            ]
        )
    columns = ["seed", "iterations", "steps each", "every group once", "fragments twice", "actors lost"]
    columns += ["recovery, s: median, most", "longest iteration, s"]
    print_table(f"Disturbed runs, {options.task}, {options.seconds:.0f} s", columns, rows)
    if len(plain) < 2:
        return
    rows = []
    for statistic, name in STATISTICS.items():
        values = [run[statistic] for run in plain]
        middle, spread = statistics.fmean(values), statistics.stdev(values)
        low, high = where_one_more_would_lie(values)
        found = ", ".join(f"{run[statistic]:.2f}" + ("" if low <= run[statistic] <= high else " (outside)") for run in harmed)
        rows.append([name, f"{middle:.2f} (sd {spread:.2f})", f"{low:.2f} to {high:.2f}", found])
    columns = ["of", f"{len(plain)} undisturbed", "where one more would lie [95%]", "disturbed"]
    print_table("Mean return of finished episodes", columns, rows)


if __name__ == "__main__":
    main()
