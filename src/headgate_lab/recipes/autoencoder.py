"""Figure 5: an autoencoder of handwritten digits with a code of 50 channels, DAM against L1.

For each strength: how many channels stay open, the squared error on the test images, and how well a classifier
trained on the codes does (macro-F1). The paper shows curves without numbers: test errors between 0.050 and 0.125 and
F1 between 0.80 and 0.98 at dimensions from about 5 to 28. Ours, five seeds on an H200, as the paper says: at 10
channels DAM's error is 0.071 and L1's 0.081, at 13 it is 0.057 and 0.070, F1 likewise; DAM's dimension falls steadily
with the strength (16 to 2), L1's stays near 9 from strength 5 to 25.

The widths are those of the paper's code (784-128-64-32-50 and back); `TEXT_WIDTHS` are those of its text. Images are
scaled to [-1, 1]. Each epoch leaves out the last images of its order that fill no batch (96 of 60,000). The
classifier is scikit-learn's MLPClassifier((50, 50), max_iter=100, random_state=1) as a batched run, see
`stacked_classifier`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.data.mnist import mnist
from headgate_lab.engine.job import Job, Metrics, Recipe
from headgate_lab.engine.stacked import Rates, Stack
from headgate_lab.engine.stacked_classifier import macro_f1, predictions
from headgate_lab.methods.l1 import RectifiedMask
from headgate_lab.models.autoencoder import Autoencoder, perceptron
from headgate_lab.recipes.bottleneck import GatedLoss
from headgate_lab.recipes.experiment import Experiment

CODE_WIDTHS = (784, 128, 64, 32, 50)
TEXT_WIDTHS = (784, 64, 32, 50)
# Those of the paper's code, up to the largest of its text: 10 for DAM, 25 for L1.
BOTH = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, *(half / 2 for half in range(10, 20)), 10.0)
STRENGTHS = {"dam": BOTH, "l1": (*BOTH, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0)}
CLASSES = 10
IMAGES_AT_ONCE = 1_000


@dataclass(frozen=True)
class DigitCode(Recipe):
    """One method at one strength.

    Attributes:
        method: "dam", a gate with initial offset 1 moved by plain Adam, or "l1".
        widths: of the encoder, from pixels to code; the decoder is its mirror.
        length: epochs.
        images: how many training images are used, the first ones.
        unseen: likewise of the test images.
    """

    experiment: ClassVar[str] = "autoencoder"

    method: str
    strength: float
    widths: tuple[int, ...] = CODE_WIDTHS
    lr: float = 1e-3
    batch: int = 512
    length: int = 100
    images: int = 60_000
    unseen: int = 10_000

    @property
    def setting(self) -> str:
        """Method and strength."""
        return f"{self.method}, strength {self.strength:g}"

    @property
    def epochs(self) -> int:
        """Passes over the images."""
        return self.length

    @property
    def cohort(self) -> Hashable:
        """All strengths of a method may be trained side by side."""
        return replace(self, strength=0.0)

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> DigitCodes:
        """All jobs in one stack."""
        return DigitCodes(jobs, device)


class Encoder(nn.Module):
    """The encoder alone, under the names of `GatedLoss`."""

    def __init__(self, network: Autoencoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The codes behind the gate."""
        return self.network.encode(x)


