"""A training problem whose critical batch size is known: linear regression without label noise (science of case 8).

x ~ N(0, I₅₀), y = w*·x, SGD. The noise scale is 51 at every step, so B_crit is known for every step size.
"""

import math

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
        measures = self.blocks and self.distinct >= 2 * self.blocks
        gradients = mean_gradients(self.rng, self.delta, self.distinct, self.blocks if measures else 1)
        noise = []
        if measures:
            sizes = np.full(self.blocks, self.distinct * self.clones // self.blocks)
            statistics = block_statistics(gradients[0], sizes)
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


def mean_gradients(rng, delta, observations, blocks):
    """Mean gradients x (x·δ) of equal blocks of a batch, drawn by their law, which takes the same time for every batch size.

    With z = x·δ/|δ|, what x has along δ, they are |δ|/b (Σz² along δ + Σzx⊥ across it) for b observations. Σz² is χ² with b
    degrees of freedom, and given the z, Σzx⊥ is normal with variance Σz² in every direction across δ.

    Args:
        rng: what draws.
        delta: θ - w* of every replica, (replicas, dimensions).
        observations: of the batch, a multiple of `blocks`.
        blocks: how many.

    Returns:
        (replicas, blocks, dimensions)
    """
    each = observations // blocks
    length = np.linalg.norm(delta, axis=1)[:, None, None]
    along = delta[:, None, :] / length
    across = rng.standard_normal((len(delta), blocks, delta.shape[1]))
    across -= (across * along).sum(axis=2, keepdims=True) * along
    squares = rng.chisquare(each, (len(delta), blocks, 1))
    return length / each * (squares * along + np.sqrt(squares) * across)


def planted_course(config, **settings):
    """What stands in for a course of training, given the settings of its run."""
    return _course(config, config.update.learning_rate)


def tuned_course(config, **settings):
    """The same, in which the rates 0.015 √(B/51) are the best: e^u times them takes e^(0.4 u²) times as many steps."""
    u = math.log(config.update.learning_rate / 0.015) - 0.5 * math.log(config.batch / NOISE_SCALE)
    return _course(config, 0.03 / (1 + NOISE_SCALE / config.batch) * math.exp(-0.4 * u * u))


def _course(config, learning_rate):
    return Regression(config.batch, learning_rate, config.seed, blocks=32 if config.noise.joint_noise_period else 0)
