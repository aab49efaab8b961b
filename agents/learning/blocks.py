"""Which observations form a block: how an iteration batch is dealt into mini-batches, and those into blocks.

The noise scale is estimated from how much the gradients of blocks differ. A block is a set of environments wherever that leaves
enough blocks, because experience of one environment is correlated in time; else it is a set of shuffled transitions.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ..config import FEWEST_BLOCKS, TrainConfig
from .batch import FragmentSlot, IterationBatch

__all__ = ["BatchBlocks", "Blocks", "equal_share", "share_of_columns", "step_kind", "what_is_followed"]

Blocks = tuple[np.ndarray, list[np.ndarray]]
"""Names of K blocks, (K,) int64, and the members of each: columns of the batch, or flat positions in it."""


def equal_share(total: int, rank: int, learners: int) -> range:
    """The part of `total` numbered things that falls to one of several learners."""
    return range(total * rank // learners, total * (rank + 1) // learners)


def share_of_columns(config: TrainConfig, rank: int, environments: int) -> range:
    """The columns of a batch that a learner reads: its equal share, or all columns where transitions are shuffled."""
    return range(environments) if config.shuffles_transitions else equal_share(environments, rank, config.update.learners)


def step_kind(config: TrainConfig) -> str:
    """What the blocks of an optimizer step are, see `NoiseRecord.kind`."""
    return "mini-batch" if config.shuffles_transitions else "rollout"


def what_is_followed(config: TrainConfig) -> tuple[object, ...]:
    """Of what, and between which blocks, the noise is that an adaptive batch and `--lr-rule noise` follow."""
    rollout, noise, u = config.rollout, config.noise, config.update
    rewards = rollout.clones, rollout.reward_noise, rollout.cut_on_life_loss
    loss = u.discount, u.gae_lambda, u.clip, u.value_coef, u.entropy_coef, u.advantage_scale, u.proximal_average
    return noise.followed_noise, step_kind(config), noise.blocks, *rewards, *loss


class BatchBlocks:
    """The blocks of one iteration batch that fall to one of the run's learners.

    Args:
        config: the run's settings.
        rank: which learner this is.
        slots: of all fragments of the batch.
        generator: shuffles the mini-batches.

    Attributes:
        environments: columns of the whole batch.
        columns: those that this learner reads.
        steps: of each column.
    """

    def __init__(self, config: TrainConfig, rank: int, slots: Sequence[FragmentSlot], generator: np.random.Generator) -> None:
        self._config, self._rank, self._generator = config, rank, generator
        self._learners = config.update.learners
        self.environments = max(slot.columns.stop for slot in slots)
        self._first_environment = slots[0].environment - slots[0].columns.start
        self.columns = share_of_columns(config, rank, self.environments)
        self.steps = config.rollout.rollout_length * (max(slot.round for slot in slots) + 1)

    def of_mini_batches(self, batch: IterationBatch) -> Iterator[Blocks]:
        """Blocks of each optimizer step of one epoch, as flat positions; every call shuffles anew.

        A mini-batch of shuffled transitions that holds nothing but resets is left out, by all learners: each knows all of it.
        """
        total = self.steps * self.environments
        mini_batch = self._config.update.mini_batch
        count = 1 if mini_batch is None else max(total // mini_batch, 1)
        if not self._config.shuffles_transitions:
            for names, blocks in self.of_environments(count):
                yield names, self.positions(batch, blocks)
            return
        for chosen in self._generator.permutation(total).reshape(count, -1):
            if not batch.valid_cpu[chosen].any():
                continue
            wanted = min(self._config.noise.blocks or FEWEST_BLOCKS, len(chosen))
            share = equal_share(wanted, self._rank, self._learners)
            yield np.array(share), np.array_split(chosen, wanted)[share.start : share.stop]

    def of_environments(self, count: int) -> list[Blocks]:
        """Blocks of environments for each of the `count` optimizer steps of one epoch, as columns.

        Environments are dealt into blocks that stay the same for the whole run, so that a name always means the same
        environments. The blocks are arranged in as many rows as a step has blocks, and each step takes one block from every
        row, in an order that is drawn anew in every epoch; so all learners have equally much to do in every step.
        """
        per_step = self._config.noise.step_blocks(
            self.steps * self.environments // count,
            self.environments // self._config.rollout.clones // count,
            equal=count > 1 or self._learners > 1,
            multiple=self._learners,
        )
        members = self._deal(per_step * count)
        order = self._generator.permuted(np.tile(np.arange(count), (per_step, 1)), axis=1)
        rows = equal_share(per_step, self._rank, self._learners)
        steps = []
        for step in range(count):
            numbers = np.array([row * count + order[row, step] for row in rows])
            blocks = [members[number] for number in numbers]
            assert all(self.columns.start <= b[0] and b[-1] < self.columns.stop for b in blocks), "blocks of another learner"
            steps.append((self._names(numbers, blocks), blocks))
        return steps

    def of_heads(self) -> Blocks:
        """Blocks of environments, as columns, for the measurement of single heads over the whole batch."""
        multiple = 1 if self._config.shuffles_transitions else self._learners
        wanted = self._config.noise.head_blocks(self.environments // self._config.rollout.clones, multiple)
        share = equal_share(wanted, self._rank, self._learners)
        blocks = self._deal(wanted)[share.start : share.stop]
        return self._names(np.array(share), blocks), blocks

    def _deal(self, parts: int) -> list[np.ndarray]:
        """All columns in so many parts; the clones of an environment, which lie side by side, stay together."""
        clones = self._config.rollout.clones
        dealt = np.array_split(np.arange(self.environments // clones), parts)
        return [(part[:, None] * clones + np.arange(clones)).reshape(-1) for part in dealt]

    def positions(self, batch: IterationBatch, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Flat positions in this learner's batch of blocks that are given as columns."""
        return [batch.of_environments(block - self.columns.start) for block in blocks]

    def _names(self, numbers: np.ndarray, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """Names that mean the same environments in every iteration of the run.

        An adaptive batch varies in size and begins at any group. Its blocks are named by their first environment in the fleet,
        so that sets that come again share a name; those of another size share it with the one that they begin like.
        """
        if not self._config.adaptive:
            return numbers
        return np.array([self._first_environment + block[0] for block in blocks]) % self._config.rollout.environments
