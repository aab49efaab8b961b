"""The optimization batch with which a run is shortest on this machine.

A small one needs the fewest observations and the most optimizer steps, a large one the reverse. Where one machine makes all
observations that is far below the critical batch size, which is what many machines can use.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace

from rlscale.agents.compute import Compute
from rlscale.agents.config import TrainConfig
from rlscale.agents.rollout import Fragment
from rlscale.envs import Task
from rlscale.sizing import LearnerTime

from ..workers.calibration import ROLLOUT, measure_learner, sample_fragments, timed_environments

__all__ = ["learning_times", "shortest", "with_steps"]


def learning_times(config: TrainConfig, task: Task, compute: Compute, critical: float) -> dict[int, float]:
    """Seconds that an observation is learned from, all epochs and the noise included, by the size of the mini-batch.

    Measured at the configured mini-batch and at four, sixteen, … times as many, or the nearest that divide one short iteration
    batch, up to that batch and to twice the critical batch size; for tiny ones the iteration batch is shorter still. Where that
    leaves the configured one alone nothing is measured, and its time is given as zero. Smaller ones are not tried:
    the task's own settings are known to work, and with several epochs a prediction of less has mostly been too small
    (docs/decisions.md).
    """
    size = task.cost.many * ROLLOUT
    usual = min(config.update.mini_batch or config.batch, size)
    sizes = [usual, *(usual * 4**k for k in range(1, 12) if usual * 4**k <= min(size, 2 * critical))]
    if len(sizes) == 1:
        return {usual: 0.0}
    fragments: dict[int, list[Fragment]] = {}
    found = {}
    for mini_batch in sizes:
        configured = replace(config, update=replace(config.update, mini_batch=mini_batch))
        environments = timed_environments(configured, task)
        if environments not in fragments:
            fragments[environments] = sample_fragments(config, task, compute, environments, 1)
        reading = measure_learner(configured, task, compute, fragments[environments], None)
        found[mini_batch] = statistics.median(reading["seconds"]) / (environments * ROLLOUT)
    return found


def shortest(critical: float, sampling: float, learning: Mapping[int, float]) -> int:
    """The mini-batch, of those measured, that reaches a goal soonest.

    At a mini-batch B a run takes 1 + B/B_crit times the fewest observations (paper, equation 2.7), each of which is sampled and
    learned from. Of two that take equally long the smaller one is returned, since a prediction of B_crit may be too large.

    Args:
        critical: B_crit, observations of an optimizer step.
        sampling: seconds that an observation is sampled.
        learning: seconds that an observation is learned from, by mini-batch.

    Raises:
        ValueError: the critical batch size is not positive, or nothing was measured.
    """
    if not critical > 0 or not learning:
        raise ValueError("critical must be positive, and learning must hold a mini-batch")
    return min(learning, key=lambda size: ((1 + size / critical) * (sampling + learning[size]), size))


def with_steps(learner: LearnerTime, learning: Mapping[int, float], steps: float) -> LearnerTime:
    """The learner of iteration batches that all are cut into so many mini-batches, which grow with the batch.

    An observation is learned from in a + b / mini-batch, as the smallest and the largest one timed say; an iteration then takes
    steps · b, and a for each observation. Where one alone was timed the learner is given back.

    Args:
        learner: timed at the smallest mini-batch.
        learning: seconds that an observation is learned from, by mini-batch.
        steps: mini-batches of one pass over an iteration batch.
    """
    least, most = min(learning), max(learning)
    if least == most:
        return learner
    step = (learning[least] - learning[most]) / (1 / least - 1 / most)
    step = min(max(step, 0.0), most * learning[most])  # two measurements scatter: neither part is negative
    observation = max(learner.observation - step / least, min(learner.observation, learning[most] - step / most))
    return replace(learner, fixed=learner.fixed + steps * step, observation=observation)
