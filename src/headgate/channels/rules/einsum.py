"""`torch.einsum` of one tensor or two, by its letters."""

from __future__ import annotations

from dataclasses import replace

from headgate.channels.rules.contraction import contract, shared_axes
from headgate.channels.rules.step import Step, refused
from headgate.channels.values import Value, varies

_SPARE = "αβγδεζηθ"


def einsum(step: Step) -> Value:
    """Letters that vanish are summed over; letters that both have meet; every other letter passes.

    Reasons name letters as they are in the equation.
    """
    values, equation = step.arguments["tensors"], str(step.arguments["equation"])
    whole = replace(step, about=repr(equation))
    inputs, output = _letters(equation, values, len(step.shape))
    if len(values) > 2:
        return refused(whole, "is a product of many tensors; written as products of two it can be followed")
    if any(len(set(letters)) < len(letters) for letters in inputs):
        return refused(whole, "takes a diagonal")
    for letter in dict.fromkeys("".join(inputs)):
        if letter not in output:
            holders = [(value, own.index(letter)) for value, own in zip(values, inputs, strict=True) if letter in own]
            _sum(replace(step, about=f"{'...' if letter in _SPARE else letter} of {equation!r}"), holders)
    if len(values) == 2:
        both = [letter for letter in output if all(letter in letters for letters in inputs)]
        shared_axes(step, values[0], values[1], ((inputs[0].index(one), inputs[1].index(one)) for one in both))
    spread = [_spread(value, letters, output) for value, letters in zip(values, inputs, strict=True)]
    return Value(step.shape, whole.meet(spread, step.shape))


def _sum(step: Step, holders: list[tuple[Value, int]]) -> None:
    """A letter that vanishes, with the one or two tensors that have it, and where."""
    if len(holders) == 2:
        contract(step, *holders[0], *holders[1])
    else:
        step.stays_on(holders[0][0], [holders[0][1]], "sums over channels without a weight that could be masked")


def _letters(equation: str, values: list[Value], output_ndim: int) -> tuple[list[str], str]:
    """The letters of every input and of the output, an ellipsis written out."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if not arrow:
        plain = [letter for letter in left if letter.isalpha()]
        output = "..." * ("..." in left) + "".join(sorted(letter for letter in set(plain) if plain.count(letter) == 1))
    written = [_written_out(part, value.ndim) for part, value in zip(inputs, values, strict=True)]
    return written, _written_out(output, output_ndim)


def _written_out(letters: str, ndim: int) -> str:
    hidden = ndim - len(letters.replace("...", ""))
    return letters.replace("...", _SPARE[len(_SPARE) - hidden :])


def _spread(value: Value, letters: str, output: str) -> Value:
    """A factor laid out on the axes of the output, size 1 where it does not vary."""
    kept = [letters.index(letter) if letter in letters else None for letter in output]
    summed = {dim for dim, letter in enumerate(letters) if letter not in output}
    fields = [field for field in value.fields if not varies(field) & summed]
    order = [dim for dim in kept if dim is not None] + sorted(summed)
    laid = [f.permute(order).reshape([1 if dim is None else f.shape[dim] for dim in kept]) for f in fields]
    return Value(tuple(1 if dim is None else value.shape[dim] for dim in kept), tuple(laid))


RULES = {"einsum": einsum}
