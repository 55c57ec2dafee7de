"""Whose the gates of a model are: of the budget that was made last, until they are removed or it is given up."""

from __future__ import annotations

import weakref

from headgate.bank import Bank, bank_of
from headgate.errors import GateError


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
