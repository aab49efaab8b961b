"""From the words that were typed to a dataclass of settings, by tyro; and the checks of options that several commands share.

tyro explains a mistake in a box of many lines. This module turns it into one line that names the flag. (tyro 1.0 reports
mistakes as objects as well, but only through a private module that may change in any release.)
"""

import contextlib
import difflib
import io
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import tyro

from rlscale.agents.checks import fit_defaults, require_not_negative
from rlscale.agents.config import TrainConfig, config_of_run, default_config
from rlscale.cpus import usable_cpus
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records import read_run

__all__ = [
    "MOST_RATES",
    "MOST_SIZE",
    "check_counts",
    "check_cpus",
    "check_rate_exponent",
    "flag_of",
    "parse",
    "parse_sizes",
    "parse_train",
    "refuse_given",
]

Kind = TypeVar("Kind")
MOST_RATES = 15  # an octave apart they reach from a hundredth of a rate to a hundred times as much
_MOST = {"rates": MOST_RATES, "seeds": 1000, "episodes": 1_000_000, "evaluation_episodes": 1_000_000}
MOST_SIZE = 2**40  # of a batch, and of a rollout: no memory holds more
MOST_EXPONENT = 2.0  # of a rate in the batch size: twice the linear rule's; from some hundreds on no computer holds the rates


def parse(kind: type[Kind], command: str, arguments: list[str], default: Kind | None = None) -> Kind:
    """Settings of type `kind` from the arguments of `rlscale <command>`.

    Raises:
        UsageError: an unknown flag (names the nearest ones), or a value that does not fit.
        SystemExit: help was asked for and printed.
    """
    complaint = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    see_help = f"'rlscale {command} --help' lists the options"
    try:
        with contextlib.redirect_stderr(complaint):
            options, unknown = tyro.cli(
                kind,
                args=arguments,
                prog=f"rlscale {command}",
                config=(tyro.conf.OmitArgPrefixes,),
                return_unknown_args=True,
                **extra,
            )
    except SystemExit as end:
        if end.code == 0:
            raise
        if "Required options" in complaint.getvalue():
            raise UsageError(_first_word(kind), "it is missing", see_help) from None
        raise _in_one_line(complaint.getvalue(), see_help) from None
    if unknown:
        typed, flags = unknown[0].partition("=")[0], list(_flags(options))
        near = [flag for flag in flags if flag.startswith(typed)][:3] or difflib.get_close_matches(typed, flags, cutoff=0.7)
        mend = f"Did you mean {' or '.join(near)}? {see_help}" if near else see_help
        raise UsageError(unknown[0], "there is no such option", mend)
    _refuse_huge(options)
    return options


def _refuse_huge(options: Any) -> None:
    """Python's whole numbers have no end; those of NumPy, torch and a file do."""
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            _refuse_huge(value)
        elif isinstance(value, int) and abs(value) > 1 << 64:
            raise UsageError(f"--{field.name.replace('_', '-')}", "the number is too large", "Give one of at most 19 digits")


def check_counts(options: Any) -> None:
    """Refuse more rates, seeds or episodes than anybody means: the runs are listed, and episodes played side by side, at once.

    Raises:
        UsageError: there are more.
    """
    for name, most in _MOST.items():
        count = getattr(options, name, None)
        if count is not None and count > most:
            raise UsageError(f"--{name.replace('_', '-')}", f"{count:,} are more than {most:,}", "Use fewer")


def refuse_given(options: Any, names: Iterable[str], problem: str, mend: str) -> None:
    """Refuse settings that were given where they mean nothing: those that are not as by default.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        if getattr(options, name) != getattr(type(options), name):
            raise UsageError(f"--{name.replace('_', '-')}", problem, mend)


def check_rate_exponent(exponent: float) -> None:
    """Refuse a `--rate-exponent` below zero or above 2.

    Raises:
        UsageError: it is.
    """
    require_not_negative({"rate-exponent": exponent})
    if exponent > MOST_EXPONENT:
        problem = f"{exponent:g} is above {MOST_EXPONENT:g}; the square root is 0.5 and linear is 1"
        raise UsageError("--rate-exponent", problem, f"Use {MOST_EXPONENT:g} or less")


def check_cpus(cpus: int | None, ray_address: str | None) -> None:
    """Actors that share a CPU are slower than fewer of them.

    Raises:
        UsageError: more CPUs than this machine has.
    """
    here = usable_cpus()
    if ray_address is None and cpus is not None and cpus > here:
        raise UsageError("--cpus", f"this machine has {here}, not {cpus}", "Give fewer, or a cluster with --ray-address")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Batch sizes from '40..40960', '40..40960x2' or '80,320,1280'; ascending.

    Raises:
        UsageError: it reads as none of them.
    """
    mend = "Write for example 40..40960, 40..40960x2 or 80,320,1280"
    matched = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*(?:x\s*(\d+))?\s*", text)
    if matched:
        first, last, factor = int(matched[1]), int(matched[2]), int(matched[3] or 4)
        if last > MOST_SIZE or factor > MOST_SIZE:
            raise UsageError("--batch-sizes", "a number is too large", mend)
        if not (0 < first <= last and factor > 1):
            raise UsageError("--batch-sizes", f"{text!r} is no ascending range", mend)
        count = math.floor(math.log(last / first) / math.log(factor) + 1e-9)
        return tuple(first * factor**i for i in range(count + 1))
    try:
        sizes = sorted({int(part.strip()) for part in text.split(",")})
    except ValueError:
        raise UsageError("--batch-sizes", f"{text!r} cannot be read", mend) from None
    if sizes[0] < 1:
        raise UsageError("--batch-sizes", f"{sizes[0]} is not a batch size", mend)
    if sizes[-1] > MOST_SIZE:
        raise UsageError("--batch-sizes", "a number is too large", mend)
    return tuple(sizes)


