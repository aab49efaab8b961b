"""Run the rungs, keep their records, say how far they are.

    python -m rlscale.benchmarks.measurements.ladder climb [RUNG ...]
    python -m rlscale.benchmarks.measurements.ladder collect
    python -m rlscale.benchmarks.measurements.ladder status
    python -m rlscale.benchmarks.measurements.ladder page
    python -m rlscale.benchmarks.measurements.ladder again RUNG [...]

`climb` runs every rung that has not ended, or those that are named, at low priority, from a clone of the commit that rungs.toml
names; a rung that has begun goes on from the commit and with the command that it began with, on another machine too. Only more
hours are taken over from the file, and reopen a rung that has finished. The file is read again after every rung. Sweeps are in
runs/ladder. Every few minutes their compact records are copied to results/ladder, which is what is committed; `collect` does
nothing but that. Ctrl-C stops after the copy, and the same command goes on.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rlscale.records import read_sweep
from rlscale.records.files import dump_json, now, write_atomically

from ..measuring import print_table
from .again import run_again
from .forecasts import foretell
from .page import write_page
from .rungs import Rung, read_rungs
from .storage import RECORD, copy_record, run_sweep

__all__ = ["Progress", "again", "climb", "collect", "main", "status"]

SWEEPS, RECORDS = Path("runs/ladder"), Path("results/ladder")
NICENESS = 19  # of a sweep: whatever else the machine does comes first
_MANIFEST = "sweep.json"


@dataclass(frozen=True)
class Progress:
    """How far a rung is; results/ladder/<rung>/ladder.json.

    Attributes:
        role, base: of the rung.
        code: commit that it runs from.
        command: the words after `rlscale`.
        state: `begun`, `finished`, `failed` with the exit code of the sweep, or what a person wrote: `given up` and why.
        finished: day and time when it finished, UTC; None before, and of rungs that finished before 26 November 2026.
    """

    role: str
    base: str | None
    code: str
    command: list[str]
    state: str = "begun"
    finished: str | None = None

    @classmethod
    def read(cls, name: str) -> "Progress | None":
        """None where the rung has not begun."""
        path = RECORDS / name / RECORD
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be run."""
        return self.state.startswith(("finished", "given up"))

    def write(self, name: str) -> None:
        (RECORDS / name).mkdir(parents=True, exist_ok=True)
        write_atomically(RECORDS / name / RECORD, (dump_json(asdict(self), indent=1) + "\n").encode())


def climb(names: tuple[str, ...] = ()) -> int:
    """Run what has not ended, in order; the exit code, 1 where a rung failed."""
    tried: set[str] = set()
    failed = 0
    while True:
        code, rungs = read_rungs()
        rung = next((rung for rung in _chosen(rungs, names) if rung.name not in tried and not _has_ended(rung)), None)
        if rung is None:
            return failed
        tried.add(rung.name)
        progress = _progress(rung) or Progress(rung.role, rung.base, _commit(code), rung.command("sweeps"))
        print(f"== {rung.name}: rlscale {' '.join(progress.command)}", flush=True)
        exit_code = _run(rung, progress)
        if _is_stopped(exit_code):
            return 130
        if exit_code:
            failed = 1
            print(f"rung {rung.name} ended with exit code {exit_code}; its record is kept", file=sys.stderr)


def again(names: tuple[str, ...]) -> int:
    """Run these rungs once more, with other seeds; the exit code, 130 once one was stopped, else 1 where one failed."""
    if not names:
        print("again: no rung was named; for example: again digits", file=sys.stderr)
        return 2
    failed = 0
    for rung in _chosen(read_rungs()[1], names):
        code = run_again(rung)
        if _is_stopped(code):
            return 130
        failed |= code != 0
    return failed


def _has_ended(rung: Rung) -> bool:
    progress = _progress(rung)
    return progress is not None and progress.ended


def _progress(rung: Rung) -> Progress | None:
    """How far the rung is, with the hours that rungs.toml gives it by now; None where it has not begun."""
    progress = Progress.read(rung.name)
    if progress is None or progress.state.startswith("given up"):
        return progress
    command, hours = list(progress.command), rung.options["hours"]
    at = command.index("--hours") + 1
    if float(hours) <= float(command[at]):
        return progress
    command[at] = hours
    return replace(progress, command=command, state="begun", finished=None)


def _chosen(rungs: list[Rung], names: tuple[str, ...]) -> list[Rung]:
    unknown = set(names) - {rung.name for rung in rungs}
    if unknown:
        raise SystemExit(f"there is no rung {', '.join(sorted(unknown))}; rungs.toml has {', '.join(r.name for r in rungs)}")
    return [rung for rung in rungs if not names or rung.name in names]


