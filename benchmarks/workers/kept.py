"""What `rlscale workers` has measured, so that the next command goes on from there.

A command that was stopped leaves its fleets in measured.json. One that ended leaves everything in workers.json, and a what-if,
with another deadline, price or sweep, measures only what it needs beside that. What is measured of a fleet is in `calibration`.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlscale.records.files import write_atomically

from .calibration import FleetReading, Shape

__all__ = ["KeptFleets"]


class KeptFleets:
    """Readings in a folder, one of each shape; what was measured otherwise, on another machine or commit is not taken over.

    Args:
        folder: of the record, which need not be there.
        identity: whatever must agree; as JSON holds it.
        again: leave what an earlier command measured to the end aside, but not what an interrupted one did.

    Attributes:
        fleets: readings by shape.
        date: when the earlier command ended that they come from; None where none did.
        emulator: its rate of the emulator alone; None where unknown.
        learning: its readings of the learner, for each way to learn, by that way as text.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, again: bool = False) -> None:
        self._path, self._identity = folder / "measured.json", dict(identity)
        self.fleets: dict[Shape, FleetReading] = {}
        self.date: str | None = None
        self.emulator: float | None = None
        self.learning: dict[str, list[dict[str, Any]]] = {}
        for path in [self._path] if again else [folder / "workers.json", self._path]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                self._take(json.loads(path.read_text(encoding="utf-8")))

    def _take(self, record: dict[str, Any]) -> None:
        if record["identity"] != self._identity:
            return
        read = [_from_json(entry) for entry in (*record["fleets"], *((record.get("validation") or {}).get("held_out") or ()))]
        self.fleets |= {reading.shape: reading for reading in read}
        self.date = record.get("date", self.date)
        self.emulator = record.get("emulator_observations_per_second", self.emulator)
        self.learning |= record.get("learning", {})

    def keep(self, reading: FleetReading) -> FleetReading:
        """Write it down, and give it back."""
        self.fleets[reading.shape] = reading
        self._path.parent.mkdir(parents=True, exist_ok=True)
        record = {"identity": self._identity, "fleets": [asdict(each) for each in self.fleets.values()]}
        write_atomically(self._path, json.dumps(record).encode())
        return reading

    def forget(self) -> None:
        """Everything is in a record of its own now."""
        self._path.unlink(missing_ok=True)


def _from_json(entry: Mapping[str, Any]) -> FleetReading:
    return FleetReading(
        shape=Shape(**entry["shape"]),
        rollout_length=entry["rollout_length"],
        seconds=tuple(entry["seconds"]),
        fragments=tuple(map(tuple, entry["fragments"])),
        fragment_bytes=entry["fragment_bytes"],
    )
