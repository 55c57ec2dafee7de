"""What an epoch of a recommender costs: ours beside the same network of torch_geometric's RGCNConv, in one run.

    PYTHONPATH=src python -m benchmarks.recommender_epoch --dataset flixster

Both take the same pairs in the same batches of 50, with edge dropout, gate, smoothness and Adam: ours as the lab trains
(`--together` networks at once, time for each; captured on CUDA), theirs as subgraphs that are put together batch by
batch, four RGCNConv layers that sum. A number of steps is timed, contestants in turns, and scaled to the steps of an
epoch. On a CPU the seconds are those that the process computed, not those that passed: other work on the machine counts
less. Writes a record to results/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import RGCNConv

import headgate as hg
from benchmarks.timing import in_turns, options, ratios
from headgate_lab.data.monti import SOURCES, Split
from headgate_lab.engine.job import Job
from headgate_lab.models.igmc import Head
from headgate_lab.recipes.recommender import Recommendations, recipe, subgraphs_of
from headgate_lab.records import write_record


class Peer(nn.Module):
    """IGMC with a gate, of RGCNConv layers."""

    def __init__(self, relations: int) -> None:
        super().__init__()
        widths = [4, 32, 32, 32, 32]
        self.layers = nn.ModuleList(RGCNConv(i, 32, relations, num_bases=4, aggr="add") for i in widths[:-1])
        generator = torch.Generator().manual_seed(0)
        self.head = Head(256, 128, hg.Gate(128, dim=-1, order="index0"), generator=generator)

    def forward(self, graph: Any) -> Tensor:
        """Ratings of the pairs of a batch; a fifth of the edges is left out."""
        kept = torch.rand(graph.edge_type.shape, device=graph.x.device) >= 0.2
        edges, relations, states, behind = graph.edge_index[:, kept], graph.edge_type[kept], graph.x, []
        for layer in self.layers:
            states = torch.tanh(layer(states, edges, relations))
            behind.append(states)
        together = torch.cat(behind, dim=1)
        user = graph.ptr[:-1]
        rating: Tensor = self.head(torch.cat([together[user], together[user + 1]], dim=1))
        return rating

    def roughness(self) -> Tensor:
        """Of neighbouring relations, over all layers."""
        weights = [torch.einsum("rb,bio->rio", layer.comp, layer.weight) for layer in self.layers]
        return torch.stack([weight.diff(dim=0).square().sum() for weight in weights]).sum()


def graphs_of(split: Split, pairs: Tensor) -> list[Data]:
    """Enclosing subgraphs as torch_geometric has them."""
    train = split.train
    table = torch.zeros(train.user_count, train.item_count, dtype=torch.long)
    table[train.users, train.items] = torch.searchsorted(split.levels, train.values) + 1
    found = []
    for pair in pairs.tolist():
        user, item = int(train.users[pair]), int(train.items[pair])
        users, items = (table[:, item] > 0).nonzero().squeeze(1), (table[user] > 0).nonzero().squeeze(1)
        users = torch.cat([torch.tensor([user]), users[users != user]])
        items = torch.cat([torch.tensor([item]), items[items != item]])
        between = table[users][:, items]
        between[0, 0] = 0
        left, right = between.nonzero(as_tuple=True)
        # Target user, target item, then the other users, then the other items.
        left_node = left + (left > 0)
        right_node = torch.where(right > 0, right + len(users), 1)
        labels = torch.tensor([0, 1] + [2] * (len(users) - 1) + [3] * (len(items) - 1))
        ends = torch.stack([torch.cat([left_node, right_node]), torch.cat([right_node, left_node])])
        relation = (between[left, right] - 1).repeat(2)
        found.append(Data(x=torch.eye(4)[labels], edge_index=ends, edge_type=relation))
    return found


def their_steps(split: Split, order: Tensor, strength: float, size: int, device: torch.device) -> Callable[[], None]:
    """Calls make one step after the other, over and over."""
    torch.manual_seed(0)
    model = Peer(len(split.levels)).to(device)
    optimizer = torch.optim.Adam(hg.param_groups(model, offset_update="plain"), lr=1e-3)
    graphs, ratings = graphs_of(split, order), split.train.values[order].to(device)
    number = 0

    def step() -> None:
        nonlocal number
        part = slice(size * number, size * number + size)
        number = (number + 1) % (len(order) // size)
        predicted = model(Batch.from_data_list(graphs[part]).to(device))
        loss = (predicted - ratings[part]).square().mean() + 1e-3 * model.roughness() + strength * hg.penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def our_steps(training: Recommendations, order: Tensor, size: int) -> Callable[[], None]:
    """Likewise, as the lab trains."""
    networks, number = training.networks, 0
    _, kept, noise = networks.drawn()
    networks.steps.begin_(order.expand(len(networks.seeds), -1), kept, noise)

    def step() -> None:
        nonlocal number
        networks.steps.take_(number)
        number = (number + 1) % (len(order) // size)

    return step


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds an epoch of both, and the median of the ratios, round by round."""
    device, chosen = torch.device(args.device), recipe(args.dataset, "igmc-dam")
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    split, train, _ = subgraphs_of(args.dataset)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: chosen.batch * args.steps]
    works = {}
    for together in (1, args.together):
        training = Recommendations([Job(chosen, seed) for seed in range(together)], device)
        works[f"ours_{together}"] = our_steps(training, order, chosen.batch)
    works["rgcnconv"] = their_steps(split, order, chosen.strength, chosen.batch, device)
    times = in_turns(works, args.rounds, args.steps, args.device, clock=clock)
    steps = -(-len(train) // chosen.batch)
    each = {name: [taken / int(name.partition("_")[2] or 1) for taken in took] for name, took in times.items()}
    metrics: dict[str, Any] = {f"{name}_s": round(steps * statistics.median(taken), 2) for name, taken in each.items()}
    metrics |= {f"{name}_least_s": round(steps * min(taken), 2) for name, taken in each.items()}
    speedups = ratios(each["rgcnconv"], each["ours_1"])
    return metrics | {"speedup": round(statistics.median(speedups), 2), "speedups": speedups}


def main() -> None:
    """Measures one dataset and writes the record."""
    parser = options(__doc__, steps=10, rounds=7, together=5)
    parser.add_argument("--dataset", choices=SOURCES, default="flixster")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.set_defaults(threads=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    metrics = measure(args)
    kind = "CPU seconds of one thread" if args.device == "cpu" else "seconds"
    write_record(
        args.out / f"recommender_epoch-{args.dataset}-{args.device}.json",
        recipe=f"recommender_epoch/{args.dataset}/{args.device}",
        config={key: getattr(args, key) for key in ("dataset", "device", "steps", "rounds", "threads", "together")},
        metrics=metrics,
        headline=f"an epoch of IGMC-DAM on {args.dataset} takes {metrics['ours_1_s']:.1f} {kind} "
        f"({metrics[f'ours_{args.together}_s']:.1f} with {args.together} side by side), "
        f"{metrics['rgcnconv_s']:.1f} with RGCNConv",
        duration_s=time.perf_counter() - start,
        device=args.device,
        commit=args.commit,
    )
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()
