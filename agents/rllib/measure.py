"""The noise scale inside an RLlib job: `measure_noise(config, run)` adds it to a PPO configuration (new API stack).

RLlib's learner shuffles transitions before it slices mini-batches, so the measurement stands between its learner connectors
and its epochs: there the train batch is complete, advantages are standardized, and every episode still lies in one piece. The
loss is RLlib's own, taken from the learner itself. What lives here is the measurement (`MeasuresNoise`, a mixin of the
learner); the record is kept by `record`. Statistics are in `rlscale.noise`, our own learner in `learner`.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlscale.errors import UsageError
from rlscale.noise import block_products, estimate, statistics_of

from ..config import FEWEST_BLOCKS
from ..learning.results import NoiseRecord
from ..machine import describe_machine

try:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    from .record import SETTINGS, KeepsRecord, command_line, environments_of, refuse_existing
except ImportError as error:
    raise UsageError(
        "rlscale.agents.rllib.measure", f"RLlib cannot be imported ({error})", "Run: pip install 'rlscale[rllib]'"
    ) from None

__all__ = ["MeasuresNoise", "NoiseLearner", "deal_episodes", "measure_noise"]

_HEADS = {"policy": POLICY_LOSS_KEY, "value": VF_LOSS_KEY, "entropy": ENTROPY_KEY}
# RLlib keeps neither the environment nor custom data of an episode when it deals pieces of it to several learners; its id stays.
# RLlib itself appends the piece's number, after an underscore.
_EPISODE_ID = re.compile(r"(.*@(\d+))(?:_\d+)?")
_logger = logging.getLogger(__name__)


def measure_noise(config: Any, run: str | Path, *, every: int = 4, blocks: int = 16) -> Any:
    """Add the noise measurement to an RLlib job. To be called last, when the configuration is otherwise complete.

    Args:
        config: a `PPOConfig` of the new API stack, one agent, torch; changed in place.
        run: folder of the record to be written, on the machine of the algorithm. `rlscale report` and `compare` read it.
        every: measure in every so many-th update of the learner, the first one included.
        blocks: so many at most. They are sets of environments where there are at least eight of those, else sets of episodes.

    Returns:
        The same configuration.

    Raises:
        UsageError: the job is not one that can be measured, or the folder exists.
    """
    if not isinstance(config, PPOConfig):
        raise UsageError("config", f"{type(config).__name__} is not PPO's", "Give a PPOConfig")
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise UsageError("config.api_stack", "the old API stack has no learner to measure in", "Use the new one, the default")
    if config.is_multi_agent:
        raise UsageError("config.multi_agent", "jobs of several modules are not measured", "Use a single-agent environment")
    if not config.add_default_connectors_to_learner_pipeline:
        raise UsageError(
            "config.learners(add_default_connectors_to_learner_pipeline=…)",
            "without RLlib's own connectors the train batch has no advantages and no mask",
            "Leave it True",
        )
    if not issubclass(config.learner_class, PPOTorchLearner):
        raise UsageError("config.learners(learner_class=…)", "it is no PPOTorchLearner", "Derive it from that class")
    if every < 1:
        raise UsageError("every", f"{every} is no period", "Give at least 1")
    if blocks < 3:
        raise UsageError("blocks", f"an interval needs three blocks, not {blocks}", "Give at least 3, better 16")
    folder = Path(run).absolute()
    refuse_existing(folder)
    learner = config.learner_class
    if learner is PPOTorchLearner:
        learner = NoiseLearner
    elif not issubclass(learner, MeasuresNoise):
        learner = type(f"Noise{learner.__name__}", (MeasuresNoise, learner), {})
    config.learners(
        learner_class=learner,
        learner_config_dict={SETTINGS: {"run": str(folder), "every": every, "blocks": blocks, "command": command_line()}},
    )
    others = config.callbacks_class if isinstance(config.callbacks_class, list | tuple) else [config.callbacks_class]
    # First, because it names episodes, which others may look at.
    config.callbacks(callbacks_class=[KeepsRecord, *(other for other in others if other is not KeepsRecord)])
    return config


class _Heads(MetricsLogger):  # type: ignore[misc]  # RLlib is untyped
    """Stands in for the learner's metrics while its loss is computed, and keeps the parts of the loss with their graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, torch.Tensor] = {}

    def log_dict(self, value_dict: dict[str, Any], **_: Any) -> None:
        self.parts.update({head: value_dict[key] for head, key in _HEADS.items() if key in value_dict})


class _BeforeTheEpochs(ConnectorV2):  # type: ignore[misc]  # RLlib is untyped
    """The last piece of the learner's connectors: sees the whole train batch once, and leaves it as it is."""

    def __init__(self, learner: MeasuresNoise) -> None:
        super().__init__()
        self._learner = learner

    def __call__(self, *, batch: dict[str, Any], episodes: list[Any], **_: Any) -> dict[str, Any]:
        self._learner.see(batch[DEFAULT_MODULE_ID], episodes)
        return batch


