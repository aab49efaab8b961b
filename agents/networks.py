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

__all__ = ["PARAMETER_ORDER", "ActingNetwork", "PolicyOutput", "PolicyValueNet", "flatten_parameters", "make_network"]

PARAMETER_ORDER = 2
"""Version of the meaning of the flat parameters: in the first, dense layers above pixels read (channel, height, width)."""
_CONVOLUTIONS: dict[str, list[tuple[int, int, int]]] = {
    "nature_cnn": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],  # Mnih et al. 2015: channels, kernel, stride
    "small_cnn": [(16, 8, 4), (32, 4, 2)],  # Mnih et al. 2013
    "minatar_cnn": [(16, 3, 1)],  # Young and Tian 2019
}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # a type for so many bytes
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
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
        # MinAtar's cells are 0 or 1 and few; everything else that a convolution sees is pixels of 0 … 255.
        self._brightest = 1.0 if network == "minatar_cnn" else 255.0
        self._layout = torch.contiguous_format if network == "minatar_cnn" else torch.channels_last
        self._first_laid_out: torch.Tensor | None = None
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
                layers += [_orthogonal(_Convolution(channels, out, kernel, stride, width), math.sqrt(2)), nn.ReLU(inplace=True)]
                channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            layers += [nn.Flatten() if self._layout == torch.contiguous_format else _FlattenChannelsLast()]
            layers += [_orthogonal(_Dense(channels * height * width, hidden), math.sqrt(2)), nn.ReLU(inplace=True)]
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
        return PolicyOutput(logits.float(), value.float().squeeze(-1), policy_features)

    def _see(self, observation: torch.Tensor) -> torch.Tensor:
        """The convolutional trunk. Pixels enter as the integers 0 … 255, exact even in bfloat16; 1/255 goes to the weights."""
        first = self._first_layer()
        kind = observation.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else first.weight.dtype
        weight = self._first_weight() if self._first_laid_out is None else self._first_laid_out
        assert isinstance(self.trunk, nn.Sequential)
        x = self._lay_out_pixels(observation).to(dtype)
        x = functional.conv2d(x, weight, first.bias, (first.stride[0], first.stride[1] // first.fold))
        for layer in list(self.trunk)[1:]:  # a slice of a Sequential is a new module, 0.02 to 0.1 ms
            x = layer(x)
        return x

    def _lay_out_pixels(self, observation: torch.Tensor) -> torch.Tensor:
        """(n, channels · fold, height, width / fold), channels last: `fold` neighbours in a row become channels of one column.

        Neighbours move as one word and become numbers afterwards: a fifth of the time of `to(bfloat16, channels_last)`, which
        moves single bytes and was a third of inference. The folded first layer is faster to train, too (see `_Convolution`).
        """
        if self._layout == torch.contiguous_format:
            return observation
        word = _WORDS[self._first_layer().fold * observation.element_size()]
        words = observation.contiguous().view(word).permute(0, 2, 3, 1).contiguous()
        return words.view(observation.dtype).permute(0, 3, 1, 2)

    def _first_weight(self) -> torch.Tensor:
        """The first layer's weights for pixels of 0 … `brightest`, folded as `_lay_out_pixels` folds them."""
        first = self._first_layer()
        weight = first.weight if self._brightest == 1.0 else first.weight / self._brightest
        return weight.view(*weight.shape[:3], -1, first.fold).permute(0, 1, 4, 2, 3).flatten(1, 2)

    def lay_out_weights(self, dtype: torch.dtype) -> None:
        """Convert, fold and pack the trunk's weights once and for all; for a network that will not be trained any more."""
        if self.value_trunk is None:
            self._first_laid_out = self._first_weight().to(dtype, memory_format=self._layout)
            for layer in self.trunk.children():
                if isinstance(layer, _Convolution | _Dense) and layer is not self._first_layer():
                    layer.lay_out_weight(dtype)
        self.to(dtype)

    def _first_layer(self) -> _Convolution:
        assert isinstance(self.trunk, nn.Sequential)
        first = self.trunk[0]
        assert isinstance(first, _Convolution)
        return first


class _Convolution(nn.Conv2d):
    """A convolution that sees `fold` neighbouring columns as one column of `fold` times the channels, as its stride allows.

    Between layers channels-last data need only be viewed so. The sums are the same; oneDNN's backward pass is faster with
    fewer, longer rows: forward and backward of the Nature network's second layer, 4x4 of stride 2, as 4x2 of stride (2, 1)
    take 15.4 instead of 17.1 ms in bfloat16 for 256 observations, 23.0 instead of 25.0 in float32.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int, width: int) -> None:
        super().__init__(channels, out, kernel, stride)
        self.fold = math.gcd(kernel, stride, width)
        self._laid_out: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not input.is_contiguous(memory_format=torch.channels_last):
            return super().forward(input)
        n, channels, height, width = input.shape
        wide = input.permute(0, 2, 3, 1).view(n, height, width // self.fold, self.fold * channels).permute(0, 3, 1, 2)
        weight = self._folded_weight() if self._laid_out is None else self._laid_out
        return functional.conv2d(wide, weight, self.bias, (self.stride[0], self.stride[1] // self.fold))

    def _folded_weight(self) -> torch.Tensor:
        return self.weight.view(*self.weight.shape[:3], -1, self.fold).permute(0, 4, 1, 2, 3).flatten(1, 2)

    def lay_out_weight(self, dtype: torch.dtype) -> None:
        """Convert and fold the weight once and for all."""
        self._laid_out = self._folded_weight().to(dtype, memory_format=torch.channels_last)


class _Dense(nn.Linear):
    """A dense layer whose weight can be packed for acting, as oneDNN's kernels read it.

    For a handful of observations a dense layer is bound by reading its weight, and without packing it is read, copied and
    read again at every step: with 4 observations of Pong beside an emulator 0.73 ms, packed 0.43 (bfloat16: 0.29 and 0.18).
    """

    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out)
        self._packed: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return super().forward(input)
        packed: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")
        return packed

    def lay_out_weight(self, dtype: torch.dtype) -> None:
        """Pack the weight once and for all, if that works here: the operator is not part of PyTorch's public interface."""
        weight, bias = self.weight.detach().to(dtype), self.bias.detach().to(dtype)
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            torch.ops.mkldnn._linear_pointwise(weight[:1], packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # on another device, build of PyTorch or processor
            return
        self._packed = packed


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
