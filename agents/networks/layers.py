"""The networks' layers: convolutions and dense layers that compute their parameters' gradient for any part of a batch.

Autograd adds up the gradients of all observations in a pass, but block gradients are needed separately. So autograd only goes
from layer to layer: a `ForwardTape` records the input of every layer and where its output lies in the graph. From the gradient
at that output, `add_gradients` computes the gradients of the layer's parameters for any of the observations. For acting, where
gradients are not needed, `prepare_for_inference` converts and packs a layer's weight once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

__all__ = ["Convolution", "Dense", "ForwardTape", "GaussianHead", "Layer", "LayerCall", "WordConvolution", "record"]


class Convolution(nn.Conv2d):
    """A convolution that treats `fold` neighbouring columns as one column with `fold` times the channels, as its stride allows.

    Channels-last data need only be viewed that way, and the sums are the same. oneDNN's backward pass is faster with fewer,
    longer rows: forward and backward of the Nature network's second layer, 4x4 of stride 2, as 4x2 of stride (2, 1)
    take 15.4 instead of 17.1 ms in bfloat16 for 256 observations, 23.0 instead of 25.0 in float32.

    Args:
        channels: of the input.
        out: channels of the output.
        kernel: height and width of the kernel.
        stride: in both directions.
        width: of the input, in columns.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int, width: int) -> None:
        super().__init__(channels, out, kernel, stride)
        self.fold = math.gcd(kernel, stride, width)
        self._folded_stride = (stride, stride // self.fold)
        self._prepared: torch.Tensor | None = None
        self._prepared_format = torch.channels_last

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self._folded_weight() if self._prepared is None else self._prepared
        return functional.conv2d(self._folded(input), weight, self.bias, self._folded_stride)

    @torch.no_grad()
    def add_gradients(
        self, input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, first: bool
    ) -> None:
        """Add the gradients of the layer's parameters to `weight` and `bias`, one row for each block.

        Args:
            input: (K · n, …), the layer's input for K blocks of n observations, one block after the other.
            gradient: (K · n, …), the gradient at its output for them.
            weight, bias: (K, …) float32, receive the gradients; a block's have the shapes of the layer's own parameters.
            first: overwrite what `weight` and `bias` hold instead of adding to it.
        """
        blocks, out, channels, height, width = weight.shape
        # Of the weight only the shape matters here, because the input's gradient is not wanted.
        shape_only = gradient.new_empty(1).expand(out, channels * self.fold, height, width // self.fold)
        by_block = [
            torch.ops.aten.convolution_backward(
                gradient_of_block,
                input_of_block,
                shape_only,
                [out],
                self._folded_stride,
                padding=(0, 0),
                dilation=(1, 1),
                transposed=False,
                output_padding=(0, 0),
                groups=1,
                output_mask=(False, True, True),
            )
            for input_of_block, gradient_of_block in zip(self._folded(input).chunk(blocks), gradient.chunk(blocks), strict=True)
        ]
        _, by_weight, by_bias = zip(*by_block, strict=True)
        folded_weight = weight.view(blocks, out, channels, height, -1, self.fold)
        _write(self._unfolded(torch.stack(by_weight)), folded_weight, first=first)
        _write(torch.stack(by_bias), bias, first=first)

    @torch.no_grad()
    def prepare_for_inference(self, dtype: torch.dtype, source: Convolution) -> None:
        """Fold and convert the weight of `source`, the layer that this is a copy of, once for all calls to come.

        From the source's weight in float32, because folding one that is rounded already would round it a second time.
        """
        self._prepared = source._folded_weight().to(dtype, memory_format=self._prepared_format)

    def _folded(self, input: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = input.shape
        rows = input.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        return rows.view(n, height, width // self.fold, self.fold * channels).permute(0, 3, 1, 2)

    def _folded_weight(self) -> torch.Tensor:
        return self.weight.view(*self.weight.shape[:3], -1, self.fold).permute(0, 4, 1, 2, 3).flatten(1, 2)

    def _unfolded(self, folded: torch.Tensor) -> torch.Tensor:
        """Weight gradients as (K, out, channels, height, width / fold, fold), the view that `_folded_weight` starts from."""
        return torch.unflatten(folded, 2, (self.fold, -1)).permute(0, 1, 3, 4, 5, 2)


class WordConvolution(Convolution):
    """The first convolution of a network, whose input `fold_input` has folded already, with `fold` neighbours as one word.

    Args:
        channels, out, kernel, stride, width: as of `Convolution`.
        brightest: the largest value of a pixel. The weights absorb 1 / `brightest`, so that pixels may enter as the integers
            that they are, exact even in bfloat16.
        words: whether to fold at all.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int, width: int, brightest: float, words: bool) -> None:
        super().__init__(channels, out, kernel, stride, width)
        self._brightest, self._words = brightest, words
        self._prepared_format = torch.channels_last if words else torch.contiguous_format

    def fold_input(self, observation: torch.Tensor) -> torch.Tensor:
        """(n, channels · fold, height, width / fold), channels last: `fold` neighbours in a row become channels of one column.

        Neighbours move as one word of memory and become numbers afterwards. This takes a fifth of the time of
        `to(bfloat16, channels_last)`, which moves single bytes and was a third of inference.
        """
        if not self._words:
            return observation
        word = _WORDS[self.fold * observation.element_size()]
        words = observation.contiguous().view(word).permute(0, 2, 3, 1).contiguous()
        return words.view(observation.dtype).permute(0, 3, 1, 2)

    def _folded(self, input: torch.Tensor) -> torch.Tensor:
        return input

    def _folded_weight(self) -> torch.Tensor:
        weight = self.weight if self._brightest == 1.0 else self.weight / self._brightest
        return weight.view(*weight.shape[:3], -1, self.fold).permute(0, 1, 4, 2, 3).flatten(1, 2)

    def _unfolded(self, folded: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(folded.float(), 2, (-1, self.fold)).permute(0, 1, 2, 4, 5, 3) / self._brightest


class Dense(nn.Linear):
    """A dense layer whose weight can be packed for acting in the layout that oneDNN's kernels read.

    For a handful of observations the time of a dense layer is that of reading its weight, and without packing every step reads,
    copies and reads it again: with 4 observations of Pong beside an emulator 0.73 ms, packed 0.43 (bfloat16: 0.29 and 0.18).
    """

    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out)
        self._packed: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return super().forward(input)
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")

    @torch.no_grad()
    def add_gradients(
        self, input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, first: bool
    ) -> None:
        """As `Convolution.add_gradients`."""
        inputs, gradients = (torch.unflatten(x, 0, (len(weight), -1)) for x in (input.to(gradient.dtype), gradient))
        if gradients.dtype == weight.dtype:  # the products are written in place, without a copy
            weight.baddbmm_(gradients.mT, inputs, beta=0 if first else 1)
        else:
            _write(torch.bmm(gradients.mT, inputs), weight, first=first)
        _write(gradients.sum(1), bias, first=first)

    def prepare_for_inference(self, dtype: torch.dtype) -> None:
        """Pack the weight once, where that works, on some CPUs: the operator is not part of PyTorch's public interface."""
        if self.weight.device.type != "cpu":
            return
        weight, bias = self.weight.detach().to(dtype), self.bias.detach().to(dtype)
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            torch.ops.mkldnn._linear_pointwise(weight[:1], packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # on another build of PyTorch or processor
            return
        self._packed = packed


class GaussianHead(Dense):
    """A policy head for k continuous actions: k means and k logarithms of standard deviations, (n, 2k).

    The means are a dense layer of the features. The standard deviations do not depend on the observation (Schulman et al. 2017),
    so their logarithms are outputs of weight zero, of which only the bias is left: `bias` (2k,) holds the means' k numbers, then
    the k log σ, which begin at zero. To the flat parameters, the block gradients and the optimizer they are parameters of a layer
    like all others: the gradient of log σ is the sum over observations of the gradient at its output.

    Args:
        features: of the input.
        actions: k.
    """

    def __init__(self, features: int, actions: int) -> None:
        super().__init__(features, actions)
        self.bias = nn.Parameter(torch.zeros(2 * actions))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(n, 2k): the means in the input's precision, the logarithms as they are, both in the wider of the two types."""
        bias, log_std = self.bias.chunk(2)
        mean = functional.linear(input, self.weight, bias.to(self.weight.dtype))
        return torch.cat([mean, log_std.expand_as(mean)], dim=-1)

    @torch.no_grad()
    def add_gradients(
        self, input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, first: bool
    ) -> None:
        """As `Convolution.add_gradients`; `gradient` is (K · n, 2k), `weight` (K, k, features) and `bias` (K, 2k)."""
        of_mean = slice(None, weight.shape[1])
        of_std = slice(weight.shape[1], None)
        super().add_gradients(input, gradient[:, of_mean], weight, bias[:, of_mean], first=first)
        _write(torch.unflatten(gradient[:, of_std], 0, (len(weight), -1)).sum(1), bias[:, of_std], first=first)


Layer = Convolution | Dense
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # a type of that many bytes


class LayerCall(NamedTuple):
    """One layer's part in a forward pass: its input, and where in the graph its output is."""

    layer: Layer
    input: torch.Tensor
    output: GradientEdge


ForwardTape = list[LayerCall]


def record(layer: nn.Module, input: torch.Tensor, tape: ForwardTape | None) -> torch.Tensor:
    """The module's output; where there is a tape and the module has parameters, the call is recorded on it."""
    output: torch.Tensor = layer(input)
    if tape is not None and isinstance(layer, Layer):
        tape.append(LayerCall(layer, input.detach(), get_gradient_edge(output)))  # before a ReLU changes it in place
    return output


def _write(gradient: torch.Tensor, out: torch.Tensor, *, first: bool) -> None:
    if first:
        out.copy_(gradient)
    else:
        out += gradient
