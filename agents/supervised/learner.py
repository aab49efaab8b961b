"""`SupervisedLearner`: optimizer steps from batches of independent examples, with the noise statistics of their blocks.

`SupervisedEvaluator` scores frozen parameters on the held-out examples.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rlscale.envs.supervised import Examples
from rlscale.noise import BlockStatistics, NotFiniteError, block_products, statistics_of

from ..devices import fetch, upload
from ..learning.optimizer import without_compiler
from ..networks import flatten_parameters
from .config import SupervisedConfig
from .networks import SupervisedNetwork

__all__ = ["SupervisedEvaluator", "SupervisedLearner", "SupervisedStep"]

CHUNK = 1024  # most examples in the network at once, which bounds memory


@dataclass(frozen=True)
class SupervisedStep:
    """What one optimizer step gave.

    Attributes:
        observations: of the batch.
        loss: mean over the batch, before the step.
        gradient_norm: of the batch gradient.
        learning_rate: of this step.
        statistics: of its blocks; None where the noise is not measured.
        noise_seconds: spent on the measurement, the smaller passes through the network not counted.
    """

    observations: int
    loss: float
    gradient_norm: float
    learning_rate: float
    statistics: BlockStatistics | None
    noise_seconds: float


class SupervisedLearner:
    """A network, its examples and SGD with momentum.

    Every batch is drawn with replacement, so its examples are independent, as the theory wants them, also where a batch is larger
    than the data. Blocks are equal parts of the batch, each with a pass of its own through the network, so any network will do.

    Args:
        config: of the run.
        network: changed in place.
        examples: to learn from.
        length: observations of one example.
        device: where to learn; the examples are moved there at once.

    Attributes:
        optimizer_steps: made so far.
    """

    def __init__(
        self, config: SupervisedConfig, network: SupervisedNetwork, examples: Examples, length: int, device: torch.device
    ) -> None:
        self._config, self._device, self._length = config, device, length
        self._network = network.to(device)
        self._flat = nn.Parameter(flatten_parameters(self._network))
        update = config.update
        self._optimizer = without_compiler(torch.optim.SGD)([self._flat], lr=update.learning_rate, momentum=update.momentum)
        self._inputs = torch.from_numpy(examples.inputs).to(device)
        self._targets = torch.from_numpy(examples.targets).to(device)
        self._rng = np.random.default_rng(np.random.SeedSequence([config.seed, 0xBA7C4]))
        self._generator = torch.Generator().manual_seed(config.seed)  # of what a loss draws
        batch = config.batch_size // length
        self._blocks = min(config.blocks, batch) if batch > 1 else 0
        self._rows = torch.empty(max(self._blocks, 1), len(self._flat), device=device)
        self.optimizer_steps = 0

    def weights(self) -> np.ndarray:
        """A copy of all parameters, (P,) float32."""
        return self._flat.detach().cpu().numpy().copy()

    def step(self) -> SupervisedStep:
        """Draw a batch and make one optimizer step. The host waits for an accelerator once.

        Raises:
            NotFiniteError: a gradient is not finite.
        """
        count = self._config.batch_size // self._length
        drawn = upload(torch.from_numpy(self._rng.integers(0, len(self._inputs), count)), self._device)
        parts = torch.tensor_split(drawn, len(self._rows))
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for row, part in zip(self._rows, parts, strict=True):
            total += self._differentiate(row, part)
        started = time.perf_counter()
        sizes = np.array([len(part) * self._length for part in parts], dtype=np.float64)
        products, mean = [], self._rows[0]
        if self._blocks:
            mean = torch.empty_like(mean)
            products = [block_products(self._rows, sizes=sizes, mean_out=mean)[0]]
        noise_seconds = time.perf_counter() - started
        loss, norm, *products = fetch([total / count, torch.linalg.vector_norm(mean), *products])
        statistics = statistics_of(products[0], sizes) if products else None
        if not norm.isfinite():
            raise NotFiniteError("gradient: not finite")
        update = self._config.update
        rate = update.learning_rate * min(1.0, (self.optimizer_steps + 1) / max(update.warm_up, 1))
        self._optimizer.param_groups[0]["lr"] = rate
        self._flat.grad = mean
        self._optimizer.step()
        self.optimizer_steps += 1
        return SupervisedStep(count * self._length, float(loss), float(norm), rate, statistics, noise_seconds)

    def _differentiate(self, row: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Write the mean gradient over some examples into a row; the sum of their losses, () float64.

        Args:
            row: (P,).
            part: (n,) int64, the examples' numbers, on the device.
        """
        row.zero_()
        parameters, total = list(self._network.parameters()), torch.zeros((), dtype=torch.float64, device=self._device)
        for index in torch.tensor_split(part, -(-len(part) // CHUNK)):
            losses = self._network.losses(self._inputs[index], self._targets[index], self._generator)
            gradients = torch.autograd.grad(losses.sum() / len(part), parameters)
            row += torch.cat([gradient.reshape(-1) for gradient in gradients])
            total += losses.detach().sum()
        return total


class SupervisedEvaluator:
    """A network kept for scoring many parameters of one run on the held-out examples.

    Args:
        network: of the same architecture as the learner's; changed in place.
        examples: held out.
        length: observations of one example.
        device: where to score.

    Attributes:
        observations: of one evaluation.
    """

    def __init__(self, network: SupervisedNetwork, examples: Examples, length: int, device: torch.device) -> None:
        self._network, self._device = network.to(device), device
        self._flat = flatten_parameters(self._network)
        self._inputs = torch.from_numpy(examples.inputs).to(device)
        self._targets = torch.from_numpy(examples.targets).to(device)
        self.observations = len(examples) * length

    @torch.no_grad()
    def evaluate(self, weights: np.ndarray) -> np.ndarray:
        """(n,) float64: the score of each held-out example by these parameters, (P,) float32.

        What the loss draws is the same at every call, so that parameters are compared on the same draws.
        """
        self._flat.copy_(upload(torch.from_numpy(weights), self._device))
        generator = torch.Generator().manual_seed(0)
        parts = zip(torch.split(self._inputs, CHUNK), torch.split(self._targets, CHUNK), strict=True)
        scores = [self._network.scores(inputs, targets, generator) for inputs, targets in parts]
        return torch.cat(scores).cpu().double().numpy()
