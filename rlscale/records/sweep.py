"""The record of a sweep: a folder with its plan and one line per finished run.

    sweep.json         the plan, the task, the machine, the commit and the command; and how the plan was extended
    results.jsonl      one line per run that ended, append-only; docs/glossary.md defines every field
    begun.jsonl        one line per run that began, so that an interrupted one begins again as it was decided
    trials/<id>/       the record of each run (`rlscale.records.run`)

What a plan means is the business of `rlscale.benchmarks.sweep.plan`; what is concluded from results, of `rlscale.analysis`.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .files import (
    RESTORE,
    TORN,
    append_when_there_is_room,
    dump_json,
    end_torn_line,
    lock_folder,
    now,
    read_lines,
    read_manifest,
    read_object,
    unpack,
    when_there_is_room,
    write_atomically,
    writing,
)
from .trial import Trial, TrialResult

__all__ = ["EXTENDABLE", "SWEEP_SCHEMA", "Sweep", "SweepRecord", "is_sweep", "read_sweep"]

SWEEP_SCHEMA = 1
_MANIFEST, _RESULTS, _BEGUN = "sweep.json", "results.jsonl", "begun.jsonl"

# Settings of a plan that a later command may change: the runs made so far stay as they are, and the sweep goes on from them.
# (Not the observations of a grid's runs: those that missed a goal would not be made again.)
EXTENDABLE = (
    *("interval_ratio", "total_observations", "hours", "noise_runs", "batch_sizes", "rates", "seeds", "quick", "jobs"),
    "most_observations",
)
# Settings that plans of earlier versions lack, as they were then.
_LATER = {
    "quick": False,
    "config.rollout.reward_noise": 0.0,
    "config.rollout.clones": 1,
    "config.noise.followed_noise": "policy_last_layer",
}
_TYPED = {"most_observations": "observations", "episodes": "evaluation_episodes"}  # where the flag is called otherwise
# Settings in which plans of one sweep may differ: that of its smallest size, and `most_observations` again; those that every run
# has of its own; and, as `jobs`, those that say where runs are made.
_FOLLOWS = {
    *("config.rollout.environments", "config.budget.observations"),
    *(f"config.noise.{measured}_noise_period" for measured in ("joint", "iteration", "policy", "value", "entropy")),
    *("config.rollout.actors", "config.update.threads"),
}


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as read back.

    Attributes:
        folder: where it is.
        manifest: see `Sweep.open`.
        results: by trial id, in the order in which they ended.
        left_out: what could not be used, one sentence each.
    """

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    results: dict[str, TrialResult] = field(repr=False)
    left_out: tuple[str, ...] = field(default=())

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.manifest["task"]["id"]

    @property
    def ladder(self) -> dict[str, Any]:
        """What makes it a rung of the ladder: `role`, `state`, and `base` of an intervention; empty for any other sweep.

        Raises:
            UsageError: what says so is damaged.
        """
        try:
            return read_object(self.folder / "ladder.json", "FOLDER", "Check its permissions")
        except FileNotFoundError:
            return {}

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as it was written."""
        return self.manifest["plan"]

    def is_of(self, plan: Mapping[str, Any]) -> bool:
        """Whether that plan, as it would be recorded, is the one that was written; the number of jobs apart."""
        return not _differences(self.plan, plan) - _FOLLOWS - {"jobs"}


class Sweep:
    """A sweep being written. Only one process can hold it, until `close`.

    Attributes:
        results: of the trials that ended, by id; those that failed in an earlier session are made again.
        begun: trials that began, by id.
        left_out: what could not be used, one sentence each.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], lock: int) -> None:
        self.folder, self.manifest, self._lock = folder, manifest, lock
        unpack(folder / _RESULTS)
        (folder / _RESULTS).touch()
        end_torn_line(folder / _RESULTS)
        record = read_sweep(folder, "--out")
        failed = {id: result for id, result in record.results.items() if result.failed}
        self.results = {id: result for id, result in record.results.items() if id not in failed}
        self.left_out = (
            *record.left_out,
            *(f"{folder.name}: {id} failed ({run.reason}); that trial is made again" for id, run in failed.items()),
        )
        self.begun = _read_begun(folder)
        self._lines = (folder / _RESULTS).open("ab", buffering=0)

    @classmethod
    def open(cls, folder: Path, plan: Mapping[str, Any], facts: Mapping[str, Any]) -> Sweep:
        """Begin the sweep in that folder, or go on with it.

        Args:
            folder: of the sweep.
            plan: what is to be done. The settings in `EXTENDABLE` may differ from those that the folder has, if a grid stays a
                grid and a whole sweep is not made a quick one.
            facts: task, command, commit, versions and machine, for the record.

        Raises:
            UsageError: the folder holds another plan's sweep or something else, another process holds it, or it cannot be
                written.
        """
        with writing(folder, "--out"):
            folder.mkdir(parents=True, exist_ok=True)
            if not is_sweep(folder) and {path.name for path in folder.iterdir()} - {".lock", f"{_MANIFEST}.new"}:
                raise UsageError("--out", f"{folder} exists and holds no sweep", "Choose another folder")
            lock = lock_folder(folder, "--out")
            try:
                if is_sweep(folder):
                    manifest = _read_manifest(folder, "--out")
                else:
                    manifest = {"schema": SWEEP_SCHEMA, "created": now(), **facts, "plan": dict(plan)}
                    write_atomically(folder / _MANIFEST, dump_json(manifest, indent=1).encode())
                changed = _differences(manifest["plan"], plan) - _FOLLOWS
                if conflicts := _conflicts(manifest["plan"], plan, changed):
                    last = [manifest, *manifest.get("extensions", ())][-1]
                    raise UsageError(
                        "--out",
                        f"{folder} holds a sweep with another plan ({', '.join(conflicts)})",
                        f"Go on with '{shlex.join(last['command'])}', or choose another folder",
                    )
                if changed:
                    told = {"at": now(), "command": facts["command"], **{name: plan[name] for name in sorted(changed)}}
                    manifest = {
                        **manifest,
                        "plan": {**manifest["plan"], **{name: plan[name] for name in changed}},
                        "extensions": [*manifest.get("extensions", ()), told],
                    }
                    write_atomically(folder / _MANIFEST, dump_json(manifest, indent=1).encode())
                return cls(folder, manifest, lock)
            except BaseException:
                os.close(lock)
                raise

    def begin(self, trial: Trial) -> None:
        """Record a trial that begins; one that begins again is there already."""
        if trial.id not in self.begun:
            with (self.folder / _BEGUN).open("ab", buffering=0) as lines:
                append_when_there_is_room(lines, (dump_json(asdict(trial)) + "\n").encode())
            self.begun[trial.id] = trial

    def append(self, result: TrialResult) -> None:
        """Record a trial that ended; it is on disk when this returns."""
        line = (dump_json(result.to_json()) + "\n").encode()
        append_when_there_is_room(self._lines, line)
        when_there_is_room(lambda: os.fsync(self._lines.fileno()), self.folder / _RESULTS)
        self.results[result.id] = TrialResult.from_json(json.loads(line))  # what a later session of the sweep will read

    def close(self) -> None:
        self._lines.close()
        os.close(self._lock)


