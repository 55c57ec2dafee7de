"""A trained recommender as one safetensors file: tensors, and names as JSON. Nothing in it is ever executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from headgate_lab.data.places import DataError
from headgate_lab.data.ratings import NamedRatings, Ratings
from headgate_lab.files import write_whole
from headgate_lab.models.igmc import Igmc

KEY, VERSION = "headgate.recommender", 1
NETWORK = "network."


def write_recommender(path: Path, network: Igmc, rated: NamedRatings, levels: Tensor, most: int | None) -> None:
    """Writes it, whole or not at all."""
    ratings = rated.ratings
    tensors = {"users": ratings.users, "items": ratings.items, "values": ratings.values, "levels": levels}
    tensors |= {NETWORK + name: value for name, value in network.state_dict().items()}
    # Copies: users and items may be columns of one tensor.
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    told = {"version": VERSION, "users": rated.user_names, "items": rated.item_names, "most": most}
    write_whole(path, save(tensors, {KEY: json.dumps(told)}))


def read_recommender(path: Path) -> tuple[Igmc, NamedRatings, Tensor, int | None]:
    """What `write_recommender` wrote: network, ratings, levels, most.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    try:
        with safe_open(path, "pt") as file:
            told = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        if told["version"] != VERSION:
            raise ValueError(f"its version is {told['version']}, not {VERSION}")
        network, rated = _network(tensors), _ratings(tensors, told)
        return network, rated, _levels(tensors, network, rated), _most(told["most"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise DataError(f"{path} is damaged or no saved recommender: {first}") from error


def _ratings(tensors: dict[str, Tensor], told: dict[str, Any]) -> NamedRatings:
    users, items, values = (tensors[name] for name in ("users", "items", "values"))
    names = _names(told["users"]), _names(told["items"])
    for numbers, known in zip((users, items), names, strict=True):
        is_list = numbers.dtype == torch.long and numbers.shape == values.shape == (values.numel(),)
        if not is_list or not len(values) or int(numbers.min()) < 0 or int(numbers.max()) >= len(known):
            raise ValueError("its ratings and names do not fit together")
    if len((users * len(names[1]) + items).unique()) < len(values):
        raise ValueError("it has more than one rating of a pair")
    return NamedRatings(Ratings(users, items, values, len(names[0]), len(names[1])), *names)


def _names(told: Any) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(isinstance(name, str) for name in told) or len(set(told)) < len(told):
        raise ValueError("its names are no list of different texts")
    return tuple(told)


def _levels(tensors: dict[str, Tensor], network: Igmc, rated: NamedRatings) -> Tensor:
    """Checked: ascending, one for each relation of the network, all ratings among them."""
    levels, values = tensors["levels"], rated.ratings.values
    is_list = levels.dtype == values.dtype == torch.float32 and levels.ndim == 1 and bool(levels.isfinite().all())
    if not is_list or not bool((levels.diff() > 0).all()) or not bool(torch.isin(values, levels).all()):
        raise ValueError("its ratings are not among its levels")
    for name, value in network.named_parameters():
        if name.endswith(".mix") and len(value) != len(levels):
            raise ValueError(f"its {name} is for {len(value)} different ratings, but there are {len(levels)}")
    return levels


def _most(told: Any) -> int | None:
    if told is not None and (type(told) is not int or told < 1):
        raise ValueError(f"its number of neighbours is {told!r}")
    return told


def _network(tensors: dict[str, Tensor]) -> Igmc:
    """A network of the sizes that its weights have."""
    state = {name.removeprefix(NETWORK): value for name, value in tensors.items() if name.startswith(NETWORK)}
    if empty := [name for name, value in state.items() if not value.numel()]:
        raise ValueError(f"its {empty[0]} has no numbers")
    bases, _, width = state["layers.0.bases"].shape
    depth = sum(name.endswith(".mix") for name in state)
    network = Igmc(
        len(state["layers.0.mix"]),
        nn.Identity(),
        width=width,
        depth=depth,
        hidden=len(state["head.hidden.weight"]),
        bases=bases,
        generator=torch.Generator().manual_seed(0),
    )
    network.load_state_dict(state)
    for name, value in network.named_parameters():
        if not bool(value.isfinite().all()):
            raise ValueError(f"its {name} has numbers that are not finite")
    return network.eval()
