"""Masks off the weights again: moved into them for good, or taken off as if they had never been there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from headgate.bank import BAKED, OPEN, Bank, guarded, uninstall_bank_
from headgate.errors import GateError
from headgate.flat_weights import OVERRIDES, make_list_
from headgate.masked import SHARED, detach_, gated, gated_weights, mask_on, masks_of
from headgate.masked_weight import Shared


def take_masks_off_(root: nn.Module) -> None:
    """Removes masks and bank without touching a weight: the network as if gates had never been there."""
    masked = list(gated(root))
    for module, name in reversed(masked):
        _take_mask_off_(module, name)
    for module in dict.fromkeys(module for module, _ in masked):
        if isinstance(module, nn.RNNBase):
            make_list_(module)
    detach_(root)
    uninstall_bank_(root)


@torch.no_grad()
def folded_weights(root: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Every gated parameter, tied ones once, and what it is with its masks multiplied in.

    Raises:
        GateError: another parametrization was put on a gated weight: its mask cannot be taken from under it.
    """
    for module, name in gated(root):
        if len(cast(parametrize.ParametrizationList, masks_of(module)[name])) > 1:
            kind = type(cast(parametrize.ParametrizationList, masks_of(module)[name])[1]).__name__
            raise GateError(
                f"the gated {name} of a {type(module).__bases__[0].__name__} was given a {kind} afterwards: "
                "parametrize before insert_gates_, or take it off first"
            )
    if isinstance(shared := getattr(root, SHARED, None), Shared):
        shared.forget_()  # left behind where a forward was interrupted
    return list({id(weight): (weight, mask(weight)) for weight, mask in gated_weights(root)}.values())


@torch.no_grad()
def write_all_(values: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies each value into its tensor: all of them or, should one copy fail, none."""
    before = [tensor.clone() for tensor, _ in values]
    try:
        for tensor, value in values:
            tensor.copy_(value)
    except BaseException:
        for (tensor, _), old in zip(values, before, strict=True):
            tensor.copy_(old)
        raise


@torch.no_grad()
def bake_inserted_(bank: Bank) -> None:
    """Masks into the weights; the gates stay, open units at 1, closed ones at 0."""
    opened = bank.masks(range(len(bank.gates))) > 0
    numbers = {OPEN: opened, BAKED: torch.ones_like(bank.baked)}
    flags = [(getattr(bank.root, name), guarded(value)) for name, value in numbers.items()]
    write_all_([*folded_weights(bank.root), *flags])


def _take_mask_off_(module: nn.Module, name: str) -> None:
    """Gives the module its plain parameter back, in its old place: optimizers restore state by position.

    torch's own removal deletes the property from the module's class, which a deep copy of the model shares.
    """
    masks = masks_of(module)
    original, place = cast(nn.Parameter, masks[name].original), mask_on(module, name).place
    gated, plain = type(module), type(module).__bases__[0]
    del masks[name]
    if len(masks) == 0:
        del module.parametrizations
        module.__class__ = plain
    else:
        own = (name, "forward", "__dict__", "__weakref__", *OVERRIDES)
        rest = {key: value for key, value in vars(gated).items() if key not in own}
        module.__class__ = type(gated.__name__, (plain,), rest)
    later = list(module._parameters)[place:]
    module.register_parameter(name, original)
    for key in later:
        module._parameters[key] = module._parameters.pop(key)
