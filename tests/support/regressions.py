"""A training problem whose critical batch size is known: linear regression without label noise (science of case 8).

x ~ N(0, I₅₀), y = w*·x, SGD. The noise scale is 51 at every step, so B_crit is known for every step size.
"""

import numpy as np

from rlscale.agents.learning.results import NoiseRecord
from rlscale.agents.rollout.evaluate import Evaluation
from rlscale.benchmarks.sweep.trial import Advance
from rlscale.noise import block_statistics

DIMENSIONS = 50
REPLICAS = 6  # the goal is about E|δ|², so several runs are averaged
NOISE_SCALE = DIMENSIONS + 1


class Regression:
    """SGD from θ = 0 towards a unit w*; the "return" is the number of decades by which E|θ - w*|² has fallen.

    Args:
        batch_size: B, observations per step.
        learning_rate: ε.
        seed: of the data.
        clones: every observation stands so many times in the batch; B must be a multiple.
        blocks: of the noise measurement at each step; 0 measures none.
    """

    def __init__(self, batch_size, learning_rate, seed, clones=1, blocks=0):
        self.distinct, self.clones, self.rate, self.blocks = batch_size // clones, clones, learning_rate, blocks
        self.rng = np.random.default_rng(seed)
        self.delta = np.full((REPLICAS, DIMENSIONS), 1 / np.sqrt(DIMENSIONS))
        self.steps = 0

    def advance(self):
        x = self.rng.standard_normal((REPLICAS, self.distinct, DIMENSIONS))
        gradients = x * np.einsum("rbd,rd->rb", x, self.delta)[:, :, None]
        noise = []
        if self.blocks and self.distinct >= 2 * self.blocks:
            rows = gradients[0].reshape(self.blocks, -1, DIMENSIONS).mean(axis=1)
            sizes = np.full(self.blocks, self.distinct * self.clones // self.blocks)
            statistics = block_statistics(rows, sizes)
            noise += [NoiseRecord(head, "rollout", self.steps, statistics) for head in ("policy", "joint")]
        self.delta = self.delta - self.rate * gradients.mean(axis=1)
        self.steps += 1
        return Advance(self.steps * self.distinct * self.clones, noise)

    def weights(self):
        return self.delta.copy()

    def evaluate(self, weights, optimizer_steps):
        decades = -np.log10((weights**2).sum(axis=1).mean())
        return Evaluation(np.array([decades, decades]), 0, 0, 0.0)

    def close(self, state, reason):
        pass


def planted_course(config, **settings):
    """What stands in for a course of training, given the settings of its run."""
    return _course(config, config.update.learning_rate)


def tuned_course(config, **settings):
    """The same, in which the rates 0.03/(1 + 51/B) are the best: x times them has the effect of 2/(x + 1/x) times."""
    best = 0.03 / (1 + NOISE_SCALE / config.batch)
    times = config.update.learning_rate / best
    return _course(config, best * 2 / (times + 1 / times))


def _course(config, learning_rate):
    return Regression(config.batch, learning_rate, config.seed, blocks=32 if config.noise.joint_noise_period else 0)
