"""The subcommands of `rlscale`, one module each: the options that it takes and what it does with them.

`COMMANDS` is the one list of them. Its order is that of `rlscale --help`. The module `NAME` has a function `run(arguments) ->
int`, which gets the words after `rlscale NAME` and returns the exit code. It is imported when its command is run, so that
`rlscale --help` and `rlscale tasks` need not wait for PyTorch and Ray.

A command that can be continued adds a note (`error.add_note`) to what interrupts it; `rlscale.benchmarks.cli` prints it.

What is behind `sweep`, `workers`, `advise`, `branch` and `bench` is in the folders of those names; `compare`, `report`,
`runs`, `tasks`, `play` and `demo` are here as a whole. `watch` serves pages that follow a run, `train_display` is the live
panel of `rlscale train`, and `guard` is the process that watches a training run on an existing cluster. Start with `tasks` or
`report`, the shortest.
"""

from dataclasses import dataclass
from importlib import import_module

__all__ = ["COMMANDS", "Command"]


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
        name: the first word after `rlscale`, and the module that holds `run`.
        arguments: what follows, for the usage line.
        purpose: what the command is for, for the usage line.
    """

    name: str
    arguments: str
    purpose: str

    def run(self, arguments: list[str]) -> int:
        """Run it with the words that follow its name; the exit code."""
        return import_module(f".{self.name}", __name__).run(arguments)


COMMANDS = {
    command.name: command
    for command in (
        Command("sweep", "TASK... [options]", "measure the critical batch size, by runs at many batch sizes and learning rates"),
        Command("compare", "FOLDER... [options]", "lay sweeps and runs side by side: measured against predicted"),
        Command("train", "TASK [options]", "train, and measure the gradient noise on the way"),
        Command("advise", "TASK [options]", "in minutes: the batch and the actors a task is worth here, what more machines give"),
        Command("branch", "RUN [options]", "from a run where it stands: how large a batch its next observations are worth"),
        Command("workers", "TASK [options]", "measure this machine or cluster for minutes: how many workers, how long, how much"),
        Command("bench", "[--compare A B]", "measure a machine or cluster with a fixed suite; what changed between two results"),
        Command("runs", "[FOLDER...]", "list the runs and sweeps that are there: state, task, return, noise scale"),
        Command("report", "RUN... [--watch]", "write a page that shows one or more runs, or serve one that follows them"),
        Command("play", "RUN [--video F.mp4]", "whole episodes by the policy of a run's checkpoint, and a film of one"),
        Command("demo", "", "all of it in six minutes: a critical batch size, a minute of Pong, a page"),
        Command("tasks", "[WORD]", "list the tasks (those whose name holds WORD)"),
    )
}
