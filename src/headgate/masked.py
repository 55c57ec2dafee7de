"""Masks on weights, for inserted gates: how they are put on, moved into the weights, and taken off.

Since conv(x∘g, W) = conv(x, W∘g), a mask on what a weight reads is a mask on the weight: it costs a pass over
parameters, not over feature maps, and no activation is stored for it. Inside the root's forward all weights are masked
at once, since what costs in deep thin networks is the number of operations; a weight that is used elsewhere is masked
by itself, with the same result. Where a large weight meets an input smaller than itself, the input is masked after all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from headgate.bank import BAKED, OFFSETS, OPEN, PLACES, Bank, Offsets, bank_of, find_last_
from headgate.flat_weights import forget_list_
from headgate.inputs import can_mask_inputs, let_inputs_be_masked_
from headgate.masked_weight import MaskedWeight, Shared, Side, is_plain, stacked_vectors
from headgate.product import Vectors, grouped, mask_weights

SHARED = "headgate_shared"


def _mask_all_(root: nn.Module, args: Any) -> None:
    """Before the root's forward: every gated weight times its masks, in one node of the graph."""
    bank = bank_of(root)
    if bank is None or not is_plain(bank):
        return
    shared = cast(Shared, getattr(root, SHARED))
    if not shared.gated:
        shared.gated = {id(weight): (weight, mask) for weight, mask in gated_weights(root)}
    masks = [mask for _, mask in shared.gated.values()]
    factors, axes = zip(*(mask.factor(weight) for weight, mask in shared.gated.values()), strict=True)
    groups = grouped(factors, axes)
    sizes = [gate.n for gate in bank.gates]

    def vectors(offset: Tensor) -> list[Vectors]:
        of_gates = bank.masks(range(len(sizes)), offset).split(sizes)
        found = []
        for group in groups:
            together = [masks[number] for number in group]
            of_group = [of_gates[gate] for mask in together for gate in mask.gates]
            found.append(stacked_vectors(together, axes[group[0]], of_group))
        return found

    products = mask_weights(bank.offset, vectors, factors, groups)
    shared.forget_()
    for (number, (weight, _)), factor, result in zip(shared.gated.items(), factors, products, strict=True):
        (shared.weights if factor is weight else shared.vectors)[number] = result


def _forget_(root: nn.Module, *unused: Any) -> None:
    """After the root's forward, however it ended."""
    shared = getattr(root, SHARED, None)
    # Compilers, under which nothing is kept, must not see a change of state.
    if isinstance(shared, Shared) and (shared.weights or shared.vectors):
        shared.forget_()


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
        reads = leaf == "weight" and can_mask_inputs(module)
        mask = MaskedWeight(bank, getattr(root, SHARED), list(module._parameters).index(leaf), reads)
        parametrize.register_parametrization(module, leaf, mask)
        _shorten_the_way_(type(module), leaf)
        if reads:
            let_inputs_be_masked_(module)
        if isinstance(module, nn.RNNBase):
            forget_list_(module)
    mask_on(module, leaf).add_(Side(bank, gates, index, axis))


def _shorten_the_way_(kind: type[nn.Module], leaf: str) -> None:
    """Lets a weight that is masked already be found without the calls of two modules, which cost more than to find it.

    `kind` is the class that parametrize has made for one module, and its copies.
    """
    usual: Any = getattr(kind, leaf)

    def read(module: nn.Module) -> Any:
        masks: Any = masks_of(module)._modules[leaf]
        if len(masks._modules) == 1:
            found = masks._modules["0"].found(masks.original)
            if found is not None:
                return found
        return usual.fget(module)

    setattr(kind, leaf, property(read, usual.fset))


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
