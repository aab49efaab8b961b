"""What a person sees while a run goes on: a live panel in a terminal, plain lines when piped. Records are not made here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rlscale.agents.config import Budget
from rlscale.agents.learning import NoiseRecord
from rlscale.noise import POOL_WINDOW, BlockStatistics, pool, usable
from rlscale.returns import RecentReturn
from rlscale.text import format_bytes, format_clock, format_quantity, format_return

from ..console import say

__all__ = ["TrainingDisplay", "lost"]

PLAIN_SECONDS = 10.0


class TrainingDisplay:
    """Follows a run row by row; use as a context manager.

    Args:
        title: what runs, for the head of the panel.
        budget: when it ends, for the bar and the time left.
        console: where to print; a live panel if it is a terminal.
        before: rows of the record that a resumed run goes on from, for its return of late.
    """

    def __init__(self, title: str, budget: Budget, console: Console, before: Sequence[Mapping[str, Any]] = ()) -> None:
        self._title, self._budget, self._console = title, budget, console
        self._recent, self._before = RecentReturn(), before
        self._noise: dict[tuple[str, str], deque[BlockStatistics]] = {}
        self._started = self._printed = time.monotonic()
        self._first: tuple[float, int, int] | None = None  # when the first row came, and the observations and steps by then
        self._row: dict[str, Any] | None = None
        self._losses = 0
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[left]}"),
        )
        self._task = self._bar.add_task(title, total=1.0, left="")
        self._lock = threading.Lock()  # the live panel is drawn by a thread of its own
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> TrainingDisplay:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)
        elif self._row is not None:
            say(self._console, self._line())

    def update(self, row: dict[str, Any], noise: list[NoiseRecord]) -> None:
        """Take in the row of one iteration and the noise measured in it."""
        with self._lock:
            if self._first is None:
                now = time.monotonic()
                self._first = (now, row["observations"], row["optimizer_steps"])
                gone = 0.0  # seconds of the run before this session, whose clock starts after Ray and the environments are there
                for earlier in self._before:
                    if earlier["iteration"] < row["iteration"]:  # later ones are made again
                        self._recent.add(earlier["episodes"], earlier["return_mean"])
                        gone = earlier["seconds"]
                self._started = now - (row["seconds"] - gone)
                self._before = ()
            self._row = row
            self._losses += len(row["losses"])
            self._recent.add(row["episodes"], row["return_mean"])
            for record in noise:
                if usable([record.statistics]):
                    self._noise.setdefault((record.head, record.kind), deque(maxlen=POOL_WINDOW)).append(record.statistics)
            share, left = self._share_and_left()
            self._bar.update(self._task, completed=share, left=left)
        if trial := row.get("actor_trial"):
            say(self._console, say_trial(**trial))
        now = time.monotonic()
        if not self._live and (now - self._printed >= PLAIN_SECONDS or row["iteration"] == 0):
            self._printed = now
            say(self._console, self._line())

    def _share_and_left(self) -> tuple[float, str]:
        """How much of the budget is spent, and the time left: nothing before a second row has come, which tells the pace."""
        assert self._row is not None
        assert self._first is not None
        elapsed, since = time.monotonic() - self._started, time.monotonic() - self._first[0]
        b, row = self._budget, self._row
        shares, left = [0.0], []
        for total, now, first in (
            (b.observations, row["observations"], self._first[1]),
            (b.optimizer_steps, row["optimizer_steps"], self._first[2]),
        ):
            if total is not None:
                shares.append(now / total)
                if now >= total:
                    left.append(0.0)
                elif now > first:
                    left.append(since * (total - now) / (now - first))
        if b.seconds is not None:
            shares.append(elapsed / b.seconds)
            left.append(max(b.seconds - elapsed, 0.0))
        return min(max(shares), 1.0), f"{format_clock(min(left))} left" if left else ""

    def _mean_return(self) -> tuple[str, int]:
        mean = self._recent.mean
        return ("no episode yet" if mean is None else format_return(mean)), self._recent.episodes

    def _scale(self, head: str) -> str | None:
        kinds = [kind for (name, kind) in self._noise if name == head]
        if not kinds:
            return None
        kind = "rollout" if "rollout" in kinds else kinds[0]
        label = "" if kind == "rollout" else " (mini-batch noise)"
        return f"{pool(usable(self._noise[head, kind])).noise_scale}{label}"

    def _line(self) -> str:
        assert self._row is not None
        row = self._row
        mean, episodes = self._mean_return()
        parts = [
            f"{row['observations']:>9,} observations",
            f"{row['optimizer_steps']:,} steps",
            f"{row['observations_per_second']:,.0f}/s",
            f"return {mean}" + (f" ({episodes})" if episodes else ""),
        ]
        if row["spilled_bytes"]:
            parts.append(f"object store full, {format_bytes(row['spilled_bytes'])} went to disk")
        if self._losses:
            parts.append(lost(self._losses))
        policy = self._scale("policy")
        if policy:
            parts.append(f"policy noise scale of late {policy}")
        parts.append(self._share_and_left()[1])
        return "  ".join(part for part in parts if part)

    def _panel(self) -> Group:
        with self._lock:
            table = Table.grid(padding=(0, 2))
            if self._row is None:
                table.add_row("starting", "making environments and the first rollout")
                return Group(self._bar, table)
            row = self._row
            mean, episodes = self._mean_return()
            table.add_row("observations", f"{row['observations']:,} in {row['optimizer_steps']:,} optimizer steps")
            table.add_row(
                "rate",
                f"{row['observations_per_second']:,.0f} observations/s, "
                f"sampling alone {row['sampling_observations_per_second']:,.0f}/s",
            )
            table.add_row("return", f"{mean}" + (f", mean of the last {episodes} episodes" if episodes else ""))
            if row["spilled_bytes"]:
                full = f"full: {format_bytes(row['spilled_bytes'])} of this iteration went to disk; others may fill it"
                table.add_row("object store", full)
            if self._losses:
                table.add_row("faults", f"{lost(self._losses)}; {row['actors']} work now")
            for head in ("policy", "value", "joint", "policy_last_layer"):
                scale = self._scale(head)
                if scale:
                    table.add_row(f"noise scale of late, {head.replace('_', ' ')}", scale)
            table.add_row("entropy, KL", f"{format_quantity(row['entropy'])}, {format_quantity(row['approx_kl'])}")
            return Group(self._bar, table)


def say_trial(actors: int, observations_per_second: float, next: int, settled: bool) -> str:
    """What a number of rollout actors gave, and what follows from it; see `rlscale.agents.rollout.actor_search`."""
    found = f"{actors} {'actor' if actors == 1 else 'actors'}: {observations_per_second:,.0f} observations/s"
    return f"{found}; {'the run keeps' if settled else 'next'} {next}"


def lost(workers: int) -> str:
    """So many rollout workers were lost, in words."""
    return "1 rollout worker was lost" if workers == 1 else f"{workers} rollout workers were lost"
