"""What a person sees while a sweep goes on: a live table in a terminal, one line a run when piped. Nothing is decided here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlscale.records import Trial, TrialResult
from rlscale.text import format_clock, format_quantity

from .plan import SweepPlan

__all__ = ["SweepDisplay"]


class SweepDisplay:
    """Follows sweeps run by run; use as a context manager.

    Args:
        plans: of the sweeps.
        results: of each sweep so far, by trial id; the same mappings that grow as runs end.
        console: where to print; a live table if it is a terminal.
    """

    def __init__(self, plans: Sequence[SweepPlan], results: Sequence[Mapping[str, TrialResult]], console: Console) -> None:
        self._plans, self._results, self._console = plans, results, console
        self._running: dict[tuple[int, str], Trial] = {}
        self._started = time.monotonic()
        self._before = sum(len(r) for r in results)
        self._lock = threading.Lock()  # the live table is drawn by a thread of its own
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> SweepDisplay:
        if self._before:
            self._console.print(f"{self._before} runs are there already", highlight=False)
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)

    def started(self, sweep: int, trial: Trial) -> None:
        """A run began."""
        with self._lock:
            self._running[sweep, trial.id] = trial

    def ended(self, sweep: int, result: TrialResult) -> None:
        """A run ended and is recorded."""
        with self._lock:
            self._running.pop((sweep, result.id), None)
        if self._live is None or result.failed:
            self._console.print(self._line(sweep, result), highlight=False, soft_wrap=True)

    def _line(self, sweep: int, result: TrialResult) -> str:
        task = f"{self._plans[sweep].config.task}  " if len(self._plans) > 1 else ""
        reached = [f"{format_quantity(g.optimizer_steps)} steps to {g.goal:g}" for g in result.goals if g.optimizer_steps]
        outcome = ", ".join(reached) if reached else "no goal reached"
        if result.state != "finished":
            outcome += f" ({result.state}: {result.reason})"
        done, most, left = self._progress()
        return (
            f"{task}{result.id:<16} {result.stage:<6} rate {result.learning_rate:<9.3g} {outcome}  "
            f"{result.observations:,} observations, {result.seconds:.1f} s  [{done} of about {most}{left}]"
        )

    def _progress(self) -> tuple[int, int, str]:
        done = sum(len(r) for r in self._results)
        most = max(done, sum(plan.most_trials(r) for plan, r in zip(self._plans, self._results, strict=True)))
        new, elapsed = done - self._before, time.monotonic() - self._started
        return done, most, f", {format_clock(elapsed / new * (most - done))} left" if new and most > done else ""

    def _panel(self) -> Group:
        with self._lock:
            return Group(*(self._table(i) for i in range(len(self._plans))), self._footer())

    def _footer(self) -> Text:
        done, most, left = self._progress()
        names = ", ".join(trial.id for trial in self._running.values())
        return Text(f"{done} of about {most} runs{left}; running: {names or 'none'}")

    def _table(self, sweep: int) -> Table:
        plan, results = self._plans[sweep], self._results[sweep]
        table = Table(title=f"{plan.config.task}, goals {', '.join(f'{g:g}' for g in plan.goals)}", title_justify="left")
        for name in ("batch size", "runs", "running", "given up", "rate", "optimizer steps", "observations", "goal"):
            table.add_column(name, justify="right")
        for size in plan.batch_sizes:
            mine = [r for r in list(results.values()) if r.batch_size == size]
            now = sum(t.batch_size == size for (number, _), t in self._running.items() if number == sweep)
            lost = sum(r.state != "finished" for r in mine)
            choice = plan.choice(size, results)
            cells = ["", "", "", ""]
            if choice.best is not None:
                furthest = choice.best.goals[len(choice.best.reached) - 1]
                cells = [
                    f"{choice.best.learning_rate:.3g}" + ("  on the edge" if choice.on_edge else ""),
                    format_quantity(furthest.optimizer_steps or math.nan),
                    format_quantity(furthest.observations or math.nan),
                    f"{furthest.goal:g}",
                ]
            table.add_row(f"{size:,}", str(len(mine)), str(now or ""), str(lost or ""), *cells)
        return table
