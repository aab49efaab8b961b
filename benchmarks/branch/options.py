"""The options of `rlscale branch`, and the plan of branches that follows from them and from the run."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from rlscale.agents.checks import require_not_negative, require_positive
from rlscale.agents.config import TrainConfig
from rlscale.agents.learning import scaled_rate
from rlscale.errors import UsageError
from rlscale.records import RunRecord

from ..options import MOST_RATES, check_counts, check_rate_exponent, parse_sizes

__all__ = ["BranchOptions", "BranchPlan", "make_plan"]

LEAST_STEPS = 8  # optimizer steps of a branch at the largest batch size that is chosen here
LEAST_ENVIRONMENTS = 4
SIZES, FACTOR = 6, 4
LEAST_SIZES, LEAST_BRANCHES = 3, 10  # that `rlscale.frontier.fit_branches` fits a curve to
MOST_UNEVEN = 0.25  # of the observations, that whole batches may add to a branch or take from it


@dataclass(frozen=True)
class BranchOptions:
    """From a run's checkpoint, train short branches at several batch sizes: the critical batch size there and then."""

    run: Annotated[str, tyro.conf.Positional]
    """Folder of the run whose last checkpoint the branches start from; stop it where you want to ask, with --goal or Ctrl-C."""
    observations: int | None = None
    """Observations that each branch learns from; None: a fifth of what the run has learned from."""
    batch_sizes: str | None = None
    """Batch sizes, multiples of the run's rollout length, as 80,320,1280; None: up to six, a factor of 4 apart, up to 8 steps."""
    rates: int = 3
    """Learning rates at every batch size, a factor of two apart about the run's own, which is scaled by --rate-exponent."""
    rate_exponent: float = 0.5
    """The rate's rule: the run's rate x (B / the run's B) to this power; 0.5 is the square root, 1 linear."""
    seeds: int = 6
    """Branches at every batch size and learning rate."""
    evaluation_episodes: int = 256
    """Episodes in which the return is measured at the end of a branch, and eight times as many at the checkpoint."""
    noise_batches: int = 16
    """Batches on which the noise scale is measured at the checkpoint; 0 measures none."""
    jobs: int = 0
    """Branches side by side; 0: one on every core."""
    out: str | None = None
    """Folder of the record; None: <RUN>/branches."""


@dataclass(frozen=True)
class BranchPlan:
    """The branches of one checkpoint.

    Attributes:
        sizes: batch sizes, ascending, in observations of one iteration.
        rates: (sizes) the learning rates at each.
        seeds: branches at each size and rate.
        observations: of each branch.
        burn_in: steps that every environment plays by the checkpoint's policy before a branch begins.
        episodes: of an evaluation.
        noise_batches: at the checkpoint.
    """

    sizes: tuple[int, ...]
    rates: tuple[tuple[float, ...], ...]
    seeds: int
    observations: int
    burn_in: int
    episodes: int
    noise_batches: int

    def steps(self, size: int) -> int:
        """Iterations of a branch at that batch size."""
        return _steps(self.observations, size)


