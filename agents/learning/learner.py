"""`Learner`: learns from the fragments of one iteration after another, and reports the noise of every update.

`begin` announces the fragments of an iteration batch, `accept` takes one of them, `finish` ends the iteration. A batch that is
held is collected in `accept` and learned from, for all epochs, in `finish`; a batch that is streamed is learned from in `accept`,
fragment by fragment, and `finish` makes its only optimizer step.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rlscale.envs import Task

from ..config import TrainConfig
from ..devices import on_cpu, upload
from ..networks import flatten_parameters, make_network, policy_columns
from ..rollout import Fragment
from .batch import ADVANTAGE_DECAY, FragmentSlot, IterationBatch, Moments, Sum
from .blocks import BatchBlocks
from .gradients import FIGURES, LAST_LAYER, BlockGradients, BlockPart
from .losses import HEADS
from .optimizer import BlockOptimizer, StepGradients
from .proximal import AveragedPolicy
from .results import UpdateResult

__all__ = ["Learner"]


@dataclass
class _Stream:
    """What a streamed batch has taught so far.

    Attributes:
        blocks: the environments of each block, as columns.
        nominal: (K,) steps of each block in the whole batch, masked ones included.
        gradients: the sums so far.
        started: (K,) bool, whether a block's rows hold anything yet.
        moments: of the observations so far.
    """

    blocks: list[np.ndarray]
    nominal: np.ndarray
    gradients: StepGradients
    started: np.ndarray
    moments: Moments


class Learner:
    """Network, optimizer and the update of one learner process.

    Args:
        config: the run's settings.
        task: the task that the network is made for.
        device: where the learner works.
        bfloat16: autocast the network to bfloat16; parameters, gradients and statistics stay float32 and float64.
        rank: which of the run's learners this is.
        add: sums a tensor over all learners, in place; see `rlscale.agents.learning.batch.Sum`.

    Attributes:
        network: the policy and value network.
        parameters: (P,), all its parameters as one flat vector, which they share.
        scale_square: running mean square of the advantages, None before the first batch.
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
        self._config, self._task, self._device, self._rank, self._add = config, task, device, rank, add
        self.network = make_network(task, config.update.network, config.seed, config.update.width).to(device)
        self.parameters = nn.Parameter(flatten_parameters(self.network))
        self.scale_square: float | None = None
        age = config.update.proximal_average
        self._average = None if age is None else AveragedPolicy(self.network, age * config.batch_divisor)
        self._gradients = BlockGradients(self.network, config, task, device, bfloat16, self._average)
        last_layer_parameters = sum(p.numel() for p in self.network.policy_head.parameters())
        self._optimizer = BlockOptimizer(config, self.parameters, policy_columns(self.network), last_layer_parameters, add)
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([config.seed, 0x1EA2])))
        # Of the batch that was begun:
        self._iteration = 0
        self._blocks: BatchBlocks
        self._held: list[tuple[FragmentSlot, Fragment]] = []
        self._stream: _Stream | None = None

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer steps made so far in the run."""
        return self._optimizer.steps

    def weights(self) -> np.ndarray:
        """A copy of all parameters, (P,) float32, in the order of `flatten_parameters`."""
        return self.parameters.detach().cpu().numpy().copy()

    def begin(self, slots: Sequence[FragmentSlot], iteration: int) -> None:
        """Start an iteration batch; one that was begun and not finished is dropped.

        Args:
            slots: of all fragments of the batch, those included that only other learners read.
            iteration: its number, which decides what is measured.
        """
        self._iteration = iteration
        self._blocks = BatchBlocks(self._config, self._rank, slots, self._generator)
        self._optimizer.begin()
        self._held = []
        self._stream = self._begin_stream(self._blocks) if self._config.update.stream else None

    def accept(self, fragment: Fragment, slot: FragmentSlot) -> None:
        """Take a fragment of the batch; when streaming, learn from it, and it can be freed afterwards."""
        if self._stream is None:
            self._held.append((slot, fragment))
        else:
            self._learn_part(fragment, slot, self._stream)

    def finish(self, learning_rate: float) -> UpdateResult:
        """Learn what the batch has to teach, now that all its fragments were accepted.

        Args:
            learning_rate: before warm-up.
        """
        if self._stream is None:
            placed, self._held = self._held, []
            return self._learn_held(self._read(placed), learning_rate)
        stream, self._stream = self._stream, None
        return self._finish_stream(stream, learning_rate)

    # --- a batch that is held ----------------------------------------------------------------------------------------------

    def _read(self, placed: Sequence[tuple[FragmentSlot, Fragment]]) -> IterationBatch:
        """Advantages, targets and masks of this learner's columns, on its device."""
        # Where transitions are shuffled every learner reads all columns: there is nothing to add.
        add: Sum = (lambda total: None) if self._config.shuffles_transitions else self._add
        batch = IterationBatch(placed, self._blocks.columns, self._task, self._config, self.scale_square, self._device, add)
        self.scale_square = batch.scale_square
        return batch

    def _learn_held(self, batch: IterationBatch, learning_rate: float) -> UpdateResult:
        """All epochs and mini-batches of one iteration."""
        update = self._config.update
        if self._gradients.lagged and (update.epochs > 1 or update.mini_batch is not None):
            self._gradients.look_ahead(batch)
        self._measure_heads(batch, self._blocks)
        for epoch in range(update.epochs):
            measured = epoch == 0 and self._due("joint")
            for names, blocks in self._blocks.of_mini_batches(batch):
                members = blocks if measured else [np.concatenate(blocks)]
                sizes = batch.count_valid(members)
                if update.learners == 1 and not sizes.any():
                    continue  # nothing but resets
                noise = measured and (len(members) > 1 or update.learners > 1)
                heads = [LAST_LAYER, "joint"] if noise else ["joint"]
                self._step(self._compute(batch, names, members, sizes, heads), learning_rate)
        return self._optimizer.finish(batch.moments)

    def _measure_heads(self, batch: IterationBatch, blocks: BatchBlocks) -> None:
        """Measure the noise of each head that is due, on the whole iteration batch at the parameters that sampled it.

        Blocks are sets of environments whatever the mini-batches are made of, so this is always rollout noise.
        """
        due = [head for head in HEADS if self._due(head)]
        due += ["joint"] * (self._config.shuffles_transitions and self._due("iteration"))
        if not due or blocks.environments < 2:
            return
        started = time.perf_counter()
        names, columns = blocks.of_heads()
        members = blocks.positions(batch, columns)
        sizes = batch.count_valid(members)
        if self._config.update.learners == 1 and (sizes > 0).sum() < 2:
            return
        gradients = self._compute(batch, names, members, sizes, due)
        for head in due:
            self._optimizer.measure(gradients, head)
        self._optimizer.noise_seconds += time.perf_counter() - started

    def _compute(
        self, batch: IterationBatch, names: np.ndarray, members: Sequence[np.ndarray], sizes: np.ndarray, heads: Sequence[str]
    ) -> StepGradients:
        """Block gradients of those heads at the present parameters; members are flat positions."""
        matrices = self._optimizer.make_room(heads, len(members))
        parts = [BlockPart(row, block, max(sizes[row], 1.0)) for row, block in enumerate(members)]
        return StepGradients(names, sizes, matrices, self._gradients.add(batch, parts, matrices))

    def _step(self, gradients: StepGradients, learning_rate: float) -> None:
        """One optimizer step. Learners need not share the average: they all make the same steps."""
        self._optimizer.step(gradients, learning_rate)
        if self._average is not None:
            self._average.add(self.parameters)

    def _due(self, head: str) -> bool:
        """Whether that head is measured in this iteration."""
        return self._config.noise.due(head, self._iteration, self._config.update.epochs)

    # --- a batch that is streamed ------------------------------------------------------------------------------------------

    def _begin_stream(self, blocks: BatchBlocks) -> _Stream:
        ((names, columns),) = blocks.of_environments(1)
        heads = [head for head in HEADS if self._due(head)]
        heads += [LAST_LAYER, "joint"] if self._due("joint") else ["joint"]
        matrices = self._optimizer.make_room(heads, len(columns))
        figures, nothing = torch.zeros(len(FIGURES), device=self._device), np.zeros(0, dtype=np.float32)
        return _Stream(
            blocks=columns,
            nominal=np.array([len(block) * blocks.steps for block in columns], dtype=np.float64),
            gradients=StepGradients(names, np.zeros(len(columns)), matrices, figures),
            started=np.zeros(len(columns), dtype=bool),
            moments=Moments(nothing, nothing, nothing),
        )

    def _learn_part(self, fragment: Fragment, slot: FragmentSlot, stream: _Stream) -> None:
        """Add the gradients of a fragment's observations to those of the blocks that they belong to."""
        update, mine = self._config.update, self._blocks.columns
        if update.advantage_scale == "running" and self.scale_square is None:
            # For want of anything earlier the run's first fragment sets the scale, in every learner, whoever reads it.
            whole = FragmentSlot(0, range(fragment.environments), 0)
            first = IterationBatch([(whole, fragment)], whole.columns, self._task, self._config, None, torch.device("cpu"))
            self.scale_square = first.scale_square  # an accelerator never sees this batch: its frames would cross twice
        columns = range(max(slot.columns.start, mine.start), min(slot.columns.stop, mine.stop))
        if not columns:
            return
        batch = IterationBatch([(slot, fragment)], columns, self._task, self._config, self.scale_square, self._device, early=True)
        stream.moments.sums += batch.moments.sums
        parts = []
        for row, block in enumerate(stream.blocks):
            here = block[(block >= columns.start) & (block < columns.stop)]
            if not len(here):
                continue
            positions = batch.of_environments(here - columns.start)
            # How many observations of the block are valid is only known at the end: `_finish_stream` corrects the divisor.
            parts.append(BlockPart(row, positions, stream.nominal[row], first=not stream.started[row]))
            stream.started[row] = True
            stream.gradients.sizes[row] += batch.valid_cpu[positions].sum()
        stream.gradients.figures += self._gradients.add(batch, parts, stream.gradients.matrices)

    def _finish_stream(self, stream: _Stream, learning_rate: float) -> UpdateResult:
        """The only optimizer step of a streamed batch."""
        gradients, moments = stream.gradients, stream.moments
        for row in np.flatnonzero((gradients.sizes != stream.nominal) & (gradients.sizes > 0)):
            for matrix in gradients.matrices.values():
                matrix[row] *= stream.nominal[row] / gradients.sizes[row]
        self._add(moments.sums)
        if self._config.update.advantage_scale == "running":
            self.scale_square = moments.running_square(self.scale_square, self._config.kept(ADVANTAGE_DECAY))
        for head in HEADS:
            if head in gradients.matrices:
                self._optimizer.measure(gradients, head)
        self._step(gradients, learning_rate)
        return self._optimizer.finish(moments)

    # --- checkpoints -------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything but the settings, for a checkpoint: on the CPU, wherever the learner works."""
        return on_cpu(self._copy_state())

    def _copy_state(self) -> dict[str, Any]:
        """The same, where the learner works; a copy, which later steps do not change."""
        return {
            "parameters": self.parameters.detach().clone(),
            "optimizer": copy.deepcopy(self._optimizer.get_state()),
            "optimizer_steps": self._optimizer.steps,
            "scale_square": self.scale_square,
            "average": None if self._average is None else self._average.get_state(),
            "generator": self._generator.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from where `get_state` was called."""
        self.parameters.detach().copy_(upload(state["parameters"], self._device))
        self._optimizer.set_state(state["optimizer"], state["optimizer_steps"])
        self.scale_square = state["scale_square"]
        if self._average is not None:
            self._average.set_state(state.get("average"), self.parameters)
        self._generator.bit_generator.state = state["generator"]
