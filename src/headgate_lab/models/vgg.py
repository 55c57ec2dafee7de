"""VGG-19 with BatchNorm for small images, as Network Slimming and the paper use it."""

from __future__ import annotations

from torch import Tensor, nn

from headgate_lab.models.preresnet import initialise_
from headgate_lab.models.width import scaled

# Numbers are convolutions of that width; a 0 is a pooling that halves the image.
VGG19 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512)


class VGG(nn.Module):
    """Convolutions with BatchNorm and ReLU, poolings between them, one linear layer on the pooled features."""

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = VGG19, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for channels in widths:
            if channels == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            outputs = scaled(channels, width)
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
            layers.append(nn.ReLU(inplace=True))
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)
        self.initialise_()

    def initialise_(self) -> None:
        """Draws the weights from torch's generator."""
        initialise_(self)
        nn.init.normal_(self.classifier.weight, 0.0, 0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to logits (B, classes); any size that survives four halvings."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
