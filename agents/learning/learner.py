"""The learner: PPO updates whose gradient is accumulated over blocks, so that every update yields its noise statistics.

A block is a set of environments. Its mean gradient is one row of a (K, P) matrix; one pass over that matrix gives both the
batch gradient for the optimizer and the block statistics for `rlscale.noise`. Of several learners each holds the rows of its
own blocks, and only the weighted sum of all rows is shared (`remote_learners`). How a row is computed is in
`rlscale.agents.learning.gradients`, the loss itself in `rlscale.agents.learning.losses`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from rlscale.envs import Task
from rlscale.noise import BlockStatistics, block_products, statistics_of

from ..config import FEWEST_BLOCKS, NoiseSettings, TrainConfig, Update
from ..networks.networks import flatten_parameters, make_network
from ..rollout.fragments import Fragment, read
from .batch import IterationBatch, Moments, Place, Sum, arrange
from .gradients import FIGURES, LAST_LAYER, BlockGradients, BlockPart
from .losses import HEADS

__all__ = ["Learner", "NoiseRecord", "UpdateResult", "share_of_columns"]


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
    """What one iteration's learning gave.

    Attributes:
        figures: means over its optimizer steps.
        noise: measured on the way.
        noise_seconds: what only the measurement took; on an accelerator, the launching of it.
        observations: valid ones of the iteration batch.
        explained_variance: of the value targets, by the behaviour policy's values.
        learning_rate: of the last optimizer step.
        optimizer_steps: made so far in the run.
    """

    figures: dict[str, float] = field(default_factory=dict)
    noise: list[NoiseRecord] = field(default_factory=list)
    noise_seconds: float = 0.0
    observations: int = 0
    explained_variance: float = 0.0
    learning_rate: float = 0.0
    optimizer_steps: int = 0


@dataclass
class _Stream:
    """A batch that is learned from as its fragments come.

    Attributes:
        columns: this learner's environments.
        rounds: of the whole batch.
        blocks: the environments of each block, as columns.
        names: of the blocks.
        matrices: gradients so far, one matrix for each head that is measured.
        sizes: valid observations so far of each block.
        started: whether a block's row holds anything.
        moments: of the observations so far.
    """

    learning_rate: float
    columns: range
    rounds: int
    blocks: list[np.ndarray]
    names: np.ndarray
    matrices: dict[str, torch.Tensor]
    sizes: np.ndarray
    started: np.ndarray
    figures: torch.Tensor
    moments: Moments | None = None


class Learner:
    """Network, optimizer and the update.

    Args:
        config: the run's settings.
        task: its task.
        device: where to work.
        bfloat16: autocast the network to bfloat16; parameters, gradients and statistics stay float32 and float64.
        rank: which of the run's learners this is.
        add: sums a tensor over all of them, in place; see `rlscale.agents.learning.batch.Sum`.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        device: torch.device,
        bfloat16: bool,
        rank: int = 0,
        add: Sum = lambda total: None,
    ) -> None:
        self.update_settings: Update = config.update
        self.noise_settings: NoiseSettings = config.noise
        self.shuffles_transitions = config.shuffles_transitions
        self._config, self._rollout_length = config, config.rollout.rollout_length
        self.rank, self.learners, self._add = rank, config.update.learners, add
        # Number in the fleet of the environment in column 0. An adaptive batch begins anywhere and varies in size, so there a
        # block is named by its first environment: sets that come again, or overlap, share a name.
        self._first_environment = 0
        self.task, self.device = task, device
        self.network = make_network(task, config.update.network, config.seed, config.update.width).to(device)
        self.parameters = nn.Parameter(flatten_parameters(self.network))
        self._gradients = BlockGradients(self.network, config, task, device, bfloat16)
        self._mean = torch.zeros_like(self.parameters.data)
        self._matrices: dict[str, torch.Tensor] = {}
        self.optimizer = _make_optimizer(config.update, self.parameters)
        self.optimizer_steps = 0
        self.scale_square: float | None = None
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([config.seed, 0x1EA2])))
        self._measured: list[tuple[str, str, int, torch.Tensor, np.ndarray, np.ndarray]] = []
        self._stream: _Stream | None = None

    def weights(self) -> np.ndarray:
        """A copy of all parameters, (P,) float32, in the order of `flatten_parameters`."""
        return self.parameters.detach().cpu().numpy().copy()

    def learn(
        self, fragments: Sequence[Any], places: Sequence[Place], environments: int, iteration: int, learning_rate: float
    ) -> UpdateResult:
        """All that one iteration's fragments teach.

        Args:
            fragments: those that hold any of this learner's columns, or references to them.
            places: of each.
            environments: columns of the whole batch.
            iteration: its number, which decides what is measured.
            learning_rate: before warm-up.
        """
        batch = self._read([(place, read(f)) for place, f in zip(places, fragments, strict=True)], environments)
        return self.update(batch, iteration, learning_rate)

    def prepare(self, fragments: Sequence[Fragment]) -> IterationBatch:
        """Advantages, targets and masks of a whole iteration batch, on the learner's device."""
        n = fragments[0].environments
        places = arrange([f.group for f in fragments], n)
        return self._read(list(zip(places, fragments, strict=True)), n * len({f.group for f in fragments}))

    def _read(self, placed: list[tuple[Place, Fragment]], environments: int) -> IterationBatch:
        self._first_environment = placed[0][0].environment - placed[0][0].columns.start
        columns = share_of_columns(self._config, self.rank, environments)
        # Where transitions are shuffled every learner reads all columns: there is nothing to add.
        add: Sum = (lambda total: None) if self.shuffles_transitions else self._add
        batch = IterationBatch(placed, columns, self.task, self.update_settings, self.scale_square, self.device, add)
        self.scale_square = batch.scale_square
        return batch

    def update(self, batch: IterationBatch, iteration: int, learning_rate: float) -> UpdateResult:
        """All epochs and mini-batches of one iteration."""
        result = UpdateResult(observations=batch.moments.count, explained_variance=batch.moments.explained_variance)
        self._measured.clear()
        if self._gradients.lagged and (self.update_settings.epochs > 1 or self.update_settings.mini_batch is not None):
            self._gradients.look_ahead(batch)
        self._measure_heads(batch, iteration, result)
        totals = torch.zeros(len(FIGURES) + 1, device=self.device)
        steps = 0
        for epoch in range(self.update_settings.epochs):
            measured = epoch == 0 and self._due("joint", iteration)
            for names, blocks in self._mini_batches(batch, blockwise=measured):
                sizes = np.array([batch.valid_cpu[block].sum() for block in blocks], dtype=np.float64)
                if self.learners == 1 and not sizes.any():
                    continue  # nothing but resets
                measured_step = measured and (len(blocks) > 1 or self.learners > 1)
                matrices = {"joint": self._joint_matrix(len(blocks), measured_step)}
                if measured_step:
                    matrices = {LAST_LAYER: self._matrix(LAST_LAYER, len(blocks)), **matrices}
                parts = [BlockPart(row, block, max(sizes[row], 1.0)) for row, block in enumerate(blocks)]
                figures = self._gradients.add(batch, parts, matrices)
                totals += self._step(matrices, sizes, names, figures, measured_step, learning_rate, result)
                steps += 1
        return self._close(result, totals, steps)

    def begin(self, places: Sequence[Place], environments: int, iteration: int, learning_rate: float) -> None:
        """Start a batch that is learned from as its fragments come: one epoch, one optimizer step.

        Args:
            places: of all its fragments.
            environments, iteration, learning_rate: as in `learn`.
        """
        self._first_environment = places[0].environment - places[0].columns.start
        columns = share_of_columns(self._config, self.rank, environments)
        observations = sum(len(place.columns) for place in places) * self._rollout_length
        names, blocks = self._blocks(columns, environments, observations, 1)[0]
        heads = [head for head in HEADS if self._due(head, iteration)]
        if self._due("joint", iteration):
            heads.append(LAST_LAYER)
        self._measured.clear()
        self._stream = _Stream(
            learning_rate=learning_rate,
            columns=columns,
            rounds=max(place.round for place in places) + 1,
            blocks=blocks,
            names=names,
            matrices={
                **{head: self._matrix(head, len(blocks)) for head in heads},
                "joint": self._joint_matrix(len(blocks), LAST_LAYER in heads),
            },
            sizes=np.zeros(len(blocks)),
            started=np.zeros(len(blocks), dtype=bool),
            figures=torch.zeros(len(FIGURES), device=self.device),
        )

    def scale_by(self, fragment: Any) -> None:
        """Scale advantages by this fragment's if none came before: of several learners, all by the same one."""
        if self.update_settings.advantage_scale == "running" and self.scale_square is None:
            fragment = read(fragment)
            place = Place(0, range(fragment.environments), 0)
            self.scale_square = IterationBatch(
                [(place, fragment)], place.columns, self.task, self.update_settings, None, self.device
            ).scale_square

    def accept(self, fragment: Any, place: Place) -> None:
        """Learn from the next fragment of the batch that was begun; it can be freed afterwards."""
        stream, fragment = self._stream, read(fragment)
        assert stream is not None, "begin first"
        self.scale_by(fragment)
        columns = range(max(place.columns.start, stream.columns.start), min(place.columns.stop, stream.columns.stop))
        batch = IterationBatch(
            [(place, fragment)], columns, self.task, self.update_settings, self.scale_square, self.device, early=True
        )
        if stream.moments is None:
            stream.moments = batch.moments
        else:
            stream.moments += batch.moments
        parts = []
        for row, block in enumerate(stream.blocks):
            mine = block[(block >= columns.start) & (block < columns.stop)]
            if not len(mine):
                continue
            positions = batch.of_environments(mine - columns.start)
            nominal = len(block) * fragment.steps * stream.rounds  # how many are valid is only known at the end
            parts.append(BlockPart(row, positions, nominal, first=not stream.started[row]))
            stream.started[row] = True
            stream.sizes[row] += batch.valid_cpu[positions].sum()
        stream.figures += self._gradients.add(batch, parts, stream.matrices)

    def finish(self) -> UpdateResult:
        """The optimizer step of the batch that was begun, now that all of it has been seen."""
        stream, self._stream = self._stream, None
        assert stream is not None, "begin first"
        assert stream.moments is not None, "no fragment was accepted"
        nominal = np.array([len(block) * self._rollout_length * stream.rounds for block in stream.blocks], dtype=np.float64)
        for row in np.flatnonzero((stream.sizes != nominal) & (stream.sizes > 0)):
            for matrix in stream.matrices.values():
                matrix[row] *= nominal[row] / stream.sizes[row]
        result = UpdateResult()
        stream.moments.sum(self._add)
        result.observations, result.explained_variance = stream.moments.count, stream.moments.explained_variance
        if self.update_settings.advantage_scale == "running":
            self.scale_square = stream.moments.running_square(self.scale_square)
        for head in HEADS:
            if head in stream.matrices:
                mean = torch.empty_like(self._mean)
                self._reduce(head, "rollout", stream.matrices[head], stream.sizes, stream.names, mean)
        measured = LAST_LAYER in stream.matrices
        totals = self._step(stream.matrices, stream.sizes, stream.names, stream.figures, measured, stream.learning_rate, result)
        self._matrices = {k: v for k, v in self._matrices.items() if k not in HEADS}
        return self._close(result, totals, 1)

    def _close(self, result: UpdateResult, totals: torch.Tensor, steps: int) -> UpdateResult:
        """Fetch what was left on the device, once an iteration: figures and statistics."""
        means = (totals / max(steps, 1)).tolist()
        result.figures = dict(zip((*FIGURES, "gradient_norm"), means, strict=True))
        for head, kind, step, products, sizes, names in self._measured:
            if self.learners > 1 or (sizes > 0).sum() > 1:
                result.noise.append(NoiseRecord(head, kind, step, statistics_of(products, sizes, names)))
        self._measured.clear()
        result.optimizer_steps = self.optimizer_steps
        return result

    def _mini_batches(self, batch: IterationBatch, *, blockwise: bool) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Names and flat positions of this learner's blocks in each optimizer step of one epoch.

        Environments are dealt into blocks that stay the same for the whole run. The blocks stand in as many rows as a step has
        blocks, and each step takes one from every row, anew each epoch; so the same name always means the same environments,
        and every learner has equally much to do in every step. Shuffled transitions have no such names.
        """
        environments = batch.environments if self.shuffles_transitions else batch.environments * self.learners
        total = batch.steps * environments
        count = 1 if self.update_settings.mini_batch is None else max(total // self.update_settings.mini_batch, 1)
        if self.shuffles_transitions:
            for chosen in self._generator.permutation(total).reshape(count, -1):
                wanted = min(self.noise_settings.blocks or FEWEST_BLOCKS, len(chosen))
                share = range(wanted * self.rank // self.learners, wanted * (self.rank + 1) // self.learners)
                blocks = [np.array_split(chosen, wanted)[i] for i in share]
                yield np.array(share), blocks if blockwise else [np.concatenate(blocks)]
            return
        columns = share_of_columns(self._config, self.rank, environments)
        for names, blocks in self._blocks(columns, environments, total // count, count):
            positions = [batch.of_environments(block - columns.start) for block in blocks]
            yield names, positions if blockwise else [np.concatenate(positions)]

    def _blocks(
        self, columns: range, environments: int, observations: int, count: int
    ) -> list[tuple[np.ndarray, list[np.ndarray]]]:
        """Names and columns of this learner's blocks in each of the `count` steps of an epoch.

        Args:
            columns: of this learner.
            environments: of all learners.
            observations: of one step of all learners.
            count: optimizer steps.
        """
        per_step = self.noise_settings.step_blocks(
            observations, environments // count, equal=count > 1 or self.learners > 1, multiple=self.learners
        )
        edges = np.array_split(np.arange(environments), per_step * count)
        order = self._generator.permuted(np.tile(np.arange(count), (per_step, 1)), axis=1)
        rows = range(per_step * self.rank // self.learners, per_step * (self.rank + 1) // self.learners)
        steps = []
        for turn in range(count):
            chosen = np.array([row * count + order[row, turn] for row in rows])
            blocks = [edges[name] for name in chosen]
            assert all(columns.start <= block[0] and block[-1] < columns.stop for block in blocks), "blocks of another learner"
            steps.append((self._names(chosen, blocks), blocks))
        return steps

    def _names(self, numbers: np.ndarray, blocks: list[np.ndarray]) -> np.ndarray:
        """What blocks of environments, given as columns, are called in all updates of the run."""
        if not self._config.adaptive:
            return numbers
        return np.array([self._first_environment + block[0] for block in blocks]) % self._config.rollout.environments

    def _step(
        self,
        matrices: dict[str, torch.Tensor],
        sizes: np.ndarray,
        names: np.ndarray,
        figures: torch.Tensor,
        measured: bool,
        learning_rate: float,
        result: UpdateResult,
    ) -> torch.Tensor:
        """One optimizer step by the block gradients in `matrices`; its mean figures and the gradient's norm, (7,)."""
        kind = "mini-batch" if self.shuffles_transitions else "rollout"
        started = time.perf_counter()
        if measured:
            self._reduce("joint", kind, matrices["joint"], sizes, names, self._mean)
            mean = torch.empty(matrices[LAST_LAYER].shape[1], device=self.device)
            self._reduce(LAST_LAYER, kind, matrices[LAST_LAYER], sizes, names, mean)
            result.noise_seconds += time.perf_counter() - started
        elif self.learners > 1:
            self._total(matrices["joint"], sizes, self._mean)
        elif len(sizes) > 1:
            weights = torch.as_tensor(sizes / max(sizes.sum(), 1.0), dtype=torch.float32, device=self.device)
            torch.mv(matrices["joint"].T, weights, out=self._mean)
        sums = torch.cat([figures, torch.tensor([sizes.sum()], dtype=torch.float32, device=self.device)])
        self._add(sums)
        norm = torch.linalg.vector_norm(self._mean)
        if self.update_settings.max_grad_norm is not None:
            self._mean *= (self.update_settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        warm_up = self.update_settings.warm_up
        result.learning_rate = learning_rate * min(1.0, (self.optimizer_steps + 1) / warm_up) if warm_up else learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = result.learning_rate
        self.parameters.grad = self._mean
        self.optimizer.step()
        self.optimizer_steps += 1
        return torch.cat([sums[:-1] / sums[-1].clamp(min=1.0), norm[None]])

    def _reduce(
        self, head: str, kind: str, matrix: torch.Tensor, sizes: np.ndarray, names: np.ndarray, mean: torch.Tensor
    ) -> None:
        """The batch gradient of a head into `mean`, and its block products into `_measured`."""
        if self.learners == 1:
            products = block_products(matrix, sizes=sizes, mean_out=mean)
        else:
            self._total(matrix, sizes, mean)
            products = block_products(matrix, mean=mean)
        self._measured.append((head, kind, self.optimizer_steps, products, sizes, names))

    def _total(self, matrix: torch.Tensor, sizes: np.ndarray, mean: torch.Tensor) -> None:
        """The mean over the blocks of all learners into `mean`: one sum over learners, of as many numbers as parameters."""
        weights = torch.as_tensor(sizes, dtype=torch.float32, device=self.device)
        total = torch.cat([matrix.T @ weights, weights.sum()[None]])
        self._add(total)
        torch.div(total[:-1], total[-1].clamp(min=1.0), out=mean)

    def _measure_heads(self, batch: IterationBatch, iteration: int, result: UpdateResult) -> None:
        """Noise of each head that is due, on the whole iteration batch at the parameters that sampled it.

        Blocks are sets of environments whatever the mini-batches are, so this is always rollout noise.
        """
        due = [head for head in HEADS if self._due(head, iteration)]
        everyone = batch.environments if self.shuffles_transitions else batch.environments * self.learners
        if not due or everyone < 2:
            return
        started = time.perf_counter()
        wanted = self.noise_settings.head_blocks(everyone, 1 if self.shuffles_transitions else self.learners)
        share = range(wanted * self.rank // self.learners, wanted * (self.rank + 1) // self.learners)
        edges = np.array_split(np.arange(everyone), wanted)
        start = 0 if self.shuffles_transitions else share_of_columns(self._config, self.rank, everyone).start
        positions = [batch.of_environments(edges[name] - start) for name in share]
        sizes = np.array([batch.valid_cpu[p].sum() for p in positions], dtype=np.float64)
        if self.learners == 1 and (sizes > 0).sum() < 2:
            return
        matrices = {head: self._matrix(head, len(positions)) for head in due}
        self._gradients.add(batch, [BlockPart(row, p, max(sizes[row], 1.0)) for row, p in enumerate(positions)], matrices)
        names = self._names(np.array(share), [edges[name] for name in share])
        mean = torch.empty_like(self._mean)
        for head in due:
            self._reduce(head, "rollout", matrices[head], sizes, names, mean)
        result.noise_seconds += time.perf_counter() - started
        self._matrices = {k: v for k, v in self._matrices.items() if k not in HEADS}  # rare, and large

    def _due(self, head: str, iteration: int) -> bool:
        """Whether that head is measured in this iteration."""
        period = self.noise_settings.period(head, self.update_settings.epochs)
        return period > 0 and iteration % period == 0

    def _matrix(self, head: str, rows: int) -> torch.Tensor:
        """Room for so many block gradients of a head, kept between steps."""
        width = sum(p.numel() for p in self.network.policy_head.parameters()) if head == LAST_LAYER else len(self.parameters)
        if head not in self._matrices or len(self._matrices[head]) < rows:
            self._matrices[head] = torch.empty(rows, width, device=self.device)
        return self._matrices[head][:rows]

    def _joint_matrix(self, rows: int, measured: bool) -> torch.Tensor:
        """Room for the joint loss's block gradients; a single one that nothing is measured of is the mean itself."""
        return self._mean[None] if rows == 1 and not measured else self._matrix("joint", rows)

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


def share_of_columns(config: TrainConfig, rank: int, environments: int) -> range:
    """The columns of a batch that a learner reads: its equal share, or all where transitions are shuffled."""
    if config.shuffles_transitions:
        return range(environments)
    return range(environments * rank // config.update.learners, environments * (rank + 1) // config.update.learners)


def _make_optimizer(update: Update, parameter: nn.Parameter) -> torch.optim.Optimizer:
    """The optimizer over the flat vector of parameters."""
    if update.optimizer == "rmsprop":
        return torch.optim.RMSprop([parameter], lr=update.learning_rate, alpha=0.99, eps=1e-5)
    return torch.optim.Adam([parameter], lr=update.learning_rate, eps=1e-5, fused=True)
