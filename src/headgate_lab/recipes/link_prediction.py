"""Figure 4: which papers cite each other? A graph autoencoder with a gate on its embedding.

Cora, CiteSeer and PubMed; the encoder of torch_geometric's example (graph convolutions to 2d and to d channels), the
inner product of two embeddings as the score of a pair, 1,000 epochs of Adam at 0.01. The paper shows curves of AUC
and average precision (AP) against the dimension, without numbers, and says that DAM improves on the plain autoencoder.

Ours, Cora and CiteSeer, seeds 0 to 4, on a CPU, by the paper's settings: at equal dimension it does. From 16 channels,
against a plain encoder of that width, with the same hidden layer, split, negatives and seed, the test AUC is higher by
0.010 (Cora) and 0.015 (CiteSeer) at 5 to 8 channels, in 20 of 20 runs, and by 0.018 and 0.037 at 1 to 3 channels, in 28
of 30; AP by 0.005 and 0.012, and 0.011 and 0.028. Against the example's narrower hidden layers the gain is much the
same. It does not improve on all 16 channels: the strength that validation chooses, 0.01, leaves 6.8 of them and an AUC
of 0.894 (Cora) and 0.860 (CiteSeer); plain ones with 16 have 0.896 and 0.871.

From 32 channels it is worth more: strength 0.1 leaves 8.8 (Cora) and 8.6 (CiteSeer) of them and an AUC of 0.898 and
0.871, as much as plain encoders of 16, where plain ones with the same hidden layer have 0.890 and 0.851 at 8 channels,
0.895 and 0.860 at 12. Validation chooses this strength on Cora, and 0.01 on CiteSeer: 13.8 channels, 0.872. Strength 5
closes nearly every gate: an AUC of 0.5 to 0.56. Our own recipe (a relative mask and a budget on the dimension) is no
better: against plain encoders whose rates fall as its do, Cora has 0.880 (plain: 0.870) at 4 channels, 0.896 (0.893) at
8 and 0.897 (0.901) at 12, CiteSeer 0.842 (0.836) at 4, 0.856 (0.855) at 8 and 0.865 (0.871) at 12.

From 64 channels the gate improves on the plain autoencoder of any width: strength 0.1, chosen by validation on both,
leaves 13.4 (Cora) and 13.2 (CiteSeer) channels and an AUC of 0.908 and 0.882; plain ones have 0.900 and 0.862 at 14
channels with the same hidden layer, 0.901 and 0.877 at 32, and 0.895 and 0.880 at all 64.

PubMed, five seeds, gated ones from 32 and 64 channels on an H200, the others on CPUs: from 64, strength 0.1 leaves 10.6
and an AUC of 0.9714, and 0.01, which validation chooses, 19.2 and 0.9715: as much as plain encoders of any width have
(0.9711 at 32, 0.9709 at 64), where plain ones with the same hidden layer have 0.9681 at 10 channels and 0.9705 at 16.
From 32, strength 0.1 leaves 7.4 and 0.9684, plain ones with the same hidden layer have 0.9667 at 8. From 16: 0.9625 at
5 channels and 0.8505 at 1, plain 0.9605 and 0.8241. Our own recipe is level with plain encoders whose rates fall as its
do at 4 channels (0.9562 and 0.9559) and behind them from 6 on (0.9645 and 0.9679 at 8, 0.9693 and 0.9701 at 16).

With the closed channels removed AUC and AP are the same in every run, to 2e-6.

The test set is scored once, at the end of a run; a strength is to be chosen by `validation_auc`. Scores are not sent
through a sigmoid, whose rounding makes ties. `split="today"` follows today's `RandomLinkSplit` instead of the rules of
2021.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

import headgate as hg
from headgate_lab.data.links import Rules
from headgate_lab.data.planetoid import Graph, planetoid
from headgate_lab.engine.job import Job, Metrics, Recipe, later
from headgate_lab.engine.stacked import Rates
from headgate_lab.models.graph_autoencoder import GraphEncoder, padded
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.link_stack import WEIGHTS, LinkStack, compacted, dimensions, generator_of, quality

DATASETS = ("cora", "citeseer", "pubmed")
STRENGTHS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0)
STARTS = (16, 32, 64)
# The example's encoder at several widths, with twice as many hidden units.
WIDTHS = (2, 4, 6, 8, 12, 16, 32, 64)
# What strengths leave open, mostly: plain encoders of these widths have the hidden layer of the gated ones.
MATCHED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
# Of our own recipe: where it starts, when its rates begin to fall, and its dimensions.
START, SEARCH, FLOORS = 32, 0.5, (2, 4, 6, 8, 12, 16)
# Plain encoders narrower than these are stacked as if they were so wide.
STACKED = (16, 32, 64)
# Before and after what the gate has closed is removed physically.
SCORES = ("validation_auc", "validation_ap", "auc", "ap", "compact_auc", "compact_ap")


@dataclass(frozen=True)
class LinkPrediction(Recipe):
    """One autoencoder on one graph.

    Attributes:
        dataset: "cora", "citeseer" or "pubmed".
        method: "gae", without a gate; "gae-dam", with a plain mask on the embedding, its offset moved by Adam as
            everything else is; "ours", with a relative mask, its offset moved by headgate's bounded update.
        width: channels of the embedding, before the gate closes any.
        strength: of the gate.
        hidden: units between the two convolutions.
        steps: epochs as the paper counts them, each on the whole graph.
        length: how many pieces they are divided into: metrics are kept for each.
        split: whose rules divide the edges, see `headgate_lab.data.links`.
        offset_lr: the most that the offset moves in a step of the bounded update.
        floor: how many channels that update leaves open at least: with a large strength, the dimension.
        search: the fraction of the steps in which offsets move; after it the rate falls to 0, also without a gate.
    """

    experiment: ClassVar[str] = "link_prediction"

    dataset: str
    method: str
    width: int
    strength: float
    hidden: int
    lr: float = 0.01
    steps: int = 1_000
    length: int = 50
    split: Rules = "2021"
    offset_lr: float = later(0.0)
    floor: int = later(0)
    search: float = later(1.0)

    def __post_init__(self) -> None:
        if self.steps % self.length:
            raise ValueError(f"{self.steps} steps cannot be divided into {self.length} epochs")

    @property
    def setting(self) -> str:
        """Dataset, method, width and what else sets it apart."""
        hidden = "" if self.hidden == 2 * self.width else f", hidden {self.hidden}"
        strength = f", strength {self.strength:g}" if self.is_gated else ""
        floor = f", floor {self.floor}" if self.floor else ""
        search = f", search {self.search:g}" if self.search < 1 else ""
        split = f", split of {self.split}" if self.split != "2021" else ""
        return f"{self.dataset}, {self.method} from {self.width}{strength}{hidden}{floor}{search}{split}"

    @property
    def epochs(self) -> int:
        """Pieces of the training."""
        return self.length

    @property
    def is_gated(self) -> bool:
        """Whether there is a gate on the embedding."""
        return self.method != "gae"

    @property
    def cohort(self) -> Hashable:
        """All strengths and floors may be trained side by side, and plain encoders of similar widths."""
        width, hidden = self.stacked_widths
        return replace(self, strength=0.0, floor=0, width=width, hidden=hidden)

    @property
    def stacked_widths(self) -> tuple[int, int]:
        """Width and hidden units that this recipe has beside others."""
        if self.is_gated:
            return self.width, self.hidden
        wide, hidden = (next(w for w in (*STACKED, own) if w >= own) for own in (self.width, -(-self.hidden // 2)))
        return wide, 2 * hidden

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> LinkPredictions:
        """Jobs of one seed, and so of one divided graph, in one stack."""
        return LinkPredictions(jobs, device)


class LinkPredictions:
    """Jobs of one cohort: a stack for each seed."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        self.seeds = [job.seed for job in jobs]
        self.recipes = [job.recipe for job in jobs if isinstance(job.recipe, LinkPrediction)]
        graph = planetoid(self.recipes[0].dataset)
        self.stacks = {seed: self._stack(graph, seed, device) for seed in dict.fromkeys(self.seeds)}

    def epoch(self) -> list[Metrics]:
        """A piece of every training; dimension and the validation's AUC are those at its end."""
        found = {seed: self._piece(stack) for seed, stack in self.stacks.items()}
        return self._in_order(found)

    def finish(self) -> list[Metrics]:
        """Dimension, AUC and AP on both hidden sets, and what is left of them when closed channels are removed."""
        found = {seed: self._results(seed, stack) for seed, stack in self.stacks.items()}
        return self._in_order(found)

    def state_dict(self) -> dict[str, Any]:
        """All stacks'."""
        return {str(seed): stack.state_dict() for seed, stack in self.stacks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into all stacks."""
        for seed, stack in self.stacks.items():
            stack.load_state_dict(state[str(seed)])

    def _stack(self, graph: Graph, seed: int, device: torch.device) -> LinkStack:
        recipes, first = self._of(seed), self.recipes[0]
        rates = Rates(
            [recipe.lr for recipe in recipes],
            [0.0] * len(recipes),
            [recipe.strength for recipe in recipes],
            first.steps,
            first.offset_lr,
            first.search,
        )
        encoders = [padded(encoder_of(one, graph, seed), *reversed(one.stacked_widths)) for one in recipes]
        return LinkStack(graph, first.split, seed, encoders, rates, first.steps // first.length, device)

    def _piece(self, stack: LinkStack) -> list[Metrics]:
        losses, embeddings = stack.train(), stack.embeddings(in_test=False)
        scores = [quality(embedding, stack.split.validation)[0] for embedding in embeddings]
        columns = zip(losses, dimensions(embeddings), scores, strict=True)
        return [{"loss": loss, "dimension": open_, "validation_auc": auc} for loss, open_, auc in columns]

    def _results(self, seed: int, stack: LinkStack) -> list[Metrics]:
        early, late = (stack.embeddings(in_test=in_test) for in_test in (False, True))
        found: list[Metrics] = []
        for number, (recipe, dimension) in enumerate(zip(self._of(seed), dimensions(late), strict=True)):
            validation = quality(early[number], stack.split.validation)
            test = quality(late[number], stack.split.test)
            small = compacted(stack.encoder(number)) if recipe.is_gated else encoder_of(recipe, stack.graph, seed)
            removed = quality(stack.embedding(small), stack.split.test) if recipe.is_gated else (None, None)
            scores = dict(zip(SCORES, (*validation, *test, *removed), strict=True))
            params = sum(parameter.numel() for parameter in small.parameters())
            found.append({"dimension": dimension, **scores, "params": params})
        return found

    def _of(self, seed: int) -> list[LinkPrediction]:
        return [recipe for recipe, own in zip(self.recipes, self.seeds, strict=True) if own == seed]

    def _in_order(self, found: dict[int, list[Metrics]]) -> list[Metrics]:
        """Each stack has its jobs in the order of all jobs."""
        ahead = {seed: iter(metrics) for seed, metrics in found.items()}
        return [next(ahead[seed]) for seed in self.seeds]


def encoder_of(recipe: LinkPrediction, graph: Graph, seed: int) -> GraphEncoder:
    """The encoder with the weights of a seed and the recipe's gate, if it has one."""
    gate: nn.Module = nn.Identity()
    if recipe.is_gated:
        scale: Literal["plain", "relative"] = "relative" if recipe.method == "ours" else "plain"
        gate = hg.Gate(recipe.width, dim=-1, scale=scale, floor=recipe.floor)
    generator = generator_of(seed, WEIGHTS)
    return GraphEncoder(graph.features.shape[1], recipe.hidden, recipe.width, gate, generator=generator)


def plain(dataset: str, width: int, hidden: int | None = None, *, search: float = 1.0) -> LinkPrediction:
    """The autoencoder alone; twice as many hidden units as channels, as in torch_geometric's example, unless told."""
    return LinkPrediction(dataset, "gae", width, 0.0, hidden or 2 * width, search=search)


def gated(dataset: str, width: int, strength: float) -> LinkPrediction:
    """The paper's."""
    return LinkPrediction(dataset, "gae-dam", width, strength, 2 * width)


def budgeted(dataset: str, floor: int) -> LinkPrediction:
    """Ours: to a given dimension within the first half of the training; the second half is for the weights."""
    return LinkPrediction(dataset, "ours", START, 1.0, 2 * START, offset_lr=0.02, floor=floor, search=SEARCH)


def recipes() -> list[LinkPrediction]:
    """Plain ones of matched widths, also with the hidden layers that gated ones have; the paper's; ours."""
    found = []
    for dataset in DATASETS:
        found += [plain(dataset, width) for width in WIDTHS]
        found += [plain(dataset, width, 2 * start) for start in STARTS for width in MATCHED if width < start]
        found += [gated(dataset, start, strength) for start in STARTS for strength in STRENGTHS]
        found += [budgeted(dataset, floor) for floor in FLOORS]
        found += [plain(dataset, floor, 2 * START, search=SEARCH) for floor in FLOORS]
    return found


EXPERIMENT = Experiment(
    id="link_prediction",
    title="which papers cite each other: a graph autoencoder with a gate on its embedding",
    place="Fig. 4",
    seeds=5,
    recipes=recipes,
    together=12,
)
