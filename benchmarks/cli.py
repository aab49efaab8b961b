"""The `rlscale` command: reads what was typed, calls the floors below, turns bad input into one line and exit code 2."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from rlscale import __version__
from rlscale.agents.config import TrainConfig
from rlscale.errors import UsageError
from rlscale.records.files import is_full

from .commands.guard import guarded_folder, run_guarded
from .options import parse, parse_train

__all__ = ["main"]

_HELP = f"""rlscale {__version__}: how far can this reinforcement-learning task be parallelized?

usage: rlscale sweep TASK... [options]    measure the critical batch size: a run per batch size, learning rate and seed
       rlscale compare FOLDER... [options] lay sweeps and runs side by side: measured against predicted
       rlscale train TASK [options]       train, and measure the gradient noise of every update
       rlscale workers TASK [options]     measure this machine or cluster for minutes: how many workers, how long, how much
       rlscale bench [--compare A B]      measure a machine or cluster with a fixed suite; what changed between two results
       rlscale report RUN... [--out F]    write a page that shows one or more runs
       rlscale tasks [WORD]               list the tasks (those whose name holds WORD)

'rlscale train TASK --help' lists every option with that task's own defaults, 'rlscale sweep --help' those of sweeps.
Atari games run in ale-py, which is licensed under the GPL-2.0; MinAtar's games are under the GPL-3.0."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the process exit code: 0 done or stopped, 1 failed, 2 bad input or a cluster that is gone.

    Args:
        arguments: None for those that this process was started with.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        if arguments[:1] == ["train"] and guarded_folder() is None:
            return _guarded(arguments)
    return _run(arguments)


