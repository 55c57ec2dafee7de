"""The gate: one learned number that decides how many units of a layer stay open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from headgate.arguments import number, whole_number
from headgate.curve import GATE_FUNCTIONS, NEVER_ZERO, Scale, mask_values
from headgate.errors import ArgumentError, GateError, ShapeError
from headgate.orders import Order, order_numbers


class Gate(nn.Module):
    """Multiplies `n` units along `dim` by a mask that one learned offset slides over them.

    The mask is Eq. 2 of the paper, g_j = relu(tanh(α(μ_j + β))), with offset β (the only parameter), order μ,
    steepness α and span k (the largest order number). As β falls, units close in the order of their places; Eq. 3
    counts what is left: ceil(n(1 + β/k)).

    Args:
        n: number of units.
        dim: the axis of the input that carries the units.
        offset: β at the start. Training by `param_groups` never raises the offset above it.
        steepness: α.
        span: k.
        order: which units close first, see `headgate.orders`.
        fn: the gate function: "relu_tanh", "hard_sigmoid", "linear", "piecewise_linear", or "sigmoid", which is never
            exactly 0 and therefore never lets a unit be removed.
        scale: "plain" is Eq. 2. "relative" divides the mask by its value at the initial offset and by its own largest
            entry: all ones at the start, and never faint however few units are open.
        floor: how many units stay open whatever the strength. Kept by the offsets' update, not inside the mask, so
            that a gate at its floor can open again.

    Offset and order stay float32 when the model is cast to a shorter type; the mask is cast to the input's type.

    Example:
        >>> gate = Gate(4, offset=-2.0)
        >>> gate.active, gate.keep().tolist()
        (3, [False, True, True, True])
        >>> gate(torch.ones(1, 4))
        tensor([[0.0000, 0.4621, 0.9414, 0.9951]], grad_fn=<MulBackward0>)
    """

    order: Tensor
    steepness: Tensor
    span: Tensor
    start: Tensor
    baked: Tensor
    gain: Tensor

    def __init__(
        self,
        n: int,
        *,
        dim: int = 1,
        offset: float = 1.0,
        steepness: float = 1.0,
        span: float = 5.0,
        order: Order = "index",
        fn: str = "relu_tanh",
        scale: Scale = "plain",
        floor: int = 0,
    ) -> None:
        super().__init__()
        self.n = n = _at_least_one(n)
        self.dim = whole_number("dim", dim)
        self.fn = _one_of("fn", fn, GATE_FUNCTIONS)
        self.scale: Scale = _one_of("scale", scale, get_args(Scale))
        self.floor = _up_to(n, floor)
        self.frozen = False
        offset = number("offset", offset)
        steepness, span = (number(*each, above_zero=True) for each in (("steepness", steepness), ("span", span)))
        numbers = order_numbers(order, n, span)
        self._check_start(int((numbers + offset > 0).sum()), offset, -numbers.min().item())
        self.offset = nn.Parameter(_number(offset))
        self.register_buffer("order", numbers.to(self.offset.device))
        self.register_buffer("steepness", _number(steepness))
        self.register_buffer("span", _number(span))
        self.register_buffer("start", _number(offset))
        # A baked gate no longer listens to its offset: its mask is `gain`. Not a bool, which averaging cannot subtract.
        self.register_buffer("baked", torch.tensor(0, dtype=torch.uint8))
        self.register_buffer("gain", torch.ones(n, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """`x` times the mask along `dim`, in x's own dtype."""
        shape = self._mask_shape(x)
        return x * self.mask().to(x.dtype).view(shape)

    def mask(self) -> Tensor:
        """The mask g, shape (n,), differentiable in the offset. Never reads a value back to the host."""
        mask = mask_values(self.order, self.offset, self.start, self.steepness, self.fn, self.scale)
        return torch.where(self.baked != 0, self.gain, mask)

    def keep(self) -> Tensor:
        """Which units are open, bool, shape (n,): what removal reads.

        Raises:
            GateError: the offset is NaN, or the gate function never reaches 0, so that nothing may be removed.
        """
        if self.fn in NEVER_ZERO:
            raise GateError(
                f"a gate with fn={self.fn!r} never closes a unit exactly, so none of its {self.n} can be removed; "
                'use fn="relu_tanh"'
            )
        require_finite({f"Gate({self.extra_repr()})": self.offset})
        return self.mask().detach() > 0

    @property
    def active(self) -> int:
        """How many units are open (Eq. 3). Reads the offset back to the host."""
        return self.n if self.fn in NEVER_ZERO else int(self.keep().sum())

    @property
    def lowest(self) -> Tensor:
        """The lowest offset that still leaves `floor` units open, half a unit away from the next one's closing."""
        if self.floor == 0:
            return -self.span
        return self.span * ((self.floor - 0.5) / self.n) - self.order.amax()

    def extra_repr(self) -> str:
        """The arguments that say what kind of gate this is."""
        return f"{self.n}, dim={self.dim}, fn={self.fn!r}, scale={self.scale!r}, floor={self.floor}"

    def _mask_shape(self, x: Tensor) -> list[int]:
        """The mask's shape for broadcasting against x; raises where x does not fit."""
        if not isinstance(x, Tensor):
            raise ShapeError(f"Gate({self.extra_repr()}) masks a tensor, but got {type(x).__name__}")
        if not -x.ndim <= self.dim < x.ndim:
            raise ShapeError(
                f"Gate({self.extra_repr()}) got a tensor of shape {tuple(x.shape)}, which has no dim {self.dim}; "
                "set the gate's dim to the axis that carries its units"
            )
        if x.shape[self.dim] != self.n:
            there = x.shape[self.dim]
            raise ShapeError(
                f"Gate({self.extra_repr()}) masks {self.n} units along dim {self.dim}, but got a tensor of shape "
                f"{tuple(x.shape)}, which has {there} there; use n={there}, or set the gate's dim to the axis that "
                f"carries its {self.n} units"
            )
        if not (x.is_floating_point() or x.is_complex()):
            raise ShapeError(f"Gate({self.extra_repr()}) got a tensor of {x.dtype}; a mask needs floating point")
        shape = [1] * x.ndim
        shape[self.dim] = self.n
        return shape

    def _check_start(self, opened: int, offset: float, needed: float) -> None:
        """Refuses an initial offset that leaves too few units open; on the host, so that gates can be built on meta."""
        if self.fn in NEVER_ZERO:
            return
        if self.scale == "relative" and opened < self.n:
            raise ArgumentError(
                f"offset={offset:g} closes {self.n - opened} of {self.n} units from the start, which "
                f'scale="relative" cannot divide by; use an offset above {needed:g}'
            )
        if opened < self.floor:
            raise ArgumentError(f"offset={offset:g} leaves {opened} of {self.n} units open, below floor={self.floor}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Gate:
        """As `nn.Module._apply`, but the numbers of a gate stay float32 or become float64, nothing else.

        In bfloat16 an offset of 1.0 cannot move by 1e-3 at all, and a mask computed there opens the wrong units.
        """

        def precise(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            fits = moved.dtype in (torch.float32, torch.float64) or not tensor.is_floating_point()
            return moved if fits else tensor.to(moved.device)

        super()._apply(precise, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Refuses a number that is not finite by name, and widens what was saved in a short float type."""
        refused = []
        for name, own in (*self._parameters.items(), *self._buffers.items()):
            saved = state_dict.get(prefix + name)
            if not isinstance(saved, Tensor) or own is None or saved.is_meta:
                continue
            if saved.is_floating_point() and saved.itemsize < 4:
                state_dict[prefix + name] = saved.to(own.dtype)
            if own.ndim == 0 and saved.numel() != 1:  # torch would take the first
                refused.append(
                    f"size mismatch for {prefix}{name}: one number, but {tuple(saved.shape)} in the checkpoint"
                )
            elif len(bad := saved[~saved.isfinite()]):
                gate = prefix.removesuffix(".") or "root"
                refused.append(f"the {name} of gate {gate!r} is {bad[0].item()} in the checkpoint")
        if refused:
            error_msgs.extend(refused)
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def require_finite(offsets: Mapping[str, Tensor]) -> None:
    """Raises where an offset is not a finite number, by the names given ("" is the root). Reads them to the host."""
    finite = {name: offset.is_meta or bool(offset.isfinite()) for name, offset in offsets.items()}
    bad = [f"{name or 'root'} ({offset.item()})" for name, offset in offsets.items() if not finite[name]]
    if bad:
        raise GateError(f"training has diverged: the offset is not a finite number in {', '.join(bad)}")


def _number(value: float) -> Tensor:
    """A float32 scalar, whatever the default dtype is."""
    return torch.tensor(value, dtype=torch.float32)


def _at_least_one(n: Any) -> int:
    units = whole_number("n", n)
    if units < 1:
        raise ArgumentError(f"n={units}: a gate needs at least one unit")
    return units


def _up_to(n: int, floor: Any) -> int:
    units = whole_number("floor", floor)
    if not 0 <= units <= n:
        raise ArgumentError(f"floor={units} must lie between 0 and the gate's {n} units")
    return units


def _one_of(name: str, value: Any, known: Iterable[str]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
    return value
