"""Small random networks of the `transformers` library: two layers of width 32, four heads, 64 words, by architecture.

Nothing is downloaded: every network is built from its configuration, with fresh weights.
"""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.vision import vision_models

SIZES_IN_WORDS = (
    "small random configurations: two layers of width 32 with four heads, 64 words, feed-forward layers of 40 to 128 "
    "units; attention by torch's fused operation where the architecture has it"
)
WIDTH, INNER, HEADS, WORDS, LENGTH, IMAGE = 32, 48, 4, 64, 7, 16

_GENERATOR = torch.Generator().manual_seed(0)
_IDS = torch.randint(3, WORDS, (2, LENGTH), generator=_GENERATOR)
_IMAGES = torch.randn(2, 3, IMAGE, IMAGE, generator=_GENERATOR)

TOKENS: dict[str, Any] = {"input_ids": _IDS}
CAUSAL: dict[str, Any] = {"input_ids": _IDS, "use_cache": False}
PAIRS: dict[str, Any] = {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :5], "use_cache": False}
PIXELS: dict[str, Any] = {"pixel_values": _IMAGES}
SOUND: dict[str, Any] = {
    "input_features": torch.randn(2, 8, 20, generator=_GENERATOR),
    "decoder_input_ids": _IDS[:, :5],
    "use_cache": False,
}
WAVES: dict[str, Any] = {"input_values": torch.randn(2, 64, generator=_GENERATOR)}