class DigitCodes:
    """Jobs on the same images; the order of the images is the seed's own."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        recipes = [job.recipe for job in jobs if isinstance(job.recipe, DigitCode)]
        self.recipe, self.device, self.done = recipes[0], device, 0
        digits = mnist()
        self.images = _pixels(digits.train_images, self.recipe.images, device)
        self.labels = digits.train_labels[: self.recipe.images].to(device)
        self.unseen = _pixels(digits.test_images, self.recipe.unseen, device)
        self.unseen_labels = digits.test_labels[: self.recipe.unseen].to(device)
        self.seeds = sorted({job.seed for job in jobs})
        self.seed_of_job = torch.tensor([self.seeds.index(job.seed) for job in jobs], device=device)
        self.steps = len(self.images) // self.recipe.batch
        self.order = torch.zeros(len(self.seeds), self.steps, self.recipe.batch, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        rates = Rates(
            [recipe.lr for recipe in recipes],
            [0.0] * len(jobs),
            [recipe.strength for recipe in recipes],
            self.steps * self.recipe.length,
        )
        copies = [network_of(self.recipe.method, self.recipe.widths, job.seed) for job in jobs]
        self.stack = Stack(copies, rates, self._batch, device, changes=[self.position])

    def epoch(self) -> list[Metrics]:
        """One pass over the images; the loss is the mean over it, the dimension that at its end."""
        self.order.copy_(torch.stack([self._shuffled(seed) for seed in self.seeds]))
        self.position.zero_()
        loss = self.stack.run(self.steps)
        self.done += 1
        pairs = zip(loss.tolist(), self._dimensions(), strict=True)
        return [{"loss": value, "dimension": dimension} for value, dimension in pairs]

    def finish(self) -> list[Metrics]:
        """Dimension, squared error on the test images, macro-F1 of a classifier of the codes."""
        parts = self.unseen.split(IMAGES_AT_ONCE)
        errors = sum(self.stack.measure(_scaled(part), shared=True)[0] * len(part) for part in parts)
        classes = predictions(self._codes(self.images), self.labels, self._codes(self.unseen), classes=CLASSES)
        scores = macro_f1(classes, self.unseen_labels, classes=CLASSES)
        assert isinstance(errors, Tensor)
        results = zip(self._dimensions(), (errors / len(self.unseen)).tolist(), scores.tolist(), strict=True)
        return [{"dimension": dimension, "test_mse": mse, "macro_f1": f1} for dimension, mse, f1 in results]

    def state_dict(self) -> dict[str, Any]:
        """The stack's, and how many epochs are done, which decides the order of the next."""
        return {"stack": self.stack.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the stack."""
        self.stack.load_state_dict(state["stack"])
        self.done = state["done"]

    def _batch(self) -> tuple[Tensor]:
        """The next images, (jobs, batch, pixels); they are read once for each seed."""
        chosen = self.order.index_select(1, self.position)[:, 0]
        self.position.add_(1)
        return (_scaled(self.images[chosen])[self.seed_of_job],)

    def _shuffled(self, seed: int) -> Tensor:
        # torch looks at the lowest 32 bits of a seed only.
        generator = torch.Generator().manual_seed(100_003 * seed + self.done)
        order = torch.randperm(len(self.images), generator=generator)
        return order[: self.steps * self.recipe.batch].view(self.steps, -1)

    def _dimensions(self) -> list[int]:
        dimensions: list[int] = self.stack.measure(_scaled(self.unseen[:1]), shared=True)[2].tolist()
        return dimensions

    def _codes(self, images: Tensor) -> Tensor:
        """The codes of all images, (jobs, images, channels)."""
        network = self.stack.template.network
        assert isinstance(network, Autoencoder)
        parts = images.split(IMAGES_AT_ONCE)
        return torch.cat([self.stack.outputs(Encoder(network), _scaled(part), shared=True) for part in parts], dim=1)


def network_of(method: str, widths: Sequence[int], seed: int) -> GatedLoss:
    """The autoencoder with the weights of a seed and the method's mask on its code."""
    generator = torch.Generator().manual_seed(seed)
    encoder = perceptron(widths, nn.ReLU, generator=generator)
    decoder = perceptron(widths[::-1], nn.ReLU, generator=generator).append(nn.Tanh())
    gate = hg.Gate(widths[-1], dim=-1) if method == "dam" else RectifiedMask(widths[-1])
    return GatedLoss(Autoencoder(encoder, gate, decoder))


def _pixels(images: Tensor, count: int, device: torch.device) -> Tensor:
    return images[:count].flatten(1).to(device)


def _scaled(pixels: Tensor) -> Tensor:
    """Bytes as floats in [-1, 1]."""
    return pixels.float() / 127.5 - 1


def recipes() -> list[DigitCode]:
    """Both methods at all their strengths."""
    return [DigitCode(method, strength) for method, strengths in STRENGTHS.items() for strength in strengths]


EXPERIMENT = Experiment(
    id="autoencoder",
    title="codes of handwritten digits: error and usefulness against dimension, DAM and L1",
    place="Fig. 5",
    seeds=5,
    recipes=recipes,
    together=125,
)
