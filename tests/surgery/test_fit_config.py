"""Configurations follow where they can express a smaller network, and say why where they cannot."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgate as hg
from headgate.surgery.configuration import Number, configuration_of
from tests.surgery.exactness import LIMIT, error, outputs, randomise_


@dataclass
class Config:
    """Sizes of a small transformer. `head_width` follows from the others unless it is given."""

    width: int = 12
    num_layers: int = 2
    num_heads: int = 4
    inner_dim: int = 20
    head_width: int | None = None
    vocabulary: int = 13
    label: str = "text"


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.places = config.head_width or config.width // config.num_heads
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.num_heads * self.places)
        self.out = nn.Linear(config.num_heads * self.places, config.width)
        self.up, self.down = nn.Linear(config.width, config.inner_dim), nn.Linear(config.inner_dim, config.width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, -1, self.places).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Built from its configuration alone, which its layers keep too."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.register_buffer("scale", torch.full((1,), 1.5), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * self.scale
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T


IDS = torch.tensor([[1, 4, 10, 3, 2], [0, 4, 2, 12, 7]])


def compacted(model: nn.Module, heads: list[int], units: list[int], **options: Any) -> tuple[nn.Module, nn.Module]:
    """A gated model with so many heads and units open in its layers, and what is left of it."""
    randomise_(model).double()
    model.scale.fill_(1.5)
    options = {"where": lambda name, _: not name.endswith(":write")} | options
    gates = hg.insert_gates_(model, IDS, floor=1, order="random:2", **options)
    with torch.no_grad():
        for kind, counts in (("qkv", heads), ("up", units)):
            for layer, count in enumerate(counts):
                gate = gates[f"layers.{layer}.{kind}"]
                gate.offset.fill_(5.0 * ((count - 0.5) / gate.n - 1))
    return model, hg.compact(model)


def test_equal_layers_are_a_smaller_configuration() -> None:
    given = Config()
    model, small = compacted(Model(given), [3, 3], [7, 7])
    assert small.config == Config(num_heads=3, inner_dim=7, head_width=3)
    assert all(layer.config is small.config for layer in small.layers)
    assert given == model.config == model.layers[0].config == Config()
    again = Model(small.config).double()
    again.load_state_dict(small.state_dict())
    assert error(outputs(model, IDS), outputs(again, IDS)) < LIMIT


def test_numbers_that_need_not_change_are_left() -> None:
    assert compacted(Model(Config()), [4, 4], [7, 7])[1].config == Config(inner_dim=7)
    assert compacted(Model(Config()), [4, 4], [20, 20])[1].config == Config()
    explicit = Config(head_width=2)
    assert compacted(Model(explicit), [2, 2], [20, 20])[1].config == Config(num_heads=2, head_width=2)


def test_as_many_places_as_heads_are_told_apart_by_what_is_computed() -> None:
    """Two heads of four places have the tensors of four heads of two."""
    small = compacted(Model(Config(width=16, head_width=4)), [2, 2], [20, 20])[1]
    assert small.config == Config(width=16, num_heads=2, head_width=4)


class Unscaled(Layer):
    """Whose places can go: q · k has a scale of its own, and a bias for every head tells heads from places."""

    def __init__(self, config: Config, scale: float | None, biased: bool) -> None:
        super().__init__(config)
        self.heads, self.head_dim = config.num_heads, self.places
        self.scale = self.places**-0.5 if scale is None else scale
        self.bias = nn.Parameter(torch.zeros(config.num_heads)) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        out = out if self.bias is None else out * self.bias[:, None, None]
        x = x + self.out(out.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def of_unscaled(scale: float | None, biased: bool) -> type[Model]:
    class OfUnscaled(Model):
        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.layers = nn.ModuleList(Unscaled(config, scale, biased) for _ in range(config.num_layers))

    return OfUnscaled


def narrowed(model: nn.Module, heads: int, places: int) -> nn.Module:
    """With so many heads of so many places left in every layer."""
    randomise_(model).double()
    model.scale.fill_(1.5)
    gates = hg.insert_gates_(model, IDS, floor=1, order="random:2", where=lambda name, _: "qkv" in name)
    with torch.no_grad():
        for name, gate in gates.items():
            left = places if "#" in name else heads
            gate.offset.fill_(5.0 * ((left - 0.5) / gate.n - 1))
    return hg.compact(model)


@pytest.mark.parametrize("biased", [True, False])
def test_two_numbers_that_are_multiplied_shrink_together(biased: bool) -> None:
    """Two heads of six are as wide as three of four, four of three, or twelve of one."""
    build = of_unscaled(0.4, biased)
    small = narrowed(build(Config(head_width=8)), 2, 6)
    assert small.config == Config(num_heads=2, head_width=6)
    again = build(small.config).double()
    again.load_state_dict(small.state_dict())
    assert error(outputs(small, IDS), outputs(again, IDS)) < LIMIT


def test_a_number_without_a_value_is_one_of_two_that_are_multiplied() -> None:
    """The width of a head followed from the others: 12 over 4."""
    small = narrowed(of_unscaled(0.4, True)(Config()), 2, 2)
    assert small.config == Config(num_heads=2, head_width=2)


def test_two_numbers_that_would_build_another_scale_are_refused() -> None:
    small = narrowed(of_unscaled(None, True)(Config(head_width=8)), 2, 6)
    assert small.config == Config(head_width=8)
    with pytest.raises(hg.ConfigError, match=r"no numbers in it give .* and a network that computes the same"):
        hg.fit_config_(small, IDS)


def test_unequal_layers_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headgate"):
        small = compacted(Model(Config()), [4, 4], [7, 8])[1]
    assert small.config == Config()
    (told,) = caplog.messages
    assert "layers of one kind differ, layers.0.up.weight [7, 12] and layers.1.up.weight [8, 12]" in told
    assert "headgate.save" in told
    with pytest.raises(hg.ConfigError, match="layers of one kind differ"):
        hg.fit_config_(small, IDS)
    assert small.config == Config()


def test_what_no_number_stands_for_is_named() -> None:
    class Fixed(Model):
        def __init__(self, config: Config) -> None:
            super().__init__(config)
            for layer in self.layers:
                layer.up, layer.down = nn.Linear(config.width, 10), nn.Linear(10, config.width)

    small = compacted(Fixed(Config()), [2, 2], [7, 7])[1]
    with pytest.raises(hg.ConfigError, match=r"no numbers in it give layers.0.down.weight the shape \[12, 7\]"):
        hg.fit_config_(small, IDS)
    assert small.config == Config()


def test_a_buffer_that_the_class_would_make_otherwise_is_noticed() -> None:
    model = Model(Config())
    model.scale.fill_(1.5)
    small = compacted(model, [2, 2], [20, 20])[1]
    small.config = Config()
    small.scale.fill_(2.0)
    with pytest.raises(hg.ConfigError, match="and a network that computes the same"):
        hg.fit_config_(small, IDS)


def test_layers_of_ours_are_in_no_configuration() -> None:
    model = randomise_(Model(Config()))
    gates = hg.insert_gates_(model, IDS, floor=1)
    with torch.no_grad():
        gates["layers.0.down:write"].offset.fill_(-3.0)
    with pytest.raises(hg.ConfigError, match=r"layers.0.down is a WriteBackLinear"):
        hg.fit_config_(hg.compact(model), IDS)


def test_cut_twice_and_after_loading(tmp_path: Any) -> None:
    once = compacted(Model(Config()), [3, 3], [14, 14])[1]
    twice = compacted(copy.deepcopy(once), [2, 2], [7, 7])[1]
    assert twice.config == Config(num_heads=2, inner_dim=7, head_width=3)
    hg.save(twice, tmp_path / "twice.safetensors")
    given = Config()
    loaded = hg.load(tmp_path / "twice.safetensors", lambda: Model(given))
    assert id(loaded.config) == id(given)
    hg.fit_config_(loaded, IDS)
    assert loaded.config == twice.config and given == Config()


def test_a_part_of_a_configuration_follows() -> None:
    @dataclass
    class Whole:
        text_config: Config = field(default_factory=Config)
        labels: int = 3

    class Wrapper(Model):
        def __init__(self, config: Whole) -> None:
            super().__init__(config.text_config)
            self.config = config

    small = compacted(Wrapper(Whole()), [2, 2], [20, 20])[1]
    assert small.config == Whole(Config(num_heads=2, head_width=3))
    whole: Any = small.config
    assert small.layers[0].config is whole.text_config


def test_models_without_one_are_left_alone() -> None:
    class Alone(Model):
        def __init__(self) -> None:
            super().__init__(Config())

    small = compacted(Alone(), [2, 2], [7, 7])[1]
    assert small.config == Config()
    with pytest.raises(hg.ConfigError, match="no attribute, such as `config`"):
        hg.fit_config_(small, IDS)
    model = randomise_(Model(Config()))
    hg.insert_gates_(model, IDS)
    with pytest.raises(hg.ConfigError, match="still has gates"):
        hg.fit_config_(model, IDS)


def test_numbers_that_a_dict_does_not_bring_back_are_not_used() -> None:
    class Forgetful(Config):
        def to_dict(self) -> dict[str, Any]:
            return {**vars(self)}

        @classmethod
        def from_dict(cls, given: dict[str, Any]) -> Forgetful:
            return cls(**given | {"inner_dim": 20})

    small = compacted(Model(Forgetful()), [4, 4], [7, 7])[1]
    assert small.config == Forgetful()
    assert compacted(Model(Forgetful()), [2, 2], [20, 20])[1].config == Forgetful(num_heads=2, head_width=3)


def test_numbers_and_names_without_a_value() -> None:
    configuration = configuration_of(Model(Config()))
    assert configuration is not None
    sizes = {str(number): value for number, value in configuration.sizes().items()}
    assert sizes == {"width": 12, "num_heads": 4, "inner_dim": 20}
    assert configuration.unset() == [Number((), "head_width")]
    state = torch.random.get_rng_state()
    configuration.built({})
    assert torch.equal(state, torch.random.get_rng_state())
