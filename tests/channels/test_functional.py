"""Graphs without writes say the same whether written off at a glance or by torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import exported_program

from headgate.channels import functional
from headgate.channels.example import Example
from headgate.channels.plan import Plan
from headgate.channels.trace import export
from headgate.gated import gates
from headgate.layers import GatherBatchNorm2d, WriteBackConv2d
from headgate.surgery.compact import compact
from headgate.surgery.insert import insert_gates_
from headgate.surgery.planning import find_groups
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.models.vgg import VGG
from tests.toys import Net, conv, images


def glanced_at(model: nn.Module) -> bool:
    program = torch.export.export(model, (images(size=16),))
    return functional._replacements(program.graph) is not None


def by_torch(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(functional, "_replacements", lambda graph: None)
    return find_groups(model, images(size=16))


def residual(net: Net, x: Tensor) -> Tensor:
    """In place as torchvision writes it: the sum goes into the branch, the activation into the sum."""
    x = F.relu_(net.bn(net.stem(x)))
    out = net.inner(x)
    out += x
    return net.head(F.relu_(out))


def residual_net() -> Net:
    inner = nn.Sequential(conv(8, 6), nn.BatchNorm2d(6), nn.ReLU(inplace=True), conv(6, 8), nn.BatchNorm2d(8))
    return Net(residual, stem=conv(3, 8), bn=nn.BatchNorm2d(8), inner=inner, head=conv(8, 4))


def thin_vgg() -> VGG:
    return VGG(widths=(8, 0, 6, 6))


def narrowed() -> nn.Module:
    """Its branches write into some of their stream, and read some of it."""
    model, example = PreResNet(20, width=0.5), images(size=16)
    insert_gates_(model, example, readers=True)
    for place, gate in enumerate(gates(model).values()):
        gate.offset.data.fill_(-1.0 - place % 3)
    small = compact(model, example)
    assert {type(layer) for layer in small.modules()} >= {GatherBatchNorm2d, WriteBackConv2d}
    return small


@pytest.mark.parametrize(
    "build",
    [residual_net, lambda: PreResNet(11), thin_vgg, narrowed],
    ids=["in place", "preresnet", "vgg", "narrowed preresnet"],
)
def test_a_plain_network_has_the_same_plan_either_way(build: Callable[[], nn.Module], monkeypatch) -> None:
    model = build()
    assert glanced_at(model)
    plan = find_groups(model, images(size=16))
    again = by_torch(model, monkeypatch)
    assert plan.groups and replace(plan, refusals=()) == replace(again, refusals=())
    ours, theirs = reasons(plan), reasons(again)
    assert ours.keys() == theirs.keys() and all(ours[axes] <= theirs[axes] for axes in ours)


def reasons(plan: Plan) -> dict[object, set[tuple[str, str]]]:
    """Why what must stay has to. torch has other names for some operations, and says some reasons more than once."""
    return {one.axes: {(obstacle.path, obstacle.reason) for obstacle in one.obstacles} for one in plan.refusals}


def overwrites_what_is_read_later(net: Net, x: Tensor) -> Tensor:
    x = net.stem(x)
    y = F.relu_(x)
    return net.head(x + y)


def overwrites_through_a_view(net: Net, x: Tensor) -> Tensor:
    x = net.stem(x)
    F.relu_(x.flatten(2))
    return net.head(x)


def overwrites_below_a_view(net: Net, x: Tensor) -> Tensor:
    x = net.stem(x)
    flat = x.flatten(2)
    return net.head(F.relu_(x)) + flat.mean(2)[:, :4, None, None]


def overwrites_what_dropout_passes_on(net: Net, x: Tensor) -> Tensor:
    x = net.stem(x)
    y = F.relu_(F.dropout(x, training=False))
    return net.head(x + y)


def overwrites_its_input(net: Net, x: Tensor) -> Tensor:
    return net.head(net.stem(x.mul_(2)))


@pytest.mark.parametrize(
    "run",
    [
        overwrites_through_a_view, overwrites_below_a_view, overwrites_what_dropout_passes_on, overwrites_its_input,
    ],
)  # fmt: skip
def test_a_write_that_others_can_see_is_left_to_torch(run: Callable[[Net, Tensor], Tensor]) -> None:
    net = Net(run, stem=conv(3, 8), head=conv(8, 4)).eval()
    assert not glanced_at(net)
    names = {
        str(node.target) for node in export(net, Example.of(images()), training=False, operation="test").graph.nodes
    }
    assert not any(name.split(".")[1:2] and name.split(".")[1].endswith("_") for name in names)


def test_what_is_read_after_a_write_is_what_was_written() -> None:
    net = Net(overwrites_what_is_read_later, stem=conv(3, 8), head=conv(8, 4))
    (total,) = (
        node
        for node in export(net, Example.of(images()), training=False, operation="test").graph.nodes
        if str(node.target) == "aten.add.Tensor"
    )
    assert {str(argument.target) for argument in total.args} == {"aten.relu.default"}


def attention(net: Net, x: Tensor) -> Tensor:
    queries, keys, values = net.qkv(x).chunk(3, -1)
    return net.head(torch.softmax(torch.matmul(queries, keys.transpose(1, 2)), -1) @ values)


def test_torch_prepares_only_what_the_graph_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the graph is the one that preparing every composite operation gives."""
    model, example = Net(attention, qkv=nn.Linear(8, 18), head=nn.Linear(6, 4)), Example.of(torch.randn(2, 5, 8))
    names = vars(exported_program)
    every, override, prepared = names["_collect_all_valid_cia_ops"], names["_override_composite_implicit_decomp"], []

    def noted(table: dict[torch._ops.OpOverload, Callable[..., object]]) -> AbstractContextManager[None]:
        prepared.append(set(table))
        return override(table)

    monkeypatch.setattr(exported_program, "_override_composite_implicit_decomp", noted)
    few = export(model, example, training=False, operation="test")
    aten = torch.ops.aten
    assert prepared[-1] == {aten.linear.default, aten.matmul.default, aten.softmax.int}
    assert names["_collect_all_valid_cia_ops"] is every
    monkeypatch.setattr(functional, "_no_other_composites", lambda graph: nullcontext())
    assert str(export(model, example, training=False, operation="test").graph) == str(few.graph)
    assert len(prepared[-1]) > 100


def test_a_torch_without_these_names_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = Net(attention, qkv=nn.Linear(8, 18), head=nn.Linear(6, 4)), Example.of(torch.randn(2, 5, 8))
    few = export(model, example, training=False, operation="test")
    monkeypatch.setattr(functional, "exported_program", SimpleNamespace())
    assert str(export(model, example, training=False, operation="test").graph) == str(few.graph)
