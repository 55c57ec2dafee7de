"""Gates that were placed by hand: each becomes a fixed scale, and what it closed is cut where nobody hears it.

The law (`headgate.channels.silence`): a channel can go if everything that reads it reads zeros. Where a gate scales the
end of a residual branch, the branch's last layer stops writing what the gate has closed instead. What is then cut is
tried on a randomised copy first, like everything else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from headgate.channels.example import Example
from headgate.channels.obstacle import Obstacle
from headgate.channels.plan import STAYS, Branch
from headgate.channels.silence import Silence, find_silence
from headgate.channels.walk import BORDER
from headgate.curve import NEVER_ZERO
from headgate.errors import GateError
from headgate.gate import Gate, require_finite
from headgate.layers import Scale
from headgate.surgery.apply import apply_recipe_
from headgate.surgery.culprits import culprits
from headgate.surgery.keep import Keep, branch_mask
from headgate.surgery.planning import writable
from headgate.surgery.recipe import Recipe, fingerprint
from headgate.surgery.shrink import shrink_
from headgate.surgery.trial import TRIALS, in_double, problem_of, randomised

Outputs = Literal["full", "narrow"]
Unremovable = Literal["refuse", "scale"]

# Units along the axes of one returned tensor that are left, by axis.
Narrowing = tuple[Mapping[int, Tensor], ...]


def placed_gates(model: nn.Module) -> dict[str, Gate]:
    """The gates placed by hand, under every path they have."""
    modules = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in modules if isinstance(module, Gate)}


def fix_placed_gates_(model: nn.Module, operation: str) -> None:
    """Every hand-placed gate becomes a fixed scale at full width, or an identity where its mask is all ones."""
    found = placed_gates(model)
    if "" in found:
        raise GateError(f"{operation}: the model is itself a Gate; put it into a module of its own")
    require_finite({path: gate.offset for path, gate in found.items()})
    if found:
        apply_recipe_(model, Recipe(fingerprint(model), scales=tuple(found)))
        _remove_ones_(model)


def cut_placed_gates_(model: nn.Module, example: Example, outputs: Outputs, unremovable: Unremovable) -> Narrowing:
    """Fixes the hand-placed gates and cuts what they closed; returns what is left of the tensors the model returns.

    The caller owns the model and throws it away if this raises.

    Raises:
        GateError: a gate that cannot be removed exactly, by name and with what stands in the way.
    """
    found = placed_gates(model)
    reasons = {} if unremovable == "scale" else _never_closing(found)
    fixed = copy.deepcopy(model)
    fix_placed_gates_(fixed, "compact")
    once = dict(fixed.named_modules())
    gains = {path: scale.gain for path, scale in _scales(fixed).items() if path in found and path in once}
    closed = {path: gain == 0 for path, gain in gains.items() if bool((gain == 0).any())}
    if not closed or reasons:
        _refuse(reasons)
        fix_placed_gates_(model, "compact")
        return ()
    zeros = {f"{path}.gain": zero.cpu() for path, zero in closed.items()}
    silence = find_silence(fixed, example, zeros, outputs == "narrow")
    cut = _Cut.of(fixed, silence, zeros)
    cut, failed = cut.proven(fixed, example, zeros)
    if unremovable == "refuse":
        _refuse({path: why for path in closed if (why := cut.left(f"{path}.gain", zeros, outputs, failed)) is not None})
    fix_placed_gates_(model, "compact")
    shrink_(model, cut.silence.plan, cut.keep)
    _remove_ones_(model)
    return cut.narrowing()


def narrowed(outputs: Any, narrowing: Narrowing) -> Any:
    """A model's outputs without the channels that its narrower twin no longer returns."""
    leaves = tree_flatten(outputs)[0]
    if not narrowing:
        return leaves
    for number, axes in enumerate(narrowing):
        for dim, left in axes.items():
            leaves[number] = leaves[number].index_select(dim, left.to(leaves[number].device))
    return leaves


def _scales(model: nn.Module) -> dict[str, Scale]:
    modules = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in modules if isinstance(module, Scale)}


def _remove_ones_(model: nn.Module) -> None:
    """A scale by ones is an identity."""
    ones = tuple(path for path, scale in _scales(model).items() if bool((scale.gain == 1).all()))
    if ones:
        apply_recipe_(model, Recipe(fingerprint(model), gone=ones))


def _never_closing(found: Mapping[str, Gate]) -> dict[str, Obstacle]:
    """Gates whose function is never exactly zero, so that they close nothing."""
    why = "is never exactly 0, so none of its units can be removed"
    return {path: Obstacle(path, gate.fn, why) for path, gate in found.items() if gate.fn in NEVER_ZERO}


def _refuse(reasons: Mapping[str, Obstacle]) -> None:
    if reasons:
        named = "; ".join(f"gate {path!r}: {why}" for path, why in reasons.items())
        raise GateError(
            f"compact: what these hand-placed gates closed cannot be removed exactly: {named}. Place them where closed "
            'channels stay zero until they are read, or give unremovable="scale" to keep these channels as zeros'
        )


