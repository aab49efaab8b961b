"""The networks' layers: convolutions and dense layers that know their own gradient over any part of a batch, and act fast.

Autograd adds up the gradients of all observations in a pass. Block gradients need them apart, so here it only goes from layer
to layer: `Tape` holds what every layer saw and where its output lies in the graph, and with the gradient there
`add_gradients` gives those of the layer's parameters, for any of the observations. Networks are put together in
`rlscale.agents.networks.networks`, rows of gradients in `rlscale.agents.learning.gradients`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

__all__ = ["Convolution", "Dense", "Layer", "Seen", "Tape", "WordConvolution", "see"]


class Convolution(nn.Conv2d):
    """A convolution that sees `fold` neighbouring columns as one column of `fold` times the channels, as its stride allows.

    Channels-last data need only be viewed so. The sums are the same; oneDNN's backward pass is faster with fewer, longer
    rows: forward and backward of the Nature network's second layer, 4x4 of stride 2, as 4x2 of stride (2, 1)
    take 15.4 instead of 17.1 ms in bfloat16 for 256 observations, 23.0 instead of 25.0 in float32.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int, width: int) -> None:
        super().__init__(channels, out, kernel, stride)
        self.fold = math.gcd(kernel, stride, width)
        self._folded_stride = (stride, stride // self.fold)
        self._laid_out: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self._folded_weight() if self._laid_out is None else self._laid_out
        return functional.conv2d(self._folded(input), weight, self.bias, self._folded_stride)

    @torch.no_grad()
    def add_gradients(
        self, input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, first: bool
    ) -> None:
        """Lay the gradients of the layer's parameters into `weight` and `bias`, or add them to what they hold unless `first`.

        Args:
            input: (K · n, …), what the layer saw of K blocks of n observations, one block after the other.
            gradient: (K · n, …), at its output for them.
            weight, bias: (K, …), a block's each of the shape of the layer's own, float32.
        """
        blocks, out, channels, height, width = weight.shape
        # Of the layer's own weight only the shape is looked at, for what is wanted is not the input's gradient.
        folded = gradient.new_empty(1).expand(out, channels * self.fold, height, width // self.fold)
        by_weight, by_bias = [], []
        for saw, back in zip(self._folded(input).chunk(blocks), gradient.chunk(blocks), strict=True):
            _, of_weight, of_bias = torch.ops.aten.convolution_backward(
                back,
                saw,
                folded,
                [out],
                self._folded_stride,
                padding=(0, 0),
                dilation=(1, 1),
                transposed=False,
                output_padding=(0, 0),
                groups=1,
                output_mask=(False, True, True),
            )
            by_weight.append(of_weight)
            by_bias.append(of_bias)
        _lay(self._unfolded(torch.stack(by_weight)), weight.view(blocks, out, channels, height, -1, self.fold), first=first)
        _lay(torch.stack(by_bias), bias, first=first)

    def lay_out_weight(self, dtype: torch.dtype) -> None:
        """Convert and fold the weight once and for all."""
        self._laid_out = self._folded_weight().to(dtype, memory_format=torch.channels_last)

    def _folded(self, input: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = input.shape
        rows = input.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        return rows.view(n, height, width // self.fold, self.fold * channels).permute(0, 3, 1, 2)

    def _folded_weight(self) -> torch.Tensor:
        return self.weight.view(*self.weight.shape[:3], -1, self.fold).permute(0, 4, 1, 2, 3).flatten(1, 2)

    def _unfolded(self, folded: torch.Tensor) -> torch.Tensor:
        """(K, out, channels, height, width / fold, fold), as `_folded_weight` begins."""
        return torch.unflatten(folded, 2, (self.fold, -1)).permute(0, 1, 3, 4, 5, 2)


class WordConvolution(Convolution):
    """A network's first convolution, whose input `lay_out` has folded already, `fold` neighbours as one word of memory.

    Args:
        brightest: the largest value of a pixel; 1 / `brightest` goes to the weights, so that pixels may enter as the integers
            that they are, exact even in bfloat16.
        words: fold at all; else the input is taken as it is.
    """

    def __init__(self, channels: int, out: int, kernel: int, stride: int, width: int, brightest: float, words: bool) -> None:
        super().__init__(channels, out, kernel, stride, width)
        self._brightest, self._words = brightest, words

    def lay_out(self, observation: torch.Tensor) -> torch.Tensor:
        """(n, channels · fold, height, width / fold), channels last: `fold` neighbours in a row become channels of one column.

        Neighbours move as one word and become numbers afterwards: a fifth of the time of `to(bfloat16, channels_last)`, which
        moves single bytes and was a third of inference.
        """
        if not self._words:
            return observation
        word = _WORDS[self.fold * observation.element_size()]
        words = observation.contiguous().view(word).permute(0, 2, 3, 1).contiguous()
        return words.view(observation.dtype).permute(0, 3, 1, 2)

    def lay_out_weight(self, dtype: torch.dtype) -> None:
        """Convert, scale and fold the weight once and for all."""
        layout = torch.channels_last if self._words else torch.contiguous_format
        self._laid_out = self._folded_weight().to(dtype, memory_format=layout)

    def _folded(self, input: torch.Tensor) -> torch.Tensor:
        return input

    def _folded_weight(self) -> torch.Tensor:
        weight = self.weight if self._brightest == 1.0 else self.weight / self._brightest
        return weight.view(*weight.shape[:3], -1, self.fold).permute(0, 1, 4, 2, 3).flatten(1, 2)

    def _unfolded(self, folded: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(folded.float(), 2, (-1, self.fold)).permute(0, 1, 2, 4, 5, 3) / self._brightest


class Dense(nn.Linear):
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

    @torch.no_grad()
    def add_gradients(
        self, input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, first: bool
    ) -> None:
        """As `Convolution.add_gradients`."""
        saw, back = (torch.unflatten(x, 0, (len(weight), -1)) for x in (input.to(gradient.dtype), gradient))
        if back.dtype == weight.dtype:  # the products go where they belong, without a copy
            weight.baddbmm_(back.mT, saw, beta=0 if first else 1)
        else:
            _lay(torch.bmm(back.mT, saw), weight, first=first)
        _lay(back.sum(1), bias, first=first)

    def lay_out_weight(self, dtype: torch.dtype) -> None:
        """Pack the weight once and for all, if that works here: the operator is not part of PyTorch's public interface."""
        weight, bias = self.weight.detach().to(dtype), self.bias.detach().to(dtype)
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            torch.ops.mkldnn._linear_pointwise(weight[:1], packed, bias, "none", [], "")
        except (AttributeError, RuntimeError):  # on another device, build of PyTorch or processor
            return
        self._packed = packed


Layer = Convolution | Dense
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # a type for so many bytes


class Seen(NamedTuple):
    """One layer's part in a forward pass: what it saw, and where in the graph its output is."""

    layer: Layer
    input: torch.Tensor
    output: GradientEdge


Tape = list[Seen]


def see(layer: nn.Module, input: torch.Tensor, tape: Tape | None) -> torch.Tensor:
    """The module's output; if it has parameters the tape, where there is one, remembers how it came about."""
    output: torch.Tensor = layer(input)
    if tape is not None and isinstance(layer, Layer):
        tape.append(Seen(layer, input.detach(), get_gradient_edge(output)))  # before a ReLU works on it in place
    return output


def _lay(gradient: torch.Tensor, out: torch.Tensor, *, first: bool) -> None:
    if first:
        out.copy_(gradient)
    else:
        out += gradient
