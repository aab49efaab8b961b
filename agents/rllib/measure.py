"""`measure_noise` adds the noise measurement to an RLlib PPO job (new API stack); `MeasuresNoise` does it in RLlib's learner.

RLlib's learner shuffles transitions before it slices mini-batches, so the measurement takes place between its learner connectors
and its epochs. There the train batch is complete, advantages are standardized, and every episode still lies in one piece. The
loss is RLlib's own: the learner itself computes it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch import nn

from rlscale.errors import UsageError
from rlscale.noise import noise_scale

from ..config import FEWEST_BLOCKS
from ..devices import upload
from ..job_record import check_measurement, command_line, refuse_existing
from ..learning import GradientSums, NoiseRecord, adam_metric, deal_lengths, equal_share, noise_records
from ..machine import describe_machine
from .record import SETTINGS, KeepsRecord, environments_of

__all__ = ["MeasuresNoise", "NoiseLearner", "deal_episodes", "measure_noise"]

_HEADS = {"policy": POLICY_LOSS_KEY, "value": VF_LOSS_KEY, "entropy": ENTROPY_KEY}
# When RLlib deals pieces of an episode to several learners, it keeps neither the environment nor custom data; the id stays. RLlib
# itself appends the number of the piece, after an underscore.
_EPISODE_ID = re.compile(r"(.*@(\d+))(?:_\d+)?")


def measure_noise(config: Any, run: str | Path, *, every: int = 4, blocks: int = 16) -> Any:
    """Add the noise measurement to an RLlib job. Call it last, when the configuration is otherwise complete.

    Args:
        config: a `PPOConfig` of the new API stack, one agent, torch; changed in place.
        run: folder of the record to be written, on the machine of the algorithm. `rlscale report` and `compare` read it.
        every: measure in the learner's first update and in every so many-th after it.
        blocks: number of blocks at most. Blocks are sets of environments where there are at least eight environments and episodes
            are truncated, else sets of episodes.

    Returns:
        The same configuration.

    Raises:
        UsageError: the job is not one that can be measured, or the folder exists.
    """
    if not isinstance(config, PPOConfig):
        raise UsageError("config", f"{type(config).__name__} is not PPO's", "Give a PPOConfig")
    refusals = [
        (
            not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2),
            ("config.api_stack", "the old API stack has no learner to measure in", "Use the new one, the default"),
        ),
        (
            config.is_multi_agent or len(getattr(config._rl_module_spec, "rl_module_specs", None) or ()) > 1,
            ("config.multi_agent", "jobs of several modules are not measured", "Use one agent with one module"),
        ),
        (
            not config.add_default_connectors_to_learner_pipeline,
            (
                "config.learners(add_default_connectors_to_learner_pipeline=…)",
                "without RLlib's own connectors the train batch has no advantages and no mask",
                "Leave it True",
            ),
        ),
    ]
    for refused, message in refusals:
        if refused:
            raise UsageError(*message)
    check_measurement(every, blocks)
    learner = config.learner_class
    if not issubclass(learner, PPOTorchLearner):
        raise UsageError("config.learners(learner_class=…)", "it is no PPOTorchLearner", "Derive it from that class")
    folder = Path(run).absolute()
    refuse_existing(folder)
    if learner is PPOTorchLearner:
        learner = NoiseLearner
    elif not issubclass(learner, MeasuresNoise):
        learner = type(f"Noise{learner.__name__}", (MeasuresNoise, learner), {})
    config.learners(
        learner_class=learner,
        learner_config_dict={SETTINGS: {"run": str(folder), "every": every, "blocks": blocks, "command": command_line()}},
    )
    others = config.callbacks_class if isinstance(config.callbacks_class, list | tuple) else [config.callbacks_class]
    # First, because it names episodes, which other callbacks may look at.
    config.callbacks(callbacks_class=[KeepsRecord, *(other for other in others if other is not KeepsRecord)])
    return config


class _LossParts(MetricsLogger):  # type: ignore[misc]  # RLlib is untyped
    """Replaces the learner's metrics while it computes its loss, and keeps the parts of the loss with their graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, torch.Tensor] = {}

    def log_dict(self, value_dict: dict[str, Any], **words: Any) -> None:
        """A learner of the user's may log plain numbers under the same names, and read back what it has logged."""
        found = {head: value_dict.get(key) for head, key in _HEADS.items()}
        self.parts.update({head: x for head, x in found.items() if isinstance(x, torch.Tensor) and x.requires_grad})
        super().log_dict({key: x.detach() if isinstance(x, torch.Tensor) else x for key, x in value_dict.items()}, **words)


