"""What the measurements share: paired rounds, runs in processes of their own, statistics of runs, tables, records."""

import math
import multiprocessing
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlscale.agents.compute import computes_bfloat16
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.cpus import usable_cpus
from rlscale.envs import Network
from rlscale.estimate import Estimate
from rlscale.records import RunRecord, read_run
from rlscale.records.files import dump_json, now

__all__ = [
    "CPU",
    "NATURE",
    "NO_HEADS",
    "NO_ITERATION",
    "in_turn",
    "map_in_processes",
    "mean_return",
    "median_and_spread",
    "output_of",
    "precisions",
    "print_table",
    "processes_below",
    "require_known",
    "returns_of",
    "rounds_of",
    "say_recorded",
    "settings_of",
    "train",
    "write_result",
]

CPU = torch.device("cpu")
# The network of every measurement of speed on Pong, whatever the task's own default: other libraries use it, and records
# of different years can be compared.
NATURE: Network = "nature_cnn"
NO_HEADS = [word for head in ("policy", "value", "entropy") for word in (f"--{head}-noise-period", "0")]
# Else the start of a run whose steps are of shuffled transitions takes an extra pass for it.
NO_ITERATION = ["--iteration-noise-period", "0"]
Case = TypeVar("Case")


def precisions() -> dict[str, bool]:
    """The precisions that this machine computes in, by name, and whether each is bfloat16."""
    return {"float32": False, "bfloat16": True} if computes_bfloat16(CPU) else {"float32": False}


def in_turn(cases: Iterable[Case], turn: int) -> list[Case]:
    """All cases, beginning with another one each turn, so that none is always the first."""
    cases = list(cases)
    return cases[turn % len(cases) :] + cases[: turn % len(cases)]


def rounds_of(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each task in each round; all tasks run once per round.

    Machines drift, so figures should only be compared within a round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():  # not counted: caches, allocator, lazy imports
        task()
    for turn in range(rounds):
        for name in in_turn(tasks, turn):
            started = time.perf_counter()
            tasks[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def map_in_processes(function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Results of a function for each tuple of arguments, in their order; as many processes work as there are cores."""
    cores = usable_cpus()
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(function, *zip(*jobs, strict=True))


def train(*words: object) -> RunRecord:
    """The record of a run of `rlscale train WORDS` in a process of its own. A run that fails ends this process too."""
    with tempfile.TemporaryDirectory() as folder:
        output_of([sys.executable, "-m", "rlscale", "train", *map(str, words), "--run", f"{folder}/run"])
        return read_run(Path(folder) / "run")


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


def output_of(words: Sequence[str], cwd: Path | None = None) -> str:
    """What a command prints. One that fails ends this process too, with its words."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"{shlex.join(words)} failed:\n{done.stderr}")
    return done.stdout


def returns_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean return of the episodes that finished in the last fifth of a run's observations, and in the whole run."""
    late = [row for row in rows if row["observations"] > 0.8 * rows[-1]["observations"]]
    return {"end": mean_return(late), "whole": mean_return(rows)}


def mean_return(rows: Iterable[dict[str, Any]]) -> float:
    """Mean return of all episodes of the rows; nan if there are none."""
    finished = [row for row in rows if row["episodes"]]
    episodes = sum(row["episodes"] for row in finished)
    return sum(row["return_mean"] * row["episodes"] for row in finished) / episodes if episodes else math.nan


def require_known(flag: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """End with one line and exit code 2 where a name that was asked for is none of those there are."""
    there = list(known)
    if unknown := [name for name in asked if name not in there]:
        print(f"{flag}: there is no {unknown[0]!r}. There are: {'; '.join(there)}", file=sys.stderr)
        sys.exit(2)


def require_some(flag: str, number: int) -> None:
    """End with one line and exit code 2 where nothing was asked for."""
    if number < 1:
        print(f"{flag}: {number} leaves nothing to measure. Use 1 or more", file=sys.stderr)
        sys.exit(2)


def median_and_spread(values: Sequence[float]) -> str:
    """Median with the middle half in brackets."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    words = [f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" for x in (middle, low, high)]
    return f"{words[0]} [{words[1]}, {words[2]}]"


def say_recorded(value: float | None, interval: Sequence[float | None] | None) -> str:
    """A figure and its interval as a record spells them, for people: an end that is not finite is null there."""
    low, high = interval or (0.0, None)
    ends = (low or 0.0, math.inf if high is None else high)
    return Estimate(value, ends, None if value is not None else "not resolved").say()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people."""
    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(Text(column))  # whose brackets are no markup
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(width=120).print(table)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a page in docs/."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def settings_of(options: Any) -> dict[str, Any]:
    """The options of a measurement as its record keeps them: all but the record's own path."""
    return {name: value for name, value in vars(options).items() if name != "out"}


def made_here() -> dict[str, Any]:
    """Commit, date and machine: of a whole record, and of each run of one that is gone on with in later sessions."""
    return {"commit": find_commit(), "date": now(), "machine": describe_machine(CPU)}


def write_result(path: Path, readings: Any) -> None:
    """Write a record: every single reading, and what it was measured with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        **made_here(),
        "versions": find_versions(),
        "readings": readings,
    }
    path.write_text(dump_json(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
