"""`rlscale train`: trains, shows the progress, and says how to go on from where the run ended."""

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rlscale.agents.cluster import LostWorkerError
from rlscale.agents.train import train
from rlscale.cpus import usable_cpus
from rlscale.records import folder_name, read_run

from ..console import plain_console, say
from ..options import parse_train
from .guard import guarded_folder, mark_own_end, run_guarded
from .report import write_page
from .train_display import TrainingDisplay, lost

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Train as the arguments say.

    Raises:
        UsageError: a task or options that cannot be used.
        LostWorkerError: a Ray process or the head node was lost for good; the record is closed and can be resumed.
        OSError: the record cannot be written.
    """
    config = parse_train(arguments)
    default = f"runs/{folder_name(config.task)}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path(config.resume or config.recording.run or guarded_folder() or default)
    go_on = f"rlscale train {shlex.quote(config.task)} --resume {shlex.quote(str(folder))}"
    # The guard starts this process's own command again; so only where that is what runs here.
    if config.rollout.ray_address and guarded_folder() is None and sys.argv[1:] == ["train", *arguments]:
        return run_guarded(folder, go_on)
    mark_own_end()
    before = None if config.resume is None else read_run(folder, "--resume")
    changed = "" if before is None else say_changes(before.manifest["config"], asdict(config))
    console = plain_console()
    display = TrainingDisplay(config.task, config.budget, console, before.rows if before else ())
    del before  # its rows are the display's to forget
    try:
        with ExitStack() as showing:

            def announce() -> None:
                workers = f"{config.actors or 'no'} Ray actors"
                if config.elastic:
                    worth = config.rollout.actor_price is not None
                    workers = f"as many Ray actors as {'are worth their price' if worth else 'there is room for'}"
                size = f"{config.rollout.environments} environments x {config.rollout.rollout_length} steps on {workers}"
                if config.update.mini_batch is not None:
                    size += f", in mini-batches of {config.update.mini_batch}"
                say(console, f"{config.task}: {size}; record in {folder}")
                if not (config.update.threads or config.actors) and os.getloadavg()[0] >= usable_cpus():
                    busy = "this machine is busy: several threads may wait for one another; --threads 1 does not"
                    say(console, busy)
                if config.noise.joint_noise_period and config.rollout.environments // config.rollout.clones < 3:
                    say(console, "note: so few environments show no noise scale: --environments 8 or more do")
                if changed:
                    say(console, f"going on with other settings: {changed}")
                showing.enter_context(display)

            command = ["rlscale", "train", *arguments]
            outcome = train(config, folder, command=command, on_start=announce, on_iteration=display.update)
    except (LostWorkerError, OSError) as error:
        if folder.exists():
            kept = (folder / "checkpoint.pt").exists()  # not where the disk was full from the beginning
            again = f"go on from its last checkpoint with: {go_on}" if kept else "begin again with another --run"
            error.add_note(f"The record is in {folder}; {again}")
        raise
    steps = f"{outcome.observations:,} observations and {outcome.optimizer_steps:,} optimizer steps"
    goal = f": a mean return of {config.budget.goal:g} was reached" if outcome.reached_goal else ""
    if config.budget.goal is not None and outcome.state == "finished" and not outcome.reached_goal:
        goal = f", and a mean return of {config.budget.goal:g} was not reached"
    say(console, f"{outcome.state} after {steps}{goal}")
    if outcome.lost_actors:
        console.print(
            f"{lost(outcome.lost_actors)}; the record's rows say which, what replaced it and how long that took",
            markup=False,
            highlight=False,
        )
    if outcome.state == "stopped":
        say(console, f"go on with:  {go_on}")
    if not outcome.observations:
        early = f"it ended before its first iteration: give more time to  {go_on}"
        say(console, early)
    elif not config.recording.report:
        say(console, f"see it with: rlscale report {shlex.quote(str(folder))}")
    else:
        write_page([str(folder)])
    return 0


def say_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which settings a resumed run takes otherwise than it began with, budget and recording apart: each with both values."""
    said = []
    for section, value in now.items():
        if isinstance(value, Mapping) and section not in ("budget", "recording"):
            was = before.get(section, {})
            for name, new in value.items():
                if name in was and was[name] != new:
                    said.append(f"--{name.replace('_', '-')} {new}, was {was[name]}")
    return "; ".join(said)