@dataclass(frozen=True)
class _Cut:
    """What is to go: the silent units of groups, and the rows of branches that gates scale to zero."""

    silence: Silence
    keep: Keep

    @staticmethod
    def of(model: nn.Module, silence: Silence, zeros: Mapping[str, Tensor]) -> _Cut:
        plan = writable(model, silence.plan)
        units = ~silence.silent
        for group in plan.groups:
            mine = units[group.start : group.start + group.size]
            if not bool(mine.any()):
                mine[-1] = True  # a layer needs one channel; it is zero
        ends = {branch.path: branch for branch in plan.branches}
        rows = {
            branch.name: _open_units(branch, zero)
            for name, zero in zeros.items()
            if (branch := ends.get(silence.ends.get(name, ""))) is not None
            and len(branch.units) == len(zero) and _exposed(silence, name, zero)
        }  # fmt: skip
        whole = Silence(plan, silence.silent, silence.obstacles, silence.returned, silence.ends)
        return _Cut(whole, Keep(units, {name: kept for name, kept in rows.items() if not bool(kept.all())}))

    def only(self, names: Iterable[str]) -> _Cut:
        """The same with nothing gone but what these groups and branches lose."""
        units = torch.ones_like(self.keep.units)
        for group in self.silence.plan.groups:
            if group.name in names:
                units[list(group.units)] = self.keep.units[list(group.units)]
        return _Cut(self.silence, Keep(units, {n: k for n, k in self.keep.branches.items() if n in names}))

    def proven(self, model: nn.Module, example: Example, zeros: Mapping[str, Tensor]) -> tuple[_Cut, dict[str, str]]:
        """What a trial confirms, and what happened to the groups and branches that it does not."""
        groups = [g.name for g in self.silence.plan.groups if not bool(self.keep.units[list(g.units)].all())]
        sites = [*groups, *self.keep.branches]
        failed = culprits(sites, lambda names: self.only(names).failure(model, example, zeros))
        return self.only([name for name in sites if name not in failed]), failed

    def failure(self, model: nn.Module, example: Example, zeros: Mapping[str, Tensor]) -> str | None:
        """Why this would change what the model computes, tried on randomised copies, or None if it would not."""
        for seed in TRIALS:
            twin = randomised(model, seed)
            for name, zero in zeros.items():
                twin.get_buffer(name).masked_fill_(zero.to(twin.get_buffer(name).device), 0)
            small = copy.deepcopy(twin)
            left = partial(narrowed, narrowing=self.narrowing())
            problem = problem_of(twin, small, self.silence.plan, self.keep, in_double(example), left)
            if problem is not None:
                return problem
        return None

    def narrowing(self) -> Narrowing:
        """What is left along the axes of the tensors that the model returns."""
        plan, kept = self.silence.plan, self.keep.units
        return tuple(
            {dim: plan.left(units, kept).nonzero().squeeze(1) for dim, units in axes.items()}
            for axes in self.silence.returned
        )

    def left(
        self, name: str, zeros: Mapping[str, Tensor], outputs: Outputs, failed: Mapping[str, str]
    ) -> Obstacle | None:
        """What stands in the way of a closed channel that is still there after the cut, if there is one."""
        zero, plan = zeros[name], self.silence.plan
        branch = next((b for b in plan.branches if b.path == self.silence.ends.get(name)), None)
        written = None if branch is None or branch.name not in self.keep.branches else branch_mask(branch, self.keep)
        for index, unit in enumerate(plan.axes.get((name, 0), (STAYS,) * len(zero))):
            if not zero[index] or (written is not None and not written[index]) or len(zero) == 1:
                continue
            if unit == STAYS:
                known = [r.obstacles for r in plan.refusals if (name, 0) in r.axes]
                why = [obstacle for obstacles in known for obstacle in obstacles]
                if outputs == "full" and any(obstacle.operation == "output" for obstacle in why):
                    continue
                return _first_obstacle(name.rpartition(".")[0], why)
            if (kept := self._kept_because(unit, name.rpartition(".")[0], failed)) is not None:
                return kept
        return None

    def _kept_because(self, number: int, gate: str, failed: Mapping[str, str]) -> Obstacle | None:
        """Why an index of this number is still there, if that is not since a layer needs one channel."""
        plan, units = self.silence.plan, self.silence.plan.units_at(number)
        for group in plan.groups:
            if group.name in failed and not set(units).isdisjoint(group.units):
                return Obstacle(group.name, "trial", failed[group.name])
        for known in (number, *units):
            if known in self.silence.obstacles:
                return self.silence.obstacles[known]
        if len(units) > 1 and bool(plan.left([number], self.keep.units)):
            return Obstacle(gate, "gate", "closes parts of heads; what can go are whole heads, or a place of all heads")
        return None


def _first_obstacle(gate: str, why: list[Obstacle]) -> Obstacle:
    """What to tell of channels that stay; that the gate itself multiplies them stands for what they are."""
    if not why:
        return Obstacle(gate, "gate", "no layer reads its channels")
    if why[0].path == gate and why[0].operation != BORDER:
        return Obstacle(gate, "gate", "scales what no layer writes: an input of the model, positions or samples")
    return why[0]


def _exposed(silence: Silence, name: str, zero: Tensor) -> bool:
    """Whether something that a gate closed is heard: then its branch can still stop writing it."""
    units = silence.plan.axes.get((name, 0), (STAYS,) * len(zero))
    return bool((zero & silence.plan.left(units, ~silence.silent)).any())


def _open_units(branch: Branch, zero: Tensor) -> Tensor:
    """Which units of a branch are still written: those with a row that the gate has not closed."""
    kept = torch.zeros(branch.size, dtype=torch.bool)
    kept[torch.tensor(branch.units)[~zero]] = True
    return kept
