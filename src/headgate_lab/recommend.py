"""From your ratings to a small recommender: triples or a CSV file in, a trained and compacted network out.

    recommender = train_recommender("ratings.csv")
    recommender.predict(["ann"], ["tea"])
    recommender.save("recommender.safetensors")

The network is IGMC with a gate on its head (`recipes.recommender`): it looks at the ratings around a pair, so that it
also predicts for users and items that it was not trained on, as far as there are ratings around them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headgate as hg
from headgate_lab.data.places import DataError
from headgate_lab.data.ratings import NamedRatings, from_triples, read_csv
from headgate_lab.data.subgraph_batch import Batches
from headgate_lab.data.subgraphs import RatingGraph, enclosing
from headgate_lab.engine.fitting import Fitting
from headgate_lab.engine.rating_networks import RatingNetworks, compacted
from headgate_lab.models.igmc import Igmc
from headgate_lab.recommender_file import read_recommender, write_recommender

# Told after every epoch: its number from 1, the mean squared error on the way, how many hidden units are open.
Watch = Callable[[int, float, int], object]
HIDDEN = 128
# Units that stay open whatever the strength.
FLOOR = 4
AT_ONCE = 256
# What generators are seeded with is made of it, and must fit into 64 bits.
LARGEST_SEED = 2**32
# Adam squares it, in float32.
LARGEST_STRENGTH = 1e12


@dataclass(frozen=True)
class Recommender:
    """Predicts ratings.

    Attributes:
        network: trained and compacted.
        rated: the ratings that it looks at.
        levels: the different ratings that occur, ascending.
        most: how many neighbours of either kind it looks at; None: all.
    """

    network: Igmc
    rated: NamedRatings
    levels: Tensor
    most: int | None = None

    @property
    def dimension(self) -> int:
        """How many hidden units are left."""
        return self.network.head.hidden.out_features

    @torch.no_grad()
    def predict(self, users: Sequence[object], items: Sequence[object]) -> Tensor:
        """How the first user would rate the first item, and so on, (pairs,), within the range of the ratings.

        Names that were never seen are taken for newcomers without ratings: of a pair with one of them, only the
        ratings of the other are looked at.

        Raises:
            ValueError: there are not as many users as items, or one name is given in place of a list of names.
        """
        if isinstance(users, str) or isinstance(items, str):
            raise ValueError(f"predict: {users!r} and {items!r} must be lists, also of one user and one item")
        if len(users) != len(items):
            raise ValueError(f"predict: {len(users)} users, but {len(items)} items; give one item for each user")
        ratings = self.rated.ratings
        user_numbers = {name: number for number, name in enumerate(self.rated.user_names)}
        item_numbers = {name: number for number, name in enumerate(self.rated.item_names)}
        who = torch.tensor([user_numbers.get(name, ratings.user_count) for name in _texts(users)], dtype=torch.long)
        what = torch.tensor([item_numbers.get(name, ratings.item_count) for name in _texts(items)], dtype=torch.long)
        if not len(who):
            return torch.zeros(0)
        device = self.network.head.hidden.weight.device
        batches = Batches(enclosing(graph_of(self.rated, self.levels), who, what, most=self.most), device)
        pairs = torch.arange(len(who)).split(AT_ONCE)
        found = torch.cat([self.network(batches.batch(chosen.unsqueeze(0))) for chosen in pairs]).cpu()
        return found.clamp(float(self.levels[0]), float(self.levels[-1]))

    def save(self, path: str | Path) -> None:
        """Writes weights, ratings and names to one safetensors file, whole or not at all."""
        write_recommender(Path(path), self.network, self.rated, self.levels, self.most)

    @staticmethod
    def load(path: str | Path) -> Recommender:
        """What `save` wrote.

        Raises:
            DataError: the file cannot be read, or is none that `save` wrote.
        """
        network, rated, levels, most = read_recommender(Path(path))
        return Recommender(network, rated, levels, most)


def train_recommender(
    ratings: NamedRatings | str | Path | Iterable[tuple[object, object, float]],
    *,
    epochs: int = 40,
    strength: float = 0.1,
    most: int | None = 100,
    seed: int = 0,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
) -> Recommender:
    """Trains a network on all of these ratings, removes what its gate closed, and returns what predicts with it.

    Args:
        ratings: (user, item, rating) triples, or the path of a CSV file with these columns, or what `read_csv` or
            `from_triples` made of them.
        epochs: passes over the ratings.
        strength: how hard hidden units are pushed to close, relative to the variance of the ratings: the paper's
            strengths are about 0.1 of it.
        most: how many neighbours of either kind a pair may have; of more, some are drawn. None: all. It decides how
            long training takes.
        seed: of the initial weights and of everything that is drawn.
        device: where to train.
        watch: told after every epoch: its number from 1, the mean squared error, the open hidden units.

    Raises:
        DataError: a rating is not as it should be (its line or number is named), there are none, or all are the same.
        ValueError: a number of epochs, neighbours, a strength or a seed that cannot be.
    """
    epochs, strength, most, seed = _checked(epochs, strength, most, seed)
    rated = _rated(ratings)
    values = rated.ratings.values
    levels = values.unique()
    if not len(values):
        raise DataError("there are no ratings")
    if len(levels) < 2:
        raise DataError(f"all {len(values)} ratings are {float(levels[0]):g}: there is nothing to learn")
    place = torch.device(device)
    graph = graph_of(rated, levels)
    subgraphs = enclosing(graph, graph.users, graph.items, most=most, seed=seed)
    gate = hg.Gate(HIDDEN, dim=-1, floor=FLOOR)
    network = Igmc(len(levels), gate, hidden=HIDDEN, generator=torch.Generator().manual_seed(seed))
    fitting = Fitting(strength=strength)
    steps = epochs * -(-len(values) // fitting.batch)
    # However short the training, its first half is long enough for the gate to close.
    travel = float(gate.start - gate.lowest)
    fitting = replace(fitting, offset_lr=max(fitting.lr, 2 * travel / steps))
    # Whatever their scale, ratings are learned as numbers around 0 with a variance of 1.
    mean, spread = float(values.mean()), float(values.std())
    training = RatingNetworks([network], subgraphs, (values - mean) / spread, fitting, [seed], place)
    for epoch in range(1, epochs + 1):
        (loss,) = training.epoch()
        if watch is not None:
            watch(epoch, loss * spread**2, hg.gates(training.network(0))["head.gate"].active)
    return Recommender(_plain(training.network(0), mean, spread), rated, levels, most)


def graph_of(rated: NamedRatings, levels: Tensor) -> RatingGraph:
    """All ratings, as relations."""
    ratings = rated.ratings
    relations = torch.searchsorted(levels, ratings.values)
    return RatingGraph(
        ratings.users, ratings.items, relations, ratings.user_count, ratings.item_count, len(levels)
    )  # fmt: skip


@torch.no_grad()
def _plain(network: Igmc, mean: float, spread: float) -> Igmc:
    """Without closed units and without a gate, for ratings of this mean and spread: both go into the last weights."""
    small = compacted(network)
    output = small.head.output
    output.weight.mul_(spread * small.head.gate(torch.ones_like(output.weight)))
    output.bias.mul_(spread).add_(mean)
    small.head.gate = nn.Identity()
    return small


def _rated(ratings: NamedRatings | str | Path | Iterable[tuple[object, object, float]]) -> NamedRatings:
    if isinstance(ratings, NamedRatings):
        return ratings
    return read_csv(ratings) if isinstance(ratings, str | Path) else from_triples(ratings)


def _texts(names: Sequence[object]) -> list[str]:
    """The text of each name; an element of a tensor has another one than its number."""
    return [str(name) for name in (names.tolist() if isinstance(names, Tensor) else names)]


def _checked(epochs: Any, strength: Any, most: Any, seed: Any) -> tuple[int, float, int | None, int]:
    """The same, as numbers of the right kind."""
    if (epochs := _whole("epochs", epochs)) < 1:
        raise ValueError(f"epochs={epochs} must be 1 or more")
    if not (isinstance(strength, Real) and 0 <= float(strength) <= LARGEST_STRENGTH):
        raise ValueError(f"strength={strength!r} must be a number, 0 or more, and at most {LARGEST_STRENGTH:g}")
    if most is not None and (most := _whole("most", most)) < 1:
        raise ValueError(f"most={most} must be 1 or more, or None for all")
    if abs(seed := _whole("seed", seed)) > LARGEST_SEED:
        raise ValueError(f"seed={seed} must lie within ±{LARGEST_SEED}")
    return epochs, float(strength), most, seed


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name}={value!r} is not a whole number")
    return operator.index(value)
