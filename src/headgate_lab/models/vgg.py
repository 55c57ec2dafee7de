"""VGG-19 with BatchNorm for small images, as Network Slimming and the paper use it."""

from __future__ import annotations

from torch import Tensor, nn

from headgate_lab.models.preresnet import initialise_

# Numbers are convolutions of that width; a 0 is a pooling that halves the image.
VGG19 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512)


class VGG(nn.Module):
    """Convolutions with BatchNorm and ReLU, poolings between them, one linear layer on the pooled features."""

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = VGG19) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in widths:
            if width == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)
        initialise_(self)
        nn.init.normal_(self.classifier.weight, 0.0, 0.01)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to logits (B, classes); any size that survives four halvings."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
