"""The small networks of supervised tasks, each with the loss and the score of every example."""

import math

import torch
from torch import nn
from torch.nn import functional

from rlscale.envs.supervised import Examples, SupervisedTask

from ..devices import upload

__all__ = ["Autoencoder", "Classifier", "LanguageModel", "SupervisedNetwork", "make_network"]

CHANNELS, HIDDEN = (16, 32), 64  # of the classifier
CODE, CODER = 32, 256  # numbers of an autoencoder's code, and units of its hidden layers
PIXEL_NOISE = 0.1  # standard deviation of a pixel in the variational autoencoder's model of pictures, which go from 0 to 1
BYTES, EMBEDDING, CELLS = 256, 32, 128  # of the language model


class SupervisedNetwork(nn.Module):
    """A network that knows its loss."""

    def losses(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """(n,) the loss of each example, for its observations in the mean.

        Args:
            inputs, targets: of n examples, see `rlscale.envs.supervised.Examples`.
            generator: on the CPU; of what the loss draws, if it draws anything.
        """
        raise NotImplementedError

    def scores(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """(n,) what a goal is the mean of: minus the loss, or whether a picture was named rightly."""
        return -self.losses(inputs, targets, generator)


class Classifier(SupervisedNetwork):
    """Two convolutions of 3×3 with stride 2, 16 and 32 channels, a dense layer of 64 units, ReLUs; cross-entropy in nats.

    Args:
        shape: (channels, height, width) of a picture.
        classes: their number.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for out in CHANNELS:
            layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.ReLU()]
            channels, height, width = out, -(-height // 2), -(-width // 2)
        features = channels * height * width
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

    def losses(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return functional.cross_entropy(self.layers(inputs / 255), targets, reduction="none")

    def scores(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return (self.layers(inputs / 255).argmax(1) == targets).float()


class LanguageModel(SupervisedNetwork):
    """An embedding of bytes in 32 numbers, an LSTM of 128 cells that begins each example anew, and a dense layer.

    The loss of an example is the mean cross-entropy of its bytes, in nats.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, EMBEDDING)
        self.cells = nn.LSTM(EMBEDDING, CELLS, batch_first=True)
        self.head = nn.Linear(CELLS, BYTES)

    def losses(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        logits = self.head(self.cells(self.embedding(inputs.long()))[0])
        return functional.cross_entropy(logits.mT, targets.long(), reduction="none").mean(1)


class Autoencoder(SupervisedNetwork):
    """Dense layers: a picture to 256 ReLUs, to a code of 32 numbers, to 256 ReLUs, to the picture (sigmoid).

    The loss of a picture is the mean squared error of its pixels, which go from 0 to 1. The variational one (Kingma and Welling
    2014) draws its code from N(μ, diag σ²), both from the encoder. Its loss is minus the evidence lower bound in nats a pixel,
    for Gaussian pixels of standard deviation 0.1 and a standard normal prior, the pixels' constant left out.

    Args:
        shape: (channels, height, width) of a picture.
        variational: which of the two.
    """

    def __init__(self, shape: tuple[int, ...], variational: bool) -> None:
        super().__init__()
        self.pixels, self.variational = math.prod(shape), variational
        outputs = 2 * CODE if variational else CODE
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(self.pixels, CODER), nn.ReLU(), nn.Linear(CODER, outputs))
        self.decoder = nn.Sequential(nn.Linear(CODE, CODER), nn.ReLU(), nn.Linear(CODER, self.pixels), nn.Sigmoid())

    def losses(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        pictures = inputs.flatten(1) / 255
        code = self.encoder(pictures)
        if not self.variational:
            return (self.decoder(code) - pictures).square().mean(1)
        mean, log_std = code.chunk(2, dim=1)
        drawn = mean + log_std.exp() * upload(torch.randn(mean.shape, generator=generator), mean.device)
        error = (self.decoder(drawn) - pictures).square().sum(1) / (2 * PIXEL_NOISE**2)
        divergence = ((mean.square() + (2 * log_std).exp() - 1) / 2 - log_std).sum(1)  # KL(N(μ, σ²) ‖ N(0, 1))
        return (error + divergence) / self.pixels


def make_network(task: SupervisedTask, examples: Examples, seed: int) -> SupervisedNetwork:
    """The network of a task, its weights drawn from `seed` as PyTorch draws them; the global generator stays as it is.

    Args:
        task: whose objective it is.
        examples: to learn from, which say the shape of an input and the number of classes.
        seed: of the run.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if task.objective == "predict":
            return LanguageModel()
        if task.objective in ("autoencode", "variational"):
            return Autoencoder(examples.inputs.shape[1:], task.objective == "variational")
        return Classifier(examples.inputs.shape[1:], int(examples.targets.max()) + 1)
