"""Graphs without writes: where a tensor is overwritten, what follows reads a new tensor, so that edges say everything.

torch does this for any graph by tracing it anew, which would be most of an analysis' time. Plain convolutional
networks, also those that were made smaller, write in one way only, `relu_` and the like on a tensor that nobody else
will look at: there the same operation without its underscore says the same. A graph with anything else in it goes
through torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram, exported_program
from torch.fx import Graph, Node

# Operations that always return memory of their own, and that have a rule under the name they are exported with.
OWN_MEMORY = frozenset({
    "conv1d", "conv2d", "conv3d", "linear", "batch_norm", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "cat",
    "mean", "add", "sub", "mul", "div", "relu", "hardtanh", "leaky_relu", "elu", "silu", "gelu", "sigmoid", "tanh",
    "hardswish", "hardsigmoid", "index_select", "pad",
})  # fmt: skip
# These may return what they were given, or a view of it, and have such a rule too.
MAY_ALIAS = frozenset({"flatten", "dropout"})

# What torch asks for all composite operations that it may leave whole.
_EVERY = "_collect_all_valid_cia_ops"


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """The same program, in which no operation writes into a tensor; the one given is used up."""
    replacements = _replacements(program.graph)
    if replacements is None:
        with _no_other_composites(program.graph):
            functional: ExportedProgram = program.run_decompositions({})
        return functional
    for node, target in replacements.items():
        node.target = target
    return program


@contextmanager
def _no_other_composites(graph: Graph) -> Iterator[None]:
    """Lets torch prepare the composite operations of this graph alone, where it would prepare each one there is.

    For a small network those preparations are most of the time. The names are torch's own business: one that does not
    have them is left alone.
    """
    every, may_stay = (getattr(exported_program, name, None) for name in (_EVERY, "_is_preservable_cia_op"))
    if every is None or may_stay is None:
        yield
        return
    targets = {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    setattr(exported_program, _EVERY, lambda: {target for target in targets if may_stay(target)})
    try:
        yield
    finally:
        setattr(exported_program, _EVERY, every)


def _replacements(graph: Graph) -> dict[Node, torch._ops.OpOverload] | None:
    """Every write with the operation that takes its place, or None if this graph is none for a glance."""
    found = {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if _name(node).removesuffix("_") not in OWN_MEMORY | MAY_ALIAS:
            return None
        if _name(node).endswith("_"):
            if not _is_private(node, places):
                return None
            packet = getattr(torch.ops.aten, _name(node).removesuffix("_"))
            found[node] = getattr(packet, str(node.target).rpartition(".")[2])
    return found


def _is_private(write: Node, places: dict[Node, int]) -> bool:
    """Whether nothing but its own result can tell that this operation wrote into its first argument.

    The memory belongs to that argument alone, and all other uses of it come before. A counter without axes that
    nothing else uses, such as BatchNorm's, carries no channels either way.
    """
    written = write.args[0]
    if not isinstance(written, Node):
        return False
    others = [user for user in written.users if user is not write]
    if written.op == "placeholder":
        return not others and written.meta["val"].dim() == 0
    return all(map(_has_own_memory, (written, *others))) and all(places[user] < places[write] for user in others)


def _has_own_memory(node: Node) -> bool:
    return node.op == "call_function" and _name(node).removesuffix("_") in OWN_MEMORY


def _name(node: Node) -> str:
    """The bare name of an ATen operation, empty for everything else."""
    parts = str(node.target).split(".")
    return parts[1] if isinstance(node.target, torch._ops.OpOverload) and parts[0] == "aten" else ""
