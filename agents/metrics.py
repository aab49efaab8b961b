"""A run's figures as Ray's own metrics, for the Prometheus and Grafana that watch a cluster.

They leave the node where the run's command runs, if `ray[default]` is installed there; without it Ray drops them. TensorBoard
events are written in `rlscale.records.events`, the record in `rlscale.records.run`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rlscale.noise import noise_scale

from .learning import NoiseRecord

__all__ = ["RayMetrics"]

_GAUGES = {
    "optimizer_steps": "parameter changes so far",
    "observations_per_second": "of the last iteration",
    "return_mean": "mean return of the last 100 finished episodes",
    "policy_lag": "iterations that the oldest policy of the last batch is behind",
    "learning_rate": "of the last iteration",
    "policy_loss": "of the last iteration",
    "value_loss": "of the last iteration",
    "entropy": "of the policy, nats",
}
_NOISE = {
    "b_simple": "simple noise scale of the last measurement, observations; only where it is resolved",
    "trace_cov": "of the last measurement",
    "grad_sq": "of the last measurement, unbiased",
}


class RayMetrics:
    """Figures named `rlscale_<field>` as docs/glossary.md defines the fields; Ray puts `ray_` in front.

    Args:
        run: name of the run, a label of every figure.
        task: likewise.
    """

    def __init__(self, run: str, task: str) -> None:
        from ray.util.metrics import Counter, Gauge

        self._labels = {"run": run, "task": task}
        keys = tuple(self._labels)
        self._observations = Counter("rlscale_observations", "observations sampled by this process's run", keys)
        self._gauges = {field: Gauge(f"rlscale_{field}", text, keys) for field, text in _GAUGES.items()}
        self._noise = {field: Gauge(f"rlscale_{field}", text, (*keys, "head", "kind")) for field, text in _NOISE.items()}

    def write(self, row: Mapping[str, Any], noise: Sequence[NoiseRecord]) -> None:
        """Show one row of the record, and the noise measured in it; what is missing there stays as it was."""
        self._observations.inc(row["batch_observations"], self._labels)
        for field, gauge in self._gauges.items():
            gauge.set(row[field], self._labels)
        last = {(record.head, record.kind): record for record in noise}  # an iteration may hold thousands of mini-batches
        for record in last.values():
            measured = noise_scale(record.statistics)
            for field, gauge in self._noise.items():
                gauge.set(getattr(measured, field), {**self._labels, "head": record.head, "kind": record.kind})
