"""`Learner`: learns from the fragments of one iteration after another, and reports the noise of every update.

`begin` announces the fragments of an iteration batch, `accept` takes one of them, `finish` ends the iteration. A batch that is
held is collected in `accept` and learned from, for all epochs, in `finish`; a batch that is streamed is learned from in `accept`,
fragment by fragment, and `finish` makes its only optimizer step.
"""

import copy
import time
from collections.abc import Sequence
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
        self._held: list[tuple[FragmentSlot, Fragment]] = []
        # And where it is streamed:
        self._stream: StepGradients | None = None  # of the observations so far

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
        self._stream = self._begin_stream() if self._config.update.stream else None

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
        due = [head for head in HEADS if self._due(head)]
        due += ["joint"] * (self._config.shuffles_transitions and self._due("iteration"))
        if due and self._blocks.environments > 1:
            self._measure(batch, due)
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

    def _measure(self, batch: IterationBatch, heads: Sequence[str]) -> StepGradients | None:
        """Measure the noise of those heads on the whole iteration batch at the parameters that sampled it.

        Blocks are sets of environments whatever the mini-batches are made of, so this is always rollout noise.

        Returns:
            What was measured; None where fewer than two blocks hold an observation.
        """
        started = time.perf_counter()
        names, columns = self._blocks.of_heads()
        members = self._blocks.positions(batch, columns)
        sizes = batch.count_valid(members)
        if self._config.update.learners == 1 and (sizes > 0).sum() < 2:
            return None
        gradients = self._compute(batch, names, members, sizes, heads)
        for head in heads:
            self._optimizer.measure(gradients, head)
        self._optimizer.noise_seconds += time.perf_counter() - started
        return gradients

    def _compute(
        self, batch: IterationBatch, names: np.ndarray, members: Sequence[np.ndarray], sizes: np.ndarray, heads: Sequence[str]
    ) -> StepGradients:
        """Block gradients of those heads at the present parameters; members are flat positions."""
        gradients = self._begin_step(names, np.maximum(sizes, 1.0), heads)
        self._add_part(gradients, batch, members)
        return gradients

    # --- one optimizer step ------------------------------------------------------------------------------------------------

    def _begin_step(self, names: np.ndarray, divisors: np.ndarray, heads: Sequence[str]) -> StepGradients:
        """Gradients of those heads, without any observation yet."""
        matrices = self._optimizer.make_room(heads, len(divisors))
        figures = torch.zeros(len(FIGURES), device=self._device)
        return StepGradients(names, divisors, np.zeros(len(divisors)), matrices, figures)

    def _add_part(self, gradients: StepGradients, batch: IterationBatch, members: Sequence[np.ndarray]) -> None:
        """Add the observations of a batch, or of a part of one, to the blocks that they belong to.

        Args:
            gradients: added to, in place.
            batch: holds the observations.
            members: flat positions of each block, some of which may have none here.
        """
        parts = [
            BlockPart(row, positions, gradients.divisors[row], first=not gradients.sizes[row])
            for row, positions in enumerate(members)
            if len(positions)
        ]
        gradients.figures += self._gradients.add(batch, parts, gradients.matrices)
        gradients.sizes += batch.count_valid(members)

    def _step(self, gradients: StepGradients, learning_rate: float) -> None:
        """One optimizer step. Learners need not share the average: they all make the same steps."""
        self._optimizer.step(gradients, learning_rate)
        if self._average is not None:
            self._average.add(self.parameters)

    def _due(self, head: str) -> bool:
        """Whether that head is measured in this iteration."""
        return self._config.noise.due(head, self._iteration, self._config.update.epochs)

    # --- a batch that is streamed ------------------------------------------------------------------------------------------

    def _begin_stream(self) -> StepGradients:
        ((names, self._members),) = self._blocks.of_environments(1)  # the environments of each block, as columns
        heads = [head for head in HEADS if self._due(head)]
        heads += [LAST_LAYER, "joint"] if self._due("joint") else ["joint"]
        nothing = np.zeros(0, dtype=np.float32)
        self._moments = Moments(nothing, nothing, nothing)  # of the observations so far
        # How many observations of a block are valid is only known at the end: `_finish_stream` corrects the divisor.
        nominal = np.array([len(block) * self._blocks.steps for block in self._members], dtype=np.float64)
        return self._begin_step(names, nominal, heads)

    def _learn_part(self, fragment: Fragment, slot: FragmentSlot, stream: StepGradients) -> None:
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
        self._moments.sums += batch.moments.sums
        here = [block[(block >= columns.start) & (block < columns.stop)] - columns.start for block in self._members]
        self._add_part(stream, batch, [batch.of_environments(block) for block in here])

    def _finish_stream(self, gradients: StepGradients, learning_rate: float) -> UpdateResult:
        """The only optimizer step of a streamed batch."""
        for row in np.flatnonzero((gradients.sizes != gradients.divisors) & (gradients.sizes > 0)):
            for matrix in gradients.matrices.values():
                matrix[row] *= gradients.divisors[row] / gradients.sizes[row]
        self._add(self._moments.sums)
        if self._config.update.advantage_scale == "running":
            self.scale_square = self._moments.running_square(self.scale_square, self._config.kept(ADVANTAGE_DECAY))
        for head in HEADS:
            if head in gradients.matrices:
                self._optimizer.measure(gradients, head)
        self._step(gradients, learning_rate)
        return self._optimizer.finish(self._moments)

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
