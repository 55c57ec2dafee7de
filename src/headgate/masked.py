"""Masks on weights, for inserted gates: how they are put on, moved into the weights, and taken off.

Since conv(x∘g, W) = conv(x, W∘g), a mask on what a weight reads is a mask on the weight: it costs a pass over
parameters, not over feature maps, and no activation is stored for it. Inside the root's forward all weights are masked
at once, since what costs in deep thin networks is the number of operations; a weight that is used elsewhere is masked
by itself, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from headgate.bank import (
    BAKED,
    OFFSETS,
    OPEN,
    PLACES,
    Bank,
    Offsets,
    bank_of,
    find_last_,
    guarded,
    unguarded,
)
from headgate.product import Vectors, grouped, mask_weights, product

SHARED = "headgate_shared"


class Side(nn.Module):
    """The masks along one axis of a weight, as one vector.

    `index` gives, for every index of the axis, its place in the chosen gates' masks laid end to end, followed by a
    single 1 for what no gate controls.
    """

    index: Tensor

    def __init__(self, bank: Bank, gates: Sequence[int], index: Tensor, axis: int) -> None:
        super().__init__()
        self.gates = tuple(gates)
        self.axis = axis
        # The usual case, one gate over the whole axis in its own order, needs no gathering.
        self.direct = torch.equal(index, torch.arange(sum(bank.gates[gate].n for gate in gates)))
        self.register_buffer("index", guarded(index).to(bank.offset.device), persistent=False)

    def vector(self, masks: Sequence[Tensor]) -> Tensor:
        """The masks of its gates, in the axis' order."""
        if self.direct:
            return masks[0] if len(masks) == 1 else torch.cat(list(masks))
        return torch.cat([*masks, masks[0].new_ones(1)])[unguarded(self.index)]


