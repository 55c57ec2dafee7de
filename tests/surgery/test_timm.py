"""Networks of the timm library: random weights, orders and offsets in float64, exact to 1e-9; `make zoo` tries more."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import headgate as hg
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, parameters, randomise_

if find_spec("timm") is None or find_spec("torchvision") is None:
    pytest.skip("timm is not installed", allow_module_level=True)

from benchmarks.timm_models import build

# Attention heads and feed-forward units of the first block.
FIRST = {
    "vit_tiny_patch16_224": {"blocks.0.attn.qkv": 4, "blocks.0.mlp.fc1": 128},
    "swin_tiny_patch4_window7_224": {"layers.0.blocks.0.attn.qkv": 2, "layers.0.blocks.0.mlp.fc1": 64},
    "beit_base_patch16_224": {"blocks.0.mlp.fc1": 128},
    "convnext_atto": {"stages.0.blocks.0.mlp.fc1": 32},
}


@pytest.mark.parametrize("name", FIRST)
def test_it_compacts_exactly(name: str) -> None:
    model, images = build(name)
    model, images = randomise_(model).double(), images.double()
    untouched = outputs(model, images)
    gates = hg.insert_gates_(model, images, order=f"random:{len(name)}", floor=1)
    prefix = next(iter(FIRST[name])).partition(".0.")[0] + ".0."
    found = {key: gate.n for key, gate in gates.items() if key.startswith(prefix) and not key.endswith(":write")}
    assert FIRST[name].items() <= found.items()
    move_offsets_(model, seed=len(name))
    small = hg.compact(model)
    gated = outputs(model, images)
    assert error(untouched, gated) > 1e-3 and error(gated, outputs(small, images)) < LIMIT
    assert parameters(small) < parameters(model)


def test_code_that_takes_the_width_from_its_input_keeps_its_heads() -> None:
    plan = hg.find_groups(build("beit_base_patch16_224")[0], torch.randn(2, 3, 32, 32))
    assert "blocks.0.attn.qkv: trial: the model's own code does not run on fewer channels" in str(plan)
