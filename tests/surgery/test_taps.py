"""Taps see what gates act on: summed over a batch, gradient × activation is the slope of the loss along each mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import headgate as hg
from headgate.channels.example import Example
from headgate.channels.plan import Branch, Group
from headgate.channels.taps import TappedGraph
from headgate.surgery.importance import carried_by
from headgate.surgery.keep import Site, sites
from tests.surgery.exactness import in_double, randomise_
from tests.toys import TOYS

CHOSEN = (
    "linear chain", "conv flatten linear", "shared module", "bilinear", "post-activation residual",
    "bottlenecks with projection", "pre-activation residual", "inverted residual with SE", "layer scale", "mixer",
    "dense concatenation", "concatenation with itself", "shufflenet", "u-net", "transposed", "two grouped",
    "group norm", "fused swiglu", "x @ W on tokens", "W @ x", "einsum on maps", "addmm", "embedding", "dict input",
    "frames merged with batch", "train-only head",
)  # fmt: skip


def loss_of(outputs: object) -> Tensor:
    floats = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return sum((leaf.sin().sum() for leaf in floats), torch.zeros((), dtype=torch.float64))


def masked_axes(site: Site) -> tuple[tuple[str, int], ...]:
    return site.readers if isinstance(site, Group) else site.masked


def slopes_along_masks(model: nn.Module, plan: hg.Plan, example: Example) -> dict[str, Tensor]:
    """A mask multiplies slices of weights: the loss' slope along it is the sum of weight × gradient over them."""
    parameters = dict(model.named_parameters())
    loss = loss_of(model(*example.args, **example.kwargs))
    gradients = dict(
        zip(parameters, torch.autograd.grad(loss, list(parameters.values()), allow_unused=True), strict=True)
    )
    found = {}
    for name, site in sites(plan).items():
        slopes = torch.zeros(site.size + 1, dtype=torch.float64)
        for (tensor, axis), units in carried_by(plan, site, masked_axes(site)).items():
            if (gradient := gradients.get(tensor)) is not None:
                product = (parameters[tensor] * gradient).detach().movedim(axis, 0)
                slopes.index_add_(0, torch.tensor(units) % (site.size + 1), product.reshape(len(units), -1).sum(1))
        found[name] = slopes[:-1]
    return found


def slopes_at_taps(model: nn.Module, plan: hg.Plan, example: Example) -> dict[str, Tensor]:
    reads = {
        name: carried_by(plan, site, masked_axes(site))
        for name, site in sites(plan).items()
        if not isinstance(site, Branch)
    }
    graph = TappedGraph(model, example, reads, plan.branches)
    outputs, seen = graph.run(example, differentiable=True)
    gradients = torch.autograd.grad(loss_of(outputs), seen, allow_unused=True) if seen else ()
    found = {name: torch.zeros(site.size + 1, dtype=torch.float64) for name, site in sites(plan).items()}
    for tap, values, gradient in zip(graph.taps, seen, gradients, strict=True):
        if gradient is not None:
            units = tap.units.expand(values.shape).reshape(-1) % len(found[tap.site])
            found[tap.site].index_add_(0, units, (values.detach() * gradient).reshape(-1))
    return {name: slopes[:-1] for name, slopes in found.items()}


@pytest.mark.parametrize("name", CHOSEN)
def test_gradient_times_activation_is_the_slope_along_the_mask(name: str) -> None:
    toy = next(toy for toy in TOYS if toy.name == name)
    model, example = randomise_(toy.build()).double(), Example.of(in_double(toy.example))
    plan = hg.find_groups(model, example, readers=True)
    expected, got = slopes_along_masks(model, plan, example), slopes_at_taps(model, plan, example)
    assert any(bool(slopes.abs().max() > 1e-6) for slopes in expected.values())
    for site, slopes in expected.items():
        torch.testing.assert_close(got[site], slopes, rtol=1e-9, atol=1e-9 * max(1.0, float(slopes.abs().max())))


def test_every_use_is_tapped_by_itself() -> None:
    """A tensor that two layers read: the slope at each tap is that of its own layer alone."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.up(x)
            return self.left(h) - 3 * self.right(h)

    model, x = Twice().double(), torch.randn(5, 3, dtype=torch.float64)
    plan = hg.find_groups(model, x)
    (group,) = plan.groups
    graph = TappedGraph(model, Example.of(x), {"up": carried_by(plan, group, group.readers)}, ())
    outputs, seen = graph.run(Example.of(x), differentiable=True)
    left, right = torch.autograd.grad(outputs.sum(), seen)
    torch.testing.assert_close(left, model.left.weight.sum(0).expand(5, 4))
    torch.testing.assert_close(right, -3 * model.right.weight.sum(0).expand(5, 4))