class Shared:
    """The masked weights of a model, by id, while its root's forward runs; empty otherwise, and in copies.

    `gated` remembers what there is to mask. Should a weight be exchanged for another, its id is unknown here, and it is
    masked by itself.
    """

    def __init__(self) -> None:
        self.weights: dict[int, Tensor] = {}
        self.gated: dict[int, tuple[Tensor, MaskedWeight]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return Shared()


class MaskedWeight(nn.Module):
    """The parametrization of a gated weight: the weight times its masks, in its own dtype.

    Bank and shared weights are held in a tuple, so that they are no part of the state dict. `place` is where the
    weight stood among its module's other parameters, to be put back there one day, last masked first.
    """

    def __init__(self, bank: Bank, shared: Shared, place: int) -> None:
        super().__init__()
        self._links = (bank, shared)
        self.place = place
        self.sides = nn.ModuleList()
        # Of all sides: the axes, and the gates side by side. Asked for in every step.
        self.axes: tuple[int, ...] = ()
        self.gates: tuple[int, ...] = ()

    def add_(self, side: Side) -> None:
        """Masks one more axis."""
        self.sides.append(side)
        self.axes += (side.axis,)
        self.gates += side.gates

    def forward(self, weight: Tensor) -> Tensor:
        """The weight times its masks."""
        bank, shared = self._links
        masked = shared.weights.get(id(weight))
        if masked is not None and self._can_be_used(masked, weight):
            return masked
        if not _is_plain(bank):
            return product(weight.unsqueeze(0), stacked_vectors([self], [bank.mask(gate) for gate in self.gates]))[0]
        return mask_weights(bank.offset, self._fresh_vectors, [weight], [[0]])[0]

    def _can_be_used(self, masked: Tensor, weight: Tensor) -> bool:
        """For a part of the model, autocast may have been switched off since, or gradients on."""
        if masked.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
            return False
        learns = torch.is_grad_enabled() and (weight.requires_grad or self._links[0].offset.requires_grad)
        return masked.requires_grad or not learns

    def _fresh_vectors(self, offset: Tensor) -> list[Vectors]:
        bank = self._links[0]
        return [stacked_vectors([self], [bank.masks(range(gate, gate + 1), offset) for gate in self.gates])]


def stacked_vectors(group: Sequence[MaskedWeight], masks: Sequence[Tensor]) -> Vectors:
    """The mask vectors of weights with the same masked axes, from the masks of all their gates, side by side."""
    rows: list[list[Tensor]] = [[] for _ in group[0].sides]
    at = 0
    for mask in group:
        for row, side in zip(rows, mask.sides, strict=True):
            count = len(cast(Side, side).gates)
            row.append(cast(Side, side).vector(masks[at : at + count]))
            at += count
    # Large weights come alone: one operation less for each.
    stacked = (row[0].unsqueeze(0) if len(row) == 1 else torch.stack(row) for row in rows)
    return list(zip(group[0].axes, stacked, strict=True))


def _is_plain(bank: Bank) -> bool:
    """Neither traced, nor under vmap and its like, nor with substituted offsets: there, plain operations are needed."""
    if torch.compiler.is_compiling() or not isinstance(bank.offset, Offsets):
        return False
    # torch has no public way to ask.
    return not torch._C._are_functorch_transforms_active()


def _mask_all_(root: nn.Module, args: Any) -> None:
    """Before the root's forward: every gated weight times its masks, in one node of the graph."""
    bank = bank_of(root)
    if bank is None or not _is_plain(bank):
        return
    shared = cast(Shared, getattr(root, SHARED))
    if not shared.gated:
        shared.gated = {id(weight): (weight, mask) for weight, mask in gated_weights(root)}
    weights, parametrizations = zip(*shared.gated.values(), strict=True)
    groups = grouped(weights, [mask.axes for mask in parametrizations])
    sizes = [gate.n for gate in bank.gates]

    def vectors(offset: Tensor) -> list[Vectors]:
        masks = bank.masks(range(len(sizes)), offset).split(sizes)
        together = ([parametrizations[number] for number in group] for group in groups)
        return [stacked_vectors(ones, [masks[gate] for one in ones for gate in one.gates]) for ones in together]

    shared.weights = dict(zip(shared.gated, mask_weights(bank.offset, vectors, weights, groups), strict=True))


def _forget_(root: nn.Module, *unused: Any) -> None:
    """Never kept longer: a replayed CUDA graph changes offsets and weights without anyone noticing."""
    shared = getattr(root, SHARED, None)
    # Compilers, under which nothing is kept, must not see a change of state.
    if isinstance(shared, Shared) and shared.weights:
        shared.weights = {}


def attach_(root: nn.Module) -> None:
    """Hooks on the root: masks are applied once per forward, and checkpoints of the network without gates load."""
    setattr(root, SHARED, Shared())
    root.register_forward_pre_hook(_mask_all_)
    root.register_forward_hook(_forget_, always_call=True)
    root.register_load_state_dict_pre_hook(_accept_dense_names)
    root.register_load_state_dict_post_hook(_follow_places)


def detach_(root: nn.Module) -> None:
    """Takes the hooks off that `attach_` put on."""
    loading = (root._load_state_dict_pre_hooks, root._load_state_dict_post_hooks)
    for hooks in (root._forward_pre_hooks, root._forward_hooks, *loading):
        for number, hook in list(hooks.items()):
            if getattr(hook, "hook", hook) in (_mask_all_, _forget_, _accept_dense_names, _follow_places):
                del hooks[number]
                root._forward_hooks_always_called.pop(number, None)
    if hasattr(root, SHARED):
        delattr(root, SHARED)


def put_mask_on_(root: nn.Module, name: str, bank: Bank, gates: Sequence[int], index: Tensor, axis: int) -> None:
    """Masks one parameter of the root, by its dotted name, along one axis. It may be masked along another already."""
    path, _, leaf = name.rpartition(".")
    module = root.get_submodule(path)
    if not parametrize.is_parametrized(module, leaf):
        mask = MaskedWeight(bank, getattr(root, SHARED), list(module._parameters).index(leaf))
        parametrize.register_parametrization(module, leaf, mask)
    mask_on(module, leaf).add_(Side(bank, gates, index, axis))


def gated(root: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Every module and name of a tensor in it that carries a mask."""
    for module in root.modules():
        if parametrize.is_parametrized(module):
            for name, masks in masks_of(module).items():
                if isinstance(cast(parametrize.ParametrizationList, masks)[0], MaskedWeight):
                    yield module, name


def gated_weights(root: nn.Module) -> Iterator[tuple[nn.Parameter, MaskedWeight]]:
    """Every gated parameter, under each of its names, with its mask."""
    for module, name in gated(root):
        yield cast(nn.Parameter, masks_of(module)[name].original), mask_on(module, name)


def masks_of(module: nn.Module) -> nn.ModuleDict:
    """The parametrizations of a module, by the name of the tensor."""
    return cast(nn.ModuleDict, module.parametrizations)


def mask_on(module: nn.Module, name: str) -> MaskedWeight:
    """The mask on one tensor of a module."""
    return cast(MaskedWeight, cast(parametrize.ParametrizationList, masks_of(module)[name])[0])


def _accept_dense_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Renames the plain names of gated weights, and lets the gates be as they are where a checkpoint has none."""
    paths = {child: path for path, child in module.named_modules()}
    for child, name in gated(module):
        stem = f"{prefix}{paths[child]}." if paths[child] else prefix
        plain, masked = f"{stem}{name}", f"{stem}parametrizations.{name}.original"
        if plain in state_dict and masked not in state_dict:
            state_dict[masked] = state_dict.pop(plain)
    own = (OFFSETS, PLACES, BAKED, OPEN)
    if not any(prefix + name in state_dict for name in own):
        state_dict.update({prefix + name: getattr(module, name) for name in own})
    elif isinstance(loaded := state_dict.get(prefix + OFFSETS), Tensor) and not isinstance(loaded, Offsets):
        state_dict[prefix + OFFSETS] = Offsets(loaded.detach())  # with assign=True it becomes the model's own


def _follow_places(module: nn.Module, unused: Any) -> None:
    """After loading: the checkpoint may have been made with another order."""
    bank = bank_of(module)
    if bank is not None:
        find_last_(bank)
