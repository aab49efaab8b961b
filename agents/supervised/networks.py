"""The small networks of supervised tasks, each with the loss and the score of every example."""

import torch
from torch import nn
from torch.nn import functional

from rlscale.envs.supervised import Examples, SupervisedTask

__all__ = ["Classifier", "LanguageModel", "SupervisedNetwork", "make_network"]

CHANNELS, HIDDEN = (16, 32), 64  # of the classifier
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
        return Classifier(examples.inputs.shape[1:], int(examples.targets.max()) + 1)
