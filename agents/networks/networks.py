"""Policy-and-value networks: the Nature CNN, a small CNN, MinAtar's CNN, an MLP.

Their layers are in `rlscale.agents.networks.layers`, the losses in `rlscale.agents.learning.losses`.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from rlscale.envs.registry import Network, Task
from rlscale.errors import UsageError

from .layers import Convolution, Dense, Layer, Tape, WordConvolution, see

__all__ = ["PARAMETER_ORDER", "ActingNetwork", "PolicyOutput", "PolicyValueNet", "flatten_parameters", "make_network"]

PARAMETER_ORDER = 2
"""Version of the meaning of the flat parameters: in the first, dense layers above pixels read (channel, height, width)."""
_CONVOLUTIONS: dict[str, list[tuple[int, int, int]]] = {
    "nature_cnn": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],  # Mnih et al. 2015: channels, kernel, stride
    "small_cnn": [(16, 8, 4), (32, 4, 2)],  # Mnih et al. 2013
    "minatar_cnn": [(16, 3, 1)],  # Young and Tian 2019
}
AnyLayer = TypeVar("AnyLayer", Convolution, Dense)
_HIDDEN = {"nature_cnn": 512, "small_cnn": 256, "minatar_cnn": 128, "mlp": 64}


class PolicyOutput(NamedTuple):
    """`logits` (n, actions) and `value` (n,), in float32; `features` (n, hidden) is what the policy head sees."""

    logits: torch.Tensor
    value: torch.Tensor
    features: torch.Tensor


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
        self.value_trunk: nn.Sequential | None = None
        if network == "mlp":
            features = math.prod(observation_shape)
            self.trunk = _dense(features, hidden)
            self.value_trunk = _dense(features, hidden)
        else:
            if len(observation_shape) != 3:
                raise UsageError(
                    "--network", f"{network} needs image observations, this task has {observation_shape}", "Use --network mlp"
                )
            channels, height, width = observation_shape
            # MinAtar's cells are 0 or 1 and few; everything else that a convolution sees is pixels of 0 … 255.
            pixels = network != "minatar_cnn"
            layers: list[nn.Module] = []
            for out, kernel, stride in _CONVOLUTIONS[network]:
                if layers:
                    convolution = Convolution(channels, out, kernel, stride, width)
                else:
                    convolution = WordConvolution(channels, out, kernel, stride, width, 255.0 if pixels else 1.0, pixels)
                layers += [_orthogonal(convolution, math.sqrt(2)), nn.ReLU(inplace=True)]
                channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            layers += [_FlattenChannelsLast() if pixels else nn.Flatten()]
            layers += [_orthogonal(Dense(channels * height * width, hidden), math.sqrt(2)), nn.ReLU(inplace=True)]
            self.trunk = nn.Sequential(*layers)
        self.policy_head = _orthogonal(Dense(hidden, actions), 0.01)
        self.value_head = _orthogonal(Dense(hidden, 1), 1.0)

    def forward(self, observation: torch.Tensor, tape: Tape | None = None) -> PolicyOutput:
        """Both heads for observations as the environment gave them, uint8 images included.

        Args:
            observation: (n, …).
            tape: gets what every layer saw, for `rlscale.agents.learning.gradients`; needs gradients enabled.
        """
        if self.value_trunk is not None:
            observation = observation.flatten(1).to(self.policy_head.weight.dtype)
            policy_features = _through(self.trunk, observation, tape)
            value_features = _through(self.value_trunk, observation, tape)
        else:
            kind, first = observation.device.type, self.trunk[0]
            assert isinstance(first, WordConvolution)
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.policy_head.weight.dtype
            policy_features = value_features = _through(self.trunk, first.lay_out(observation).to(dtype), tape)
        logits, value = see(self.policy_head, policy_features, tape), see(self.value_head, value_features, tape)
        return PolicyOutput(logits.float(), value.float().squeeze(-1), policy_features)

    def lay_out_weights(self, dtype: torch.dtype) -> None:
        """Convert, fold and pack the trunk's weights once and for all; for a network that will not be trained any more."""
        if self.value_trunk is None:
            for layer in self.trunk:
                if isinstance(layer, Layer):
                    layer.lay_out_weight(dtype)
        self.to(dtype)


class _FlattenChannelsLast(nn.Module):
    """(n, channels, height, width) to (n, height · width · channels), the order of channels-last data: nothing moves.

    In `nn.Flatten`'s order the data is copied on the way there, and on the way back meets a ReLU's output of another layout;
    with ReLUs in place that takes 6% of the Nature network's forward and backward pass in float32, 3% in bfloat16.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input.permute(0, 2, 3, 1).flatten(1)


class ActingNetwork:
    """A frozen copy of a network's current parameters, for acting only, with what inference need not repeat done once.

    In bfloat16 the parameters are converted here instead of at every step, where converting 1.7 million of them takes longer
    than inferring a handful of observations. Laying out the convolutions' weights each time would take another 1 to 7%.
    """

    def __init__(self, network: PolicyValueNet, bfloat16: bool) -> None:
        self._network = copy.deepcopy(network).requires_grad_(False)
        self._network.lay_out_weights(torch.bfloat16 if bfloat16 else torch.float32)

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


def _through(layers: nn.Sequential, input: torch.Tensor, tape: Tape | None) -> torch.Tensor:
    for layer in layers:
        input = see(layer, input, tape)
    return input


def _dense(features: int, hidden: int) -> nn.Sequential:
    gain = math.sqrt(2)
    one, two = _orthogonal(Dense(features, hidden), gain), _orthogonal(Dense(hidden, hidden), gain)
    return nn.Sequential(one, nn.Tanh(), two, nn.Tanh())


def _orthogonal(layer: AnyLayer, gain: float) -> AnyLayer:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