def flag_of(name: str, value: Any) -> list[str]:
    """The words that set a setting to a value: the inverse of `parse`."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{words}" if value else f"--no-{words}"]
    return [f"--{words}", *(_plain(item) for item in (value if isinstance(value, tuple) else (value,)))]


def _plain(value: Any) -> str:
    """A number in as few digits as say it exactly."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def parse_train(arguments: list[str]) -> TrainConfig:
    """Settings of `rlscale train TASK ...`: defaults are the task's own, or those of the run that `--resume` names.

    Raises:
        UsageError: no task, an unknown one, or options that do not fit.
    """
    resume = _value_of("--resume", arguments)
    if arguments and resume is not None and arguments[0].startswith("-"):  # the run knows its task
        arguments = [config_of_run(read_run(Path(resume), "--resume"), "--resume").task, *arguments]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        raise UsageError("TASK", "the first word after 'train' must be a task", "For example: rlscale train atari/pong")
    if arguments[0] in ("-h", "--help"):
        return parse(TrainConfig, "train", arguments)
    task = find_task(arguments[0])
    if resume is not None and (elsewhere := _value_of("--run", arguments)) is not None and elsewhere != resume:
        raise UsageError("--run", f"a resumed run goes on in its own folder, {resume}", "Leave it out, or copy the folder before")
    if resume is None:
        default = default_config(task, _value_of("--algorithm", arguments) or "ppo")
    else:
        default = config_of_run(read_run(Path(resume), "--resume"), "--resume")
    config = replace(parse(TrainConfig, "train", arguments, default), task=task.id)
    return (
        config if resume is not None else fit_defaults(config, {word.partition("=")[0].replace("_", "-") for word in arguments})
    )


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """The word after a flag. tyro cannot say it: what it parses the words with depends on the value of this flag."""
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _flags(options: Any) -> Iterator[str]:
    """The flags that set the fields of a dataclass and of those within it."""
    for field in fields(options):
        value = getattr(options, field.name)
        yield from _flags(value) if is_dataclass(value) else ["--" + field.name.replace("_", "-")]


def _first_word(kind: Any) -> str:
    """What help calls the words that are typed without a flag."""
    return next((f.name.upper() for f in fields(kind) if tyro.conf.Positional in getattr(f.type, "__metadata__", ())), "options")


def _in_one_line(box: str, see_help: str) -> UsageError:
    """The flag, what is wrong with its value, and the mend, from the box that tyro prints."""
    text = " ".join(re.sub(r"[^\x20-\x7e]+|-{5,}", " ", box).split())
    text = re.split(r"\.? (?:Got errors|Argument helptext|For full helptext)", text)[0]
    found = re.search(r"--[a-z][a-z0-9-]*", text)
    flag = found.group() if found else "options"
    if choice := re.search(r"invalid choice ('.*?') .* Expected one of \((.*)\)", text):
        return UsageError(flag, f"there is no choice {choice[1]}", f"Use one of {choice[2]}")
    problem = text.rpartition(f"Error parsing {flag}: ")[2].removeprefix("Missing argument ")
    problem = re.sub(r"no type matching (.+) could be instantiated from \['(.*)'\]", r"'\2' is none of \1", problem)
    power = re.search(r"'(\d+(?:\.\d*)?e\+?1?\d)'", problem, re.IGNORECASE)
    if power and ("INT" in problem or "int()" in problem) and (whole := float(power[1])).is_integer():
        return UsageError(flag, problem, f"Write {whole:.0f}")
    return UsageError(flag, problem, see_help)
