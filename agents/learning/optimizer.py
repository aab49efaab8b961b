"""`BlockOptimizer`: makes an optimizer step from the gradients of blocks, and takes their noise statistics on the way.

The mean gradient of each block is one row of a (K, P) matrix. One pass over that matrix gives both the batch gradient for the
step and the block statistics for `rlscale.noise`. Of several learners each holds the rows of its own blocks, and only the
weighted sum of all rows travels between them.
"""

import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import nn

from rlscale.noise import block_products, statistics_of

from ..config import TrainConfig
from ..devices import fetch, upload
from .batch import Moments, Sum
from .blocks import step_kind
from .gradients import FIGURES, LAST_LAYER
from .losses import HEADS
from .preconditioner import adam_metric
from .results import NoiseRecord, UpdateResult

__all__ = ["IN_METRIC", "POLICY_PART", "BlockOptimizer", "StepGradients", "without_compiler"]

IN_METRIC = ("policy", "value", "joint")  # losses that are also measured in Adam's metric
POLICY_PART = "joint_policy_parameters"

TorchOptimizer = TypeVar("TorchOptimizer", bound=torch.optim.Optimizer)


@dataclass
class StepGradients:
    """Block gradients at one set of parameters, of a whole batch or of what has come of it.

    Attributes:
        names: (K,) int64, see `BlockStatistics.block`.
        divisors: (K,) float64, by which the sum over each block is divided: its valid observations, as far as they are known.
        sizes: (K,) float64, valid observations of each block that are in the matrices.
        matrices: for each head the blocks' mean gradients, (K, P).
        figures: (6,) sums over the valid observations, in the order of `FIGURES`.
    """

    names: np.ndarray
    divisors: np.ndarray
    sizes: np.ndarray
    matrices: dict[str, torch.Tensor]
    figures: torch.Tensor


class _Measured(NamedTuple):
    """A noise measurement whose products are still on the device: what `NoiseRecord` and `StepGradients` say of it."""

    head: str
    kind: str
    step: int
    products: torch.Tensor
    sizes: np.ndarray
    names: np.ndarray


