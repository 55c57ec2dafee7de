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


class TraceError(HeadgateError, RuntimeError):
    """torch.export cannot trace a model, so nothing that needs its graph can be counted; the reason is torch's."""


class RecipeError(HeadgateError, ValueError):
    """A recipe, or the file that holds it, is damaged, hostile, too new, or for another network."""


class ConfigError(HeadgateError, ValueError):
    """No numbers in a smaller model's configuration express it; the message says which of its tensors, and why."""


class FileError(HeadgateError, OSError):
    """A file is not there, or cannot be read or written."""


class ExportError(HeadgateError, RuntimeError):
    """A model could not be exported, or the exported one computes something else; no file was left."""


class MissingPackageError(HeadgateError, ImportError):
    """A package of an optional extra is not installed; the message names the extra."""


class HeadgateWarning(UserWarning):
    """Something that runs but is most likely not what was meant."""