class _BeforeTheEpochs(ConnectorV2):  # type: ignore[misc]  # RLlib is untyped
    """The last of the learner's connectors: hands the whole train batch to the measurement, and leaves it as it is."""

    def __init__(self, learner: MeasuresNoise) -> None:
        super().__init__()
        self._learner = learner

    def __call__(self, *, batch: dict[str, Any], episodes: list[Any], **_: Any) -> dict[str, Any]:
        self._learner.measure_if_due(batch[DEFAULT_MODULE_ID], episodes)
        return batch


class MeasuresNoise:
    """Mixin that measures the noise in a PPO learner of RLlib; a class names it before that learner among its bases.

    Each of several learners computes the gradients of its own share of every block, and their sum is taken over all of them,
    so that all know the same statistics. RLlib's results show them under `learners/default_policy/noise/<head>`.
    """

    def build(self: Any) -> None:
        """Build RLlib's learner, then append the measurement to its connectors."""
        super().build()  # type: ignore[misc]  # the learner's own
        settings = self.config.learner_config_dict[SETTINGS]
        self._every, self._environments = int(settings["every"]), environments_of(self.config)
        wanted = int(settings["blocks"])
        self._blocks = min(wanted, self._environments) if self._environments >= FEWEST_BLOCKS else wanted
        self._updates, self._steps, self._updating = 0, 0, 0.0
        self._pending = {"noise": [], "noise_seconds": 0.0, "learning_seconds": 0.0, "learned": 0}
        self._optimizers = [optimizer for _, optimizer in self.get_optimizers_for_module(DEFAULT_MODULE_ID)]
        self._optimizer = self._optimizers[0]
        self._optimizer.register_step_post_hook(self._count_step)
        self._learner_connector.append(_BeforeTheEpochs(self))

    def _count_step(self: Any, *_: Any) -> None:
        self._steps += 1

    def get_state(self: Any, *arguments: Any, **words: Any) -> dict[str, Any]:
        """RLlib's own, and the optimizer steps so far: a checkpoint that is restored takes the count back as well."""
        return {**super().get_state(*arguments, **words), SETTINGS: self._steps}  # type: ignore[misc]

    def set_state(self: Any, state: dict[str, Any]) -> None:
        """Of a checkpoint, or the parameters alone."""
        super().set_state(state)  # type: ignore[misc]
        self._steps = state.get(SETTINGS, self._steps)

    def before_gradient_based_update(self: Any, *, timesteps: dict[str, Any]) -> None:
        """RLlib calls this first in every update of the learner."""
        super().before_gradient_based_update(timesteps=timesteps)  # type: ignore[misc]
        self._updating, self._measuring = time.perf_counter(), 0.0

    def after_gradient_based_update(self: Any, *, timesteps: dict[str, Any]) -> None:
        """RLlib calls this last in every update of the learner."""
        super().after_gradient_based_update(timesteps=timesteps)  # type: ignore[misc]
        seconds = time.perf_counter() - self._updating
        self._pending["learning_seconds"] += seconds
        self._pending["noise_seconds"] += self._measuring
        self.metrics.log_value((ALL_MODULES, "noise_seconds"), self._measuring, window=1)
        self.metrics.log_value((ALL_MODULES, "noise_share_of_learner"), self._measuring / seconds, window=1)
        self._updates += 1

    def measure_if_due(self: Any, batch: dict[str, Any], episodes: Sequence[Any]) -> None:
        """Measure the noise if it is due.

        Args:
            batch: RLlib's columns: tensors with one row a step and a masked one at the end of each episode, or, if the module is
                stateful, with one row a padded sequence.
            episodes: those that the batch was made of, in the order of its rows, already lengthened by their masked step.
        """
        self._pending["learned"] += sum(len(episode) - 1 for episode in episodes)  # less the masked step
        if self._updates % self._every:
            return
        started = time.perf_counter()
        accelerators = [] if self.device.type == "cpu" else [self.device]  # the CPU's state is always kept
        metrics = self.metrics  # what RLlib draws and logs afterwards shall be what it would have been
        try:
            with torch.random.fork_rng(devices=accelerators, device_type=self.device.type):
                records = self._measure(batch, self._deal(batch, episodes))
        finally:
            self.metrics = metrics
        for record in records:
            noise = noise_scale(record.statistics)
            figures = {"trace_cov": noise.trace_cov, "grad_sq": noise.grad_sq, "b_simple_low": noise.interval[0]}
            if noise.b_simple is not None:
                figures |= {"b_simple": noise.b_simple, "b_simple_high": noise.interval[1]}
            self.metrics.log_dict(figures, key=(DEFAULT_MODULE_ID, "noise", record.head), window=1)
        self._pending["noise"] += records
        self._measuring = time.perf_counter() - started

    def _deal(self: Any, batch: dict[str, Any], episodes: Sequence[Any]) -> list[np.ndarray]:
        """The rows of each block: those of its environments, or of its episodes; a block can be empty."""
        lengths = [math.ceil(len(episode) / self._steps_per_row) for episode in episodes]
        rows = len(batch[Columns.LOSS_MASK])
        if rows != sum(lengths):
            raise UsageError(
                "config.learners(learner_connector=…)",
                f"the train batch has {rows:,} rows, not the {sum(lengths):,} of its episodes",
                "Leave RLlib's rows as they are",
            )
        of_episode = deal_episodes(
            [episode.id_ for episode in episodes],
            lengths,
            self._environments,
            self._blocks,
            rank=self._learner_index,
            learners=max(self.config.num_learners, 1),
        )
        of_row = np.repeat(np.array(of_episode, dtype=np.int64), lengths)
        return [np.flatnonzero(of_row == k) for k in range(self._blocks)]

    @property
    def _steps_per_row(self: Any) -> int:
        """How many steps a row of the batch holds: several where it is a padded sequence."""
        module = self.module[DEFAULT_MODULE_ID]
        return int(module.model_config["max_seq_len"]) if module.is_stateful() else 1

    def _measure(self: Any, batch: dict[str, Any], blocks: Sequence[np.ndarray]) -> list[NoiseRecord]:
        """The statistics of every head from the gradients of RLlib's own loss on each block, at the present parameters."""
        module = self.module[DEFAULT_MODULE_ID].unwrapped()  # of several learners torch wraps it for its own sums
        parameters = [p for p in module.parameters() if p.requires_grad]
        config = self.config.get_config_for_module(DEFAULT_MODULE_ID)
        mask = batch[Columns.LOSS_MASK]
        counted = mask.cpu().numpy()  # once, so that the host does not wait at every part of a block
        sums = GradientSums(parameters, len(blocks), self.device)
        for k, rows in enumerate(blocks):
            # As many steps at a time as RLlib itself takes in a mini-batch.
            most = max((self.config.minibatch_size or len(rows)) // self._steps_per_row, 1)
            for start in range(0, len(rows), most):
                here = rows[start : start + most]
                count = int(counted[here].sum())
                if not count:
                    continue  # bootstrap steps alone
                part = _rows(batch, here, upload(torch.from_numpy(here), mask.device), len(counted))
                self.metrics = _LossParts()
                joint = self.compute_loss_for_module(
                    module_id=DEFAULT_MODULE_ID, config=config, batch=part, fwd_out=module.forward_train(part)
                )
                sums.add(k, self.metrics.parts | {"joint": joint}, count)
        return self._reduce(sums.matrices, sums.sizes, adam_metric(self._optimizers, parameters), sums.policy_columns)

    def _reduce(
        self: Any,
        matrices: dict[str, torch.Tensor],
        sizes: torch.Tensor,
        metric: torch.Tensor | None = None,
        of_policy: Sequence[slice] = (),
    ) -> list[NoiseRecord]:
        """Noise statistics of all learners together.

        Args:
            matrices: of each head, this learner's sums of gradients over the observations of every block, (K, P).
            sizes: (K,) float64, how many observations that are.
            metric: (P,), Adam's; the same in all learners.
            of_policy: columns of the parameters that the policy loss depends on, on which the joint loss is measured as well.
        """
        if self.distributed:
            for total in (*matrices.values(), sizes):
                torch.distributed.all_reduce(total)
        return noise_records(matrices, sizes.cpu().numpy(), self._steps, metric, of_policy)

    def take_report(self: Any) -> dict[str, Any]:
        """What was measured since the last call, and what a record says about a learner."""
        report, self._pending = self._pending, {"noise": [], "noise_seconds": 0.0, "learning_seconds": 0.0, "learned": 0}
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        return report | {
            "optimizer_steps": self._steps,
            "learning_rate": float(self._optimizer.param_groups[0]["lr"]),
            "device": str(self.device),
            "machine": describe_machine(self.device),
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in module.parameters() if p.requires_grad) if isinstance(module, nn.Module) else 0,
        }


