"""Whose the gates of a model are: of the budget that was made last, until they are removed or it is given up."""

from __future__ import annotations

import weakref

from torch import nn

from headgate.bank import Bank, bank_of
from headgate.errors import GateError
from headgate.surgery.hand import placed_gates


class Claim:
    """A budget's hold on the gates that it steers. Held by the bank too, so that a later one takes its place.

    Attributes:
        for_good: whether the gates have come to rest and stay so without the budget.
    """

    def __init__(self, budget: object, bank: Bank) -> None:
        self._bank, self.for_good = bank, False
        bank.claim = self
        # Gates of a budget that nobody has any more would wait for it for ever.
        weakref.finalize(budget, self._release_).atexit = False

    def require(self) -> None:
        """Raises where the gates are not this budget's any more."""
        if bank_of(self._bank.root) is not self._bank:
            raise GateError(
                "Budget: the gates of its model were removed, so there is nothing to steer; leave the budget out of "
                "the loop from there on, or insert_gates_(model, example) and make a new one"
            )
        if self._bank.claim is not self:
            raise GateError("Budget: another budget was made for this model since, and steers its gates; use that one")

    def hold_(self, held: bool, rate: float, for_good: bool) -> None:
        """Whether offsets rest, the most one moves in a step, and whether it stays so without the budget."""
        self._bank.held, self._bank.rate, self.for_good = held, rate, for_good

    def _release_(self) -> None:
        if self._bank.claim is self and not self.for_good:
            self._bank.held, self._bank.rate, self._bank.claim = False, None, None


def is_on_the_way(bank: Bank) -> bool:
    """Whether a budget steers the gates and has not met its target yet. Baked gates are nowhere on the way."""
    return isinstance(bank.claim, Claim) and not bank.claim.for_good and not bool(bank.baked.any())


def steered_bank(root: nn.Module) -> Bank:
    """The inserted gates of a model, if it has some and no others: all that a budget can steer.

    Raises:
        GateError: no inserted gates, or gates placed by hand.
    """
    if placed := placed_gates(root):
        named = ", ".join(map(repr, sorted(placed)))
        raise GateError(f"Budget: gates placed by hand ({named}) cannot be steered; a budget needs inserted gates only")
    bank = bank_of(root)
    if bank is None:
        raise GateError(f"Budget: {type(root).__name__} has no inserted gates; insert_gates_(model, example) first")
    return bank
