"""Learning from examples: the paper's supervised tasks, measured by the same instrument as reinforcement learning.

What lives here: the settings of one run (`config`), small networks with the loss of every example (`networks`), and
`SupervisedLearner`, which makes optimizer steps of SGD with momentum from the gradients of blocks and takes their noise
statistics (`learner`). A block is a set of independent examples. There is one loss, so one head: `joint`.
What does not: the examples (`rlscale.envs.supervised`), and which runs a sweep makes (`rlscale.benchmarks.sweep`).

Start with `SupervisedLearner.step`.
"""

from .config import SupervisedConfig, SupervisedUpdate
from .learner import SupervisedEvaluator, SupervisedLearner, SupervisedStep
from .networks import SupervisedNetwork, make_network

__all__ = [
    "SupervisedConfig",
    "SupervisedEvaluator",
    "SupervisedLearner",
    "SupervisedNetwork",
    "SupervisedStep",
    "SupervisedUpdate",
    "make_network",
]
