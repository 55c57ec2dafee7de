"""What the activations of a trained network say about its units: collected batch by batch, one class per criterion."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from headgate.channels.running import said_by
from headgate.channels.taps import Tap
from headgate.errors import ArgumentError, HeadgateWarning
from headgate.surgery.batches import Batch, in_words
from headgate.surgery.information import FEWEST, mutual_information

LossFunction = Callable[[Any, Any], Tensor]


class Activations(ABC):
    """Collects what batches show at the taps of every site. `sizes` are the units of the sites."""

    differentiable = False

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    @abstractmethod
    def see(self, taps: Iterable[Tap], seen: list[Tensor], outputs: Any, batch: Batch) -> None:
        """One batch, the activation at every tap, and what the model returned."""

    @abstractmethod
    def importances(self) -> dict[str, Tensor]:
        """The importance of every unit of every site that was seen."""

    def _summed(self, tap: Tap, values: Tensor, examples: int) -> Tensor:
        """The sum over the entries of every unit in every example: shape (examples, units), float64."""
        units = tap.units[None]  # an axis for the parts of one example that were laid along the first one
        if values.shape[0] % examples or units.shape[1] > 1:
            raise ArgumentError(
                f"order_by: what {tap.path} reads has shape {tuple(values.shape)}: its first axis does not hold the "
                f"{examples} examples of the batch; magnitude and norm_scale do not need activations"
            )
        split = values.detach().reshape(examples, -1, *values.shape[1:]).double()
        flat = split.sum([dim for dim in range(1, split.dim()) if units.shape[dim] == 1]).reshape(examples, -1)
        size = self._sizes[tap.site]
        total = flat.new_zeros(examples, size + 1)
        return total.index_add_(1, units.reshape(-1).to(flat.device) % (size + 1), flat)[:, :size].cpu()

    def _entries(self, tap: Tap, values: Tensor, examples: int) -> Tensor:
        """How many entries of one example each unit has."""
        size = self._sizes[tap.site]
        each = torch.bincount(tap.units.reshape(-1) % (size + 1), minlength=size + 1)[:size]
        return each * (values.numel() // examples // tap.units.numel())


def _added(total: dict[str, Tensor], site: str, value: Tensor) -> None:
    total[site] = total[site] + value if site in total else value


class Variance(Activations):
    """The variance of a unit's entries, over examples and positions; summed over everything that reads it."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__(sizes)
        self._moments: dict[tuple[str, int], Tensor] = {}

    def see(self, taps: Iterable[Tap], seen: list[Tensor], outputs: Any, batch: Batch) -> None:
        """Adds to the counts, sums and sums of squares."""
        examples = batch.examples
        for number, (tap, values) in enumerate(zip(taps, seen, strict=True)):
            sums, squares = (self._summed(tap, one, examples).sum(0) for one in (values, values.double().square()))
            moments = torch.stack([self._entries(tap, values, examples) * examples, sums, squares])
            self._moments[tap.site, number] = self._moments.get((tap.site, number), 0) + moments

    def importances(self) -> dict[str, Tensor]:
        """Variances, added up by site."""
        total: dict[str, Tensor] = {}
        for (site, _), (count, sums, squares) in self._moments.items():
            mean = sums / count.clamp_min(1)
            _added(total, site, (squares / count.clamp_min(1) - mean.square()).clamp_min(0))
        return total


class Taylor(Activations):
    """What removing a unit would do to the loss of an example, to first order; the mean of its size over examples."""

    differentiable = True

    def __init__(self, sizes: Mapping[str, int], loss_fn: LossFunction) -> None:
        super().__init__(sizes)
        self._loss_fn = loss_fn
        self._total: dict[str, Tensor] = {}
        self._examples = 0

    def see(self, taps: Iterable[Tap], seen: list[Tensor], outputs: Any, batch: Batch) -> None:
        """Adds the size of every example's effect."""
        loss, examples = self._loss(outputs, batch), batch.examples
        slopes = torch.autograd.grad(loss.sum(), seen, allow_unused=True) if seen else ()
        effects: dict[str, Tensor] = {}
        for tap, values, slope in zip(taps, seen, slopes, strict=True):
            if slope is not None:
                _added(effects, tap.site, self._summed(tap, values.detach().double() * slope, examples))
        for site, effect in effects.items():
            # A mean over the batch has divided every example's own slope by their number.
            _added(self._total, site, examples * effect.abs().sum(0))
        self._examples += examples

    def _loss(self, outputs: Any, batch: Batch) -> Tensor:
        try:
            loss = self._loss_fn(outputs, batch.targets)
        except Exception as error:
            raise ArgumentError(
                f"{batch.name}: loss_fn failed ({said_by(error)}); it is called with what the model returns, "
                f"{in_words(outputs)}, and with the batch's targets, {in_words(batch.targets)}"
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ArgumentError(
                f"{batch.name}: loss_fn must return one number that depends on the model's outputs, not "
                f"{in_words(loss)}{'' if getattr(loss, 'requires_grad', True) else ' without a gradient'}"
            )
        return loss

    def importances(self) -> dict[str, Tensor]:
        """The mean over all examples."""
        return {site: total / self._examples for site, total in self._total.items()}


class MutualInformation(Activations):
    """Between a unit's mean activation and the target, over examples; summed over everything that reads it."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__(sizes)
        self._means: dict[tuple[str, int], list[Tensor]] = {}
        self._targets: list[Tensor] = []

    def see(self, taps: Iterable[Tap], seen: list[Tensor], outputs: Any, batch: Batch) -> None:
        """Keeps every example's means, and its target."""
        targets, examples = batch.targets, batch.examples
        if not isinstance(targets, Tensor) or targets.dim() not in (1, 2) or len(targets) != examples:
            raise ArgumentError(
                f"{batch.name}: mutual_information needs a tensor with one target, or one row of targets, for each of "
                f"its {examples} examples, not {in_words(targets)}"
            )
        self._targets.append(targets.detach().cpu())
        for number, (tap, values) in enumerate(zip(taps, seen, strict=True)):
            means = self._summed(tap, values, examples) / self._entries(tap, values, examples).clamp_min(1)
            self._means.setdefault((tap.site, number), []).append(means)

    def importances(self) -> dict[str, Tensor]:
        """Nats, added up by site."""
        total: dict[str, Tensor] = {}
        targets = torch.cat(self._targets)
        for (site, _), means in self._means.items():
            values = torch.cat(means)
            # Bins go by rank, and would hide it.
            if not bool(values.isfinite().all() & targets.isfinite().all()):
                raise ArgumentError(
                    f"order_by: what reads {site}, or a target, is not finite: look for infinities or NaNs"
                )
            _added(total, site, mutual_information(values, targets))
        if len(targets) < FEWEST:
            warnings.warn(
                f"order_by: mutual_information of {len(targets)} examples is mostly chance: give a few hundred",
                HeadgateWarning,
                stacklevel=5,
            )
        return total
