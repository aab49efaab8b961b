"""`rlscale train`: trains, shows the progress, and says how to go on from where the run ended."""

import shlex
import sys
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from rich.console import Console

from rlscale.agents.cluster import LostWorkerError
from rlscale.agents.train import train

from ..options import parse_train
from .guard import guarded_folder, run_guarded
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
    name = config.task.replace("/", "-").replace(":", "-").replace("@", "-")
    default = f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path(config.resume or config.recording.run or guarded_folder() or default)
    go_on = f"rlscale train {shlex.quote(config.task)} --resume {shlex.quote(str(folder))}"
    # The guard starts this process's own command again; so only where that is what runs here.
    if config.rollout.ray_address and guarded_folder() is None and sys.argv[1:] == ["train", *arguments]:
        return run_guarded(folder, go_on)
    console = Console()
    display = TrainingDisplay(config.task, config.budget, console)
    try:
        with ExitStack() as showing:

            def announce() -> None:
                workers = "as many Ray actors as there is room for" if config.elastic else f"{config.actors or 'no'} Ray actors"
                size = f"{config.rollout.environments} environments x {config.rollout.rollout_length} steps on {workers}"
                console.print(f"{config.task}: {size}; record in {folder}", highlight=False, soft_wrap=True)
                showing.enter_context(display)

            command = ["rlscale", "train", *arguments]
            outcome = train(config, folder, command=command, on_start=announce, on_iteration=display.update)
    except (LostWorkerError, OSError) as error:
        error.add_note(f"The record is in {folder}; go on from its last checkpoint with: {go_on}")
        raise
    steps = f"{outcome.observations:,} observations and {outcome.optimizer_steps:,} optimizer steps"
    console.print(f"{outcome.state} after {steps}", highlight=False)
    if outcome.lost_actors:
        console.print(f"{lost(outcome.lost_actors)}; the record's rows say which and how long it took", highlight=False)
    if outcome.state == "stopped":
        console.print(f"go on with:  {go_on}", highlight=False, soft_wrap=True)
    if not config.recording.report:
        console.print(f"see it with: rlscale report {shlex.quote(str(folder))}", highlight=False, soft_wrap=True)
    elif outcome.observations:
        write_page([str(folder)])
    return 0