class MeasuresNoise:
    """Mixin that stands before a PPO learner of RLlib in the bases of a class.

    Of several learners each computes the gradients of its own share of every block, and their sum is taken over all of them,
    so that all know the same statistics. In RLlib's results they stand under `learners/default_policy/noise/<head>`.
    """

    def build(self: Any) -> None:
        """Build RLlib's learner, then put the measurement behind its connectors."""
        super().build()  # type: ignore[misc]  # of the learner that the mixin stands before
        settings = self.config.learner_config_dict[SETTINGS]
        self._every, self._environments = int(settings["every"]), environments_of(self.config)
        wanted = int(settings["blocks"])
        self._blocks = min(wanted, self._environments) if self._environments >= FEWEST_BLOCKS else wanted
        self._updates, self._steps, self._updating = 0, 0, 0.0
        self._pending = {"noise": [], "noise_seconds": 0.0, "learning_seconds": 0.0}
        _, optimizer = self.get_optimizers_for_module(DEFAULT_MODULE_ID)[0]
        optimizer.register_step_post_hook(lambda *_: self._count_step())
        self._optimizer = optimizer
        self._learner_connector.append(_BeforeTheEpochs(self))

    def _count_step(self: Any) -> None:
        self._steps += 1

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

    def see(self: Any, batch: dict[str, Any], episodes: Sequence[Any]) -> None:
        """Measure the noise if it is due.

        Args:
            batch: RLlib's columns, tensors of one row a step, of one more at the end of each episode (masked), or, if the
                module is stateful, of one row a padded sequence.
            episodes: those it was made of, in the order of its rows, already lengthened by their masked step.
        """
        if self._updates % self._every:
            return
        started = time.perf_counter()
        cuda = [self.device] if self.device.type == "cuda" else []
        # What RLlib draws and logs afterwards is to be what it would have been.
        metrics, self.metrics = self.metrics, _Heads()
        try:
            with torch.random.fork_rng(devices=cuda):
                records = self._measure(batch, self._deal(batch, episodes))
        finally:
            self.metrics = metrics
        for record in records:
            noise = estimate(record.statistics)
            figures = {"trace_cov": noise.trace_cov, "grad_sq": noise.grad_sq, "b_simple_low": noise.interval[0]}
            if noise.b_simple is not None:
                figures |= {"b_simple": noise.b_simple, "b_simple_high": noise.interval[1]}
            self.metrics.log_dict(figures, key=(DEFAULT_MODULE_ID, "noise", record.head), window=1)
        self._pending["noise"] += records
        self._measuring = time.perf_counter() - started

    def _deal(self: Any, batch: dict[str, Any], episodes: Sequence[Any]) -> list[np.ndarray]:
        """The rows of each block: those of its environments, or of its episodes; a block can be empty."""
        length = self.module[DEFAULT_MODULE_ID].model_config["max_seq_len"] if self._sequences else 1
        ends = np.cumsum([math.ceil(len(episode) / length) for episode in episodes])
        there, expected = len(batch[Columns.LOSS_MASK]), int(ends[-1]) if len(ends) else 0
        if there != expected:
            raise UsageError(
                "config.learners(learner_connector=…)",
                f"the train batch has {there:,} rows, not the {expected:,} of its episodes",
                "Leave RLlib's rows as they are",
            )
        rows = [np.arange(end - math.ceil(len(e) / length), end) for e, end in zip(episodes, ends, strict=True)]
        of_episode = deal_episodes(
            [episode.id_ for episode in episodes],
            [len(r) for r in rows],
            self._environments,
            self._blocks,
            rank=self._learner_index,
            learners=max(self.config.num_learners, 1),
        )
        empty = [np.zeros(0, dtype=np.int64)]
        return [np.concatenate(empty + [r for r, b in zip(rows, of_episode, strict=True) if b == k]) for k in range(self._blocks)]

    @property
    def _sequences(self: Any) -> bool:
        """Whether a row of the batch is a padded sequence, not a step."""
        return bool(self.module[DEFAULT_MODULE_ID].is_stateful())

    def _chunks(self: Any, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Rows of as many steps at a time as RLlib itself takes in a mini-batch."""
        most = self.config.minibatch_size or len(rows) or 1
        if self._sequences:
            most = max(most // self.module[DEFAULT_MODULE_ID].model_config["max_seq_len"], 1)
        for start in range(0, len(rows), most):
            yield rows[start : start + most]

    def _measure(self: Any, batch: dict[str, Any], blocks: Sequence[np.ndarray]) -> list[NoiseRecord]:
        """The statistics of every head from the gradients of RLlib's own loss on each block, at the present parameters."""
        module = self.module[DEFAULT_MODULE_ID].unwrapped()  # of several learners, what torch wraps for its own sums
        parameters = [p for p in module.parameters() if p.requires_grad]
        config = self.config.get_config_for_module(DEFAULT_MODULE_ID)
        mask = batch[Columns.LOSS_MASK]
        sizes = torch.zeros(len(blocks), dtype=torch.float64, device=self.device)
        matrices: dict[str, torch.Tensor] = {}
        for k, rows in enumerate(blocks):
            for chunk in self._chunks(rows):
                index = torch.from_numpy(chunk).to(mask.device)
                count = int(mask[index].sum())
                if not count:
                    continue  # bootstrap steps alone
                part = _rows(batch, index)
                self.metrics = _Heads()
                joint = self.compute_loss_for_module(
                    module_id=DEFAULT_MODULE_ID, config=config, batch=part, fwd_out=module.forward_train(part)
                )
                losses = {name: x for name, x in self.metrics.parts.items() if x.requires_grad} | {"joint": joint}
                for head, loss in losses.items():
                    if head not in matrices:
                        width = sum(p.numel() for p in parameters)
                        matrices[head] = torch.zeros(len(blocks), width, device=self.device)
                    gradient = torch.autograd.grad(loss * count, parameters, retain_graph=head != "joint", materialize_grads=True)
                    matrices[head][k] += torch.cat([g.reshape(-1) for g in gradient])
                sizes[k] += count
        return self._reduce(matrices, sizes)

    def _reduce(self: Any, matrices: dict[str, torch.Tensor], sizes: torch.Tensor) -> list[NoiseRecord]:
        """Statistics from the summed gradients (K, P) of every head, (K,) observations summed; of all learners together."""
        if self.distributed:
            for total in (*matrices.values(), sizes):
                torch.distributed.all_reduce(total)
        counts = sizes.cpu().numpy()
        records: list[NoiseRecord] = []
        if (counts > 0).sum() < 2:
            _logger.warning("The noise was not measured: all of the train batch lies in one block. Use more environments.")
            return records
        for head, matrix in matrices.items():
            matrix /= sizes.clamp(min=1)[:, None]
            try:
                statistics = statistics_of(block_products(matrix, sizes=counts), counts)
            except ValueError as error:  # RLlib goes on from gradients that are not finite, and so does its guest
                _logger.warning("The noise of head %s was not measured: %s", head, error)
                continue
            records.append(NoiseRecord(head, "rollout", self._steps, statistics))
        return records

    def take_report(self: Any) -> dict[str, Any]:
        """What was measured since the last call, and what a record says of a learner."""
        report, self._pending = self._pending, {"noise": [], "noise_seconds": 0.0, "learning_seconds": 0.0}
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
    """RLlib's PPO learner that measures its noise. A class of the module, so that a checkpoint can name it."""


def deal_episodes(
    ids: Sequence[str], lengths: Sequence[int], environments: int, blocks: int, *, rank: int = 0, learners: int = 1
) -> list[int]:
    """The block of each piece of an episode.

    With at least eight environments the blocks are contiguous sets of them, the same in every update. With fewer, whole
    episodes are dealt into blocks of about equally many steps, in the order they stand in; pieces of one episode stay together.

    Args:
        ids: of the pieces, as `KeepsRecord` and RLlib name them: `<episode>@<environment>_<piece>`.
        lengths: of the pieces, in rows.
        environments: of the whole job.
        blocks: K; at most as many as environments, if those are at least eight.
        rank, learners: which of how many learners has these pieces. Episodes are dealt to its own share of the blocks.

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
        of_environment = np.empty(environments, dtype=np.int64)
        for k, numbers in enumerate(np.array_split(np.arange(environments), blocks)):
            of_environment[numbers] = k
        return [int(of_environment[int(number)]) for _, number in names]
    steps: dict[str, int] = {}
    for (episode, _), length in zip(names, lengths, strict=True):
        steps[episode] = steps.get(episode, 0) + length
    first, last = blocks * rank // learners, blocks * (rank + 1) // learners
    middles = np.cumsum(list(steps.values())) - np.array(list(steps.values())) / 2
    places = first + (middles / sum(steps.values()) * (last - first)).astype(int)
    of_episode = dict(zip(steps, places.tolist(), strict=True))
    return [int(of_episode[episode]) for episode, _ in names]


def _rows(column: Any, index: torch.Tensor) -> Any:
    """Those rows of a column, or of every column of a nested dictionary."""
    if isinstance(column, dict):
        return {name: _rows(value, index) for name, value in column.items()}
    return column[index] if isinstance(column, torch.Tensor) else column[index.cpu().numpy()]
