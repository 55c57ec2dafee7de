"""Small random networks of the `timm` library: its own classes, shallow and narrow where they allow it."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import nn

from benchmarks.vision import vision_models

SIZES_IN_WORDS = (
    "fresh weights, few classes and small images; transformers, ConvNeXt and DenseNet shallow and narrow, the others "
    "as they are"
)

_TOKENS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
_WINDOWS = {"img_size": 32, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
_NETWORKS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": _TOKENS,
    "deit_tiny_distilled_patch16_224": _TOKENS,
    "vit_small_patch14_dinov2": _TOKENS,
    "beit_base_patch16_224": _TOKENS,
    "eva02_tiny_patch14_224": _TOKENS,
    "cait_xxs24_224": _TOKENS,
    "swin_tiny_patch4_window7_224": _WINDOWS,
    "swinv2_tiny_window8_256": _WINDOWS,
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)},
    "poolformer_s12": {"layers": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 32)},
    "densenet121": {"block_config": (2, 2), "growth_rate": 8},
    "resnet10t": {},
    "efficientnet_lite0": {},
    "mobilenetv3_small_050": {},
    "regnety_002": {},
}
MODELS = list(_NETWORKS)


def library() -> Any:
    """The library, also beside a torchvision whose operators do not load.

    Raises:
        ImportError: it is not installed, or torchvision is not.
    """
    vision_models()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("timm")


def build(name: str) -> tuple[nn.Module, Any]:
    """The network with fresh weights, and an example."""
    sizes = _NETWORKS[name]
    images = torch.randn(2, 3, sizes.get("img_size", 64), sizes.get("img_size", 64))
    return library().create_model(name, num_classes=5, **sizes), images
