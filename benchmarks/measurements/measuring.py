"""Paired timing and result records, shared by the benchmark scripts. What is measured is theirs."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlscale.agents.machine import describe_machine, find_commit, find_versions

__all__ = ["median_and_spread", "print_table", "rounds_of", "write_result"]


def rounds_of(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each task in each round; all tasks run once per round, starting with another one each time.

    Machines drift, so figures are only to be compared within a round.
    """
    names = list(tasks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for task in tasks.values():  # not counted: caches, allocator, lazy imports
        task()
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            started = time.perf_counter()
            tasks[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def median_and_spread(values: list[float]) -> str:
    """Median with the middle half in brackets."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    words = [f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" for x in (middle, low, high)]
    return f"{words[0]} [{words[1]}, {words[2]}]"


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table for people."""
    table = Table(*columns, title=Text(title), title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


def write_result(path: Path, readings: Any) -> None:
    """A record with every single reading, and what it was measured with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": find_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(torch.device("cpu")),
        "versions": find_versions(),
        "readings": readings,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