def _run(arguments: list[str]) -> int:
    commands = {
        "train": _train,
        "sweep": _sweep,
        "compare": _compare,
        "workers": _workers,
        "bench": _bench,
        "report": _report,
        "tasks": _tasks,
    }
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(_HELP)
            return 0 if arguments else 2
        if arguments[0] == "--version":
            print(__version__)
            return 0
        if arguments[0] not in commands:
            raise UsageError(
                "COMMAND",
                f"there is no command {arguments[0]!r}",
                "Use sweep, compare, train, workers, bench, report or tasks; 'rlscale --help' says more",
            )
        return commands[arguments[0]](arguments[1:])
    except UsageError as error:
        print(f"rlscale: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rlscale: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _guarded(arguments: list[str]) -> int:
    """`rlscale train`: on an existing cluster in a process of its own."""
    try:
        config = parse_train(arguments[1:])
    except UsageError:
        return _run(arguments)  # where it becomes a line
    if config.rollout.ray_address is None:
        return _run(arguments)
    folder = _run_folder(config)
    return run_guarded(folder, _go_on(config, folder))


def _run_folder(config: TrainConfig) -> Path:
    name = config.task.replace("/", "-").replace(":", "-").replace("@", "-")
    return Path(config.resume or config.recording.run or guarded_folder() or f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}")


def _go_on(config: TrainConfig, folder: Path) -> str:
    return f"rlscale train {shlex.quote(config.task)} --resume {shlex.quote(str(folder))}"


def _train(arguments: list[str]) -> int:
    from rlscale.agents.cluster.head_node import LostHeadError
    from rlscale.agents.cluster.processes import LostWorkerError
    from rlscale.agents.train import train

    from .commands.train_display import TrainingDisplay, lost

    config = parse_train(arguments)
    folder = _run_folder(config)
    console = Console()
    workers = "as many Ray actors as there is room for" if config.elastic else f"{config.actors or 'no'} Ray actors"
    size = f"{config.rollout.environments} environments x {config.rollout.rollout_length} steps on {workers}"
    go_on = _go_on(config, folder)
    display = TrainingDisplay(config.task, config.budget, console)
    try:
        with ExitStack() as showing:

            def announce() -> None:
                console.print(f"{config.task}: {size}; record in {folder}", highlight=False, soft_wrap=True)
                showing.enter_context(display)

            outcome = train(
                config, folder, command=["rlscale", "train", *arguments], on_start=announce, on_iteration=display.update
            )
    except (LostWorkerError, OSError) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        what = f"no room to write {error.filename or folder}: {error.strerror}" if isinstance(error, OSError) else str(error)
        print(f"rlscale: {what}. The record is in {folder}; go on from its last checkpoint with: {go_on}", file=sys.stderr)
        return 2 if isinstance(error, LostHeadError) else 1
    console.print(
        f"{outcome.state} after {outcome.observations:,} observations and {outcome.optimizer_steps:,} optimizer steps",
        highlight=False,
    )
    if outcome.losses:
        console.print(f"{lost(outcome.losses)}; the record's rows say which and how long it took", highlight=False)
    if outcome.state == "stopped":
        console.print(f"go on with:  {go_on}", highlight=False, soft_wrap=True)
    if not config.recording.report:
        console.print(f"see it with: rlscale report {shlex.quote(str(folder))}", highlight=False, soft_wrap=True)
        return 0
    return _report([str(folder)]) if outcome.observations else 0


def _sweep(arguments: list[str]) -> int:
    from .sweep.options import SweepOptions
    from .sweep.run import run_sweeps

    options = parse(SweepOptions, "sweep", arguments)
    console = Console()
    command = ["rlscale", "sweep", *arguments]
    try:
        folders = run_sweeps(options, command, console)
    except KeyboardInterrupt:
        console.print(f"stopped; what had ended is recorded in {options.out}", highlight=False, soft_wrap=True)
        console.print(f"go on with:  {shlex.join(command)}", highlight=False, soft_wrap=True)
        return 130
    from .commands.compare import CompareOptions, run_compare

    page = str(Path(options.out) / "comparison.html") if options.report else None
    return run_compare(CompareOptions(folders=tuple(map(str, folders)), out=page))


def _compare(arguments: list[str]) -> int:
    from .commands.compare import CompareOptions, run_compare

    return run_compare(parse(CompareOptions, "compare", arguments))


def _workers(arguments: list[str]) -> int:
    from .workers.recommendation import WorkersOptions
    from .workers.run import run_workers

    command = ["rlscale", "workers", *arguments]
    options = parse(WorkersOptions, "workers", arguments)
    return _measure(lambda: run_workers(options, command), "Fleets that were measured are kept", command)


def _bench(arguments: list[str]) -> int:
    from .bench.suite import BenchOptions, run_bench

    command = ["rlscale", "bench", *arguments]
    options = parse(BenchOptions, "bench", arguments)
    return _measure(lambda: run_bench(options, command), "Rounds that were complete are kept", command)


def _measure(measure: Callable[[], int], kept: str, command: list[str]) -> int:
    """Measure something that can be gone on with when it was cut off; the exit code."""
    from rlscale.agents.cluster.head_node import LostHeadError
    from rlscale.agents.cluster.processes import LostWorkerError

    try:
        return measure()
    except KeyboardInterrupt:
        what, code = "interrupted", 130
    except LostWorkerError as error:
        what, code = str(error), 2 if isinstance(error, LostHeadError) else 1
    print(f"rlscale: {what}. {kept}; go on with: {shlex.join(command)}", file=sys.stderr)
    return code


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained page that shows one or more runs, from their records alone."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs."""
    out: str | None = None
    """The page to write; default report.html in the first run's folder."""


def _report(arguments: list[str]) -> int:
    from rlscale.records.run import read_run
    from rlscale.report.run_page import write_report

    options = parse(ReportOptions, "report", arguments)
    if not options.runs:
        raise UsageError("RUN", "no run was named", "Name the folder of a run, for example: rlscale report runs/my-run")
    page = Path(options.out) if options.out else Path(options.runs[0]) / "report.html"
    write_report([read_run(Path(run)) for run in options.runs], page)
    print(f"wrote {page}")
    return 0


def _tasks(arguments: list[str]) -> int:
    from rlscale.envs import list_tasks

    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: rlscale tasks [WORD]\n\nList the tasks, or those whose name holds WORD.")
        return 0
    word = arguments[0] if arguments else ""
    listed = [listing for listing in list_tasks() if word in listing.id]
    if not listed:
        raise UsageError("WORD", f"no task's name holds {word!r}", "'rlscale tasks' lists all")
    for listing in listed:
        print(f"{listing.id:32s} {listing.note}")
    return 0
