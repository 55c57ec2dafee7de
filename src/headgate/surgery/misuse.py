"""What a budget tells of a training loop that does not do its part."""

from __future__ import annotations

import warnings

from headgate.errors import HeadgateWarning


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
