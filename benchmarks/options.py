"""From words typed to settings: tyro over the dataclasses, with the task's or the resumed run's settings as defaults.

tyro explains a mistake in a box of many lines; here it becomes one line that names the flag. What the settings mean is in
`rlscale.agents.config`.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import tyro

from rlscale.agents.config import TrainConfig, config_from_dict, default_config
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.run import read_run

__all__ = ["parse", "parse_train"]

Kind = TypeVar("Kind")


def parse(kind: type[Kind], command: str, arguments: list[str], default: Kind | None = None) -> Kind:
    """Settings of type `kind` from the arguments of `rlscale <command>`.

    Raises:
        UsageError: an unknown flag (names the nearest), or a value that does not fit.
        SystemExit: help was asked for and printed.
    """
    complaint = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=arguments, prog=f"rlscale {command}", config=(tyro.conf.OmitArgPrefixes,), **extra)
    except SystemExit as end:
        if end.code == 0:
            raise
    raise _one_line(command, complaint.getvalue())


def parse_train(arguments: list[str]) -> TrainConfig:
    """Settings of `rlscale train TASK ...`: defaults are the task's own, or those of the run that `--resume` names.

    Raises:
        UsageError: no task, an unknown one, or options that do not fit.
    """
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        raise UsageError("TASK", "the first word after 'train' must be a task", "For example: rlscale train atari/pong")
    if arguments[0] in ("-h", "--help"):
        return parse(TrainConfig, "train", arguments)
    task = find_task(arguments[0])
    resume = _value_of("--resume", arguments)
    if resume is None:
        default = default_config(task, _value_of("--algorithm", arguments) or "ppo")
    else:
        default = config_from_dict(read_run(Path(resume), "--resume").manifest["config"])
    return replace(parse(TrainConfig, "train", arguments, default), task=task.id)


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """What follows a flag, before tyro has the defaults it needs to parse the rest."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _one_line(command: str, complaint: str) -> UsageError:
    """tyro's box of text as one line: the flag, what is wrong, the mend."""
    text = " ".join(re.sub(r"[^\x20-\x7e]+|-{5,}", " ", complaint).split())
    mend = f"'rlscale {command} --help' lists the options"
    unknown = re.search(r"Unrecognized options: (.+?)(?: Perhaps you meant:?(.*)| For full helptext|$)", text)
    if unknown:
        near = re.findall(r"(--[a-z][a-z0-9-]*)", unknown.group(2) or "")
        near = [flag for flag in dict.fromkeys(near) if not flag.startswith("--no-")][:3]
        flag = unknown.group(1).split(",")[0].strip()
        return UsageError(
            flag, "there is no such option", f"Did you mean {' or '.join(near)}? {mend}" if near else mend[0].upper() + mend[1:]
        )
    choice = re.search(r"invalid choice '(.*?)' for argument '(--[a-z0-9-]+)'\. Expected one of \((.*?)\)", text)
    if choice:
        return UsageError(choice.group(2), f"there is no choice {choice.group(1)!r}", f"Use one of {choice.group(3)}")
    wrong = re.search(
        r"(?:Error parsing|Invalid choice for|Invalid value for) (--[a-z][a-z0-9-]*):? ?(.*?)"
        r"(?: Argument helptext| For full helptext|$)",
        text,
    )
    if wrong:
        detail = re.sub(r"^invalid choice '(.*?)' for argument '.*?'", r"there is no choice '\1'", wrong.group(2).strip(" .:"))
        detail = re.sub(r"^no type matching (.+?) could be instantiated from \['(.*?)'\].*", r"'\2' is none of \1", detail)
        return UsageError(wrong.group(1), detail or "the value does not fit", mend[0].upper() + mend[1:])
    detail = re.sub(r"^(Parsing|Value|Argument) error ?", "", text.partition(" For full helptext")[0])
    flag = re.search(r"--[a-z][a-z0-9-]*", detail)
    return UsageError(flag.group(0) if flag else "options", detail.strip(" .") or "cannot be read", mend[0].upper() + mend[1:])
