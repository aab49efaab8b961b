"""The `rlscale` command: finds the subcommand, runs it, and turns an expected failure into one line and an exit code."""

import io
import os
import sys

from rlscale import __version__
from rlscale.errors import UsageError
from rlscale.records.files import is_full
from rlscale.text import first_line

from .commands import COMMANDS

__all__ = ["main"]

_HELP = """rlscale {version}: how far can this reinforcement-learning task be parallelized?

usage: {commands}

'rlscale train TASK --help' lists every option with that task's own defaults, 'rlscale sweep --help' those of sweeps.
Atari games run in ale-py, which is licensed under the GPL-2.0; MinAtar's games are under the GPL-3.0."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: what was typed after `rlscale`; None takes the arguments of this process.

    Returns:
        The exit code of the process: 0 done or stopped, 1 failed, 2 bad input or a cluster that is gone, 130 interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no notebook's or other program's own
            stream.reconfigure(errors="replace")  # a place that takes ASCII alone gets ? for our other signs
    try:
        _require_utf8(arguments)
        return _run(arguments)
    except UsageError as error:
        # One that an actor raised brings its traceback along.
        said, code = [str(getattr(error, "cause", error)), *_notes(error)], 2
    except KeyboardInterrupt as error:
        said, code = ["interrupted", *_notes(error)], 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        if not is_full(error):
            raise
        said, code = [f"no room to write {error.filename or 'the record'}: {error.strerror}", *_notes(error)], 1
    except RuntimeError as error:
        from rlscale.agents.cluster import LostHeadError, LostWorkerError

        if not isinstance(error, LostWorkerError):
            raise
        said, code = [str(error), *_notes(error)], 2 if isinstance(error, LostHeadError) else 1
    except Exception as error:
        from rlscale.agents.cluster.processes import kind_of_loss

        if type(error).__module__ != "ray.exceptions" or kind_of_loss(error) != "no room":
            raise
        mend = "Use fewer environments, or start Ray with a larger --object-store-memory"
        said, code = [f"no room in Ray's object store: {first_line(error)}", mend, *_notes(error)], 1
    print(f"rlscale: {'. '.join([*(sentence.removesuffix('.') for sentence in said[:-1]), said[-1]])}", file=sys.stderr)
    return code


def _require_utf8(arguments: list[str]) -> None:
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(word))[1:]
            raise UsageError(shown, "it is not UTF-8, as records and pages are", "Use another name") from None


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        lines = (f"rlscale {f'{command.name} {command.arguments}':28}{command.purpose}" for command in COMMANDS.values())
        print(_HELP.format(version=__version__, commands="\n       ".join(lines)))
        return 0 if arguments else 2
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        *others, last = COMMANDS
        mend = f"Use {', '.join(others)} or {last}; 'rlscale --help' says more"
        raise UsageError("COMMAND", f"there is no command {name!r}", mend)
    return COMMANDS[name].run(arguments[1:])


def _notes(error: BaseException) -> list[str]:
    """What the command has added to the error: where the results so far are, and how to go on from there."""
    return getattr(error, "__notes__", [])
