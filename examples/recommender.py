"""Your ratings to a small recommender: a CSV of user, item, rating in, a trained and compacted network out.

    python examples/recommender.py ratings.csv --save recommender.safetensors
    python examples/recommender.py --epochs 20            # invented ratings, half a minute on one core

One rating in ten is kept back and predicted, so that you see what the recommender is worth: beside its error stands
that of always predicting the mean. What is saved was trained on the other nine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from headgate_lab.data.places import DataError
from headgate_lab.data.ratings import NamedRatings, from_triples, read_csv
from headgate_lab.files import why_not_writable
from headgate_lab.recommend import Recommender, train_recommender


def invented(users: int = 150, items: int = 100, seed: int = 0) -> NamedRatings:
    """Four kinds of people rate, from 1 to 5, a fifth of the things, of which there are four kinds too."""
    generator = torch.Generator().manual_seed(seed)
    person, thing = (torch.randint(4, (count,), generator=generator) for count in (users, items))
    liking = 1 + 4 * torch.rand(4, 4, generator=generator)
    noise = 0.5 * torch.randn(users, items, generator=generator)
    ratings = (liking[person][:, thing] + noise).round().clamp(1, 5)
    who, what = (torch.rand(users, items, generator=generator) < 0.2).nonzero(as_tuple=True)
    return from_triples(
        (f"user {u}", f"item {i}", float(ratings[u, i])) for u, i in zip(who.tolist(), what.tolist(), strict=True)
    )


def split(rated: NamedRatings, seed: int) -> tuple[NamedRatings, NamedRatings]:
    """Nine tenths and one tenth, of the same users and items."""
    order = torch.randperm(len(rated.ratings), generator=torch.Generator().manual_seed(seed))
    cut = max(1, len(order) // 10)
    return tuple(  # type: ignore[return-value]
        NamedRatings(rated.ratings.part(part), rated.user_names, rated.item_names)
        for part in (order[cut:], order[:cut])
    )


def error_of(recommender: Recommender, held: NamedRatings) -> tuple[float, float]:
    """Root mean squared error on these ratings: the recommender's, and that of the mean of what it was trained on."""
    names = [held.user_names[number] for number in held.ratings.users.tolist()]
    things = [held.item_names[number] for number in held.ratings.items.tolist()]
    wanted, mean = held.ratings.values, recommender.rated.ratings.values.mean()
    predicted = recommender.predict(names, things)
    return float((predicted - wanted).square().mean().sqrt()), float((mean - wanted).square().mean().sqrt())


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ratings", nargs="?", type=Path, metavar="RATINGS.csv", help="default: invented ones")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--strength", type=float, default=0.1, help="how hard units are pushed to close")
    parser.add_argument("--most", type=int, default=100, help="neighbours of either kind that a pair may have")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, metavar="FILE.safetensors")
    options = parser.parse_args()
    if options.save and (obstacle := why_not_writable(options.save)):  # before the training, not after it
        parser.error(f"--save {options.save}: {obstacle}")
    try:
        rated = read_csv(options.ratings) if options.ratings else invented(seed=options.seed)
        train, held = split(rated, options.seed)
        print(f"{len(train.ratings):,} ratings to learn from, {len(held.ratings):,} kept back")
        recommender = train_recommender(
            train,
            epochs=options.epochs,
            strength=options.strength,
            most=options.most,
            seed=options.seed,
            watch=lambda epoch, loss, units: print(f"  epoch {epoch:3d}: error {loss**0.5:.4f}, {units} units open"),
        )
    except (DataError, ValueError) as error:
        parser.error(str(error))
    ours, mean = error_of(recommender, held)
    print(f"on the ratings kept back: RMSE {ours:.4f} with {recommender.dimension} hidden units; the mean: {mean:.4f}")
    if options.save:
        recommender.save(options.save)
        print(f"saved: {options.save.resolve()}")


if __name__ == "__main__":
    main()
