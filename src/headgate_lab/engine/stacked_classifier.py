"""scikit-learn's MLPClassifier, many at once: the same network, loss, batches and stopping rule, batched by a stack."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headgate_lab.engine.stacked import Rates, Stack

HIDDEN, LR, ALPHA, BATCH, EPOCHS = (50, 50), 1e-3, 1e-4, 200, 100
# A copy rests once its loss has not fallen by TOLERANCE for more than PATIENCE epochs in a row.
TOLERANCE, PATIENCE = 1e-4, 10
TEST_BATCH = 1_000


class Classifier(nn.Module):
    """A perceptron with ReLU that measures itself; weights and biases uniform in ±√(6/(inputs + outputs))."""

    def __init__(self, features: int, classes: int, *, generator: torch.Generator, alpha: float = ALPHA) -> None:
        super().__init__()
        self.alpha = alpha
        widths = (features, *HIDDEN, classes)
        self.layers = nn.ModuleList()
        for inputs, outputs in pairwise(widths):
            layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
            bound = (6 / (inputs + outputs)) ** 0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
            self.layers.append(layer)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The regularised loss, no penalty, and the predicted classes."""
        squares = torch.stack([value.square().sum() for value in self.parameters() if value.ndim == 2]).sum()
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        scores = self.layers[-1](x)
        loss = F.cross_entropy(scores, labels) + 0.5 * self.alpha * squares / len(x)
        return loss, torch.zeros_like(loss), scores.argmax(-1)


def predictions(codes: Tensor, labels: Tensor, unseen: Tensor, *, classes: int, seed: int = 1) -> Tensor:
    """Trains a classifier on each of many sets of codes and returns the classes of unseen ones.

    Args:
        codes: shape (copies, samples, features).
        labels: of the samples, the same for all copies.
        unseen: shape (copies, others, features).
        classes: how many there are.
        seed: of weights and batches, the same for all copies.

    Returns:
        Whole numbers, shape (copies, others).
    """
    copies, samples, features = codes.shape
    batch, device = min(BATCH, samples), codes.device
    steps = samples // batch
    order = torch.zeros(steps, batch, dtype=torch.long, device=device)
    position = torch.zeros(1, dtype=torch.long, device=device)

    def inputs() -> tuple[Tensor, Tensor]:
        chosen = order.index_select(0, position)[0]
        position.add_(1)
        return codes.index_select(1, chosen), labels[chosen].expand(copies, -1)

    start = [Classifier(features, classes, generator=torch.Generator().manual_seed(seed)) for _ in range(copies)]
    rates = Rates([LR] * copies, [0.0] * copies, [0.0] * copies, EPOCHS * steps)
    stack = Stack(start, rates, inputs, device, changes=[position])
    shuffle = torch.Generator().manual_seed(seed)
    best, stale = torch.full((copies,), torch.inf, device=device), torch.zeros(copies, device=device)
    for _ in range(EPOCHS):
        shuffled = torch.randperm(samples, generator=shuffle)[: steps * batch]
        order.copy_(shuffled.view(steps, batch))
        position.zero_()
        loss = stack.run(steps)
        stale = torch.where(loss > best - TOLERANCE, stale + 1, 0)
        best = torch.minimum(best, loss)
        stack.rest_(stale > PATIENCE)
    return _classes(stack, unseen)


def _classes(stack: Stack, unseen: Tensor) -> Tensor:
    found = []
    for part in unseen.split(TEST_BATCH, dim=1):
        unknown = torch.zeros(part.shape[:2], dtype=torch.long, device=part.device)
        found.append(stack.measure(part, unknown)[2])
    return torch.cat(found, dim=1)


def macro_f1(predicted: Tensor, labels: Tensor, *, classes: int) -> Tensor:
    """The mean over classes of 2·hits / (predicted + actual), for each row of `predicted`; 0 for a class never met.

    Example:
        >>> macro_f1(torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.tensor([0, 1, 1]), classes=2)
        tensor([1.0000, 0.4000])
    """
    guess, truth = F.one_hot(predicted, classes), F.one_hot(labels, classes)
    hits, guesses, actual = (guess * truth).sum(1), guess.sum(1), truth.sum(0)
    return (2 * hits / (guesses + actual).clamp(min=1)).mean(1)
