"""Policy-and-value networks: the Nature CNN, a small CNN, MinAtar's CNN, an MLP. Losses live in `agents.losses`."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn import functional

from envs.tasks import Network, Task
from rlscale.errors import UsageError

__all__ = ["ActingNetwork", "PolicyOutput", "PolicyValueNet", "flatten_parameters", "make_network"]

_CONVOLUTIONS: dict[str, list[tuple[int, int, int]]] = {
    "nature_cnn": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],  # Mnih et al. 2015: channels, kernel, stride
    "small_cnn": [(16, 8, 4), (32, 4, 2)],  # Mnih et al. 2013
    "minatar_cnn": [(16, 3, 1)],  # Young and Tian 2019
}
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
_HIDDEN = {"nature_cnn": 512, "small_cnn": 256, "minatar_cnn": 128, "mlp": 64}


class PolicyOutput(NamedTuple):
    """Both heads in float32: `logits` (n, actions) and `value` (n,)."""

    logits: torch.Tensor
    value: torch.Tensor


class PolicyValueNet(nn.Module):
    """One trunk with a policy head and a value head.

    The MLP has two trunks of tanh units, one a head; the convolutional networks share theirs.

    Args:
        network: which of the four.
        observation_shape: (channels, height, width) for a convolutional network, (features,) for the MLP.
        actions: number of discrete actions.
        width: units of the hidden dense layers; None for the network's own.
    """

    def __init__(self, network: Network, observation_shape: tuple[int, ...], actions: int, width: int | None = None) -> None:
        super().__init__()
        hidden = _HIDDEN[network] if width is None else width
        # MinAtar's cells are 0 or 1 and few; everything else that a convolution sees is pixels of 0 … 255.
        self._brightest = 1.0 if network == "minatar_cnn" else 255.0
        self._layout = torch.contiguous_format if network == "minatar_cnn" else torch.channels_last
        self._pixels_scaled = False
        self.value_trunk: nn.Module | None = None
        if network == "mlp":
            features = math.prod(observation_shape)
            self.trunk: nn.Module = _dense(features, hidden)
            self.value_trunk = _dense(features, hidden)
        else:
            if len(observation_shape) != 3:
                raise UsageError(
                    "--network", f"{network} needs image observations, this task has {observation_shape}", "Use --network mlp"
                )
            channels, height, width = observation_shape
            layers: list[nn.Module] = []
            for out, kernel, stride in _CONVOLUTIONS[network]:
                layers += [_orthogonal(nn.Conv2d(channels, out, kernel, stride), math.sqrt(2)), nn.ReLU()]
                channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            layers += [nn.Flatten(), _orthogonal(nn.Linear(channels * height * width, hidden), math.sqrt(2)), nn.ReLU()]
            self.trunk = nn.Sequential(*layers)
        self.policy_head = _orthogonal(nn.Linear(hidden, actions), 0.01)
        self.value_head = _orthogonal(nn.Linear(hidden, 1), 1.0)

    def forward(self, observation: torch.Tensor) -> PolicyOutput:
        """Both heads for observations as the environment gave them, uint8 images included."""
        if self.value_trunk is not None:
            observation = observation.flatten(1).to(self.policy_head.weight.dtype)
            policy_features, value_features = self.trunk(observation), self.value_trunk(observation)
        else:
            policy_features = value_features = self._see(observation)
        logits, value = self.policy_head(policy_features), self.value_head(value_features)
        return PolicyOutput(logits.float(), value.float().squeeze(-1))

    def _see(self, observation: torch.Tensor) -> torch.Tensor:
        """The convolutional trunk. Pixels enter as the integers 0 … 255, exact even in bfloat16; 1/255 goes to the weights."""
        first = self._first_layer()
        kind = observation.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else first.weight.dtype
        pixels = observation.to(dtype, memory_format=self._layout)
        weight = first.weight if self._pixels_scaled or self._brightest == 1.0 else first.weight / self._brightest
        features = functional.conv2d(pixels, weight, first.bias, first.stride)
        assert isinstance(self.trunk, nn.Sequential)
        return self.trunk[1:](features)

    def scale_pixels(self) -> None:
        """Divide the first layer's weights by 255 once and for all; for a network that will not be trained any more."""
        self._first_layer().weight.data /= self._brightest
        self._pixels_scaled = True

    def _first_layer(self) -> nn.Conv2d:
        assert isinstance(self.trunk, nn.Sequential)
        first = self.trunk[0]
        assert isinstance(first, nn.Conv2d)
        return first


class ActingNetwork:
    """A frozen copy of a network's current parameters, for acting only, with what inference need not repeat done once.

    In bfloat16 the parameters are converted here instead of at every step, where converting 1.7 million of them takes longer
    than inferring a handful of observations. The result is that of autocast, bit for bit.
    """

    def __init__(self, network: PolicyValueNet, bfloat16: bool) -> None:
        self._network = copy.deepcopy(network).requires_grad_(False)
        if not bfloat16:
            return
        if self._network.value_trunk is None:
            self._network.scale_pixels()
        self._network.to(torch.bfloat16)

    def __call__(self, observation: torch.Tensor) -> PolicyOutput:
        """Both heads for observations as the environment gave them."""
        with torch.inference_mode():
            return self._network(observation)


def make_network(task: Task, network: Network, seed: int, width: int | None = None) -> PolicyValueNet:
    """The task's network with orthogonal weights drawn from `seed`; the global torch generator is left alone.

    Raises:
        UsageError: the network cannot see this task's observations.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return PolicyValueNet(network, task.observation_shape, task.actions, width)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                "--network", f"{network} cannot see {task.observation_shape}: {error}", "Choose a larger frame or another network"
            ) from error


def flatten_parameters(network: nn.Module) -> torch.Tensor:
    """Move all parameters into one flat float32 vector (P,), which they share from now on; returns it.

    An optimizer that steps the vector steps the network, and one copy of the vector is all that travels to the actors.
    Order: `network.parameters()`.
    """
    parameters = list(network.parameters())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    offset = 0
    for parameter in parameters:
        parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return flat


def _dense(features: int, hidden: int) -> nn.Sequential:
    gain = math.sqrt(2)
    return nn.Sequential(
        _orthogonal(nn.Linear(features, hidden), gain), nn.Tanh(), _orthogonal(nn.Linear(hidden, hidden), gain), nn.Tanh()
    )


def _orthogonal(layer: Layer, gain: float) -> Layer:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
