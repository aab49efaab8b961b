"""The policy's distribution over actions: `Categorical` for discrete ones, `DiagonalGaussian` for continuous ones.

The policy head gives the parameters of the distribution, one row for each observation. The losses need the log-probability and
the entropy as tensors with gradients; acting needs actions that are drawn on the host from a NumPy generator, so that a run is
decided by its seed wherever the network works. Both have the same methods; `distribution_of` chooses.
"""

import math

import numpy as np
import torch

from rlscale.envs import Actions

__all__ = ["Categorical", "DiagonalGaussian", "Distribution", "distribution_of"]

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Categorical:
    """One of a number of discrete actions.

    Args:
        logits: (n, actions) float32.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits
        self._log_probs = torch.log_softmax(logits, dim=-1)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """(n,) of the actions (n,) int64."""
        return self._log_probs.gather(1, action[:, None]).squeeze(1)

    def entropy(self) -> torch.Tensor:
        """(n,)."""
        return -(self._log_probs.exp() * self._log_probs).sum(-1)

    def numbers(self) -> torch.Tensor:
        """What `draw` needs, in one tensor that an accelerator can send: the log-probabilities (n, actions)."""
        return self._log_probs

    @staticmethod
    def noise(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers from which actions of that shape, (…,), are drawn: (…,) uniform in [0, 1)."""
        return generator.random(shape, dtype=np.float64)

    @staticmethod
    def draw(numbers: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions (n,) int64 and their log-probabilities (n,), from n rows of `numbers` and of `noise`."""
        action = _choose(np.exp(numbers), noise)
        return action, np.take_along_axis(numbers, action[:, None], axis=1)[:, 0]

    def sample(self, generator: np.random.Generator) -> np.ndarray:
        """Actions (n,) int64, of logits on the CPU."""
        probabilities = torch.softmax(self._logits, dim=-1).numpy()
        return _choose(probabilities, generator.random(len(probabilities)))


def _choose(probabilities: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    cumulative = probabilities.cumsum(axis=1)
    # Scaled by the last sum, which rounding leaves a little off 1: never an action beyond the last.
    return (cumulative < uniform[:, None] * cumulative[:, -1:]).sum(axis=1)


class DiagonalGaussian:
    """k real numbers, drawn independently of each other from normal distributions.

    The action is the number that was drawn, which is what is stored and learned from. The environment gets it clipped to its
    bounds (`rlscale.envs`); its log-probability is that of the unclipped number, as is usual in PPO.

    Args:
        parameters: (n, 2k) float32: k means, then the logarithms of k standard deviations.
    """

    def __init__(self, parameters: torch.Tensor) -> None:
        self._parameters = parameters
        self._mean, self._log_std = parameters.chunk(2, dim=-1)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """(n,): -Σ (½ z² + log σ + ½ log 2π), z = (a - μ) / σ, of the actions (n, k) float32."""
        z = (action - self._mean) * (-self._log_std).exp()
        return -(0.5 * z.square() + self._log_std + _HALF_LOG_TAU).sum(-1)

    def entropy(self) -> torch.Tensor:
        """(n,): Σ (log σ + ½ log 2πe)."""
        return (self._log_std + (0.5 + _HALF_LOG_TAU)).sum(-1)

    def numbers(self) -> torch.Tensor:
        """As in `Categorical`: the parameters themselves, (n, 2k)."""
        return self._parameters

    @staticmethod
    def noise(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers from which actions of that shape, (…, k), are drawn: (…, k) standard normal, float32."""
        return generator.standard_normal(shape, dtype=np.float32)

    @staticmethod
    def draw(numbers: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions (n, k) float32 and their log-probabilities (n,), from n rows of `numbers` and of `noise`."""
        mean, log_std = np.split(numbers, 2, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that diverges, which says so by its gradients
            action = mean + np.exp(log_std) * noise
        return action, -(0.5 * np.square(noise) + log_std + np.float32(_HALF_LOG_TAU)).sum(axis=1)

    def sample(self, generator: np.random.Generator) -> np.ndarray:
        """Actions (n, k) float32, of parameters on the CPU."""
        numbers = self._parameters.numpy()
        return self.draw(numbers, self.noise(generator, (len(numbers), numbers.shape[1] // 2)))[0]


Distribution = Categorical | DiagonalGaussian


def distribution_of(actions: Actions) -> type[Categorical] | type[DiagonalGaussian]:
    """The distribution of a policy with those actions."""
    return Categorical if isinstance(actions, int) else DiagonalGaussian