def _run(rung: Rung, progress: Progress) -> int:
    """Run the sweep of a rung to its end, or until it is stopped; its exit code."""
    progress = replace(progress, state="begun")  # it may have failed the last time
    progress.write(rung.name)
    exit_code = run_sweep(progress.command, SWEEPS / rung.name, RECORDS / rung.name, _clone(progress.code), NICENESS)
    if exit_code and not _is_stopped(exit_code):
        replace(progress, state=f"failed with exit code {exit_code}").write(rung.name)
    elif not exit_code:
        replace(progress, state="finished", finished=now()).write(rung.name)
    return exit_code


def _is_stopped(exit_code: int) -> bool:
    """Whether the sweep was interrupted, or killed by a signal: then it goes on another time."""
    return exit_code == 130 or exit_code < 0


def _commit(name: str) -> str:
    """The whole name of a commit or tag."""
    found = subprocess.run(["git", "rev-parse", f"{name}^{{commit}}"], capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"code: this checkout has no commit {name!r}; fetch the tags, or name another one in rungs.toml")
    return found.stdout.strip()


def _clone(commit: str) -> Path:
    """A checkout of that commit, which nobody edits while a rung runs."""
    folder = (SWEEPS / f"code-{commit[:10]}").resolve()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun = folder.with_name(f"{folder.name}.new")  # the folder's own name is for a whole checkout
        shutil.rmtree(begun, ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ".", str(begun)], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=begun, check=True)
        begun.rename(folder)
    return folder


def collect() -> int:
    """Copy the record of every rung that has begun."""
    for rung in read_rungs()[1]:
        if Progress.read(rung.name) is not None:
            copy_record(SWEEPS / rung.name, RECORDS / rung.name)
    return 0


def status() -> int:
    """A line a rung: its state, runs that ended, hours spent, and how many are left beside its noise runs, which come on top.

    No result of it is shown.
    """
    collect()
    rows, spent_all, left_all = [], 0.0, 0.0
    for rung in read_rungs()[1]:
        progress = _progress(rung)
        budget, jobs = float(rung.options["hours"]), max(1, int(rung.options["jobs"]))
        runs, spent, counted = 0, 0.0, 0.0
        if progress is not None and (RECORDS / rung.name / _MANIFEST).exists():
            results = read_sweep(RECORDS / rung.name).results.values()
            runs, spent = len(results), sum(result.seconds for result in results) / 3600 / jobs
            counted = sum(result.seconds for result in results if result.stage != "noise") / 3600 / jobs
        ended = progress is not None and progress.ended
        left = 0.0 if ended else max(budget - counted, 0.0)
        spent_all, left_all = spent_all + spent, left_all + left
        state = "not begun" if progress is None else progress.state
        rows.append([rung.name, rung.role, state, f"{runs}", f"{spent:.1f}", "" if ended else f"{left:.1f}"])
    rows.append(["all", "", "", "", f"{spent_all:.1f}", f"{left_all:.1f}"])
    print_table("The ladder", ["rung", "role", "state", "runs", "hours", "to go, noise runs apart"], rows)
    return 0


@dataclass(frozen=True)
class Options:
    """Run the ladder's rungs, or say how far they are."""

    action: Annotated[Literal["climb", "collect", "status", "page", "again", "forecasts"], tyro.conf.Positional]
    """climb: run what has not ended; collect: copy the records; status: say how far they are; page: write docs/ladder.md;
    again: run rungs once more with other seeds; forecasts: say how well the finished ones foretold their hours."""
    rungs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Rungs to climb; all without. Rungs to run again."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = tyro.cli(Options, args=arguments, prog="python -m rlscale.benchmarks.measurements.ladder")
    if not Path("results").is_dir() or not Path(".git").exists():
        print("the ladder is climbed from the root of a checkout of rlscale", file=sys.stderr)
        return 2
    started = time.monotonic()
    actions: dict[str, Callable[[], int]] = {
        "climb": lambda: climb(options.rungs),
        "collect": collect,
        "status": status,
        "page": lambda: write_page(RECORDS),
        "again": lambda: again(options.rungs),
        "forecasts": lambda: foretell(RECORDS),
    }
    code = actions[options.action]()
    if options.action == "climb":
        how = "stopped" if _is_stopped(code) else "ended"
        print(f"{how} after {(time.monotonic() - started) / 3600:.1f} hours; records are in {RECORDS}, sweeps in {SWEEPS}")
    return code
