"""Fleets that `rlscale workers` had measured when it was stopped, so that the same command goes on from there.

What is measured of a fleet is in `calibration`; the record of a whole measurement is written by `run`.
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
    """Readings in a file, one of each shape; what another command, machine or commit had measured is not taken over.

    Args:
        path: of the file, which need not be there.
        identity: whatever must agree; as JSON holds it.

    Attributes:
        fleets: readings by shape.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path, self._identity = path, dict(identity)
        self.fleets: dict[Shape, FleetReading] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["identity"] == self._identity:
                self.fleets = {reading.shape: reading for reading in map(_from_json, record["fleets"])}

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
