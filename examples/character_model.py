"""A language model of characters, trained once to a size: feed-forward units and attention heads go while it learns.

    python examples/character_model.py                    # some minutes on two cores
    python examples/character_model.py --params 0.3 --steps 500

The text ships with Python: the topics of its `help()`. Three networks learn it by the same recipe: the whole one, one
that a budget makes small on the way, and one of as many parameters that was built narrower from the start.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import headgate as hg

CONTEXT, BATCH = 64, 32


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each behind a LayerNorm and added to what it read."""

    def __init__(self, size: int, heads: int, head_size: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        inner = heads * head_size
        self.query, self.key, self.value = (nn.Linear(size, inner) for _ in range(3))
        self.projection = nn.Linear(inner, size)
        self.widen, self.narrow = nn.Linear(size, hidden), nn.Linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, time, size), before and after."""
        batch, length, _ = x.shape
        read = self.norm1(x)
        q, k, v = (
            layer(read).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, -1))
        written: Tensor = self.narrow(gelu(self.widen(self.norm2(x))))
        return x + written


class CharacterModel(nn.Module):
    """Predicts every next character; the table of characters serves input and output."""

    def __init__(self, characters: int, heads: int = 4, hidden: int = 256) -> None:
        super().__init__()
        size, head_size, depth = 64, 16, 4
        self.characters, self.places = nn.Embedding(characters, size), nn.Embedding(CONTEXT, size)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(size, heads, head_size, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(size)
        self.output = nn.Linear(size, characters, bias=False)
        self.output.weight = self.characters.weight

    def forward(self, text: Tensor) -> Tensor:
        """Characters (batch, time) to logits (batch, time, characters)."""
        x = self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        logits: Tensor = self.output(self.norm(self.blocks(x)))
        return logits


class Text:
    """The topics of Python's help as numbers; the last tenth is for validation."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
        numbers = torch.tensor([alphabet[character] for character in text])
        cut = 9 * len(numbers) // 10
        self.characters, self.train, self.validation = len(alphabet), numbers[:cut], numbers[cut:]

    def batches(self, steps: int, seed: int) -> Iterator[Tensor]:
        """So many batches of pieces one character longer than the context, from random places."""
        generator = torch.Generator().manual_seed(seed)
        reach = torch.arange(CONTEXT + 1)
        for _ in range(steps):
            starts = torch.randint(len(self.train) - CONTEXT, (BATCH, 1), generator=generator)
            yield self.train[starts + reach]


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """Nats a character."""
    logits = model(pieces[:, :-1])
    return cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())


def train(model: nn.Module, text: Text, steps: int, seed: int, budget: hg.Budget | None = None) -> None:
    """The same loop for all; a budget needs two lines of it."""
    groups = hg.param_groups(model) if budget else [{"params": list(model.parameters())}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    model.train()
    for number, pieces in enumerate(text.batches(steps, seed), start=1):
        loss = loss_of(model, pieces)
        optimizer.zero_grad()
        (loss + budget.penalty() if budget else loss).backward()
        optimizer.step()
        schedule.step()
        if budget:
            budget.step()
        if number % 100 == 0:
            size = f", {budget.size:,.0f} of {budget.full:,.0f} parameters" if budget else ""
            print(f"  step {number:5d} of {steps}: loss {loss.item():.3f}{size}", flush=True)


@torch.no_grad()
def validation_loss(model: nn.Module, text: Text) -> float:
    """Over the whole of the validation text, in pieces."""
    model.eval()
    whole = (len(text.validation) - 1) // CONTEXT
    inputs = text.validation[: whole * CONTEXT].view(whole, CONTEXT)
    targets = text.validation[1 : whole * CONTEXT + 1].view(whole, CONTEXT)
    pieces = torch.cat([inputs, targets[:, -1:]], dim=1)
    return statistics.fmean(loss_of(model, some).item() for some in pieces.split(BATCH))


@torch.no_grad()
def characters_per_second(models: Mapping[str, nn.Module], text: Text, rounds: int = 40) -> dict[str, float]:
    """Of forward passes over a batch, the median; the models take turns, so that a busy machine is fair to all."""
    pieces = next(text.batches(1, seed=0))[:, :-1]
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            start = time.perf_counter()
            model.eval()(pieces)
            taken[name].append(time.perf_counter() - start)
    return {name: pieces.numel() / statistics.median(times) for name, times in taken.items()}


def parameters(model: nn.Module) -> int:
    """Shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def narrower(text: Text, params: int) -> CharacterModel:
    """A network of just so many parameters, heads and feed-forward units reduced as much alike as whole heads allow."""
    bare = parameters(CharacterModel(text.characters, heads=1, hidden=1))
    head = parameters(CharacterModel(text.characters, heads=2, hidden=1)) - bare
    unit = parameters(CharacterModel(text.characters, heads=1, hidden=2)) - bare
    fitting = [(heads, 1 + (params - bare - (heads - 1) * head) // unit) for heads in range(1, 5)]
    fitting = [(heads, hidden) for heads, hidden in fitting if hidden > 0]
    if not fitting:
        raise ValueError(f"no network of this kind has only {params:,} parameters")
    heads, hidden = min(fitting, key=lambda sizes: abs(sizes[0] / 4 - sizes[1] / 256))
    return CharacterModel(text.characters, heads, hidden)


def heads_and_units(site: str, module: nn.Module) -> bool:
    """Whole heads and feed-forward units. Values narrower than queries would be computed by slower kernels."""
    return site.endswith((".query", ".widen"))


def compare(text: Text, params: float, steps: int, seed: int) -> dict[str, dict[str, float]]:
    """Trains the three networks; their losses, sizes and speeds by name.

    Raises:
        headgate.ArgumentError: a size that cannot be reached, or not in so few steps; nothing has been trained.
    """
    torch.manual_seed(seed)
    model = CharacterModel(text.characters)
    example = next(text.batches(1, seed))[:2, :-1]
    hg.insert_gates_(model, example, floor=1, where=heads_and_units)
    budget = hg.Budget(model, example, params=params, steps=steps)
    trained: dict[str, nn.Module] = {}

    print("the whole network")
    torch.manual_seed(seed)
    trained["whole"] = CharacterModel(text.characters)
    train(trained["whole"], text, steps, seed)

    print("made small on the way")
    train(model, text, steps, seed, budget)
    trained["by a budget"] = hg.compact(model, example)

    print("built narrower")
    torch.manual_seed(seed)
    trained["narrower"] = narrower(text, parameters(trained["by a budget"]))
    train(trained["narrower"], text, steps, seed)

    speeds = characters_per_second(trained, text)
    return {
        name: {
            "validation_loss": validation_loss(model, text),
            "params": parameters(model),
            "characters_per_second": speeds[name],
        }
        for name, model in trained.items()
    }


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, default=0.4, help="a fraction of the parameters, or a number")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        found = compare(Text(), options.params, options.steps, options.seed)
    except hg.ArgumentError as error:
        parser.error(str(error))
    print(f"\n{'':12}  {'nats a character':>16}  {'parameters':>10}  {'characters/s':>12}")
    for name, of in found.items():
        print(f"{name:12}  {of['validation_loss']:16.3f}  {of['params']:10,.0f}  {of['characters_per_second']:12,.0f}")


if __name__ == "__main__":
    main()
