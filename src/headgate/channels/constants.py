"""What a group's channels are, where they are read, once the layer that writes them returns zeros: constants?

An argument about the graph, in evaluation mode: whatever the model is given, and however large it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from torch.export import ExportedProgram
from torch.fx import Node

from headgate.channels.plan import Axis, Group
from headgate.channels.rules.norms import OF_CHANNELS
from headgate.channels.walk import operation_of

# A channel is one number everywhere, or one number times what is the same for all channels: what padding with zeros
# makes of ones, for instance.
Pattern: TypeAlias = Literal["flat", "spread"]


class Silent(NamedTuple):
    """What channels have become in an activation, and the dimension along which they lie, as far as that is known."""

    pattern: Pattern
    channel: int | None


_MAPS = frozenset({
    "linear", "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
})  # fmt: skip
# Number by number, by no other tensor; what is more than zero stays so.
_ACTIVATIONS = frozenset({
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh", "hardtanh",
    "hardswish", "hardsigmoid", "softplus",
})  # fmt: skip
_MOVES = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "squeeze", "unsqueeze", "clone",
    "contiguous", "alias", "detach",
})  # fmt: skip
# Those of them that count dimensions anew.
_RESHAPES = frozenset({"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"})
_REDUCTIONS = frozenset({"mean", "sum"})
_DROPOUTS = frozenset({"dropout", "feature_dropout"})
_RANKS = ("1d", "2d", "3d")
# The largest of equal numbers, beside which padding does not count.
_LARGEST = frozenset({f"{kind}{rank}" for rank in _RANKS for kind in ("max_pool", "adaptive_max_pool")})
_LARGEST |= {f"{kind}_with_indices" for kind in _LARGEST}
# Means of equal numbers, and copies.
_MEANS = frozenset({f"{kind}{rank}" for rank in _RANKS for kind in ("adaptive_avg_pool", "_adaptive_avg_pool")})
_MEANS |= {"mean", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"}
_MEANS |= {f"{kind}{rank}" for rank in _RANKS for kind in ("upsample_nearest", "_upsample_nearest_exact")}
# Sums in which the border has a part.
_SUMS = frozenset({"sum", *(f"avg_pool{rank}" for rank in _RANKS)})
_PADS = frozenset({"pad", "constant_pad_nd"})


class SilentLayers:
    """An evaluation graph in which layers fall silent. `names` is `aliases` of the model."""

    def __init__(self, program: ExportedProgram, names: Mapping[str, str]) -> None:
        targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
        nodes = list(program.graph.nodes)
        held = ((node, targets.get(node.name)) for node in nodes if node.op == "placeholder")
        self.names = {node: names.get(str(target), str(target)) for node, target in held if target is not None}
        self.places = {node: place for place, node in enumerate(nodes)}
        self._used: dict[str, list[Node]] = {}
        for node, name in self.names.items():
            self._used.setdefault(name, []).extend(node.users)

    def left_by(self, group: Group, rows: Collection[Axis], norms: Collection[str], several: bool) -> Pattern | None:
        """What a group is where it is read, once by each reader, when the layer that writes it is silent.

        None where that cannot be said. `rows` are that layer's weight and bias. `norms` are the paths of those that the
        channels must have gone through, by a scale and a shift. `several` tells whether units have more than one index
        in any of these: constants of their own, which must not come to lie side by side.
        """
        layers = {name: self._layer(name) for name, _ in (*rows, *group.readers) if name.endswith("weight")}
        (writer,) = (layers[name] for name, _ in rows if name.endswith("weight"))
        readers = {layers[name] for name, _ in group.readers}
        if writer is None or None in readers:
            return None
        following = _Following(self, norms, several)
        pattern = following.reach(writer, readers)
        # What is used elsewhere too has these channels there, and nothing is silent there.
        if pattern is None or not all(following.known.keys() >= set(self._used[name]) for name in following.met):
            return None
        met = following.met | {name for name, _ in rows}
        normed = all(f"{path}.{leaf}" in met for path in norms for leaf in ("weight", "bias"))
        # Whatever else has these channels would write into them too.
        return pattern if normed and {name for name, _ in group.writers} <= met else None

    def _layer(self, weight: str) -> Node | None:
        """The only use of a weight, if that is as a linear map's or a convolution's."""
        used = self._used.get(weight, [])
        alone = len(used) == 1 and operation_of(used[0]) in _MAPS
        return used[0] if alone and self.names.get(used[0].args[1]) == weight else None


class _Following:
    """The way from a silent layer to what reads it, with what is known of every node; `met` are tensors on the way."""

    def __init__(self, graph: SilentLayers, norms: Collection[str], several: bool) -> None:
        self._names, self._places, self._norms, self._several = graph.names, graph.places, norms, several
        self.known: dict[Node, Silent] = {}
        self.met: set[str] = set()

    def reach(self, writer: Node, readers: Collection[Node | None]) -> Pattern | None:
        """What readers read, "spread" if any does; None if something is done with it of which nothing can be said."""
        self.known[writer] = Silent("flat", _written_along(writer))
        waiting, reached, read = set(writer.users), set[Node](), set[Pattern]()
        while waiting:
            node = min(waiting, key=self._places.__getitem__)
            waiting.remove(node)
            sources = [source for source in node.all_input_nodes if source in self.known]
            if node in readers and sources == [node.args[0]]:
                reached.add(node)
                read.add(self.known[sources[0]].pattern)
                continue
            pattern = self._after(node, sources)
            if pattern is None:
                return None
            self.known[node] = Silent(pattern, _still_along(node, sources[0], self.known[sources[0]].channel))
            waiting |= set(node.users)
        if reached != set(readers):
            return None
        return "spread" if "spread" in read else "flat"

    def _after(self, node: Node, sources: list[Node]) -> Pattern | None:
        """What an operation makes of it; None where that cannot be said."""
        name, (pattern, channel) = operation_of(node), self.known[sources[0]]
        if node.op != "call_function" or len(sources) > 1:
            return None
        if self._several and not _leaves_apart(node, sources[0], channel):
            return None
        if name == "getitem":
            return pattern if node.args[1] == 0 or not node.users else None
        if name == "cat":
            # Elsewhere than among channels, others would follow where these are constant.
            return pattern if _dim(node, "dim") == channel is not None else None
        if pattern == "flat" and name in OF_CHANNELS:
            return self._normed(_arguments(node), sources[0])
        if pattern == "flat" and name == "prelu":
            return self._bent(_arguments(node)["weight"], channel)
        if node.all_input_nodes != sources:
            return None
        if name in _MOVES or name in _MEANS or (name in _DROPOUTS and not _arguments(node)["train"]):
            return pattern
        if name in _SUMS:
            return "spread"
        if name in _PADS:
            return _padded(_arguments(node), pattern)
        kept = name in _LARGEST or (name in _ACTIVATIONS and _arguments(node).get("max_val", 1.0) > 0)
        return "flat" if pattern == "flat" and kept else None

    def _bent(self, slopes: Node, channel: int | None) -> Pattern | None:
        """By one slope, or by one for each channel, if these are the model's."""
        if slopes not in self._names or (slopes.meta["val"].numel() > 1 and channel != 1):
            return None
        self.met.add(self._names[slopes])
        return "flat"

    def _normed(self, given: Mapping[str, Any], source: Node) -> Pattern | None:
        """By a scale and a shift, and statistics, that belong to one of the norms."""
        tensors = {key: self._names.get(value, "") for key, value in given.items() if isinstance(value, Node)}
        path = tensors.get("weight", "").rpartition(".")[0]
        own = {key: f"{path}.{key}" for key in tensors if given[key] is not source}
        if path not in self._norms or {key: tensors[key] for key in own} != own or not own.keys() >= {"weight", "bias"}:
            return None
        self.met |= set(own.values())
        return "flat"


