"""Masks on weights, for inserted gates: how they are put on, moved into the weights, and taken off.

Since conv(x∘g, W) = conv(x, W∘g), a mask on what a weight reads is a mask on the weight: it costs a pass over
parameters, not over feature maps, and no activation is stored for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from headgate.bank import BAKED, OFFSETS, OPEN, PLACES, Bank, bank_of, uninstall_bank_


class MaskedAxis(nn.Module):
    """Multiplies a weight along one axis by the masks of the gates whose units lie along it.

    `index` gives, for every index of the axis, its place in the chosen gates' masks laid end to end, followed by a
    single 1 for what no gate controls. The bank is held in a tuple, so that it is no part of the state dict. `place`
    is where the weight stood among its module's parameters, to put it back there one day.
    """

    index: Tensor

    def __init__(self, bank: Bank, gates: Sequence[int], index: Tensor, axis: int, place: int) -> None:
        super().__init__()
        self._bank = (bank,)
        self.gates = tuple(gates)
        self.axis = axis
        self.place = place
        size = sum(bank.gates[gate].n for gate in gates)
        # The usual case, one gate over the whole axis in its own order, needs no gathering.
        self.direct = torch.equal(index, torch.arange(size))
        self.register_buffer("index", index.to(bank.offset.device), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight times the mask, in the weight's own dtype."""
        bank = self._bank[0]
        masks = [bank.mask(gate) for gate in self.gates]
        if not self.direct:
            masks.append(masks[0].new_ones(1))
        mask = masks[0] if len(masks) == 1 else torch.cat(masks)
        mask = mask if self.direct else mask[self.index]
        shape = [1] * weight.dim()
        shape[self.axis] = -1
        return weight * mask.to(weight.dtype).view(shape)


def put_mask_on_(model: nn.Module, name: str, bank: Bank, gates: Sequence[int], index: Tensor, axis: int) -> None:
    """Masks one parameter, by its dotted name, along one axis."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    masked_before = parametrize.is_parametrized(module, leaf)
    place = _mask_on(module, leaf).place if masked_before else list(module._parameters).index(leaf)
    parametrize.register_parametrization(module, leaf, MaskedAxis(bank, gates, index, axis, place))


def accept_dense_checkpoints_(model: nn.Module) -> None:
    """From now on the state dict of the network without gates loads too: by plain names, gates as they are."""
    model.register_load_state_dict_pre_hook(_accept_dense_names)


def take_masks_off_(model: nn.Module) -> None:
    """Removes masks and bank without touching a weight: the network as if gates had never been there."""
    for module, name in list(_gated(model)):
        _take_mask_off_(module, name)
    for number, hook in list(model._load_state_dict_pre_hooks.items()):
        if getattr(hook, "hook", None) is _accept_dense_names:
            del model._load_state_dict_pre_hooks[number]
    if bank_of(model) is not None:
        uninstall_bank_(model)


@torch.no_grad()
def fold_masks_(model: nn.Module) -> None:
    """Multiplies every gated parameter by its masks, tied ones once. The masks themselves stay as they are."""
    folded: dict[int, tuple[Tensor, Tensor]] = {}
    for module, name in _gated(model):
        original = cast(nn.Parameter, _masks_of(module)[name].original)
        folded[id(original)] = (original, getattr(module, name))
    for parameter, value in folded.values():
        parameter.copy_(value)


@torch.no_grad()
def bake_inserted_(bank: Bank) -> None:
    """Masks into the weights; the gates stay, open units at 1, closed ones at 0."""
    opened = torch.cat([bank.mask(index) > 0 for index in range(len(bank.gates))])
    fold_masks_(bank.root)
    getattr(bank.root, OPEN).copy_(opened)
    getattr(bank.root, BAKED).fill_(1)


def _gated(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Every module and name of a tensor in it that carries a mask."""
    for module in model.modules():
        if parametrize.is_parametrized(module):
            for name, masks in _masks_of(module).items():
                if isinstance(cast(parametrize.ParametrizationList, masks)[0], MaskedAxis):
                    yield module, name


def _masks_of(module: nn.Module) -> nn.ModuleDict:
    return cast(nn.ModuleDict, module.parametrizations)


def _mask_on(module: nn.Module, name: str) -> MaskedAxis:
    return cast(MaskedAxis, cast(parametrize.ParametrizationList, _masks_of(module)[name])[0])


def _take_mask_off_(module: nn.Module, name: str) -> None:
    """Gives the module its plain parameter back, in its old place: optimizers restore state by position.

    torch's own removal deletes the property from the module's class, which a deep copy of the model shares.
    """
    masks = _masks_of(module)
    original, place = cast(nn.Parameter, masks[name].original), _mask_on(module, name).place
    gated, plain = type(module), type(module).__bases__[0]
    del masks[name]
    if len(masks) == 0:
        del module.parametrizations
        module.__class__ = plain
    else:
        rest = {key: value for key, value in vars(gated).items() if key not in (name, "__dict__", "__weakref__")}
        module.__class__ = type(gated.__name__, (plain,), rest)
    later = list(module._parameters)[place:]
    module.register_parameter(name, original)
    for key in later:
        module._parameters[key] = module._parameters.pop(key)


def _accept_dense_names(module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    paths = {child: path for path, child in module.named_modules()}
    for child, name in _gated(module):
        stem = f"{prefix}{paths[child]}." if paths[child] else prefix
        dense, gated = f"{stem}{name}", f"{stem}parametrizations.{name}.original"
        if dense in state_dict and gated not in state_dict:
            state_dict[gated] = state_dict.pop(dense)
    own = (OFFSETS, PLACES, BAKED, OPEN)
    if not any(prefix + name in state_dict for name in own):
        state_dict.update({prefix + name: getattr(module, name).detach() for name in own})
