"""What a budget tells of a training loop that does not do its part."""

from __future__ import annotations

import warnings

from headgate.bank import Bank
from headgate.errors import GateError, HeadgateWarning


def warn_of_missing_steps(asked: int) -> None:
    """After more penalties than anyone accumulates gradients for; called from `Budget.penalty`."""
    warnings.warn(
        f"Budget: penalty() was asked for {asked} times since the last step(), without which nothing closes: call "
        "step() after every step of the optimizer",
        HeadgateWarning,
        stacklevel=3,
    )


def warn_of_a_jump(steps: int, times: float) -> None:
    """When the network is still far too large at the end; called from where `Budget.step` looks at the gates."""
    warnings.warn(
        f"Budget: after {steps} steps, by when the target was to be reached, the network was still {times:.2g} times "
        "as large, and the rest closed at once. Is penalty() in the loss, does the optimizer step, were the gates "
        "frozen? Else give more steps, or a later reach",
        HeadgateWarning,
        stacklevel=5,
    )


def refuse_baked(bank: Bank) -> None:
    """Raises where gates are fixed already: nothing that a budget does would move them.

    Not asked when a budget is made: the state of one that is met may be about to be loaded.
    """
    if bool(bank.baked.any()):
        raise GateError(
            "Budget: the masks of this model were moved into its weights, by a budget that was met or by bake_, so "
            "that its gates close nothing any more; to make it smaller still, insert_gates_(compact(model), example)"
        )


def warn_of_a_cut_on_the_way() -> None:
    """When a network is compacted whose budget is not met; called from `compact`, under a decorator of torch."""
    warnings.warn(
        "compact: the budget of this model is not met yet, and what is left may be larger than it allows: train on "
        "until budget.met, with penalty() in the loss and step() after every step of the optimizer",
        HeadgateWarning,
        stacklevel=4,
    )
