"""A size instead of a strength: gates close until the network is as small as asked for, then the training refines it.

Nobody can guess the strength that ends in a given size: it differs ten times between architectures. So the wanted size
follows a curve from the full network to the target, and the strength is raised while the network is above it and
lowered while it is below. Each offset is pushed in proportion to what closing its next unit would save now, counted as
compaction would: closing what saves nothing is not worth anything. When the target is met the last units are settled
gate by gate, the offsets rest, and the masks move into the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from headgate.bank import OPEN, guarded
from headgate.channels.example import Example
from headgate.cost import Latency
from headgate.errors import ArgumentError
from headgate.gate import require_finite
from headgate.gated import refuse_gated_parts, unwrap
from headgate.objective import warn_of_orphans
from headgate.surgery.claim import Claim, steered_bank
from headgate.surgery.compact import insertion_of
from headgate.surgery.gauge import Gauge, gauge_of
from headgate.surgery.late import Late
from headgate.surgery.misuse import refuse_baked, warn_of_a_jump, warn_of_missing_steps
from headgate.surgery.push import Push
from headgate.surgery.saved_state import SavedState
from headgate.surgery.schedule import schedule_of
from headgate.surgery.stopwatch import stopwatch_of
from headgate.surgery.targets import only_one, refuse_another_model, refuse_another_size, target_of, time_target_of
from headgate.surgery.times import PER_MS
from headgate.unmask import bake_inserted_

# A network this many times too large at the end is closed in a jump that its training does not get over easily.
JUMP = 1.5
# So many penalties without a step are too many, or as many as the whole training has steps.
PATIENCE = 256


Weigh: TypeAlias = Literal["savings", "mean"]


class Budget:
    """Steers the gates of a model to a size; add `penalty()` to the loss, and call `step()` after the optimizer's.

    Args:
        model: a model that `insert_gates_` has gated.
        example: what to count multiply-accumulates or to measure time on; by default the example the gates were
            inserted with.
        params: the parameters wanted: a fraction up to 1, or a number.
        macs: the multiply-accumulates wanted, likewise; not for networks with attention or another matrix product of
            activations, whose cost the parameters do not tell. Give exactly one of the four.
        channels: the gated units wanted, likewise.
        latency_ms: the milliseconds wanted for a forward pass of the example, in evaluation mode, on `device`. Networks
            of eight widths are cut and timed at the start, for some seconds (the logger "headgate" tells), and a few
            more on the way. At the end the cut network's median is at or below the target, or above it by no more than
            the spread of its measurements.
        device: where to measure time; by default where the model is. Keep it as busy as it will be in use.
        steps: how many steps the training has.
        reach: the fraction of the steps by which the target is met. After that the gates rest.
        start: the fraction of the steps before which no gate moves.
        weigh: "savings" pushes each offset in proportion to what closing its next unit saves; "mean" all alike, as the
            paper does.
        bake: whether the masks move into the weights when the target is met. If not, they stay as they are then.

    Example:
        >>> import headgate
        >>> model, x = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), torch.randn(16, 8)
        >>> gates = headgate.insert_gates_(model, x)
        >>> optimizer = torch.optim.SGD(headgate.param_groups(model, lr=0.1))
        >>> budget = Budget(model, x, params=0.5, steps=200)
        >>> for _ in range(200):
        ...     loss = model(x).square().mean() + budget.penalty()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     budget.step()
        >>> budget.met, sum(p.numel() for p in headgate.compact(model).parameters()) <= budget.target
        (True, True)

    Raises:
        ArgumentError: an argument that cannot be; a target that no state of the gates reaches, with the smallest size
            (or the shortest time) that one does; or fewer steps than the gates need.
        GateError: no inserted gates, or gates placed by hand besides; `macs` that parameters do not tell; later, when
            it is used though its gates were removed, are baked already or are steered by a budget that was made since,
            or when gates are to rest of which an offset is NaN, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any = None,
        *,
        params: float | None = None,
        macs: float | None = None,
        channels: float | None = None,
        latency_ms: float | None = None,
        device: torch.device | str | None = None,
        steps: int,
        reach: float = 0.5,
        start: float = 0.1,
        weigh: Weigh = "savings",
        bake: bool = True,
    ) -> None:
        if weigh not in get_args(Weigh):
            raise ArgumentError(f"Budget: weigh={weigh!r} is unknown; use one of {', '.join(get_args(Weigh))}")
        if not isinstance(bake, bool):
            raise ArgumentError(f"Budget: bake={bake!r} must be True or False")
        self._weigh, self._bake = weigh, bake
        root = unwrap(model, "Budget")
        refuse_gated_parts(root, "Budget", "Budget({}, …) steers them")
        self._bank = steered_bank(root)
        self._of, wanted = only_one({"params": params, "macs": macs, "channels": channels, "latency_ms": latency_ms})
        self._schedule = schedule_of(steps, reach, start)
        self._patience = max(self._schedule.end, min(int(steps), PATIENCE))
        given, insertion = None if example is None else Example.of(example), insertion_of(root, "Budget")
        self._stopwatch = stopwatch_of(self._of, root, insertion, given, device)
        self._gauge: Gauge = gauge_of(root, insertion, self._of, given)
        if self._stopwatch is None:
            least = self._gauge.size(self._gauge.least)
            self._full = self._gauge.size(self._gauge.most)
            self._target = target_of(self._of, wanted, self._full, least)
        else:
            least = self._stopwatch.learn_(self._gauge)
            self._full = self._gauge.size(self._gauge.most)
            self._target = time_target_of(wanted, self._full, least)
        self._push = Push(len(self._bank.gates), self._bank.offset.device)
        self._step, self._size, self.met = 0, self._full, False
        self._asked, self._is_new = 0, True  # penalties since the last step; whether there was none yet
        self._coming: Late | None = None
        self._claim = Claim(self, self._bank)
        self._settle_bank()

    def __deepcopy__(self, memo: dict[int, Any]) -> Budget:
        """A budget that steers the gates of a copied model; copied alone, it brings that model along."""
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        if copied._bank.claim is copied._claim:  # unless a later budget steers them
            copied._claim = Claim(copied, copied._bank)
            copied._settle_bank()
        return copied

    @property
    def size(self) -> float:
        """What compaction would leave: exactly once the target is met, as of an earlier look before.

        Of milliseconds an estimate before, and then what was measured.
        """
        return self._shown(self._size)

    @property
    def full(self) -> float:
        """The size of the whole network."""
        return self._shown(self._full)

    @property
    def target(self) -> float:
        """The size that was asked for."""
        return self._shown(self._target)

    @property
    def latency(self) -> Latency | None:
        """Of a budget of milliseconds, what was measured last: once the target is met, of the network as it will be."""
        return None if self._stopwatch is None else self._stopwatch.latest

    def _shown(self, size: int) -> float:
        return size if self._stopwatch is None else size / PER_MS

    @property
    def stage(self) -> Literal["waiting", "closing", "met"]:
        """Gates wait for the start, close, and rest. A training step captured while they wait must be captured anew."""
        if self.met:
            return "met"
        return "waiting" if self._step < self._schedule.begin else "closing"

    def penalty(self) -> Tensor:
        """One differentiable scalar to add to the loss."""
        self._attend()
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            warn_of_orphans({"inserted gates": self._bank})
            self._asked += 1
            if self._asked == self._patience and not self.met:
                warn_of_missing_steps(self._asked)
        return self._push.on(self._bank.offset.clamp(min=-self._bank.span))

    @torch.no_grad()
    def step(self) -> None:
        """To be called once after every step of the optimizer. Now and then it looks at the gates.

        It never waits for a device, unless to measure time: sizes are computed there, and what a look finds is acted
        upon at the next one.
        """
        self._attend()
        if self._is_new and not self.met:
            refuse_baked(self._bank)
        self._step, self._asked, self._is_new = self._step + 1, 0, False
        if not self.met and self._step >= self._schedule.begin:
            if self._step == self._schedule.begin:
                self._push.begin_()
            if self._step % self._every() == 0 or self._step >= self._schedule.end:
                self._look()
        self._settle_bank()

    def by_layer(self) -> dict[str, float]:
        """What is left of each parameter, gate's units, call's multiply-accumulates or module's milliseconds.

        It adds up to what compaction would leave now. Of milliseconds it is an estimate.
        """
        self._attend()
        return {name: self._shown(size) for name, size in self._gauge.by_name(self._gauge.kept()).items()}

    def state_dict(self) -> dict[str, Any]:
        """To be saved with the model and the optimizer."""
        return {
            "step": self._step,
            "met": self.met,
            "size": self._size,
            "full": self._full,
            "coming": None if self._coming is None else self._coming.read(),
            "times": None if self._stopwatch is None else self._stopwatch.state(self._gauge),
            **self._push.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; load the model first.

        Raises:
            ArgumentError: this is no state of a budget, or one of other gates, of another kind of size, of a larger
                target that is met, or of a model that is not loaded; nothing has been changed.
        """
        saved = SavedState.of(state, self.state_dict())
        refuse_another_size(self._of, saved, self._full, self._target)
        self._attend()
        if saved.met and self._stopwatch is None:
            refuse_another_model(self._of, saved, self._gauge.size(self._gauge.kept()))
        self._step, self.met, self._size = saved.step, saved.met, saved.size
        self._coming = None if saved.coming is None else Late(torch.tensor(saved.coming))
        self._push.load_state_dict(saved.push)
        if self._stopwatch is not None and saved.times is not None:
            self._stopwatch.load_(self._gauge, saved.times)
            self._full = saved.full
        self._settle_bank()

    def _attend(self) -> None:
        """The gates must still be its own; where their model has been moved, what it counts with goes along."""
        self._claim.require()
        device = self._bank.offset.device
        self._push.to_(device)
        self._gauge = self._gauge.on(device)

    def _every(self) -> int:
        return self._schedule.every(self._size, self._target)

    def _look(self) -> None:
        """Acts on what the last look has found, which has arrived by now, and looks again."""
        if self._coming is not None:
            self._size = self._coming.read()
        if self._stopwatch is not None:
            self._size = self._stopwatch.checked_(self._gauge, self._size)
        if self._size <= self._target or self._step >= self._schedule.end:
            if self._size > JUMP * self._target:
                warn_of_a_jump(self._step, self._size / self._target)
            self._finish()
        else:
            self._coming = Late(self._steer())

    def _steer(self) -> Tensor:
        """Strength and weights for the size that the network has now, all on its device; returns the size."""
        size, savings = self._gauge.size_and_savings(self._gauge.kept())
        wanted = self._schedule.wanted(self._step, self._full, self._target)
        if not self._bank.asked_to_rest:  # sizes say nothing about the strength while `freeze_` holds the gates
            self._push.follow_(size, wanted, self._every() / (self._schedule.end - self._schedule.begin))
        if self._weigh == "savings":
            # Units that close for one unit of offset, times what each of them saves.
            self._push.weigh_(savings * self._gauge.sizes)
        return size

    def _finish(self) -> None:
        """Settles the last units, moves the masks into the weights if it may, and lets the gates rest."""
        # A gate whose offset is NaN looks closed, and its mask would spoil every weight that it moves into.
        require_finite(dict(zip((gate.name for gate in self._bank.gates), self._bank.offset, strict=True)))
        settle = self._gauge.settled if self._stopwatch is None else partial(self._stopwatch.settled_, self._gauge)
        settled = settle(self._gauge.kept(), self._target, self._bank.masks(range(len(self._bank.gates))))
        self._size = self._gauge.size(settled)
        if self._bake:
            bake_inserted_(self._bank)
            # What closes now is cut; what reopens has been multiplied by its mask, zero, and may grow again.
            getattr(self._bank.root, OPEN).copy_(guarded(self._gauge.opened_at_rest(settled)))
        else:
            now = self._gauge.kept()
            self._bank.offset.copy_(torch.where(settled == now, self._bank.offset, self._bank.offset_leaving(settled)))
        self._push.end_()
        self.met, self._coming = True, None

    def _settle_bank(self) -> None:
        """The schedule decides when offsets move and how fast; `freeze_` can only hold them besides."""
        rate = self._schedule.rate(self._bank.start + self._bank.span)
        self._claim.hold_(self.met or self._step < self._schedule.begin, rate, for_good=self.met)