def _read_begun(folder: Path) -> dict[str, Trial]:
    """Trials that began, by id. A line that cannot be read is no loss: its trial is decided on anew, or is in the results."""
    path, begun = folder / _BEGUN, {}
    if path.exists():
        end_torn_line(path)
        for line in read_lines(path, "--out", "Remove it")[0]:
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                trial = Trial.from_json(json.loads(line))
                begun[trial.id] = trial
    return begun


def is_sweep(folder: Path | str) -> bool:
    """Whether the folder holds a sweep, of whatever version; not where that cannot be seen, and reading it says why."""
    return os.path.exists(Path(folder) / _MANIFEST)  # Path.exists raises where a name is too long or a folder private


def read_sweep(folder: Path | str, field: str = "SWEEP") -> SweepRecord:
    """Read a sweep, finished or not. Lines that cannot be read are left out and said to be.

    Args:
        folder: of the sweep.
        field: what the user named it with, for the error.

    Raises:
        UsageError: no sweep there, or one of another schema.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder, field)
    goals = set(manifest["plan"]["goals"])
    lines, _ = read_lines(folder / _RESULTS, field, RESTORE)  # the sweep repeats the run of a torn last line
    results: dict[str, TrialResult] = {}
    left_out = []
    for number, line in enumerate(lines, 1):
        if line.endswith(TORN):
            continue
        where, fault = f"{folder.name}: line {number} of {_RESULTS}", "is damaged"
        try:
            stored = json.loads(line)
            where, fault = f"{where}, the result of {stored['id']}", "cannot be understood"
            result = TrialResult.from_json(stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            left_out.append(f"{where} {fault} and was left out ({said})")
            continue
        measured = {crossing.goal for crossing in result.goals}
        if measured and goals.isdisjoint(measured):  # as a miss of goals that it never looked for it would count
            left_out.append(f"{where} is of another sweep, with other goals, and was left out")
        elif result.id in results and not results[result.id].failed:
            left_out.append(f"{where} repeats an earlier one and was left out")
        else:
            results[result.id] = result
    return SweepRecord(folder, manifest, results, tuple(left_out))


# What pages, listings and the next command take from a sweep without asking whether it is there.
_NEEDED = {
    "task": {"id": str},
    "plan": {"config": dict, "batch_sizes": (list, type(None)), "goals": [(int, float)]},
    "command": [str],
}


def _read_manifest(folder: Path, field: str) -> dict[str, Any]:
    return read_manifest(folder / _MANIFEST, what="sweep", schema=SWEEP_SCHEMA, needed=_NEEDED, field=field)


def _conflicts(before: Mapping[str, Any], now: Mapping[str, Any], changed: set[str]) -> list[str]:
    """Flags of the settings by which a sweep cannot be gone on with."""
    conflicts = {name for name in changed if name.partition(".")[0] not in EXTENDABLE}
    sizes, asked = before["batch_sizes"], now["batch_sizes"]
    if (sizes is None) != (asked is None) or not set(sizes or ()) <= set(asked or ()):
        conflicts.add("batch_sizes")  # a grid stays one, with all of its sizes
    if "most_observations" in changed and sizes is not None:
        conflicts.add("most_observations")
    if "quick" in changed and now["quick"]:
        conflicts.add("quick")  # its runs would measure, and be said to predict alone
    return sorted({f"--{_TYPED.get(name, name.rpartition('.')[2]).replace('_', '-')}" for name in conflicts})


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Names of the settings in which two plans differ."""
    found = set()
    for key in set(before) | set(now):
        old, new = before.get(key, _LATER.get(prefix + key)), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.add(prefix + key)
    return found