_LAYERS = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": INNER}
_TEXT = _LAYERS | {"vocab_size": WORDS, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
_TEXT |= {"pad_token_id": 0}
_GROUPED = _TEXT | {"num_key_value_heads": HEADS // 2}
_VISION = _LAYERS | {"image_size": IMAGE, "patch_size": 4, "num_labels": 5}
_SHORT = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}
_SHORT |= {"vocab_size": WORDS}
_BOTH = {
    "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": INNER, "decoder_ffn_dim": 40, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """The class of a network, the class of its configuration, its sizes, and what to call it with."""

    network: str
    configuration: str
    sizes: dict[str, Any]
    example: dict[str, Any]


ARCHITECTURES = {
    "gpt2": Architecture("GPT2LMHeadModel", "GPT2Config", _SHORT, CAUSAL),
    "gptj": Architecture("GPTJForCausalLM", "GPTJConfig", _SHORT | {"rotary_dim": 4}, CAUSAL),
    "gpt_neo": Architecture(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"vocab_size": WORDS, "hidden_size": WIDTH, "num_layers": 2, "num_heads": HEADS, "window_size": 4}
        | {"max_position_embeddings": 32, "attention_types": [[["global", "local"], 1]]}
        | {"bos_token_id": 1, "eos_token_id": 2},
        CAUSAL,
    ),
    "gpt_neox": Architecture("GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT, CAUSAL),
    "opt": Architecture(
        "OPTForCausalLM", "OPTConfig", _TEXT | {"ffn_dim": INNER, "word_embed_proj_dim": WIDTH}, CAUSAL
    ),
    "bloom": Architecture(
        "BloomForCausalLM", "BloomConfig", {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS},
        CAUSAL,
    ),
    "falcon": Architecture("FalconForCausalLM", "FalconConfig", _TEXT | {"multi_query": False}, CAUSAL),
    "llama": Architecture("LlamaForCausalLM", "LlamaConfig", _GROUPED, CAUSAL),
    "mistral": Architecture("MistralForCausalLM", "MistralConfig", _GROUPED | {"sliding_window": 4}, CAUSAL),
    "mixtral": Architecture("MixtralForCausalLM", "MixtralConfig", _GROUPED | {"num_local_experts": 4}, CAUSAL),
    "qwen2": Architecture("Qwen2ForCausalLM", "Qwen2Config", _GROUPED, CAUSAL),
    "qwen3": Architecture("Qwen3ForCausalLM", "Qwen3Config", _GROUPED | {"head_dim": 8}, CAUSAL),
    "gemma": Architecture("GemmaForCausalLM", "GemmaConfig", _GROUPED | {"head_dim": 8}, CAUSAL),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", "Gemma2Config", _GROUPED | {"head_dim": 8, "sliding_window": 4}, CAUSAL
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", "Gemma3TextConfig", _GROUPED | {"head_dim": 8, "sliding_window": 4}, CAUSAL
    ),
    "phi": Architecture("PhiForCausalLM", "PhiConfig", _TEXT, CAUSAL),
    "phi3": Architecture("Phi3ForCausalLM", "Phi3Config", _GROUPED, CAUSAL),
    "mamba": Architecture(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4},
        CAUSAL,
    ),
    "bert": Architecture("BertForSequenceClassification", "BertConfig", _TEXT, TOKENS),
    "roberta": Architecture("RobertaForMaskedLM", "RobertaConfig", _TEXT, TOKENS),
    "distilbert": Architecture(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": WORDS, "dim": WIDTH, "hidden_dim": INNER, "n_layers": 2, "n_heads": HEADS},
        TOKENS,
    ),
    "electra": Architecture("ElectraForPreTraining", "ElectraConfig", _TEXT | {"embedding_size": 16}, TOKENS),
    "albert": Architecture("AlbertForMaskedLM", "AlbertConfig", _TEXT | {"embedding_size": 16}, TOKENS),
    "deberta_v2": Architecture(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        _TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        TOKENS,
    ),
    "modernbert": Architecture(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _TEXT | {"global_attn_every_n_layers": 2, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
        TOKENS,
    ),
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": INNER, "num_layers": 2, "num_heads": HEADS}
        | {"decoder_start_token_id": 0},
        PAIRS,
    ),
    "bart": Architecture(
        "BartForConditionalGeneration", "BartConfig", _BOTH | {"max_position_embeddings": 32}, PAIRS
    ),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _BOTH | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16},
        SOUND,
    ),
    "wav2vec2": Architecture(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        _TEXT
        | {"conv_dim": (16, 16), "conv_stride": (3, 2), "conv_kernel": (4, 3), "num_feat_extract_layers": 2}
        | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
        WAVES,
    ),
    "vit": Architecture("ViTForImageClassification", "ViTConfig", _VISION, PIXELS),
    "deit": Architecture("DeiTForImageClassification", "DeiTConfig", _VISION, PIXELS),
    "dinov2": Architecture("Dinov2ForImageClassification", "Dinov2Config", _VISION | {"mlp_ratio": 2}, PIXELS),
    "swin": Architecture(
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": IMAGE, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
        | {"window_size": 2, "num_labels": 5},
        PIXELS,
    ),
    "resnet": Architecture(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 5},
        PIXELS,
    ),
    "clip": Architecture(
        "CLIPModel",
        "CLIPConfig",
        {"text_config": _TEXT, "vision_config": _VISION, "projection_dim": 16},
        TOKENS | PIXELS,
    ),
}  # fmt: skip
MODELS = list(ARCHITECTURES)


def transformers() -> Any:
    """The library, also beside a torchvision whose operators do not load: it imports torchvision where it is there.

    Raises:
        ImportError: it is not installed.
    """
    with suppress(ImportError):
        vision_models()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return importlib.import_module("transformers")


def attentions(name: str) -> list[str]:
    """The ways in which an architecture computes attention: torch's fused one, and by plain products."""
    fused = getattr(transformers(), ARCHITECTURES[name].network)._supports_sdpa
    return ["sdpa", "eager"] if fused else ["eager"]


def configuration(name: str, **others: Any) -> Any:
    """The configuration of an architecture."""
    architecture = ARCHITECTURES[name]
    return getattr(transformers(), architecture.configuration)(**architecture.sizes, **others)


def build(name: str, attention: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The network with fresh weights, and what to call it with; attention is the fused one where there is one."""
    architecture, config = ARCHITECTURES[name], configuration(name)
    config._attn_implementation = attention or attentions(name)[0]
    # Experts by torch's grouped product, the default, are not there in float64.
    config._experts_implementation = "eager"
    return getattr(transformers(), architecture.network)(config), dict(architecture.example)