def _padded(given: Mapping[str, Any], pattern: Pattern) -> Pattern | None:
    if given.get("mode", "constant") != "constant":
        return pattern
    return "spread" if not given.get("value") else None


def _written_along(layer: Node) -> int:
    """The dimension of the channels that a linear map or convolution returns, batch or not."""
    outputs, weight = layer.meta["val"].dim(), layer.args[1].meta["val"].dim()  # type: ignore[union-attr]
    return int(outputs - max(weight - 1, 1))


def _leaves_apart(node: Node, source: Node, channel: int | None) -> bool:
    """Whether no two indices along the channels' dimension come to lie at positions of one index.

    They may be merged with all that follows them: each index then stands for one of them, at one position.
    """
    name = operation_of(node)
    if channel is None:
        return name in _ACTIVATIONS or name in OF_CHANNELS or name in _DROPOUTS or name in {"getitem", "prelu"}
    if name not in _RESHAPES | _REDUCTIONS or _still_along(node, source, channel) is not None:
        return True
    before, after = _shape(source), _shape(node)
    return name in _RESHAPES and len(after) == channel + 1 and after[:channel] == before[:channel]


def _still_along(node: Node, source: Node, channel: int | None) -> int | None:
    """The dimension along which channels lie after an operation that leaves them apart; None if it is not known."""
    name = operation_of(node)
    if channel is None:
        return None
    if name in _RESHAPES:
        return channel if _shape(node)[: channel + 1] == _shape(source)[: channel + 1] else None
    if name in _REDUCTIONS:
        return _after_reduction(_arguments(node), len(_shape(source)), channel)
    if name == "permute":
        dims = _arguments(node)["dims"]
        return [dim % len(dims) for dim in dims].index(channel)
    if name == "transpose":
        swapped = {_dim(node, "dim0"): _dim(node, "dim1"), _dim(node, "dim1"): _dim(node, "dim0")}
        return swapped.get(channel, channel)
    return channel


def _after_reduction(given: Mapping[str, Any], rank: int, channel: int) -> int | None:
    dims = {dim % rank for dim in given.get("dim") or range(rank)}
    if channel in dims:
        return None
    return channel if given.get("keepdim") else channel - sum(dim < channel for dim in dims)


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _dim(node: Node, name: str) -> int:
    """An argument that counts dimensions, from the front."""
    value: Any = node.meta["val"]
    return int(_arguments(node).get(name, 0)) % int(value.dim())


def _arguments(node: Node) -> dict[str, Any]:
    """By the names of the operation's schema."""
    schema: Any = getattr(node.target, "_schema")  # noqa: B009 - no type has it
    return dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
