"""Which modules do nothing but feed one layer: once that layer returns zeros whatever it is given, they can go too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from headgate.channels.rules.step import module_paths
from headgate.layers import can_be_empty


def feeding_modules(
    model: nn.Module, programs: Iterable[ExportedProgram], ends: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """For every module in `ends`, itself and all modules that only feed it, in every graph that calls them.

    Only those that can be emptied and have one path; an end that cannot be emptied gets nothing.
    """
    empty = _can_be_empty(model)
    found: dict[str, set[str]] = {end: set() for end in ends if end in empty}
    others: dict[str, set[str]] = {end: set() for end in found}
    for graph in map(_Graph, programs):
        for end in found:
            only, also = graph.feeding(end)
            found[end] |= only
            others[end] |= also
    kept = {end: (found[end] - others[end]) & empty for end in found}
    return {end: tuple(sorted(paths)) for end, paths in kept.items() if end in paths}


def _can_be_empty(model: nn.Module) -> set[str]:
    modules = list(model.named_modules(remove_duplicate=False))
    uses = Counter(id(module) for _, module in modules)
    return {path for path, module in modules if path and uses[id(module)] == 1 and can_be_empty(module)}


class _Graph:
    """One exported graph: what each node's values are good for."""

    def __init__(self, program: ExportedProgram) -> None:
        nodes = list(program.graph.nodes)
        self._place = {node: place for place, node in enumerate(nodes)}
        self._returned = _returned(program)
        self._of_module: dict[str, list[Node]] = {}
        for node in nodes:
            if node.op == "call_function":
                self._of_module.setdefault(_path(node), []).append(node)
        # Used by nobody: assertions, statistics that only a norm itself reads.
        self._idle: set[Node] = set()
        for node in reversed(nodes):
            if node.op == "call_function" and self._only_for(node, self._idle):
                self._idle.add(node)

    def feeding(self, end: str) -> tuple[set[str], set[str]]:
        """The modules all of whose calls only feed `end`, itself among them, and all others."""
        only = set(self._of_module.get(end, ()))
        waiting: list[tuple[int, Node]] = []
        seen: set[Node] = set()

        def push(node: Node) -> None:
            for source in node.all_input_nodes:
                if source.op == "call_function" and source not in seen and source not in only:
                    seen.add(source)
                    heappush(waiting, (-self._place[source], source))

        for node in list(only):
            push(node)
        # From the last node to the first, so that all users of a node have been looked at before it.
        while waiting:
            node = heappop(waiting)[1]
            if self._only_for(node, only | self._idle):
                only.add(node)
                push(node)
        touched = {_path(node) for node in only}
        whole = {path for path in touched if all(n in only or n in self._idle for n in self._of_module[path])}
        return whole, set(self._of_module) - whole

    def _only_for(self, node: Node, users: set[Node]) -> bool:
        if node in self._returned:
            return False
        return all(user in users or user.op == "output" for user in node.users)


def _returned(program: ExportedProgram) -> set[Node]:
    """What the graph returns, but for statistics that a module updates for itself."""
    nodes = next(node for node in program.graph.nodes if node.op == "output").args[0]
    found = set()
    for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True):
        own = spec.kind is OutputKind.BUFFER_MUTATION and isinstance(node, Node)
        if not own or str(spec.target).rpartition(".")[0] != _path(node):
            found.add(node)
    return found


def _path(node: Node) -> str:
    """The path of the innermost module, without the number of its call."""
    path = (module_paths(node) or [""])[-1]
    return ".".join(part.partition("@")[0] for part in path.split("."))