class BlockOptimizer:
    """Adam or RMSProp over the flat parameter vector, stepped by block gradients.

    Args:
        config: the run's settings.
        parameters: (P,), the flat vector.
        policy_columns: where in it those of the policy lie, see `rlscale.agents.networks.policy_columns`.
        last_layer_parameters: number of parameters of the policy's last layer.
        add: sums a tensor over all learners, in place; see `rlscale.agents.learning.batch.Sum`.

    Attributes:
        mean: (P,), the batch gradient of the latest step, clipped.
        steps: number of optimizer steps made so far in the run.
        noise_seconds: time spent on the measurement since `begin`; whoever prepares one adds to it.
    """

    def __init__(
        self,
        config: TrainConfig,
        parameters: nn.Parameter,
        policy_columns: Sequence[slice],
        last_layer_parameters: int,
        add: Sum,
    ) -> None:
        self._update, self._add = config.update, add
        self._kind = step_kind(config)
        self._parameters, self._last_layer_parameters = parameters, last_layer_parameters
        self._policy_columns = policy_columns
        self._torch = _make_optimizer(config, parameters)
        self._warm_up = config.update.warm_up * config.batch_divisor
        self.mean = torch.zeros_like(parameters.data)
        self.steps = 0
        self._kept: dict[str, torch.Tensor] = {}
        self._metric: torch.Tensor | None = None  # Adam's, at the present parameters, once a head has asked for it
        self.begin()

    def begin(self) -> None:
        """Start an iteration: forget what was measured in the one before."""
        self.noise_seconds = self._learning_rate = 0.0
        self._measured: list[_Measured] = []
        self._totals = torch.zeros(len(FIGURES) + 1, device=self.mean.device)
        self._steps_before = self.steps

    def make_room(self, heads: Sequence[str], blocks: int) -> dict[str, torch.Tensor]:
        """Uninitialized matrices for block gradients, in the order of `heads`; for the joint loss kept between steps."""
        matrices = {}
        for head in heads:
            width = self._last_layer_parameters if head == LAST_LAYER else len(self.mean)
            if head in HEADS:  # measured rarely, and large
                matrices[head] = torch.empty(blocks, width, device=self.mean.device)
            elif head == "joint" and blocks == 1 and LAST_LAYER not in heads:
                matrices[head] = self.mean[None]  # the gradient of a single block that is not measured is the mean itself
            else:
                if head not in self._kept or len(self._kept[head]) < blocks:
                    self._kept[head] = torch.empty(blocks, width, device=self.mean.device)
                matrices[head] = self._kept[head][:blocks]
        return matrices

    def measure(self, gradients: StepGradients, head: str, kind: str = "rollout", mean: torch.Tensor | None = None) -> None:
        """Take the noise statistics of one head; they stay on the device until `finish`.

        Those of the joint loss are also taken for the policy's parameters alone, as `joint_policy_parameters`. Learners need not
        share Adam's metric, since they all make the same steps.

        Args:
            gradients: hold a matrix of that head.
            head: see `NoiseRecord`.
            kind: see `NoiseRecord`.
            mean: (P,), receives the batch gradient.
        """
        matrix, sizes = gradients.matrices[head], gradients.sizes
        if head in IN_METRIC and self._metric is None:
            self._metric = adam_metric([self._torch], [self._parameters])
        metric = self._metric if head in IN_METRIC else None
        names, part = ((head, POLICY_PART), self._policy_columns) if head == "joint" else ((head,), ())
        if self._update.learners == 1:
            products = block_products(matrix, sizes=sizes, mean_out=mean, metric=metric, part=part)
        else:
            products = block_products(matrix, mean=self._mean_of_all(matrix, sizes, mean), metric=metric, part=part)
        for name, found in zip(names, torch.unflatten(products, 0, (len(names), -1)), strict=True):
            self._measured.append(_Measured(name, kind, self.steps, found, sizes, gradients.names))

    def step(self, gradients: StepGradients, learning_rate: float) -> None:
        """Make one optimizer step; measure the joint loss's noise where the gradients include the last layer's.

        Args:
            gradients: `joint` and perhaps `policy_last_layer`.
            learning_rate: before warm-up.
        """
        started = time.perf_counter()
        joint, sizes = gradients.matrices["joint"], gradients.sizes
        if LAST_LAYER in gradients.matrices:
            self.measure(gradients, "joint", self._kind, self.mean)
            self.measure(gradients, LAST_LAYER, self._kind)
            self.noise_seconds += time.perf_counter() - started
        elif self._update.learners > 1:
            self._mean_of_all(joint, sizes, self.mean)
        elif len(joint) > 1:
            torch.mv(joint.T, self._on_device(sizes / max(sizes.sum(), 1.0)), out=self.mean)
        count = torch.full((1,), float(sizes.sum()), device=self.mean.device)
        sums = torch.cat([gradients.figures, count])
        self._add(sums)
        norm = torch.linalg.vector_norm(self.mean)
        if self._update.max_grad_norm is not None:
            self.mean *= (self._update.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        self._learning_rate = learning_rate * min(1.0, (self.steps + 1) / self._warm_up) if self._warm_up else learning_rate
        for group in self._torch.param_groups:
            group["lr"] = self._learning_rate
        self._parameters.grad = self.mean
        self._torch.step()
        self._metric = None
        self.steps += 1
        self._totals += torch.cat([sums[:-1] / sums[-1].clamp(min=1.0), norm[None]])

    def finish(self, moments: Moments) -> UpdateResult:
        """End the iteration: fetch its figures and statistics from the device, once.

        Args:
            moments: of the whole iteration batch, of all learners.
        """
        measured = [m for m in self._measured if self._update.learners > 1 or (m.sizes > 0).sum() > 1]
        totals = self._totals / max(self.steps - self._steps_before, 1)
        means, *products = fetch([totals, *(m.products for m in measured)])
        return UpdateResult(
            figures=dict(zip((*FIGURES, "gradient_norm"), means.tolist(), strict=True)),
            noise=[
                NoiseRecord(m.head, m.kind, m.step, *(statistics_of(one, m.sizes, m.names) for one in found))
                for m, found in zip(measured, products, strict=True)
            ],
            noise_seconds=self.noise_seconds,
            observations=moments.count,
            explained_variance=moments.explained_variance,
            learning_rate=self._learning_rate,
            optimizer_steps=self.steps,
        )

    def _mean_of_all(self, matrix: torch.Tensor, sizes: np.ndarray, out: torch.Tensor | None) -> torch.Tensor:
        """The weighted mean over the blocks of all learners, (P,): one sum over learners, of as many numbers as parameters."""
        weights = self._on_device(sizes)
        total = torch.cat([matrix.T @ weights, weights.sum()[None]])
        self._add(total)
        return torch.div(total[:-1], total[-1].clamp(min=1.0), out=out)

    def _on_device(self, numbers: np.ndarray) -> torch.Tensor:
        return upload(torch.from_numpy(numbers.astype(np.float32)), self.mean.device)

    def get_state(self) -> dict[str, Any]:
        """The optimizer's state, for a checkpoint."""
        return self._torch.state_dict()

    def set_state(self, state: dict[str, Any], steps: int) -> None:
        """Continue from a state of `get_state`, after that many optimizer steps, with this run's own settings."""
        self._torch.load_state_dict({**state, "param_groups": self._torch.state_dict()["param_groups"]})
        self._metric = None
        self.steps = steps


def without_compiler(kind: type[TorchOptimizer]) -> type[TorchOptimizer]:
    """The same optimizer, whose methods do not load `torch.compile`, which is not used here.

    PyTorch wraps these methods for its compiler, and the first call of one loads it: one to two seconds of each learning process.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "state_dict", "load_state_dict")}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))  # its wrapper switches gradients off too
    return cast(type[TorchOptimizer], type(kind.__name__, (kind,), methods))


def _make_optimizer(config: TrainConfig, parameters: nn.Parameter) -> torch.optim.Optimizer:
    update = config.update
    # A c-th of the tuned batch has gradients whose scatter is √c times as large: so that ε stays as small beside it.
    epsilon = 1e-5 * math.sqrt(config.batch_divisor)
    if update.optimizer == "rmsprop":
        return without_compiler(torch.optim.RMSprop)([parameters], lr=update.learning_rate, alpha=config.kept(0.99), eps=epsilon)
    betas = config.kept(0.9), config.kept(update.beta2)
    return without_compiler(torch.optim.Adam)([parameters], lr=update.learning_rate, betas=betas, eps=epsilon, fused=True)
