"""Multiply-accumulates of one operation of an exported graph, one small function per family of ATen operators.

Sums of products count; biases, scales, activations, normalisation and table look-ups (embeddings) do not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor
from torch.fx import Node

Arguments = dict[str, Any]
# What a rule returns: the multiply-accumulates, and the weights if it is their elements times a number.
Counted = tuple[int, list[Node]]
Rule = Callable[[Node, Arguments], Counted]


def tensor_of(node: Node) -> Tensor:
    """The (first) tensor a node returns."""
    value = node.meta["val"]
    value = value[0] if isinstance(value, (tuple, list)) else value
    assert isinstance(value, Tensor)
    return value


def elements(tensor: Tensor) -> int:
    """How many entries a tensor has."""
    return prod(int(size) for size in tensor.shape)


def _convolution(node: Node, given: Arguments) -> Counted:
    """Every weight is used once per output position and example; per input position if transposed."""
    transposed = "transpose" in str(node.target) or given.get("transposed", False)
    weight = tensor_of(given["weight"])
    positions = tensor_of(given["input"]) if transposed else tensor_of(node)
    return elements(positions) // int(weight.shape[0]) * elements(weight), [given["weight"]]


def _linear(node: Node, given: Arguments) -> Counted:
    """Every weight, of a bilinear map too, is used once per row."""
    weight = tensor_of(given["weight"])
    return elements(tensor_of(node)) // int(weight.shape[0]) * elements(weight), [given["weight"]]


def _recurrent(node: Node, given: Arguments) -> Counted:
    """Every matrix is used once per step and example; layers, directions and projections have their own matrices."""
    steps = tensor_of(given["input"] if "input" in given else given["data"])
    tensors = given.get("params") or [given["w_ih"], given["w_hh"]]
    weights = [weight for weight in tensors if tensor_of(weight).dim() == 2]
    rows = elements(steps) // int(steps.shape[-1])
    return rows * sum(elements(tensor_of(weight)) for weight in weights), weights


def _product(*names: str) -> Rule:
    """A matrix product: every entry of the result sums over the last axis of the first factor, called one of these."""

    def rule(node: Node, given: Arguments) -> Counted:
        first = tensor_of(next(given[name] for name in names if name in given))
        return elements(tensor_of(node)) * int(first.shape[-1]), []

    return rule


def _summed_products(node: Node, given: Arguments) -> Counted:
    """`addbmm` sums over the batch as well."""
    return elements(tensor_of(given["batch1"])) * int(tensor_of(given["batch2"]).shape[-1]), []


def _tensordot(node: Node, given: Arguments) -> Counted:
    left, right = tensor_of(given["self"]), tensor_of(given["other"])
    contracted = prod(int(left.shape[dim]) for dim in given["dims_self"])
    return elements(left) * elements(right) // max(contracted, 1), []


def _attention(node: Node, given: Arguments) -> Counted:
    """Each of S keys costs every query one dot product, and every output entry one accumulation."""
    keys = int(tensor_of(given["key"]).shape[-2])
    return keys * (elements(tensor_of(given["query"])) + elements(tensor_of(node))), []


def _einsum(node: Node, given: Arguments) -> Counted:
    """Two factors at a time, from the left, as torch does: the product of all sizes that take part."""
    terms, _, result = str(given["equation"]).replace(" ", "").partition("->")
    operands = [tensor_of(operand) for operand in given["tensors"]]
    letters = [_spelled(term, operand.dim()) for term, operand in zip(terms.split(","), operands, strict=True)]
    sizes: dict[str, int] = {}
    for term, operand in zip(letters, operands, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            sizes[letter] = max(int(size), sizes.get(letter, 1))
    if "->" not in str(given["equation"]):
        everywhere = [letter for term in letters for letter in term]
        final = {letter for letter in everywhere if everywhere.count(letter) == 1 or not letter.isalpha()}
    else:
        final = set(_spelled(result, tensor_of(node).dim()))
    macs, left = 0, set(letters[0])
    for place, term in enumerate(letters[1:], start=1):
        macs += prod(sizes[letter] for letter in left | set(term))
        left = (left | set(term)) & final.union(*letters[place + 1 :])
    return macs, []


def _spelled(term: str, dims: int) -> list[str]:
    """The letters of one einsum term; what `...` stands for is numbered from the right, as in broadcasting."""
    before, dots, after = term.partition("...")
    hidden = dims - len(before) - len(after) if dots else 0
    return [*before, *(str(number) for number in range(hidden, 0, -1)), *after]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution),
    **dict.fromkeys(("linear", "bilinear"), _linear),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent),
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner"), _product("self")),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _product("mat1", "mat", "batch1")),
    "addbmm": _summed_products,
    "tensordot": _tensordot,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
}
