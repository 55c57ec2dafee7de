"""PreResNet-164 on TinyImageNet (tab:tinyimagenet): the paper's way, ours at three sizes, and the controls.

Images are shifted by up to 8 of their 64 pixels and flipped. As for CIFAR-100 the paper's networks train for 200
epochs by SGD, where the paper used AdaBelief, which torch lacks. It tells accuracies and pruned channels, no sizes:
ours are halved three times. Accuracy is on the published validation images. Not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headgate_lab.data.tinyimagenet import NORMALISATION
from headgate_lab.recipes import cifar
from headgate_lab.recipes.cifar import Cifar
from headgate_lab.recipes.classification import Data
from headgate_lab.recipes.experiment import Experiment

STRENGTHS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 2.0)
# A half, a quarter and an eighth of 1,752,088 parameters.
SIZES = (876_000, 438_000, 219_000)


@dataclass(frozen=True)
class TinyImageNet(Cifar):
    """One network; see `Cifar`."""

    experiment: ClassVar[str] = "tinyimagenet"

    length: int = field(default=200, kw_only=True)

    def data(self) -> Data:
        """Shifted by up to 8 pixels and flipped."""
        return Data(cifar._images(self.dataset), NORMALISATION, pad=8, flip=True)


def recipes() -> Sequence[TinyImageNet]:
    """The paper's strengths; ours, the narrower and the found widths at every size; and the full network."""
    found = [
        TinyImageNet("preresnet164", "tinyimagenet", "paper", strength, lr=0.05, weight_decay=1e-3)
        for strength in STRENGTHS
    ]
    for size in SIZES:
        found.append(TinyImageNet("preresnet164", "tinyimagenet", "ours", params=size))
        found.append(TinyImageNet("preresnet164", "tinyimagenet", "narrower", params=size))
        found.append(TinyImageNet("preresnet164", "tinyimagenet", "found", params=size))
    return [*found, TinyImageNet("preresnet164", "tinyimagenet", "narrower")]


EXPERIMENT = Experiment("tinyimagenet", "PreResNet-164 on TinyImageNet", "tab:tinyimagenet", 1, recipes, together=2)
