"""Everything Headgate raises, so that one `except HeadgateError` catches all of it.

The children also derive from the built-in exception a caller would expect (`ValueError` for a bad argument, and so
on), so code that knows nothing of Headgate still catches them.
"""


class HeadgateError(Exception):
    """Base of all errors raised by Headgate."""


class ArgumentError(HeadgateError, ValueError):
    """An argument cannot be used; the message names it, its value and what would do."""


class ShapeError(HeadgateError, ValueError):
    """A tensor does not fit the gate it was given to."""


class GateError(HeadgateError, RuntimeError):
    """A gated model that must not be trained or cut: no gates, a NaN offset, a gate that is never exactly 0."""


class OptimizerError(HeadgateError, RuntimeError):
    """An optimizer cannot carry the offsets as it was set up."""


class CompactionError(HeadgateError, RuntimeError):
    """A smaller model did not compute what the gated one computes; it was thrown away."""


class HeadgateWarning(UserWarning):
    """Something that runs but is most likely not what was meant."""
