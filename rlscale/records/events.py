"""A run's figures for TensorBoard and Weights & Biases, under names that reinforcement-learning people know.

They are copies for looking at: the record itself is in `rlscale.records.run`.
"""

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..noise import BlockStatistics, pool, usable
from ..text import first_line
from .files import append_when_there_is_room
from .noise import unpack_statistics

__all__ = ["TensorBoard", "WeightsAndBiases"]

_NAMES = {
    "return_mean": "charts/episodic_return",
    "episode_length_mean": "charts/episodic_length",
    "learning_rate": "charts/learning_rate",
    "policy_loss": "losses/policy_loss",
    "value_loss": "losses/value_loss",
    "entropy": "losses/entropy",
    "approx_kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    "explained_variance": "losses/explained_variance",
    "gradient_norm": "losses/gradient_norm",
    "observations_per_second": "charts/SPS",
}


class TensorBoard:
    """Writes each row's figures into `<run>/tensorboard`, with observations as the step.

    The file is written here: tensorboardX's own writer does it in a thread, and who waits for one that a full disk has ended,
    waits for ever.

    Args:
        folder: of the run.
        give_up: whether to wait no longer where the disk is full.

    Raises:
        UsageError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path, give_up: Callable[[], bool] = lambda: False) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            raise UsageError(
                "--tensorboard", "tensorboardX is not installed", "Run: pip install 'rlscale[tensorboard]'"
            ) from None
        events = folder / "tensorboard"
        # A file is named by the second: a run that is resumed within one would write over the file before.
        earlier = len(list(events.iterdir())) if events.is_dir() else 0
        events.mkdir(exist_ok=True)
        path = events / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{earlier}"
        self._file, self._give_up = path.open("wb", buffering=0), give_up
        self._add(_event(file_version="brain.Event:2"))

    def write(self, row: Mapping[str, Any]) -> None:
        """Add one row of the record.

        Raises:
            OSError: the disk stayed full.
        """
        from tensorboardX.summary import scalar

        step = row["observations"]
        self._add(b"".join(_event(step=step, summary=scalar(name, value)) for name, value in _figures(row).items()))

    def close(self, _failed: bool = False) -> None:
        self._file.close()

    def _add(self, events: bytes) -> None:
        append_when_there_is_room(self._file, events, self._give_up)


def _event(**fields: Any) -> bytes:
    """One event as TensorBoard reads it: its length and itself, each with its checksum."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    event = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(event))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), event, struct.pack("<I", masked_crc32c(event))))


class WeightsAndBiases:
    """Logs each row's figures to Weights & Biases by its own client, whose files go to `<run>/wandb`.

    The project is `rlscale` and the run is called as its folder; WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE say otherwise, as
    everywhere with that client. A run that is resumed goes on under the same id.

    Args:
        folder: of the run.
        manifest: of its record, which becomes the run's config.

    Raises:
        UsageError: wandb is not installed, or it cannot begin: nobody is logged in, the project is somebody else's.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("--track", "wandb is not installed", "Run: pip install 'rlscale[wandb]'") from None
        name = folder.resolve().name
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "rlscale"),
                name=name,
                id=hashlib.sha256(f"{name} {manifest['created']}".encode()).hexdigest()[:16],
                resume="allow",
                dir=folder,
                config={**manifest["config"], "task": manifest["task"]["id"], "machine": manifest["machine"]},
                settings=wandb.Settings(console="off"),  # what the command shows is its own
            )
        except (wandb.Error, OSError) as error:
            said = first_line(error).rstrip(".")
            mend = "Log in by 'wandb login', or set WANDB_MODE=offline"
            raise UsageError("--track", f"Weights & Biases cannot begin: {said}", mend) from None
        self._run.define_metric("*", step_metric="observations")

    def write(self, row: Mapping[str, Any]) -> None:
        """Log one row of the record."""
        self._run.log({"observations": row["observations"], **_figures(row)})

    def close(self, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    """What a row of the record says, by name; a loss whose noise several of its optimizer steps measured gets one figure."""
    found = {name: row[field] for field, name in _NAMES.items() if row.get(field) is not None}
    measured: dict[str, list[BlockStatistics]] = {}
    for entry in row["noise"]:
        name = f"noise/{entry['head']}" + ("" if entry["kind"] == "rollout" else f"_{entry['kind']}")
        measured.setdefault(name, []).append(unpack_statistics(entry))
    for name, statistics in measured.items():
        if not (kept := usable(statistics)):
            continue
        noise = pool(kept)
        found |= {f"{name}/trace_cov": noise.trace_cov, f"{name}/grad_sq": noise.grad_sq}
        if noise.b_simple is not None:
            found[f"{name}/b_simple"] = noise.b_simple
    return found
