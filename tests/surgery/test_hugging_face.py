"""Networks of the transformers library, two layers each: random weights, orders and offsets in float64, exact to 1e-9.

`make zoo` tries more of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

import headgate as hg
from tests.surgery.exactness import LIMIT, error, in_double, move_offsets_, outputs, parameters, randomise_

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from benchmarks.hugging_face import attentions, build

HEADS, PLACES, UNITS = 4, 8, 48
# The groups of each, by the paths of its layers: heads (or groups of heads that share keys), places of all heads where
# their scale is a number of its own, and feed-forward units.
GROUPS: dict[str, dict[str, int]] = {
    "gpt2": {
        "transformer.h.{}.attn.c_attn": HEADS,
        "transformer.h.{}.attn.c_attn#2": PLACES,
        "transformer.h.{}.mlp.c_fc": 128,
    },
    "gpt_neox": {"gpt_neox.layers.{}.attention.query_key_value": HEADS, "gpt_neox.layers.{}.mlp.dense_h_to_4h": UNITS},
    "opt": {
        "model.decoder.layers.{}.self_attn.k_proj": HEADS,
        "model.decoder.layers.{}.self_attn.k_proj#2": PLACES,
        "model.decoder.layers.{}.fc1": UNITS,
    },
    "llama": {"model.layers.{}.self_attn.q_proj": 2, "model.layers.{}.mlp.gate_proj": UNITS},
    "mistral": {"model.layers.{}.self_attn.q_proj": 2, "model.layers.{}.mlp.gate_proj": UNITS},
    "qwen2": {"model.layers.{}.self_attn.q_proj": 2, "model.layers.{}.mlp.gate_proj": UNITS},
    "qwen3": {"model.layers.{}.self_attn.q_proj": 2, "model.layers.{}.mlp.gate_proj": UNITS},
    "gemma3": {"model.layers.{}.self_attn.q_proj": 2, "model.layers.{}.mlp.gate_proj": UNITS},
    "bert": {
        "bert.encoder.layer.{}.attention.self.query": HEADS,
        "bert.encoder.layer.{}.attention.self.key": PLACES,
        "bert.encoder.layer.{}.intermediate.dense": UNITS,
        "bert.pooler.dense": 32,
    },
    "roberta": {
        "roberta.encoder.layer.{}.attention.self.query": HEADS,
        "roberta.encoder.layer.{}.attention.self.key": PLACES,
        "roberta.encoder.layer.{}.intermediate.dense": UNITS,
    },
    "distilbert": {
        "distilbert.transformer.layer.{}.attention.q_lin": HEADS,
        "distilbert.transformer.layer.{}.attention.k_lin": PLACES,
        "distilbert.transformer.layer.{}.ffn.lin1": UNITS,
    },
    "t5": {
        # The first layer's bias by distance is added in all layers, so that their heads go together.
        "encoder.block.0.layer.0.SelfAttention.q": HEADS,
        "encoder.block.0.layer.0.SelfAttention.k": PLACES,
        "encoder.block.{}.layer.1.DenseReluDense.wi": UNITS,
        "decoder.block.0.layer.0.SelfAttention.q": HEADS,
        "decoder.block.0.layer.0.SelfAttention.k": PLACES,
        "decoder.block.0.layer.1.EncDecAttention.q": HEADS,
        "decoder.block.0.layer.1.EncDecAttention.k": PLACES,
        "decoder.block.{}.layer.2.DenseReluDense.wi": UNITS,
    },
    "whisper": {
        "model.encoder.conv1": 32,
        "model.encoder.layers.{}.self_attn.k_proj": HEADS,
        "model.encoder.layers.{}.self_attn.k_proj#2": PLACES,
        "model.encoder.layers.{}.fc1": UNITS,
        "model.decoder.layers.{}.self_attn.k_proj": HEADS,
        "model.decoder.layers.{}.self_attn.k_proj#2": PLACES,
        "model.decoder.layers.{}.encoder_attn.k_proj": HEADS,
        "model.decoder.layers.{}.encoder_attn.k_proj#2": PLACES,
        "model.decoder.layers.{}.fc1": 40,
    },
    "vit": {
        "vit.layers.{}.attention.q_proj": HEADS,
        "vit.layers.{}.attention.k_proj": PLACES,
        "vit.layers.{}.mlp.fc1": UNITS,
    },
}


def in_all_layers(groups: dict[str, int]) -> dict[str, int]:
    return {path.format(layer): size for path, size in groups.items() for layer in range(2)}


def without_dropout_(model: nn.Module) -> nn.Module:
    """In training mode then as deterministic as in evaluation."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and (name == "p" or "dropout" in name):
                setattr(module, name, 0.0)
    return model


def gated(name: str, attention: str | None = None, **options: Any) -> tuple[nn.Module, Any]:
    model, example = build(name, attention)
    model, example = randomise_(without_dropout_(model)).double(), in_double(example)
    hg.insert_gates_(model, example, floor=1, **options)
    return model, example


