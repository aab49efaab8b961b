"""TensorBoard events of a run, under names that reinforcement-learning people know. The record is in `rlscale.records.run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..noise import estimate
from .run import unpack_statistics

__all__ = ["EventWriter"]

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


class EventWriter:
    """Writes each row's figures, with observations as the step, into `<run>/tensorboard`.

    Raises:
        UsageError: tensorboardX is not installed.
    """

    def __init__(self) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise UsageError(
                "--tensorboard", "tensorboardX is not installed", "Run: pip install 'rlscale[tensorboard]'"
            ) from None
        self._make = SummaryWriter
        self._writer: Any = None

    def write(self, row: Mapping[str, Any], folder: Path) -> None:
        """Add one row of the record of the run in that folder."""
        if self._writer is None:
            self._writer = self._make(str(folder / "tensorboard"))
        step = row["observations"]
        for field, name in _NAMES.items():
            if row.get(field) is not None:
                self._writer.add_scalar(name, row[field], step)
        for entry in row["noise"]:
            noise = estimate(unpack_statistics(entry))
            name = f"noise/{entry['head']}" + ("" if entry["kind"] == "rollout" else f"_{entry['kind']}")
            self._writer.add_scalar(f"{name}/trace_cov", noise.trace_cov, step)
            self._writer.add_scalar(f"{name}/grad_sq", noise.grad_sq, step)
            if noise.b_simple is not None:
                self._writer.add_scalar(f"{name}/b_simple", noise.b_simple, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