class NoiseLearner(MeasuresNoise, PPOTorchLearner):  # type: ignore[misc]  # RLlib is untyped
    """RLlib's PPO learner with the measurement. It is a class of this module so that a checkpoint can name it."""


def deal_episodes(
    ids: Sequence[str], lengths: Sequence[int], environments: int, blocks: int, *, rank: int = 0, learners: int = 1
) -> list[int]:
    """The block of each piece of an episode.

    With at least eight environments the blocks are contiguous sets of them, the same in every update. With fewer, whole
    episodes are dealt into blocks of about equally many steps; pieces of one episode stay together.

    Args:
        ids: of the pieces, as `KeepsRecord` and RLlib name them: `<episode>@<environment>_<piece>`.
        lengths: of the pieces, in rows.
        environments: see `environments_of`.
        blocks: K; at most as many as environments, if those are at least eight.
        rank: which learner has these pieces. Episodes are dealt to its own share of the blocks.
        learners: how many there are.

    Raises:
        UsageError: an id does not tell the environment.
    """
    found = [_EPISODE_ID.fullmatch(name) for name in ids]
    if not all(found):
        raise UsageError(
            "config.callbacks_class",
            "episodes do not tell their environment",
            "Call measure_noise after callbacks were set, and use RLlib's own env runners",
        )
    names = [match.groups() for match in found if match]
    if environments >= FEWEST_BLOCKS:
        of_environment = [k for k, numbers in enumerate(np.array_split(np.arange(environments), blocks)) for _ in numbers]
        return [of_environment[int(number)] for _, number in names]
    steps: dict[str, int] = {}
    for (episode, _), length in zip(names, lengths, strict=True):
        steps[episode] = steps.get(episode, 0) + length
    numbers = deal_lengths(list(steps.values()), equal_share(blocks, rank, learners))
    of_episode = dict(zip(steps, numbers, strict=True))
    return [of_episode[episode] for episode, _ in names]


def _rows(column: Any, rows: np.ndarray, index: torch.Tensor, count: int) -> Any:
    """Those rows of a column, or of every column of a nested dictionary or tuple; `index` has them on the tensors' device.

    RLlib keeps the environments' infos as a list, and does not pad it as it pads sequences to `count` rows; then it is left out.
    """
    if isinstance(column, dict):
        kept = {name: value for name, value in column.items() if not isinstance(value, list) or len(value) == count}
        return {name: _rows(value, rows, index, count) for name, value in kept.items()}
    if isinstance(column, tuple):
        return tuple(_rows(value, rows, index, count) for value in column)
    if isinstance(column, list):
        return [column[row] for row in rows]
    return column[index] if isinstance(column, torch.Tensor) else column[rows]