@pytest.mark.parametrize("name", GROUPS)
def test_heads_and_units_go_exactly(name: str) -> None:
    model, example = gated(name, order=f"random:{len(name)}")
    found = {group.name: group.size for group in model.headgate_insertion.plan.groups}
    assert found == in_all_layers(GROUPS[name])
    open_outputs = outputs(model, example)
    move_offsets_(model, seed=len(name))
    share = hg.kept(model, of="params")
    small = hg.compact(model)
    for training in (False, True):
        expected = outputs(model.train(training), example)
        assert error(expected, outputs(small.train(training), example)) < LIMIT
    assert error(open_outputs, expected) > 1e-3, "the offsets changed nothing, so that nothing is shown"
    assert share == parameters(small) / parameters(model) < 1
    assert type(small) is type(model) and small.config is not model.config


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_attention_by_plain_products_is_exact_too(name: str) -> None:
    assert attentions(name) == ["sdpa", "eager"]
    model, example = gated(name, "eager", order="random:3")
    assert set(in_all_layers(GROUPS[name])) <= set(hg.gates(model))
    move_offsets_(model, seed=3)
    assert error(outputs(model, example), outputs(hg.compact(model), example)) < LIMIT


@pytest.mark.parametrize("name", ["gptj", "falcon", "mamba", "deberta_v2", "modernbert", "bart", "swin", "clip"])
def test_some_others_are_exact_in_what_they_lose(name: str) -> None:
    model, example = gated(name, order="random:1")
    move_offsets_(model, seed=1)
    small = hg.compact(model)
    assert error(outputs(model, example), outputs(small, example)) < LIMIT
    assert parameters(small) < parameters(model)


def test_heads_whose_slopes_follow_from_their_number_are_refused() -> None:
    """Bloom's positional slopes are made from the number of heads: with fewer heads, those left would have others."""
    model, example = build("bloom")
    plan = hg.find_groups(model, example)
    attention = [group.size for group in plan.groups if "self_attention" in group.name]
    assert attention == [PLACES] * 2  # of heads, but no heads
    assert "transformer.h.0.self_attention.query_key_value: trial: outputs differ" in str(plan)
    assert "(arange in transformer): kept in a buffer they would be cut instead" in str(plan)


def test_heads_that_code_cuts_off_by_a_number_are_refused() -> None:
    plan = hg.find_groups(*build("phi3"))
    assert [group.name for group in plan.groups] == [f"model.layers.{i}.mlp.gate_up_proj" for i in range(2)]
    assert "model.layers.0.self_attn: slice: cuts channels into unequal pieces" in str(plan)


def halved(name: str, *closing: str) -> tuple[nn.Module, Any, Any]:
    """Gated, half of what these words name closed in every layer, and compacted; buffers are what the class makes."""
    model, example = build(name)
    made = {key: buffer.clone() for key, buffer in model.named_buffers() if key not in model.state_dict()}
    randomise_(model)
    for key, buffer in made.items():
        model.get_buffer(key).copy_(buffer)
    model, example = model.double(), in_double(example)
    hg.insert_gates_(model, example, floor=1, order="random:4", where=lambda site, _: not site.endswith(":write"))
    with torch.no_grad():
        for site, gate in hg.gates(model).items():
            if any(word in site for word in closing):
                gate.offset.fill_(-2.5)
    return model, hg.compact(model), example


# What closes, and the numbers that say so. Two of them had no value: they followed from the others.
FITTING: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "llama": (("self_attn", "mlp"), {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}),
    "gpt2": (("mlp",), {"n_inner": 64}),
    "vit": (("attention.q_proj", "mlp"), {"num_attention_heads": 2, "head_dim": 8, "intermediate_size": 24}),
    "t5": (("SelfAttention.q", "EncDecAttention.q", "Dense"), {"num_heads": 2, "d_ff": 24}),
    "t5 with places": (
        ("SelfAttention", "EncDecAttention", "Dense"),
        {"num_heads": 2, "d_kv": 4, "d_ff": 24},
    ),
    "whisper": (("fc1",), {"encoder_ffn_dim": 24, "decoder_ffn_dim": 20}),
}


@pytest.mark.parametrize("name", FITTING)
def test_equal_layers_come_back_from_the_librarys_own_files(name: str, tmp_path: Any) -> None:
    closing, numbers = FITTING[name]
    model, small, example = halved(name.split()[0], *closing)
    assert {key: getattr(small.config, key) for key in numbers} == numbers
    small.save_pretrained(tmp_path)
    again = type(small).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert error(outputs(model, example), outputs(again, example)) < LIMIT
    assert parameters(again) == parameters(small) < parameters(model)
    assert {key: getattr(model.config, key, None) for key in numbers} != numbers


def test_what_their_configuration_cannot_express_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """BERT's width of a head is its width over the number of heads, so that fewer heads would be wider ones."""
    _, small, example = halved("bert", "attention")
    assert "no numbers in it give bert.encoder.layer.0.attention." in caplog.text and "headgate.save" in caplog.text
    assert small.config.num_attention_heads == HEADS
    with pytest.raises(hg.ConfigError, match="the configuration of BertForSequenceClassification cannot express"):
        hg.fit_config_(small, example)


def test_a_file_of_ours_brings_any_of_them_back(tmp_path: Any) -> None:
    model, example = gated("gpt2", order="random:2")
    move_offsets_(model, seed=2)
    small = hg.compact(model)
    hg.save(small, tmp_path / "small.safetensors")
    loaded = hg.load(tmp_path / "small.safetensors", lambda: build("gpt2")[0])
    assert all(map(torch.equal, outputs(small, example), outputs(loaded, example)))
