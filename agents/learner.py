"""The learner: PPO updates whose gradient is accumulated over blocks, so that every update yields its noise statistics.

A block is a set of environments. Its mean gradient is one row of a (K, P) matrix; one pass over that matrix gives both the
batch gradient for the optimizer and the block statistics for `rlscale.noise`. The loss itself is in `agents.losses`.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from agents.advantages import generalized_advantages, normalize, running_square
from agents.config import FEWEST_BLOCKS, NoiseSettings, TrainConfig, Update
from agents.fragments import Fragment, FragmentTensors
from agents.losses import HEADS, Losses, ppo_losses
from agents.networks import flatten_parameters, make_network
from envs import Task
from rlscale.noise import BlockStatistics, block_statistics

__all__ = ["IterationBatch", "Learner", "NoiseRecord", "UpdateResult"]


@dataclass(frozen=True)
class NoiseRecord:
    """Block statistics of one measurement.

    Attributes:
        head: `joint`, `policy`, `value`, `entropy`, or `policy_last_layer` (the policy loss, its last layer's weights only).
        kind: `rollout` when blocks are sets of environments, `mini-batch` when they are shuffled transitions.
        optimizer_step: optimizer steps made before it was taken.
        statistics: see `rlscale.noise`.
    """

    head: str
    kind: str
    optimizer_step: int
    statistics: BlockStatistics


@dataclass
class UpdateResult:
    """What one iteration's learning gave: mean figures over its optimizer steps, and the noise measured on the way."""

    figures: dict[str, float]
    noise: list[NoiseRecord] = field(default_factory=list)
    noise_seconds: float = 0.0


class IterationBatch:
    """Fragments side by side: environment e of the batch is column e of the fragments laid next to each other.

    Frames stay in their fragments; the small arrays are joined. Index (t, e) is the flat position t · environments + e.
    """

    def __init__(
        self, fragments: list[Fragment], task: Task, update: Update, scale_square: float | None, device: torch.device
    ) -> None:
        self.steps = fragments[0].steps
        self.environments = sum(f.environments for f in fragments)
        if any(f.steps != self.steps for f in fragments):
            raise ValueError("fragments of one batch must have the same number of steps")
        self.parts = [FragmentTensors(f, task.frame_stack, device) for f in fragments]
        self._first = np.cumsum([0] + [f.environments for f in fragments])
        results = [
            generalized_advantages(
                reward=f.clipped_reward,
                value=f.value,
                bootstrap_value=f.bootstrap_value,
                terminated=f.terminated,
                truncated=f.truncated,
                discount=update.discount,
                gae_lambda=update.gae_lambda,
            )
            for f in fragments
        ]
        advantage = np.concatenate([a for a, _ in results], axis=1)
        target = np.concatenate([v for _, v in results], axis=1)
        valid = ~np.concatenate([f.reset for f in fragments], axis=1)
        self.observations = int(valid.sum())
        self.scale_square = scale_square
        if update.advantage_scale == "batch":
            advantage = normalize(advantage, valid)
        elif update.advantage_scale == "running":
            self.scale_square = running_square(scale_square, advantage, valid)
            advantage = advantage / np.float32(np.sqrt(self.scale_square) + 1e-8)
        error, spread = (target - np.concatenate([f.value for f in fragments], axis=1))[valid], target[valid]
        self.explained_variance = 1.0 - float(error.var()) / max(float(spread.var()), 1e-12)

        def flat(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array).reshape(-1)).to(device)

        self.action = flat(np.concatenate([f.action for f in fragments], axis=1))
        self.log_prob = flat(np.concatenate([f.log_prob for f in fragments], axis=1))
        self.advantage, self.target, self.valid = flat(advantage), flat(target), flat(valid)
        self.valid_cpu = valid.reshape(-1)

    def observation(self, index: np.ndarray, device: torch.device) -> torch.Tensor:
        """Observations at flat positions `index`, (n,) int64; the order is kept."""
        step, environment = np.divmod(index, self.environments)
        owner = np.searchsorted(self._first, environment, side="right") - 1
        owners = np.unique(owner)
        if len(owners) == 1:
            part = owners[0]
            return self.parts[part].observations(*self._on(device, step, environment - self._first[part]))
        pieces = []
        order = np.argsort(owner, kind="stable")
        for part in owners:
            mine = owner == part
            pieces.append(self.parts[part].observations(*self._on(device, step[mine], environment[mine] - self._first[part])))
        joined = torch.cat(pieces)
        if (order[1:] > order[:-1]).all():
            return joined
        return joined[torch.from_numpy(np.argsort(order)).to(device)]

    @staticmethod
    def _on(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
        return [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays]

    def of_environments(self, environments: np.ndarray) -> np.ndarray:
        """Flat positions of all steps of those environments, environment by environment."""
        return (environments[:, None] + np.arange(self.steps) * self.environments).reshape(-1)


class Learner:
    """Network, optimizer and the update.

    Args:
        config: the run's settings.
        task: its task.
        device: where to work.
        bfloat16: autocast the network to bfloat16; parameters, gradients and statistics stay float32 and float64.
    """

    def __init__(self, config: TrainConfig, task: Task, device: torch.device, bfloat16: bool) -> None:
        self.update_settings: Update = config.update
        self.noise_settings: NoiseSettings = config.noise
        self.shuffles_transitions = config.shuffles_transitions
        self.mini_batch = config.mini_batch
        self.chunk = config.update.chunk or (
            4096 if device.type != "cpu" else 256 if math.prod(task.observation_shape) > 4096 else 1024
        )
        self.task, self.device, self.bfloat16 = task, device, bfloat16
        self.network = make_network(task, config.update.network, config.seed, config.update.width).to(device)
        self.parameters = nn.Parameter(flatten_parameters(self.network))
        self._trainable = list(self.network.parameters())
        self._last_layer = list(self.network.policy_head.parameters())
        self._mean = torch.zeros_like(self.parameters.data)
        self._rows = torch.empty(0, device=device)
        self.optimizer = _make_optimizer(config.update, self.parameters)
        self.optimizer_steps = 0
        self.scale_square: float | None = None
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([config.seed, 0x1EA2])))

    def weights(self) -> np.ndarray:
        """A copy of all parameters, (P,) float32, in the order of `flatten_parameters`."""
        return self.parameters.detach().cpu().numpy().copy()

    def prepare(self, fragments: list[Fragment]) -> IterationBatch:
        """Advantages, targets and masks of an iteration batch, on the learner's device."""
        batch = IterationBatch(fragments, self.task, self.update_settings, self.scale_square, self.device)
        self.scale_square = batch.scale_square
        return batch

    def update(self, batch: IterationBatch, iteration: int, learning_rate: float) -> UpdateResult:
        """All epochs and mini-batches of one iteration."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        result = UpdateResult(figures={})
        self._measure_heads(batch, iteration, result)
        totals: dict[str, float] = {}
        steps = 0
        for epoch in range(self.update_settings.epochs):
            measured = epoch == 0 and self._due("joint", iteration)
            for names, blocks in self._mini_batches(batch, blockwise=measured):
                if not any(batch.valid_cpu[block].any() for block in blocks):
                    continue  # nothing but resets
                figures = self._step(batch, names, blocks, measured and len(blocks) > 1, result)
                steps += 1
                for key, value in figures.items():
                    totals[key] = totals.get(key, 0.0) + value
        result.figures = {key: value / steps for key, value in totals.items()}
        return result

    def _mini_batches(self, batch: IterationBatch, *, blockwise: bool) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Names and flat positions of the blocks of each optimizer step of one epoch.

        Environments are dealt into blocks that stay the same for the whole run, and blocks into mini-batches anew each
        epoch; so the same block name always means the same environments. Shuffled transitions have no such names.
        """
        count = batch.steps * batch.environments // self.mini_batch
        if self.shuffles_transitions:
            for chosen in self._generator.permutation(batch.steps * batch.environments).reshape(count, -1):
                wanted = self.noise_settings.blocks or FEWEST_BLOCKS
                blocks = np.array_split(chosen, min(wanted, len(chosen))) if blockwise else [chosen]
                yield np.arange(len(blocks)), blocks
            return
        per_step = self.noise_settings.step_blocks(self.mini_batch, batch.environments // count, equal=count > 1)
        environments = np.array_split(np.arange(batch.environments), per_step * count)
        for names in self._generator.permutation(per_step * count).reshape(count, per_step):
            names = np.sort(names)
            blocks = [batch.of_environments(environments[name]) for name in names]
            yield names, blocks if blockwise else [np.concatenate(blocks)]

    def _step(
        self, batch: IterationBatch, names: np.ndarray, blocks: list[np.ndarray], measured: bool, result: UpdateResult
    ) -> dict[str, float]:
        """One optimizer step."""
        sizes = np.array([batch.valid_cpu[block].sum() for block in blocks], dtype=np.float64)
        rows = self._matrix(len(blocks))
        last_layer = rows.new_empty(len(blocks), sum(p.numel() for p in self._last_layer)) if measured else None
        sums = torch.zeros(6, device=self.device)
        for row, block in enumerate(blocks):
            sums += float(sizes[row]) * self._block_gradient(
                batch, block, rows[row], None if last_layer is None else last_layer[row]
            )
        if measured and last_layer is not None and (sizes > 0).sum() > 1:
            started = time.perf_counter()
            statistics = block_statistics(rows, sizes, blocks=names, mean_out=self._mean)
            kind = "mini-batch" if self.shuffles_transitions else "rollout"
            result.noise.append(NoiseRecord("joint", kind, self.optimizer_steps, statistics))
            result.noise.append(
                NoiseRecord("policy_last_layer", kind, self.optimizer_steps, block_statistics(last_layer, sizes, blocks=names))
            )
            result.noise_seconds += time.perf_counter() - started
        else:
            weights = torch.as_tensor(sizes / max(sizes.sum(), 1.0), dtype=torch.float32, device=self.device)
            torch.mv(rows.T, weights, out=self._mean)
        norm = torch.linalg.vector_norm(self._mean)
        if self.update_settings.max_grad_norm is not None:
            self._mean *= (self.update_settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        self.parameters.grad = self._mean
        self.optimizer.step()
        self.optimizer_steps += 1
        figures = (sums / max(sizes.sum(), 1.0)).tolist()
        return {**dict(zip(_FIGURES, figures, strict=True)), "gradient_norm": float(norm)}

    def _block_gradient(
        self, batch: IterationBatch, block: np.ndarray, out: torch.Tensor, last_layer_out: torch.Tensor | None
    ) -> torch.Tensor:
        """Write the joint loss's mean gradient over the block to `out`, (P,); returns six mean figures."""
        figures = torch.zeros(6, device=self.device)
        for first, share, losses in self._losses(batch, block):
            if last_layer_out is not None:
                grads = torch.autograd.grad(losses.policy * share, self._last_layer, retain_graph=True)
                _write(grads, last_layer_out, first=first)
            _write(torch.autograd.grad(losses.joint * share, self._trainable), out, first=first)
            figures += share * torch.stack([x.detach() for x in losses])
        return figures

    def _losses(self, batch: IterationBatch, block: np.ndarray) -> Iterator[tuple[bool, float, Losses]]:
        """The block's losses, chunk by chunk: whether it is the first, its share of the block's observations, its losses."""
        chunks = np.array_split(block, -(-len(block) // self.chunk))
        valid = [int(batch.valid_cpu[chunk].sum()) for chunk in chunks]
        u = self.update_settings
        for position, (chunk, count) in enumerate(zip(chunks, valid, strict=True)):
            index = torch.from_numpy(chunk).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                output = self.network(batch.observation(chunk, self.device))
            yield (
                position == 0,
                count / max(sum(valid), 1),
                ppo_losses(
                    logits=output.logits,
                    value=output.value,
                    action=batch.action[index],
                    behaviour_log_prob=batch.log_prob[index],
                    advantage=batch.advantage[index],
                    value_target=batch.target[index],
                    valid=batch.valid[index],
                    clip=u.clip,
                    value_coef=u.value_coef,
                    entropy_coef=u.entropy_coef,
                ),
            )

    def _measure_heads(self, batch: IterationBatch, iteration: int, result: UpdateResult) -> None:
        """Noise of each head that is due, on the whole iteration batch at the parameters that sampled it.

        Blocks are sets of environments whatever the mini-batches are, so this is always rollout noise.
        """
        due = [head for head in HEADS if self._due(head, iteration)]
        if not due or batch.environments < 2:
            return
        started = time.perf_counter()
        blocks = np.array_split(np.arange(batch.environments), self.noise_settings.head_blocks(batch.environments))
        positions = [batch.of_environments(block) for block in blocks]
        sizes = np.array([batch.valid_cpu[p].sum() for p in positions], dtype=np.float64)
        if (sizes > 0).sum() < 2:
            return
        gradients = {head: torch.empty(len(blocks), len(self.parameters), device=self.device) for head in due}
        for row, position in enumerate(positions):
            for first, share, losses in self._losses(batch, position):
                for head in due:
                    grads = torch.autograd.grad(
                        getattr(losses, head) * share, self._trainable, retain_graph=head != due[-1], materialize_grads=True
                    )
                    _write(grads, gradients[head][row], first=first)
        for head in due:
            statistics = block_statistics(gradients[head], sizes)
            result.noise.append(NoiseRecord(head, "rollout", self.optimizer_steps, statistics))
        result.noise_seconds += time.perf_counter() - started

    def _due(self, head: str, iteration: int) -> bool:
        """Whether that head is measured in this iteration."""
        period = self.noise_settings.period(head, self.update_settings.epochs)
        return period > 0 and iteration % period == 0

    def _matrix(self, rows: int) -> torch.Tensor:
        """Room for so many block gradients, kept between steps."""
        if len(self._rows) < rows:
            self._rows = torch.empty(rows, len(self.parameters), device=self.device)
        return self._rows[:rows]

    def get_state(self) -> dict[str, Any]:
        """Everything but the settings, for a checkpoint."""
        return {
            "parameters": self.parameters.detach().cpu().clone(),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "optimizer_steps": self.optimizer_steps,
            "scale_square": self.scale_square,
            "generator": self._generator.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where `get_state` was called."""
        self.parameters.detach().copy_(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer_steps, self.scale_square = state["optimizer_steps"], state["scale_square"]
        self._generator.bit_generator.state = state["generator"]


_FIGURES = ("policy_loss", "value_loss", "entropy", "joint_loss", "approx_kl", "clip_fraction")


def _write(grads: tuple[torch.Tensor, ...], out: torch.Tensor, *, first: bool) -> None:
    """Lay parameter-shaped gradients into the flat `out`, or add them to the part it already holds."""
    pieces = [grad.reshape(-1) for grad in grads]
    if first:
        torch.cat(pieces, out=out)
    else:
        out += torch.cat(pieces)


def _make_optimizer(update: Update, parameter: nn.Parameter) -> torch.optim.Optimizer:
    """The optimizer over the flat vector of parameters."""
    if update.optimizer == "rmsprop":
        return torch.optim.RMSprop([parameter], lr=update.learning_rate, alpha=0.99, eps=1e-5)
    return torch.optim.Adam([parameter], lr=update.learning_rate, eps=1e-5, fused=True)
