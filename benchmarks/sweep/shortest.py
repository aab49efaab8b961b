"""What a sweep's command would do: `shortest_command` leaves out what changes nothing, `would_make_a_run` asks its plan."""

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from rlscale.analysis.extension import last_command
from rlscale.errors import UsageError
from rlscale.records import SweepRecord

from ..options import flag_of, parse
from .options import SweepOptions, make_plan

__all__ = ["shortest_command", "would_make_a_run"]

_OUTSIDE = ("jobs", "ray_address", "out", "report")  # no part of what a plan decides, so kept wherever they were typed


def shortest_command(words: Sequence[str]) -> list[str]:
    """A command `rlscale sweep …` without the options that have their default, or that the tasks have of their own.

    The plan of every task stays exactly what it is, so the shorter command goes on with the same sweep. A command that cannot be
    read here, as of another version, is returned as it is.
    """
    try:
        options = parse(SweepOptions, "sweep", list(words[2:]))
        plans = _plans(options)
        kept: list[str] = []
        for field in fields(options):
            value = getattr(options, field.name)
            if field.default is MISSING or value == field.default:
                continue
            without = replace(options, **{field.name: field.default})
            if field.name not in _OUTSIDE and _same(without, plans):
                options = without
            else:
                kept += flag_of(field.name, value)
    except (UsageError, SystemExit):
        return list(words)
    return [*words[:2], *options.tasks, *kept] if plans else list(words)


def would_make_a_run(record: SweepRecord, words: Sequence[str] | None = None) -> bool | None:
    """Whether a command has runs to make of a sweep, those that failed included.

    None where its plan cannot be made here, as of a task that is not installed or by the defaults of another version.

    Args:
        record: of the sweep.
        words: of a command that would go on with it; None: the one that it was last gone on with.
    """
    try:
        options = parse(SweepOptions, "sweep", list(words or last_command(record))[2:])
        (plan,) = _plans(replace(options, tasks=(record.task,)))
    except (UsageError, SystemExit):
        return None
    if words is None and not record.is_of(plan.to_dict()):
        return None
    plan = replace(plan, jobs=record.plan["jobs"])  # by which --hours is counted, wherever this is asked
    return bool(plan.next_trials({id: result for id, result in record.results.items() if not result.failed}))


def _plans(options: SweepOptions) -> list[Any]:
    """As this machine would make them: no cluster is joined, and its CPUs are not asked for."""
    here = replace(options, ray_address=None, jobs=None if options.jobs else options.jobs)
    return [make_plan(task, here) for task in options.tasks]


def _same(options: SweepOptions, plans: list[Any]) -> bool:
    try:
        return _plans(options) == plans
    except UsageError:
        return False
