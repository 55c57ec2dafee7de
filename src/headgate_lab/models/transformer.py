"""A small transformer that classifies images by their patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from headgate_lab.models.width import scaled


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a LayerNorm and added to what it read."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.projection = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.widen, self.narrow = nn.Linear(size, hidden), nn.Linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, size) to tokens of the same shape."""
        batch, tokens, size = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, size))
        written: Tensor = self.narrow(gelu(self.widen(self.norm2(x))))
        return x + written


class PatchTransformer(nn.Module):
    """Patches of 4 by 4 pixels as tokens, blocks of attention, and a linear layer on the mean of the tokens.

    Args:
        channels: of the images.
        pixels: their height and width.
        width: a fraction of the feed-forward layers' widths; what the residual stream carries stays.
    """

    def __init__(self, channels: int = 1, pixels: int = 28, classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        size, heads, depth = 64, 4, 4
        self.patches = nn.Conv2d(channels, size, 4, stride=4)
        self.places = nn.Parameter(torch.randn(1, (pixels // 4) ** 2, size) * 0.02)
        self.blocks = nn.Sequential(*(Block(size, heads, scaled(4 * size, width)) for _ in range(depth)))
        self.norm, self.classifier = nn.LayerNorm(size), nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, channels, pixels, pixels) to logits (B, classes)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.classifier(self.norm(self.blocks(tokens)).mean(1))
        return logits