def make_plan(options: BranchOptions, config: TrainConfig, record: RunRecord) -> BranchPlan:
    """The plan that the options ask for.

    Args:
        options: as typed.
        config: of the run.
        record: of the run.

    Raises:
        UsageError: names the option or the setting of the run that does not fit.
    """
    require_positive({"observations": options.observations, "rates": options.rates, "seeds": options.seeds})
    require_positive({"evaluation-episodes": options.evaluation_episodes})
    require_not_negative({"noise-batches": options.noise_batches, "jobs": options.jobs})
    check_rate_exponent(options.rate_exponent)
    if options.rates > MOST_RATES:
        problem = (
            f"{options.rates:,} rates a factor of two apart are more than {MOST_RATES}, from 1/128 to 128 times the run's own"
        )
        raise UsageError("--rates", problem, f"Use {MOST_RATES} or fewer")
    check_counts(options)
    if options.evaluation_episodes < 2:
        raise UsageError("--evaluation-episodes", "a standard error needs at least two", "Use 256")
    if not record.rows:
        raise UsageError("RUN", f"{record.folder} has no finished iteration", "Let it run longer")
    _check_run(config)
    length, last = config.rollout.rollout_length, record.rows[-1]
    observations = options.observations or max(last["observations"] // 5, 1)
    count = 1 if config.update.mini_batch is None else config.batch // config.update.mini_batch
    each = length * config.rollout.clones
    unit = math.lcm(each, count) if config.shuffles_transitions else each * count
    sizes = _sizes(observations, each, unit) if options.batch_sizes is None else parse_sizes(options.batch_sizes)
    for size in sizes:
        if size % unit or size < 2 * each:
            kept = [f"{count} mini-batches"] * (count > 1) + [f"{config.rollout.clones} clones"] * (config.rollout.clones > 1)
            of = f"{unit}, for {' and '.join(kept)} as in the run" if kept else f"the run's rollout length of {length}"
            raise UsageError("--batch-sizes", f"{size:,} is no multiple of {of}, or not of two environments", "Round it")
        learned = size * _steps(observations, size)
        if size > observations or abs(learned / observations - 1) > MOST_UNEVEN:
            problem = f"a branch of {size:,} would learn from {learned:,} observations instead of {observations:,}"
            raise UsageError("--batch-sizes", problem, "Give more --observations, or smaller sizes")
    if len(sizes) < LEAST_SIZES and options.batch_sizes is not None:
        raise UsageError("--batch-sizes", f"{len(sizes)} are too few to tell where the gain falls to half", "Give at least three")
    if len(sizes) < LEAST_SIZES and options.observations is None:
        problem = f"a fifth of its observations, {observations:,}, leaves room for {len(sizes)} batch sizes, not three"
        raise UsageError("RUN", problem, "Let it run longer, or give --observations")
    if len(sizes) < LEAST_SIZES:
        raise UsageError("--observations", f"{observations:,} leave room for {len(sizes)} batch sizes, not three", "Use more")
    if len(sizes) * options.rates * options.seeds < LEAST_BRANCHES:
        raise UsageError("--seeds", "a local frontier needs at least ten branches", "Use more seeds or rates")
    # A rate that falls to zero is followed down to a quarter: with none left, branches of no size would learn.
    # It falls from the rate that a rule may have made, which a noise rule's is known of by its iterations alone.
    by_rule = scaled_rate(config.update, config.mini_batch, None)
    highest = min(by_rule, max(row["learning_rate"] for row in record.rows))
    base, before = max(last["learning_rate"], highest / 4 * config.update.anneal), config.batch
    steps = np.arange(options.rates) - (options.rates - 1) / 2
    lengths = [row["episode_length_mean"] for row in record.rows if row["episode_length_mean"]]
    return BranchPlan(
        sizes=sizes,
        rates=tuple(
            tuple(float(f"{base * (size / before) ** options.rate_exponent * 2.0**step:.4g}") for step in steps) for size in sizes
        ),
        seeds=options.seeds,
        observations=observations,
        burn_in=max(int(2 * np.mean(lengths[-20:])) if lengths else 0, length),
        episodes=options.evaluation_episodes,
        noise_batches=options.noise_batches,
    )


def _steps(observations: int, size: int) -> int:
    """Iterations of that batch size which come nearest to the observations."""
    return max(round(observations / size), 1)


def _sizes(observations: int, each: int, unit: int) -> tuple[int, ...]:
    """From the batch that makes `LEAST_STEPS` steps downwards, a factor of four apart, rounded down to multiples of `unit`."""
    largest = observations // LEAST_STEPS // unit
    sizes = [unit * (largest // FACTOR**j) for j in range(SIZES)]
    return tuple(size for size in reversed(sizes) if size >= LEAST_ENVIRONMENTS * each)


def _check_run(config: TrainConfig) -> None:
    """Refuse what a branch cannot go on from."""
    if config.update.learners > 1 or config.adaptive or config.rollout.lag or config.update.stream:
        raise UsageError(
            "RUN",
            "branches need a run of one learner that holds its batch, without lag and of one batch size",
            "Train without --learners, --lag, --stream and --batch-size adaptive",
        )
    if config.update.proximal_average is not None or config.update.tuned_batch is not None:
        raise UsageError(
            "RUN",
            "branches take other batch sizes, at which --proximal-average and --tuned-batch would mean other settings",
            "Train without them",
        )
    if config.rounds > 1:
        raise UsageError("RUN", "its batch is filled in rounds", "Train it with more environments instead of --batch-size")
    if config.update.mini_batch is not None and config.batch % config.update.mini_batch:
        raise UsageError("RUN", "its mini-batches do not divide its batch", "Train it with another --mini-batch")
