"""What `rlscale workers` has measured, so that the next command goes on from there.

A command that was stopped leaves in measured.json what it measured itself. One that ended leaves everything in workers.json, and
a what-if, with another deadline, price or sweep, measures only what it needs beside that. What is measured of a fleet is in
`calibration`.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlscale.records.files import now, write_atomically

from .calibration import FleetReading, Shape

__all__ = ["KeptFleets"]


class KeptFleets:
    """Readings in a folder, one of each shape; what was measured otherwise, on another machine or commit is not taken over.

    Args:
        folder: of the record, which need not be there; None: they are not written down.
        identity: whatever must agree; as JSON holds it.
        busy: CPUs that other programs use now, while readings are made; None where unknown.
        again: leave aside what earlier commands measured, except for a command of the same kind that was interrupted.

    Attributes:
        fleets: readings by shape.
        ended: whether they come from a command that ended, or from one that was stopped.
        date: when the first of these readings was made; None where there is none.
        busy: the most CPUs that other programs used while they were made; None where unknown.
        emulator: its rate of the emulator alone; None where unknown.
        learning: its readings of the learner, for each way to learn, by that way as text.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], *, again: bool = False, busy: float | None = None
    ) -> None:
        self._path = None if folder is None else folder / "measured.json"
        self.identity, self._again, self._busy_now = dict(identity), again, busy
        self.fleets: dict[Shape, FleetReading] = {}
        self.ended = False
        self.date: str | None = None
        self.busy: float | None = None
        self.emulator: float | None = None
        self.learning: dict[str, list[dict[str, Any]]] = {}
        self._made: dict[Shape, FleetReading] = {}  # since the last command that ended
        if folder is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if not again:
                self.ended = bool(self._take(json.loads((folder / "workers.json").read_text(encoding="utf-8"))))
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            stopped = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
            if not again or stopped["again"]:
                self._made = self._take(stopped)

    def _take(self, record: dict[str, Any]) -> dict[Shape, FleetReading]:
        """Take the record's readings over, and give them back; none where they were measured otherwise."""
        if record["identity"] != self.identity:
            return {}
        held_out = (record.get("validation") or {}).get("held_out") or ()
        read = [_from_json(entry) for entry in (*record["fleets"], *held_out, *record.get("other_fleets", ()))]
        taken = {reading.shape: reading for reading in read}
        self.fleets |= taken
        self._made_at(record.get("date"), record.get("busy_cpus"))
        self.emulator = record.get("emulator_observations_per_second", self.emulator)
        self.learning |= record.get("learning", {})
        return taken

    def keep(self, reading: FleetReading) -> FleetReading:
        """Write it down, and give it back."""
        self.fleets[reading.shape] = self._made[reading.shape] = reading
        self._write()
        return reading

    def keep_emulator(self, rate: float) -> float:
        """Write down its observations per second, and give them back."""
        self.emulator = rate
        self._write()
        return rate

    def keep_learning(self, way: str, readings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write down readings of the learner, for that way to learn, and give them back."""
        self.learning[way] = readings
        self._write()
        return readings

    def _made_at(self, date: str | None, busy: float | None) -> None:
        """Readings were made then, beside so many busy CPUs."""
        self.date = min((each for each in (self.date, date) if each is not None), default=None)
        self.busy = max((each for each in (self.busy, busy) if each is not None), default=None)

    def _write(self) -> None:
        if self._path is None:
            return
        self._made_at(now(), self._busy_now)
        record = {
            "identity": self.identity,
            "again": self._again,
            "date": self.date,
            "busy_cpus": self.busy,
            "fleets": [asdict(each) for each in self._made.values()],
            "emulator_observations_per_second": self.emulator,
            "learning": self.learning,
        }
        write_atomically(self._path, json.dumps(record).encode())

    def forget(self) -> None:
        """Everything is in a record of its own now."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _from_json(entry: Mapping[str, Any]) -> FleetReading:
    return FleetReading(
        shape=Shape(**entry["shape"]),
        rollout_length=entry["rollout_length"],
        seconds=tuple(entry["seconds"]),
        fragments=tuple(map(tuple, entry["fragments"])),
        fragment_bytes=entry["fragment_bytes"],
        valid=entry["valid"],
    )
