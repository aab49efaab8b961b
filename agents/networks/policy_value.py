"""`PolicyValueNet`: the Nature CNN, a small CNN, MinAtar's CNN and an MLP, each with a policy head and a value head."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from rlscale.envs import Actions, Network, Task
from rlscale.errors import UsageError

from .distributions import distribution_of
from .layers import Convolution, Dense, ForwardTape, GaussianHead, WordConvolution, record

__all__ = [
    "PARAMETER_ORDER",
    "ActingNetwork",
    "PolicyOutput",
    "PolicyValueNet",
    "columns_of",
    "flatten_parameters",
    "make_network",
    "policy_columns",
]

PARAMETER_ORDER = 2
"""Version of the meaning of the flat parameters. In version 1 dense layers above pixels read (channel, height, width)."""
_CONVOLUTIONS: dict[str, list[tuple[int, int, int]]] = {  # channels, kernel, stride of each layer
    "nature_cnn": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],  # Mnih et al. 2015
    "small_cnn": [(16, 8, 4), (32, 4, 2)],  # Mnih et al. 2013
    "minatar_cnn": [(16, 3, 1)],  # Young and Tian 2019
}
# Pixels of a side: of a smaller image the last convolution has no input.
_SMALLEST: dict[Network, int] = {"nature_cnn": 36, "small_cnn": 20, "minatar_cnn": 3}
_HIDDEN = {"nature_cnn": 512, "small_cnn": 256, "minatar_cnn": 128, "mlp": 64}
_GAIN = math.sqrt(2)
AnyLayer = TypeVar("AnyLayer", Convolution, Dense)


class PolicyOutput(NamedTuple):
    """`policy` (n, D) and `value` (n,), in float32; `features` (n, hidden) is the policy head's input.

    `policy` has the parameters of the distribution over actions: logits of discrete actions, D = their number, or means and
    logarithms of standard deviations of k continuous ones, D = 2k.
    """

    policy: torch.Tensor
    value: torch.Tensor
    features: torch.Tensor


class PolicyValueNet(nn.Module):
    """A trunk with a policy head and a value head.

    The convolutional networks share one trunk between the heads; the MLP has two trunks of tanh units, one for each head.

    Args:
        network: which of the four.
        observation_shape: (channels, height, width) for a convolutional network, (features,) for the MLP.
        actions: number of discrete actions, or the box of continuous ones.
        width: units of the hidden dense layers; None for the network's own.
        pixels: observations are pixels of 0 … 255, which are divided by 255. The Nature CNN and the small one always do that.

    Attributes:
        distribution: of the actions, whose parameters are `PolicyOutput.policy`.

    Raises:
        UsageError: a convolutional network and observations that are no images.
    """

    def __init__(
        self,
        network: Network,
        observation_shape: tuple[int, ...],
        actions: Actions,
        width: int | None = None,
        *,
        pixels: bool = False,
    ) -> None:
        super().__init__()
        self._pixels = pixels
        self.distribution = distribution_of(actions)
        hidden = _HIDDEN[network] if width is None else width
        self.value_trunk: nn.Sequential | None = None
        if network == "mlp":
            self.trunk = _dense_trunk(math.prod(observation_shape), hidden)
            self.value_trunk = _dense_trunk(math.prod(observation_shape), hidden)
        elif len(observation_shape) != 3:
            raise UsageError(
                "--network", f"{network} needs image observations, this task has {observation_shape}", "Use --network mlp"
            )
        elif min(observation_shape[1:]) < _SMALLEST[network]:
            size = "x".join(map(str, observation_shape[1:]))
            problem = f"{network} needs images of {_SMALLEST[network]} pixels a side, this task has {size}"
            mends = [name for name, least in _SMALLEST.items() if least <= min(observation_shape[1:])]
            raise UsageError("--network", problem, f"Use --network {(*mends, 'mlp')[0]}")
        else:
            self.trunk = _convolutional_trunk(network, *observation_shape, hidden, pixels)
        head = Dense(hidden, actions) if isinstance(actions, int) else GaussianHead(hidden, len(actions))
        self.policy_head = _orthogonal(head, 0.01)
        self.value_head = _orthogonal(Dense(hidden, 1), 1.0)

    def forward(self, observation: torch.Tensor, tape: ForwardTape | None = None) -> PolicyOutput:
        """Both heads for observations as the environment gave them, uint8 images included.

        Args:
            observation: (n, …).
            tape: receives the call of every layer, for `rlscale.agents.learning.gradients`; needs gradients enabled.
        """
        if self.value_trunk is not None:
            # The sums of a trunk that saw 0 … 255 would saturate nearly all of its tanh units.
            numbers = observation.flatten(1) / 255.0 if self._pixels else observation.flatten(1)
            observation = numbers.to(self.policy_head.weight.dtype)
            policy_features = _through(self.trunk, observation, tape)
            value_features = _through(self.value_trunk, observation, tape)
        else:
            kind, first = observation.device.type, self.trunk[0]
            assert isinstance(first, WordConvolution)
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.policy_head.weight.dtype
            policy_features = value_features = _through(self.trunk, first.fold_input(observation).to(dtype), tape)
        policy, value = record(self.policy_head, policy_features, tape), record(self.value_head, value_features, tape)
        return PolicyOutput(policy.float(), value.float().squeeze(-1), policy_features)

    @torch.no_grad()
    def prepare_for_inference(self, dtype: torch.dtype, source: PolicyValueNet) -> None:
        """Take over the parameters of `source`, which this is a copy of in `dtype`; fold and pack the trunk's weights once."""
        for mine, present in zip(self.parameters(), source.parameters(), strict=True):
            mine.copy_(present)
        if self.value_trunk is not None:
            return
        for layer, original in zip(self.trunk, source.trunk, strict=True):
            if isinstance(layer, Convolution) and isinstance(original, Convolution):
                layer.prepare_for_inference(dtype, original)
            elif isinstance(layer, Dense):
                layer.prepare_for_inference(dtype)


