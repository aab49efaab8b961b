"""What the paper found, task by task (arXiv:1812.06162, its Table 1), to stand beside one's own figures.

Its noise scale is the simple one (tr Σ / |G|², the plain metric), averaged over full-batch steps; for its reinforcement-learning
tasks it does not say of which loss. Every size is in what the task's batches are made of: images, tokens or observations. How
well a predictor does on one's own tasks is in `rlscale.analysis.verdict`, whose rule `score_paper` applies to these.
"""

import math
from dataclasses import dataclass

from .verdict import PredictorScore, score_pairs

__all__ = ["PAPER", "PaperTask", "score_paper"]

Range = tuple[float, float]  # lowest and highest; twice the same where the paper gives one number


@dataclass(frozen=True)
class PaperTask:
    """A row of the paper's table.

    Attributes:
        name: of the task, with the unit of its batches where that is not the observation or the image.
        noise: simple noise scale, averaged over training.
        b_crit_start, b_crit_end: critical batch size at the start and at the end of training; start None: not measured.
        measured: whether b_crit_end is; if not, it is the paper's estimate of a lower limit.
        autoencoder: an image model whose noise scale the paper finds to be an exception.
    """

    name: str
    noise: Range
    b_crit_start: Range | None
    b_crit_end: Range
    measured: bool = True
    autoencoder: bool = False


PAPER = (
    PaperTask("MNIST", (900, 900), (20, 20), (200, 200)),
    PaperTask("SVHN", (4_000, 4_000), (50, 50), (500, 500)),
    PaperTask("CIFAR-10", (2_000, 2_000), (300, 300), (900, 900)),
    PaperTask("ImageNet", (30_000, 30_000), (1_000, 1_000), (15_000, 15_000)),
    PaperTask("SVHN autoencoder", (2, 2), (10, 10), (40, 40), autoencoder=True),
    PaperTask("SVHN variational autoencoder", (10, 10), (10, 10), (200, 200), autoencoder=True),
    PaperTask("Billion Word (tokens)", (150_000, 150_000), (700, 700), (100_000, 100_000)),
    PaperTask("Atari, 7 games", (1_000, 20_000), (100, 1_000), (400, 8_000)),
    PaperTask("Dota 1v1", (300_000, 300_000), (50_000, 50_000), (3_000_000, 3_000_000)),
    PaperTask("Dota 5v5", (24_000_000, 24_000_000), None, (8_000_000, 8_000_000), measured=False),
)


def score_paper(*, autoencoders: bool = True) -> PredictorScore:
    """How well the paper's noise scale predicts its measured critical batch sizes, by the rule of the ladder.

    A range counts as its geometric mean, so the seven Atari games are one task.
    """
    tasks = [task for task in PAPER if task.measured and (autoencoders or not task.autoencoder)]
    return score_pairs(
        [math.sqrt(math.prod(task.b_crit_end)) for task in tasks], [math.sqrt(math.prod(task.noise)) for task in tasks]
    )
