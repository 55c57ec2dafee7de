"""Random small networks: whatever the graph, the surgery is exact or refuses; it is never wrong and never crashes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import headgate as hg
from headgate.channels.readers import Reader
from headgate.surgery.keep import chosen, sites
from headgate.surgery.trial import randomised, silence_
from tests.surgery.exactness import LIMIT, error, in_double, move_offsets_, outputs, parameters, randomise_

EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
KINDS = (
    "conv",
    "narrowing",
    "grouped",
    "depthwise",
    "norm",
    "group norm",
    "relu",
    "pool",
    "add",
    "cat",
    "chunk",
    "gate",
    "slice",
    "mix",
)


class Random(nn.Module):
    """A random directed graph: every step takes one or two earlier maps and makes a new one."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.layers, self.steps = nn.ModuleList(), []
        widths = [3, 8]
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        for kind, first, second in steps:
            one, other = first % len(widths), second % len(widths)
            layer, width, step = self._made(kind, one, other, widths)
            self.layers.append(layer)
            self.steps.append(step)
            widths.append(width)
        self.head = nn.Linear(widths[-1], 3)

    def _made(self, kind: str, one: int, other: int, widths: list[int]) -> tuple[nn.Module, int, tuple[str, int, int]]:
        width, step = widths[one], (kind, one, other)
        if kind in ("conv", "narrowing"):
            return nn.Conv2d(width, out := 8 if kind == "conv" else 6, 3, padding=1), out, step
        if kind in ("grouped", "depthwise", "group norm") and width % 2 == 0:
            groups = width if kind == "depthwise" else 2
            layer = (
                nn.GroupNorm(2, width) if kind == "group norm" else nn.Conv2d(width, width, 3, padding=1, groups=groups)
            )
            return layer, width, step
        if kind == "norm":
            return nn.BatchNorm2d(width), width, step
        if kind in ("add", "gate", "mix") and widths[other] == width:
            return nn.Identity(), width, step
        if kind == "cat" and width + widths[other] <= 24:
            return nn.Identity(), width + widths[other], step
        if kind in ("chunk", "slice") and width % 2 == 0:
            return nn.Identity(), width // 2 if kind == "slice" else width, step
        return nn.Identity(), width, ("pool" if kind == "pool" else "relu", one, other)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x, self.stem(x)]
        for layer, (kind, one, other) in zip(self.layers, self.steps, strict=True):
            maps.append(RUN.get(kind, lambda layer, left, right: layer(left))(layer, maps[one], maps[other]))
        return self.head(maps[-1].mean((2, 3)))


RUN: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "relu": lambda layer, x, y: F.relu(x),
    "pool": lambda layer, x, y: F.avg_pool2d(x, 3, 1, 1),
    "add": lambda layer, x, y: x + y,
    "gate": lambda layer, x, y: x * torch.sigmoid(y),
    "mix": lambda layer, x, y: torch.where(x > 0, y, x * x.mean((2, 3), keepdim=True)),
    "cat": lambda layer, x, y: torch.cat([x, y], 1),
    "chunk": lambda layer, x, y: torch.cat([part.tanh() * (1 + i) for i, part in enumerate(x.chunk(2, 1))], 1),
    "slice": lambda layer, x, y: x[:, x.shape[1] // 2 :],
}

steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=7)


def latest(drawn: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Most steps should build on what came just before, or the graph falls apart into unread maps."""
    return [(kind, 1 + place if first < 14 else first, second) for place, (kind, first, second) in enumerate(drawn)]


@settings(max_examples=8)
@given(steps, st.integers(0, 99))
def test_a_random_network_is_exact_or_refused(drawn: list[tuple[str, int, int]], seed: int) -> None:
    model = randomise_(Random(latest(drawn)), seed)
    dense = outputs(model, EXAMPLE)
    try:
        hg.insert_gates_(model, EXAMPLE, floor=1, order=f"random:{seed}", readers=True)
    except hg.GateError:
        return
    assert all(map(torch.equal, dense, outputs(model, EXAMPLE)))
    move_offsets_(model.double(), seed)
    small = hg.compact(model, in_double(EXAMPLE))
    assert parameters(small) < parameters(model)
    for given_example in (EXAMPLE, EXAMPLE.repeat(2, 1, 2, 1)):
        assert error(outputs(model, in_double(given_example)), outputs(small, in_double(given_example))) < LIMIT


# A sum that nobody uses: tracing may drop it, but it must still run on fewer channels.
@settings(max_examples=4)
@example([("conv", 0, 0), ("add", 0, 1), ("conv", 18, 0), ("group norm", 0, 0)], 0)
@given(steps, st.integers(0, 99))
def test_shrink_equals_the_silenced_model(drawn: list[tuple[str, int, int]], seed: int) -> None:
    model = Random(latest(drawn))
    plan = hg.find_groups(model, EXAMPLE, readers=True)
    generator = torch.Generator().manual_seed(seed)
    keep: dict[str, Tensor] = {}
    for site in sites(plan).values():
        keep[site.name] = torch.rand(site.size, generator=generator) > 0.5
        keep[site.name][int(torch.randint(site.size, (), generator=generator))] = True
        if isinstance(site, Reader) and site.group in keep:
            keep[site.name] |= keep[site.group]
    silenced = randomised(model, seed)
    silence_(silenced, plan, chosen(plan, keep))
    small = hg.shrink(silenced, plan, keep)
    assert error(outputs(silenced, EXAMPLE.double()), outputs(small, EXAMPLE.double())) < LIMIT


@pytest.mark.parametrize("other", [nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 4))])
def test_the_plan_of_another_model_is_refused(other: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    plan = hg.find_groups(model, torch.randn(2, 6))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(hg.ArgumentError, match=r"shrink: the plan was made for another model: it has 8 channels along"):
        hg.shrink(other, plan, {"0": torch.arange(8) < 5})
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
