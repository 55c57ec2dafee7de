"""Whole transformers: heads and feed-forward units go, exactly; what stays has its reason; files and counts agree."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headgate as hg
from headgate.layers import FewerHeads
from tests.surgery.exactness import LIMIT, error, in_double, move_offsets_, outputs, parameters, randomise_
from tests.toys import Net
from tests.transformers import FRAMES, IDS, IMAGE, PADDING, Bert, Conformer, Gpt, Llama, Vision


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True, dropout=0.0), 2)


TOKENS = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
# How to build each, what to call it with, and its groups by hand.
MODELS: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, int]]] = {
    "vit": (
        Vision,
        IMAGE,
        {f"blocks.{i}.{part}": n for i in (0, 1) for part, n in (("attn.qkv", 4), ("attn.qkv#2", 3), ("mlp.0", 20))},
    ),
    "gpt": (Gpt, IDS, {f"h.{i}.{part}": n for i in (0, 1) for part, n in (("attn.c_attn", 4), ("c_fc", 20))}),
    "llama": (
        Llama,
        IDS,
        {f"layers.{i}.{part}": n for i in (0, 1) for part, n in (("self_attn.q_proj", 4), ("gate_proj", 20))},
    ),
    "bert": (
        Bert,
        {"ids": IDS, "attention_mask": PADDING},
        {
            **{f"layer.{i}.{part}": n for i in (0, 1) for part, n in (("attention.query", 4), ("intermediate", 20))},
            "pooler": 10,
        },
    ),
    "conformer": (
        Conformer,
        FRAMES,
        {
            "sub.0": 6,
            "sub.2": 6,
            **{
                f"blocks.{i}.{part}": n
                for i in (0, 1)
                for part, n in (("ff1.1", 20), ("ff2.1", 20), ("self_attn.linear_q", 4), ("conv.pointwise1", 10))
            },
        },
    ),
    "torch's encoder": (
        _encoder,
        TOKENS,
        {f"layers.{i}.{part}": n for i in (0, 1) for part, n in (("self_attn", 4), ("linear1", 20))},
    ),
}


def gated(name: str, **options: Any) -> tuple[nn.Module, Any]:
    build, example, _ = MODELS[name]
    model = randomise_(build()).double()
    hg.insert_gates_(model, in_double(example), **options)
    return model, in_double(example)


@pytest.mark.parametrize("name", MODELS)
class TestWholeModels:
    def test_heads_and_units_are_the_groups(self, name: str) -> None:
        build, example, groups = MODELS[name]
        plan = hg.find_groups(build(), example)
        assert {group.name: group.size for group in plan.groups} == groups, str(plan)
        assert (
            any("normalises over channels" in str(why) for r in plan.refusals for why in r.obstacles) or name == "llama"
        )

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_compaction_is_exact(self, name: str, seed: int) -> None:
        model, example = gated(name, floor=1, order=f"random:{seed}")
        move_offsets_(model, seed)
        share = hg.kept(model, of="params")
        small = hg.compact(model)
        assert error(outputs(model, example), outputs(small, example)) < LIMIT
        assert parameters(small) < parameters(model)
        assert share == parameters(small) / parameters(MODELS[name][0]())

    def test_saved_and_loaded(self, name: str, tmp_path: Path) -> None:
        model, example = gated(name, floor=1, order="random:5")
        move_offsets_(model, 5)
        small = hg.compact(model)
        hg.save(small, tmp_path / "small.safetensors")
        loaded = hg.load(tmp_path / "small.safetensors", MODELS[name][0])
        assert all(map(torch.equal, outputs(small, example), outputs(loaded, example)))
        assert repr(loaded) == repr(small)

    def test_cut_twice(self, name: str, tmp_path: Path) -> None:
        model, example = gated(name, floor=2, branches="full")
        with torch.no_grad():
            for gate in hg.gates(model).values():
                gate.offset.fill_(-1.0)
        once = hg.compact(model)
        hg.insert_gates_(once, example, floor=1)
        move_offsets_(once, 1)
        twice = hg.compact(once)
        assert error(outputs(once, example), outputs(twice, example)) < LIMIT
        hg.save(twice, tmp_path / "twice.safetensors")
        loaded = hg.load(tmp_path / "twice.safetensors", MODELS[name][0])
        assert all(map(torch.equal, outputs(twice, example), outputs(loaded, example)))

    def test_shrink_by_hand(self, name: str) -> None:
        build, example, groups = MODELS[name]
        model = randomise_(build())
        plan = hg.find_groups(model, example)
        keep = {site: torch.arange(n) % 2 == 0 for site, n in groups.items()}
        small = hg.shrink(model, plan, keep)
        assert parameters(small) < parameters(model)
        again = {group.name: group.size for group in hg.find_groups(small, example).groups}
        # Also of the first, which now has as many places as heads.
        assert again == {site: (n + 1) // 2 for site, n in groups.items()}

    def test_the_default_floor_leaves_a_head(self, name: str) -> None:
        model, _ = gated(name)
        heads = {site for site, n in MODELS[name][2].items() if n == 4}
        assert heads <= set(hg.gates(model))
        with torch.no_grad():
            for gate in hg.gates(model).values():
                gate.offset.fill_(-5.0)
        optimizer = torch.optim.SGD(hg.param_groups(model, lr=0.0))
        hg.penalty(model).backward()
        optimizer.step()
        now = {gate.name: gate.open for gate in hg.status(model).gates}
        assert all(now[site] >= 1 for site in heads)


def test_a_tied_embedding_stays_tied() -> None:
    model, example = gated("gpt", floor=1)
    move_offsets_(model, 2)
    small = hg.compact(model)
    assert small.lm_head.weight is small.wte.weight
    assert error(outputs(model, example), outputs(small, example)) < LIMIT


def test_widths_of_heads_are_multiples_in_channels() -> None:
    """Heads of three channels: four of them are twelve, a multiple of six with two heads or four."""
    model, example = gated("gpt", floor=1, multiple_of=6)
    with torch.no_grad():
        hg.gates(model)["h.0.attn.c_attn"].offset.fill_(-3.0)
    small = hg.compact(model)
    assert small.h[0].attn.n_head == 2 and small.h[0].attn.split_size == 6
    assert error(outputs(model, example), outputs(small, example)) < LIMIT


@pytest.mark.parametrize("multiple_of", [1, 6])
def test_a_budget_on_heads_and_units_is_met(multiple_of: int) -> None:
    torch.manual_seed(0)
    model = Gpt()
    hg.insert_gates_(model, IDS, floor=1, multiple_of=multiple_of)
    optimizer = torch.optim.AdamW(hg.param_groups(model, lr=1e-3, weight_decay=0.01))
    budget = hg.Budget(model, IDS, params=0.6, steps=100)
    for _ in range(100):
        loss = model(IDS).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step()
    share = hg.kept(model, of="params")
    assert budget.met and 0.5 < share <= 0.6
    small = hg.compact(model)
    assert parameters(small) / parameters(Gpt()) == share
    hg.transfer_(optimizer, model, small)
    small(IDS).square().mean().backward()
    optimizer.step()


def test_numbers_in_attributes_follow() -> None:
    model = randomise_(Llama())
    plan = hg.find_groups(model, IDS)
    small = hg.shrink(model, plan, {"layers.1.self_attn.q_proj": torch.tensor([True, False, False, True])})
    assert [layer.self_attn.num_heads for layer in small.layers] == [8, 4]
    assert [layer.self_attn.num_key_value_heads for layer in small.layers] == [4, 2]
    assert [layer.self_attn.head_dim for layer in small.layers] == [4, 4]
    assert small.layers[1].self_attn.o_proj.in_features == 16
    assert model.layers[1].self_attn.num_heads == 8


MASK = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])
SOURCES = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(2))


class Attending(nn.Module):
    """torch's attention, called in one way."""

    def __init__(self, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.weights, self.attention = weights, nn.MultiheadAttention(12, 4, **options)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        other = x if y is None else y
        return self.head(self.norm(x + self.attention(x, other, other, need_weights=self.weights, **options)[0]))


CALLS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "itself": (lambda: Attending(batch_first=True), TOKENS),
    "sequence first": (Attending, TOKENS),
    "no batch": (Attending, TOKENS[0]),
    "another sequence": (lambda: Attending(batch_first=True), (TOKENS, SOURCES)),
    "sources of another width": (lambda: Attending(batch_first=True, kdim=7, vdim=7), (TOKENS, SOURCES[..., :7])),
    "sources of another width, no biases": (
        lambda: Attending(batch_first=True, kdim=7, vdim=7, bias=False), (TOKENS, SOURCES[..., :7]),
    ),
    "weights that nobody reads": (lambda: Attending(True, batch_first=True), TOKENS),
    "no biases": (lambda: Attending(bias=False, batch_first=True), TOKENS),
    "learned keys": (lambda: Attending(add_bias_kv=True, batch_first=True), {"x": TOKENS, "attn_mask": MASK}),
    "a zero key": (lambda: Attending(add_zero_attn=True, batch_first=True), {"x": TOKENS, "attn_mask": MASK}),
    "masks": (
        lambda: Attending(batch_first=True), {"x": TOKENS, "attn_mask": MASK, "key_padding_mask": PADDED},
    ),
    "masks and weights": (
        lambda: Attending(True, batch_first=True), {"x": TOKENS, "attn_mask": MASK, "key_padding_mask": PADDED},
    ),
    "one row padded": (
        lambda: Attending(), {"x": TOKENS[0], "attn_mask": MASK, "key_padding_mask": PADDED[1]},
    ),
    "one mask of numbers": (lambda: Attending(batch_first=True), {"x": TOKENS, "attn_mask": torch.randn(5, 5)}),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), TOKENS),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(12, 4, 20, batch_first=True), (TOKENS, SOURCES)),
    "norm first": (lambda: nn.TransformerEncoderLayer(12, 4, 20, norm_first=True, activation="gelu"), TOKENS),
    "padded encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), 2),
        {"src": TOKENS, "src_key_padding_mask": PADDED},
    ),
    "decoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 4, 20, batch_first=True), 2, nn.LayerNorm(12)),
        {"tgt": TOKENS, "memory": SOURCES, "tgt_mask": MASK, "tgt_is_causal": True},
    ),
    "encoder and decoder": (lambda: nn.Transformer(12, 4, 1, 1, 20, batch_first=True), (SOURCES, TOKENS)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", CALLS)
def test_torchs_attention_loses_heads_exactly(name: str) -> None:
    build, example = CALLS[name]
    model = randomise_(build()).double()
    untouched = outputs(model, in_double(example))
    hg.insert_gates_(model, in_double(example), floor=1, order="random:3")
    move_offsets_(model, 3)
    small = hg.compact(model)
    attentions = [module for module in small.modules() if isinstance(module, nn.MultiheadAttention)]
    assert attentions and all(isinstance(one, FewerHeads) and one.num_heads < 4 for one in attentions)
    for with_gradients in (True, False):  # without them torch takes its fast path where it can
        with torch.set_grad_enabled(with_gradients):
            expected, got = outputs(model, in_double(example)), outputs(small, in_double(example))
            if name == "padded encoder" and not with_gradients:
                # There torch sets what is padded to zeros, and only there.
                assert (expected[0][PADDED] == 0).all()
                expected, got = ([one[~PADDED] for one in many] for many in (expected, got))
            assert error(expected, got) < LIMIT
    assert error(untouched, outputs(small, in_double(example))) > 1e-3
    assert [[*one.state_dict()] for one in attentions] == [
        [*one.state_dict()] for one in build().modules() if isinstance(one, nn.MultiheadAttention)
    ]
    assert error(outputs(small, in_double(example)), outputs(copy.deepcopy(small), in_double(example))) == 0.0


def test_weights_that_are_read_keep_all_heads() -> None:
    def returned(m: Any, x: torch.Tensor) -> Any:
        y, weights = m.attention(x, x, x)
        return m.head(y), weights

    parts = {"attention": nn.MultiheadAttention(12, 4, batch_first=True), "head": nn.Linear(12, 3)}
    plan = hg.find_groups(Net(returned, **parts), TOKENS)
    assert [group.name for group in plan.groups] == ["attention.out_proj"]
    stays = {axis for refusal in plan.refusals for axis in refusal.axes}
    assert ("attention.in_proj_weight", 0) in stays
    assert "attention: mean: reduces over channels; if these are attention weights, averaged over heads" in str(plan)


def test_masks_head_by_head_keep_all_heads() -> None:
    plan = hg.find_groups(Attending(batch_first=True), {"x": TOKENS, "attn_mask": torch.randn(8, 5, 5)})
    assert not plan.groups and "scaled_dot_product_attention" in str(plan)


def test_an_attention_that_lost_heads_refuses_masks_head_by_head() -> None:
    model = Attending(batch_first=True)
    plan = hg.find_groups(model, TOKENS)
    small = hg.shrink(model, plan, {"attention": torch.tensor([True, False, True, True])})
    with pytest.raises(ValueError, match=r"\(targets, sources\), not \[6, 5, 5\]"):
        small(TOKENS, attn_mask=torch.randn(6, 5, 5))


def test_an_attention_of_the_users_own_making_is_refused_by_the_trial() -> None:
    class Own(nn.MultiheadAttention):
        def forward(self, *args: Any, **options: Any) -> Any:
            return super().forward(*args, **options)

    model = Attending(batch_first=True)
    model.attention = Own(12, 4, batch_first=True)
    model.head = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    assert list(hg.insert_gates_(model, TOKENS, floor=1)) == ["head.0"]
    text = str(model.headgate_insertion.plan)
    assert "attention: trial: the model's own code does not run on fewer channels" in text
