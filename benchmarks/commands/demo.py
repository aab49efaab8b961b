"""`rlscale demo`: a critical batch size, a minute of Pong and a page, in some six minutes on two cores.

It calls the other commands with the words that a user would type, and prints them.
"""

import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rlscale.agents.checks import require_positive
from rlscale.records import read_run

from ..options import parse
from . import COMMANDS

__all__ = ["DemoOptions", "run"]


@dataclass(frozen=True)
class DemoOptions:
    """Measure the critical batch size of MinAtar Breakout, train Pong for a minute on Ray actors, write a page."""

    out: str | None = None
    """Folder for everything; None: runs/demo-<date>-<time>."""
    hours: float = 0.045
    """Hours of the sweep; its noise runs come on top. It asks for a wider interval than rlscale sweep does by itself."""
    seconds: float = 60.0
    """Seconds of Pong."""


def run(arguments: list[str]) -> int:
    """Run the sweep, the training, the report and the comparison; the exit code of the first that fails.

    In a folder of an earlier demo the sweep goes on, and so does the training unless it has finished.

    Raises:
        UsageError: an option that cannot be used.
    """
    options = parse(DemoOptions, "demo", arguments)
    require_positive({"hours": options.hours, "seconds": options.seconds})
    folder = options.out or f"runs/demo-{datetime.now():%Y%m%d-%H%M%S}"
    pong = f"{folder}/atari-pong"
    fleet = ["--actors", "2", "--environments", "32", "--rollout-length", "64"]
    learn = ["--mini-batch", "512", "--epochs", "3", "--policy-noise-period", "2", "--value-noise-period", "4"]
    # To a return of 3: on the way to 4 some runs get stuck, each of which costs as much as four others.
    few = ["--goals", "3", "--interval-ratio", "4", "--noise-runs", "4", "--evaluation-episodes", "64"]
    budget = [*few, "--hours", f"{options.hours:g}"]
    steps = (
        ("the critical batch size of MinAtar Breakout", ["sweep", "minatar/breakout", *budget, "--out", folder]),
        (
            "a minute of Atari Pong on two Ray actors" if options.seconds == 60 else "Atari Pong on two Ray actors",
            ["train", "atari/pong", *fleet, "--seconds", f"{options.seconds:g}", *learn, "--run", pong],
        ),
        ("its page", ["report", pong]),
        ("both side by side", ["compare", f"{folder}/minatar-breakout", pong, "--out", f"{folder}/comparison.html"]),
    )
    earlier = _state_of(pong)
    for what, words in steps:
        if words[0] == "train" and earlier is not None:
            if earlier == "finished":
                print(f"== {what}: {pong} has finished already", flush=True)
                continue
            words = ["train", "atari/pong", "--resume", pong, "--seconds", f"{options.seconds:g}"]
        print(f"== {what}: rlscale {shlex.join(words)}", flush=True)
        code = COMMANDS[words[0]].run(words[1:])
        if code:
            return code
        if words[0] == "train" and _state_of(pong) == "stopped":  # by Ctrl-C, which is no failure of a training alone
            return 130
    return 0


def _state_of(run: str) -> str | None:
    """None where there is no such run yet."""
    return read_run(run, "--out").state if Path(run).exists() else None