class _FlattenChannelsLast(nn.Module):
    """(n, channels, height, width) to (n, height · width · channels), the order of channels-last data, so that nothing moves.

    `nn.Flatten` copies the data in the forward pass, and its gradient then has another layout than the ReLU's output. With ReLUs
    in place this order takes 6% of the Nature network's forward and backward pass off in float32, 3% in bfloat16.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input.permute(0, 2, 3, 1).flatten(1)


class ActingNetwork:
    """A frozen copy of a network's present parameters, for acting only.

    What inference need not repeat is done here, once. Converting 1.7 million parameters to bfloat16 at every step would take
    longer than inferring a handful of observations, and folding the convolutions' weights another 1 to 7%.
    """

    def __init__(self, network: PolicyValueNet, bfloat16: bool) -> None:
        self._dtype = torch.bfloat16 if bfloat16 else torch.float32
        self._network = copy.deepcopy(network).requires_grad_(False).to(self._dtype)
        if isinstance(head := self._network.policy_head, GaussianHead):
            head.bias.data = head.bias.data.float()  # holds log σ, which enters no product: autocast does not round it either
        self.follow(network)

    def follow(self, network: PolicyValueNet) -> None:
        """Take over the present parameters of the network that this is a copy of."""
        self._network.prepare_for_inference(self._dtype, network)

    def __call__(self, observation: torch.Tensor) -> PolicyOutput:
        """Both heads for observations as the environment gave them."""
        with torch.inference_mode():
            return self._network(observation)


def make_network(task: Task, network: Network, seed: int, width: int | None = None) -> PolicyValueNet:
    """The task's network with orthogonal weights drawn from `seed`; the global torch generator stays as it is.

    Raises:
        UsageError: the network does not fit this task's observations, or is larger than memory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return PolicyValueNet(network, task.observation_shape, task.actions, width, pixels=task.pixels)
        except UsageError:
            raise
        except (ValueError, RuntimeError, TypeError) as error:
            if width is not None:  # torch says by any of these that a size is beyond memory, or beyond its integers
                problem = f"there is no memory for {network} with layers of {width:,} units"
                raise UsageError("--width", problem, "Use a narrower network") from error
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
    pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.data = piece.view_as(parameter)
    return flat


def policy_columns(network: PolicyValueNet) -> list[slice]:
    """Where the parameters of the trunk (of the policy's, where there are two) and of the policy head lie in the flat vector."""
    own = {id(parameter) for part in (network.trunk, network.policy_head) for parameter in part.parameters()}
    parameters = list(network.parameters())
    return columns_of(parameters, [id(parameter) in own for parameter in parameters])


def columns_of(parameters: Sequence[torch.Tensor], chosen: Sequence[bool]) -> list[slice]:
    """Where the chosen parameters lie in one flat vector of all; neighbours make one slice."""
    columns: list[slice] = []
    start = 0
    for run, together in groupby(zip(chosen, parameters, strict=True), lambda pair: pair[0]):
        stop = start + sum(parameter.numel() for _, parameter in together)
        columns += [slice(start, stop)] if run else []
        start = stop
    return columns


def _convolutional_trunk(network: str, channels: int, height: int, width: int, hidden: int, pixels: bool) -> nn.Sequential:
    large = network != "minatar_cnn"  # MinAtar's images are small, and mostly planes of 0 and 1
    layers: list[nn.Module] = []
    for out, kernel, stride in _CONVOLUTIONS[network]:
        if layers:
            convolution = Convolution(channels, out, kernel, stride, width)
        else:
            convolution = WordConvolution(channels, out, kernel, stride, width, 255.0 if large or pixels else 1.0, large)
        layers += [_orthogonal(convolution, _GAIN), nn.ReLU(inplace=True)]
        channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    flatten = _FlattenChannelsLast() if large else nn.Flatten()
    dense = _orthogonal(Dense(channels * height * width, hidden), _GAIN)
    return nn.Sequential(*layers, flatten, dense, nn.ReLU(inplace=True))


def _dense_trunk(features: int, hidden: int) -> nn.Sequential:
    one, two = _orthogonal(Dense(features, hidden), _GAIN), _orthogonal(Dense(hidden, hidden), _GAIN)
    return nn.Sequential(one, nn.Tanh(), two, nn.Tanh())


def _through(layers: nn.Sequential, input: torch.Tensor, tape: ForwardTape | None) -> torch.Tensor:
    for layer in layers:
        input = record(layer, input, tape)
    return input


def _orthogonal(layer: AnyLayer, gain: float) -> AnyLayer:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
