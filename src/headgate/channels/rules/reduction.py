"""Operations over an axis: sums, means, extremes, softmax, sorting. Over channels they mix, elsewhere they do not."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headgate.channels.rules.step import Step
from headgate.channels.values import Value, varies


def reduction(step: Step) -> Value | tuple[Value, ...]:
    """A sum, mean, maximum … over axes. Over channels it mixes them, over anything else it leaves them apart."""
    value = step.first
    dims = _reduced(step, value.ndim)
    free = step.stays_on(value, dims, "reduces over channels")
    kept = bool(step.arguments.get("keepdim", False))
    return step.results(free if kept else tuple(_without(field, dims) for field in free))


def _reduced(step: Step, ndim: int) -> set[int]:
    given = step.arguments.get("dim", step.arguments.get("dims"))
    if given is None or given == []:
        return set(range(ndim))
    return {int(dim) % max(ndim, 1) for dim in (given if isinstance(given, (list, tuple)) else [given])}


def _without(field: Tensor, dims: set[int]) -> Tensor:
    return field.reshape([size for dim, size in enumerate(field.shape) if dim not in dims])


def along(step: Step) -> Value | tuple[Value, ...]:
    """Softmax, cumulative sums, sorting: the axis stays, but channels along it are mixed."""
    value = step.first
    return step.results(step.stays_on(value, [int(step.arguments["dim"])], "mixes channels along this axis"))


def gather(step: Step) -> Value:
    """Entries picked along one axis by numbers; on the other axes the numbers go with the values."""
    value, index, dim = step.value("self"), step.value("index"), step.dim("dim", step.value("self").ndim)
    for one in (value, index):
        step.stays_on(one, [dim], "picks channels by their numbers")
    sizes = zip(value.shape, index.shape, strict=True)
    cut = [d for d, (whole, taken) in enumerate(sizes) if d != dim and whole != taken]
    for one in (value, index):
        step.stays_on(one, cut, "takes only the first channels")
    free = [Value(index.shape, tuple(f for f in one.fields if not varies(f) & {dim, *cut})) for one in (value, index)]
    return Value(step.shape, step.meet(free, step.shape))


_REDUCTIONS = (
    "mean", "sum", "amax", "amin", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "prod", "max",
    "min", "argmax", "argmin", "any", "all", "logsumexp", "median", "nansum", "nanmean", "nanmedian", "count_nonzero",
    "aminmax", "kthvalue", "mode",
)  # fmt: skip
_ALONG = (
    "softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "sort", "argsort", "topk",
    "logcumsumexp", "cummax", "cummin",
)  # fmt: skip

RULES: dict[str, Callable[[Step], Value | tuple[Value, ...]]] = {
    **dict.fromkeys(_REDUCTIONS, reduction),
    **dict.fromkeys(_ALONG, along),
    "gather": gather,
}
