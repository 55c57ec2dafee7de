"""Every structure that users write is exact and smaller, or refused by module path and operation; never wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import headgate as hg
from headgate.channels.example import Example
from headgate.channels.plan import Plan
from headgate.errors import TraceError
from headgate.surgery.insert import INSERTION, Insertion
from tests.attention_toys import ATTENTION
from tests.place_toys import PLACE_TOYS
from tests.recurrent_toys import RECURRENT
from tests.surgery.exactness import LIMIT, error, in_double, move_offsets_, outputs, parameters, randomise_
from tests.toys import TOYS as PLAIN
from tests.toys import Toy, old_weight_norm

TOYS = [*PLAIN, *ATTENTION, *PLACE_TOYS, *RECURRENT]

# Variations of a structure that another toy has: run with the slow tests.
VARIATIONS = frozenset({
    "nested sequential", "flatten by view", "unbatched row", "one example, one pixel", "strided and dilated",
    "padding same", "one channel inside", "lazy once called", "one module, two names", "rezero", "scaled branch",
    "concatenation with itself", "concatenation on a position", "stack and sum", "stack on channels",
    "chunk and rejoin", "every second channel", "split by a number", "slice by a number", "narrow", "unbind channels",
    "pick a channel", "pick a channel by index", "index with constants", "index_select", "gather positions",
    "take along channels", "flip channels", "roll channels", "repeat channels", "repeat_interleave",
    "write two channels in place", "where", "boolean index write", "masked write", "addcmul", "lerp",
    "clamp and friends", "maximum", "triu", "odd adaptive pooling", "fractional pooling",
    "max pooling with unpooling", "pooling in three dimensions", "global pooling", "padding layers", "grid sample",
    "tensor unfold", "patch merging", "reorganise by view", "transposed, other ranks", "two grouped",
    "depthwise transposed", "grouped in one dimension", "shared depthwise", "batch norm without statistics",
    "batch norm without anything", "batch norm on the input", "batch norm last", "batch norm after flatten",
    "instance norm of tokens", "group norm of one group", "group norm of single channels", "functional group norm",
    "layer norm over positions", "layer norm over maps", "rms norm by hand", "softmax over positions",
    "max over channels", "normalize", "cumsum over channels", "global response norm", "prelu for all",
    "glu on channels", "fused swiglu", "film", "functional linear", "x @ W on tokens", "einsum on maps", "addmm",
    "tied autoencoder", "matrix times vector", "concatenated reading weights", "stored positions",
    "embedding with padding", "old spectral norm", "dict output", "unused layers", "loss inside",
    "frames merged with batch", "dataclass output", "upsampling to a skip", "local response norm",
    "weight norm on the reader", "write a corner in place", "c2f by a stored width", "attention, causal",
    "attention, masked", "attention without biases", "attention, normalised queries", "fused qkv, index",
    "fused qkv, split", "rotary, pairs", "relative positions embedded", "shared keys, repeated",
    "gru", "rnn of relus, time first", "lstm, projected",
    "projected last state in one piece", "lstm, last cells, projected", "one module called twice", "unbatched gru",
    "cells without biases", "learned first state", "directions by a view", "columns of maps", "residual gru",
    "recurrent weight norm", "projection in a class of one's own", "cell with the caller's state",
})  # fmt: skip


def _case(toy: Toy) -> Any:
    return pytest.param(toy, id=toy.name, marks=[pytest.mark.slow] if toy.name in VARIATIONS else [])


def sizes(plan: Plan) -> dict[str, int]:
    return {group.name: group.size for group in plan.groups}


def check_expectations(toy: Toy, plan: Plan, text: str) -> None:
    """What was worked out by hand: names and sizes, and the reasons for what stays."""
    if toy.groups is not None:
        assert sizes(plan) == toy.groups, text
    if toy.branches is not None:
        assert {branch.name: branch.size for branch in plan.branches} == toy.branches, text
    missing = [piece for piece in toy.stays if piece not in text]
    assert not missing, f"{missing} not in:\n{text}"


def check_exact(toy: Toy, model: nn.Module) -> None:
    """Moves the gates, compacts, compares on the example and on other sizes, and trains the result for a step."""
    before = parameters(model)
    move_offsets_(model, seed=len(toy.name))
    small = hg.compact(model, in_double(toy.example))
    assert type(small).__name__ == type(model).__name__.removeprefix("Parametrized")
    assert parameters(small) < before
    assert (
        not any("headgate_o" in name or "parametrizations" in name for name in small.state_dict()) or "norm" in toy.name
    )
    for example in (toy.example, *toy.others):
        assert error(outputs(model, in_double(example)), outputs(small, in_double(example))) < LIMIT
    sum(out.sum() for out in trained(small.train(), toy)).backward()
    check_state_follows(model, small)


def check_state_follows(model: nn.Module, small: nn.Module) -> None:
    """Momenta that are the weights themselves, cut by `transfer_`, are the small model's weights, in its order."""
    hg.bake_(model)
    optimizer = torch.optim.SGD(hg.param_groups(model), momentum=0.9)
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter]["momentum_buffer"] = parameter.detach().clone()
    hg.transfer_(optimizer, model, small)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, small.parameters()))
    for parameter in small.parameters():
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], parameter.detach())


def trained(model: nn.Module, toy: Toy) -> list[torch.Tensor]:
    given = Example.of(in_double(toy.example))
    results = tree_leaves(model(*given.args, **given.kwargs))
    return [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]


@pytest.mark.parametrize("toy", [_case(toy) for toy in TOYS])
def test_exact_and_smaller_or_refused_by_name(toy: Toy) -> None:
    model = randomise_(toy.build())
    # On copies, since old-style spectral_norm leaves something behind in a forward that deepcopy refuses.
    dense, state = outputs(copy.deepcopy(model), toy.example), copy.deepcopy(model.state_dict())
    try:
        hg.insert_gates_(model, toy.example, floor=1, order="random:3")
    except hg.GateError as refusal:
        assert not toy.prunable, refusal
        check_refused(toy, model, state, str(refusal))
        return
    assert toy.prunable
    insertion = getattr(model, INSERTION)
    assert isinstance(insertion, Insertion)
    check_expectations(toy, insertion.plan, str(insertion.plan))
    assert all(map(torch.equal, dense, outputs(copy.deepcopy(model), toy.example))), "gates must start bit-exact"
    check_exact(toy, model.double())


def check_refused(toy: Toy, model: nn.Module, state: dict[str, torch.Tensor], text: str) -> None:
    """By name, and with the model as it was."""
    assert toy.groups == {}
    assert toy.stays and all(piece in text for piece in toy.stays), text
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not hg.gates(model) and not hasattr(model, INSERTION)


def test_old_weight_norm_is_refused_by_name_and_left_alone() -> None:
    """torch itself cannot copy such a model; `torch.nn.utils.parametrizations.weight_norm` works."""
    model = nn.Sequential(old_weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))
    before = list(model.state_dict())
    with pytest.raises(TraceError, match=r"Sequential .*weight_norm"):
        hg.insert_gates_(model, torch.randn(2, 6))
    assert list(model.state_dict()) == before


def test_every_toy_has_its_own_name() -> None:
    assert len({toy.name for toy in TOYS}) == len(TOYS)


def test_variations_are_toys() -> None:
    assert {toy.name for toy in TOYS} >= VARIATIONS


def test_most_answers_are_written_by_hand() -> None:
    assert sum(toy.groups is not None for toy in TOYS) > 0.8 * len(TOYS)
