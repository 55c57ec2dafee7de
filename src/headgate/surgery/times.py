"""Milliseconds as a size: what states of the gates cost in time, learned from networks that were cut and timed.

Every module's time is a curve over how many elements of its parameters are left, through what was measured on networks
of several uniform widths. The times of all modules add up, and one factor brings the sum to what was measured last,
near the state that matters now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from headgate.channels.plan import Plan
from headgate.channels.trace import aliases
from headgate.surgery.sizes import Shape, Sizes, Term, leaving
from headgate.timing import REST

# Sizes are whole numbers: picoseconds.
PER_MS = 10**9


class Times(Sizes):
    """What states cost in picoseconds, by module."""

    def __init__(self, plan: Plan, shapes: Mapping[str, Shape], terms: Sequence[Term]) -> None:
        super().__init__(plan, shapes, [*terms, Term(REST, (), 0, (frozenset(),))])
        self.works, self.times, self.factor = torch.zeros(0), torch.zeros(0), torch.ones((), dtype=torch.float64)

    def learn_(self, states: Tensor, parts: Sequence[Mapping[str, float]]) -> None:
        """Takes milliseconds by module, measured in these states, for what they cost."""
        works, order = self._works(states).double().T.contiguous().sort(1)
        measured = [[part.get(term.name, 0.0) * PER_MS for term in self.terms] for part in parts]
        times = torch.tensor(measured, dtype=torch.float64, device=states.device).T.gather(1, order)
        curves = [rising(w, t) for w, t in zip(works.tolist(), times.tolist(), strict=True)]
        self.works, self.times = works, torch.tensor(curves, dtype=torch.float64, device=states.device)

    def by_term(self, states: Tensor) -> Tensor:
        """What each module costs in each state: shapes (states, units + 1) to (states, terms), int64."""
        work = self._works(states).double().T.contiguous()
        above = torch.searchsorted(self.works, work).clamp(1, self.works.shape[1] - 1)
        ends = [(values.gather(1, above - 1), values.gather(1, above)) for values in (self.works, self.times)]
        (least, most), (short, long) = ends
        share = ((work - least) / (most - least).clamp_min(1)).clamp(0, 1)
        times = (short + share * (long - short)) * (work > 0)
        return (times * self.factor).round().to(torch.int64).T

    def _works(self, states: Tensor) -> Tensor:
        """The elements left to every module; to everything else, those of all."""
        works = super().by_term(states)
        works[:, -1] = works.sum(1)
        return works


def rising(works: Sequence[float], times: Sequence[float]) -> list[float]:
    """The times, in the order of ascending works, as a curve that never falls: neighbours out of order are averaged.

    More work takes no less time; what was measured otherwise is noise. Equal works have equal times.

    Example:
        >>> rising([1, 2, 2, 5], [4.0, 3.0, 5.0, 9.0])
        [4.0, 4.0, 4.0, 9.0]
    """
    blocks: list[tuple[float, int, float]] = []  # sum of times, how many, the largest work
    for work, time in zip(works, times, strict=True):
        total, count = time, 1
        while blocks and (blocks[-1][2] == work or blocks[-1][0] / blocks[-1][1] > total / count):
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count, work))
    return [total / count for total, count, _ in blocks for _ in range(count)]


def module_times(dense: nn.Module, plan: Plan) -> Times:
    """Times, yet to be learned, of the modules with parameters of their own in a network without gates."""
    known, paths = aliases(dense), dict[nn.Module, list[str]]()
    for path, module in dense.named_modules(remove_duplicate=False):
        if path and any(parameter is not None for parameter in module._parameters.values()):
            paths.setdefault(module, []).append(path)
    terms = []
    for module, places in paths.items():
        own = (f"{places[0]}.{leaf}" for leaf, parameter in module._parameters.items() if parameter is not None)
        users = tuple(_branches_around(plan, place) for place in places)
        terms.append(Term(places[0], tuple(dict.fromkeys(known[name] for name in own)), 1, users))
    return Times(plan, {name: tuple(parameter.shape) for name, parameter in dense.named_parameters()}, terms)


def _branches_around(plan: Plan, path: str) -> frozenset[int]:
    """The branches, by number, with which a module leaves once one of them is silent."""
    parts = path.split(".")
    around = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return frozenset(n for n, branch in enumerate(plan.branches) if not leaving(branch).isdisjoint(around))
