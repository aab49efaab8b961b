"""What a person sees while a sweep goes on: a live table in a terminal, one line a run when piped. Nothing is decided here."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import HEAVY_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlscale.records import Trial, TrialResult
from rlscale.text import format_clock, format_quantity

from ..console import make_table, say
from .design import PILOT_RUNS, QUICK_RUNS
from .plan import SweepPlan

__all__ = ["SweepDisplay"]


def _roughly(hours: float) -> str:
    """Whole minutes up to two hours, then two digits."""
    return f"{max(round(60 * hours), 1)} min" if hours < 2 else f"{hours:.2g} h"


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
        self._waited: set[tuple[int, str]] = set()
        self._before = sum(len(r) for r in results)
        self._said = ""  # about the sweep whose run ended last; a fit takes too long for every frame
        self._lock = threading.Lock()  # the live table is drawn by a thread of its own
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> SweepDisplay:
        if self._before:
            self._console.print(f"{self._before} runs are there already", markup=False, highlight=False)
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
        self._said = self._progress(sweep)
        if self._live is None or result.failed:
            say(self._console, self._line(sweep, result))

    def waits(self, sweep: int, trial: Trial, why: str) -> None:
        """A run found no room in the cluster, which is said once a run."""
        with self._lock:
            self._running.pop((sweep, trial.id), None)
        if (sweep, trial.id) not in self._waited:
            self._waited.add((sweep, trial.id))
            task = self._task(sweep)
            say(self._console, f"{task}{trial.id} waits for room: {why}")

    def begins_again(self, sweep: int, trial: Trial, why: str) -> None:
        """A run was lost to a fault of the machines, and is made again from its beginning."""
        with self._lock:
            self._running.pop((sweep, trial.id), None)
        say(self._console, f"{self._task(sweep)}{trial.id} begins again: {why}")

    def say(self, line: str) -> None:
        """Say something of the sweep as a whole."""
        say(self._console, line)

    def _task(self, sweep: int) -> str:
        """The beginning of a line, where there are several tasks to tell apart."""
        return f"{self._plans[sweep].config.task}  " if len(self._plans) > 1 else ""

    def _line(self, sweep: int, result: TrialResult) -> str:
        task = self._task(sweep)
        reached = [f"{format_quantity(g.optimizer_steps)} steps to {g.goal:g}" for g in result.goals if g.optimizer_steps]
        outcome = ", ".join(reached) if reached else "no goal reached"
        if result.state != "finished":
            outcome += f" ({result.state}: {result.reason})"
        return (
            f"{task}{result.id:<8} {result.stage:<7} B {result.batch_size:<6,} rate {result.learning_rate:<8.3g} {outcome}  "
            f"{result.observations:,} observations, {result.seconds:.1f} s  [{self._said}]"
        )

    def _progress(self, sweep: int) -> str:
        """How far a sweep is: runs of a grid, or what is known of B_crit so far."""
        plan, results = self._plans[sweep], self._results[sweep]
        if plan.quick:
            predicted = plan.predicted(results)
            most = PILOT_RUNS + min(plan.noise_runs, QUICK_RUNS)
            runs = f"{len(results)} of {most} runs" if len(results) <= most else f"{len(results)} runs"
            return f"{runs}; the noise suggests {predicted.say()}" if predicted.interval else runs
        known = plan.known(results) if any(r.stage == "noise" for r in results.values()) or len(results) > 3 else None
        runs = "1 run" if len(results) == 1 else f"{len(results)} runs"
        if plan.batch_sizes is not None:
            most = max(len(plan.trials(results)), len(plan.batch_sizes) * plan.rates * plan.seeds + plan.noise_runs)
            new, elapsed = sum(map(len, self._results)) - self._before, time.monotonic() - self._started
            left = f", {format_clock(elapsed / new * (most - len(results)))} left" if new and most > len(results) else ""
            runs = f"{len(results)} of {most} runs{left}"
        if known is None:
            return runs
        made = [result for result in results.values() if not result.failed]
        # Decisions count the steps that only reset an environment in the batch; B_crit is said without, as on the page.
        valid = sum(r.observations for r in made) / sum(r.optimizer_steps * r.batch_size for r in made)
        low, high = (valid * math.exp(end) for end in known.interval())
        factor = high / low if low > 0 else math.inf
        sharp = f", a factor of {factor:.2g}" if math.isfinite(factor) else ""
        wanted = f" ({self._wanted(plan, results, factor)})" if plan.batch_sizes is None else ""
        interval = f"[{format_quantity(low)}, {format_quantity(high)}]"
        return (
            f"{runs}; B_crit {format_quantity(valid * known.b_crit)} {interval} at goal {plan.target(results):g}{sharp}{wanted}"
        )

    def _wanted(self, plan: SweepPlan, results: Mapping[str, TrialResult], factor: float) -> str:
        """How sharp the interval is to be, and how long that will take."""
        said, hours = f"{plan.interval_ratio:g} is wanted", plan.hours_to_go(results, factor)
        if hours is None:
            return said
        left = plan.hours_left(results)
        return f"{said}, some {_roughly(hours)} more" + (f"; --hours leaves {_roughly(left)}" if left < hours else "")

    def _panel(self) -> Group:
        with self._lock:
            names = ", ".join(trial.id for trial in self._running.values())
            footer = Text(f"{self._said}\nrunning: {names or 'none'}".lstrip())
            return Group(*(self._table(i) for i in range(len(self._plans))), footer)

    def _table(self, sweep: int) -> Table:
        plan, results = self._plans[sweep], list(self._results[sweep].values())
        title = f"{plan.config.task}, goals {', '.join(f'{g:g}' for g in plan.goals)}"
        columns = ("batch size", "runs", "running", "given up", "rates", "fewest steps", "goal")
        table = make_table(title, (), columns, HEAVY_HEAD)
        now = Counter(t.batch_size for (number, _), t in self._running.items() if number == sweep)
        for size in sorted({r.batch_size for r in results} | set(now) | set(plan.batch_sizes or ())):
            mine = [r for r in results if r.batch_size == size]
            lost = sum(r.state != "finished" for r in mine)
            cells = ["", "", ""]
            if mine:
                rates = [r.learning_rate for r in mine]
                furthest = max((len(r.reached) for r in mine), default=0)
                steps = (
                    min((r.reached[furthest - 1] for r in mine if len(r.reached) == furthest), default=0) if furthest else None
                )
                cells = [
                    f"{min(rates):.3g} … {max(rates):.3g}" if len(set(rates)) > 1 else f"{rates[0]:.3g}",
                    "" if steps is None else format_quantity(steps),
                    "" if steps is None else f"{plan.goals[furthest - 1]:g}",
                ]
            table.add_row(f"{size:,}", str(len(mine)), str(now[size] or ""), str(lost or ""), *cells)
        return table
