"""Recurrent modules whose layers and directions have lost different numbers of units, which torch's own cannot have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

# Of every layer and direction its state (of an LSTM: hidden state and cells), each of shape (batch, units).
_States = list[tuple[Tensor, ...]]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


class Uneven(nn.RNNBase):
    """A recurrent module whose layers and directions have sizes of their own: the same parameters by the same names.

    It is called as before, with tensors or packed sequences. States of several sizes do not fit into one tensor: they
    come back, and may be given, as a tuple of tensors, one of shape (batch, units) for each layer and direction.
    `hidden_size` and `proj_size` are the largest.
    """

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """The outputs of the last layer, and the last states of all."""
        sequence = _Sequence.of(input, self.batch_first)
        given = self._given(hx, sequence)
        x, last, states = sequence.data, self.num_layers - 1, cast(_States, [])
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                output, state = self._run(sequence, x, number, given[number] if given else None)
                outputs.append(output)
                states.append(state)
            x = torch.cat(outputs, -1) if directions > 1 else outputs[0]
            x = F.dropout(x, self.dropout, self.training) if layer < last else x
        return sequence.returned(x), self._returned(states, sequence)

    def _run(self, sequence: _Sequence, x: Tensor, number: int, state: tuple[Tensor, ...] | None) -> Any:
        """One layer in one direction."""
        weights = [getattr(self, name) for name in self._all_weights[number]]
        sizes = self._sizes(weights)
        if self.proj_size:
            weights = _with_silent_cells(weights)
        wide = self._sizes(weights)
        if state is None:
            start = [x.new_zeros(1, sequence.batch, size) for size in wide]
        else:
            start = [F.pad(each, (0, to - each.shape[-1])).unsqueeze(0) for each, to in zip(state, wide, strict=True)]
        backwards = number % 2 == 1 if self.bidirectional else False
        given = sequence.backwards(x) if backwards else x
        hx = start if self.mode == "LSTM" else start[0]
        options = (weights, self.bias, 1, 0.0, self.training, False)
        if sequence.batch_sizes is None:
            output, *final = _FUNCTIONS[self.mode](given, hx, *options, False)
        else:
            output, *final = _FUNCTIONS[self.mode](given, sequence.batch_sizes, hx, *options)
        output = sequence.backwards(output) if backwards else output
        return output, tuple(one[0, :, :size] for one, size in zip(final, sizes, strict=True))

    def _sizes(self, weights: Sequence[Tensor]) -> tuple[int, ...]:
        """Of one layer and direction the width of its hidden state and, of an LSTM, its number of cells."""
        hidden, cells = weights[1].shape[1], weights[1].shape[0] // 4
        return (hidden, cells) if self.mode == "LSTM" else (hidden,)

    def _given(self, hx: Any, sequence: _Sequence) -> _States | None:
        if hx is None:
            return None
        kinds = hx if self.mode == "LSTM" else (hx,)
        if any(isinstance(kind, Tensor) for kind in kinds) and not self._is_even:
            raise ValueError(
                f"a recurrent module whose layers have sizes of their own takes states as tuples of tensors, one for "
                f"each of its {len(self._all_weights)} layers and directions, as it returns them"
            )
        return [tuple(sequence.sorted(state) for state in piece) for piece in zip(*kinds, strict=True)]

    def _returned(self, states: _States, sequence: _Sequence) -> Any:
        kinds: tuple[Any, ...] = tuple(tuple(map(sequence.unsorted, kind)) for kind in zip(*states, strict=True))
        if self._is_even:
            kinds = tuple(map(torch.stack, kinds))
        return kinds if self.mode == "LSTM" else kinds[0]

    @property
    def _is_even(self) -> bool:
        """Whether all layers and directions have one size after all, so that states fit into one tensor."""
        return len({self._sizes([getattr(self, name) for name in names]) for names in self._all_weights}) == 1

    def flatten_parameters(self) -> None:
        """As torch's own, layer by layer and direction by direction; not where silent cells are added anyway."""
        for names in self._all_weights:
            weights = [getattr(self, name) for name in names]
            if not self.proj_size or len(_with_silent_cells(weights)[0]) == len(weights[0]):
                nn.RNNBase.flatten_parameters(cast(nn.RNNBase, self._alone(names, weights)))

    def _alone(self, names: list[str], weights: list[Tensor]) -> SimpleNamespace:
        """One layer and direction as a module of its own, as far as laying its weights together is concerned."""
        return SimpleNamespace(
            _flat_weights=weights, _flat_weights_names=names, bias=self.bias, mode=self.mode,
            input_size=weights[0].shape[1], hidden_size=self._sizes(weights)[-1],
            proj_size=weights[1].shape[1] if self.proj_size else 0, num_layers=1, batch_first=self.batch_first,
            bidirectional=False,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """As torch describes it, and the sizes of all layers and directions."""
        sizes = [self._sizes([getattr(self, name) for name in names]) for names in self._all_weights]
        shown = (" of ".join(map(str, size if self.proj_size else size[:1])) for size in sizes)
        return f"{super().extra_repr()}, units=({', '.join(shown)})"


class UnevenLSTM(Uneven, nn.LSTM):
    """An `nn.LSTM` whose layers and directions have sizes of their own."""


class UnevenGRU(Uneven, nn.GRU):
    """An `nn.GRU` whose layers and directions have sizes of their own."""


class UnevenRNN(Uneven, nn.RNN):
    """An `nn.RNN` whose layers and directions have sizes of their own."""


# What torch's own modules become; classes that derive from them have a forward of their own, or may have one day.
UNEVEN: dict[type[nn.Module], type[Uneven]] = {nn.LSTM: UnevenLSTM, nn.GRU: UnevenGRU, nn.RNN: UnevenRNN}


def fit_recurrent_(module: nn.RNNBase) -> None:
    """After tensors of a recurrent module were cut: its sizes follow, its list of weights and, if need be, its class.

    torch's own code needs one size for all layers and directions, and tells a projection by its being smaller than the
    layer.
    """
    matrices = [tuple(getattr(module, name) for name in names[:2]) for names in module._all_weights]
    cells = [own.shape[0] // _blocks(module) for _, own in matrices]
    hidden = [own.shape[1] for _, own in matrices]
    module.input_size, module.hidden_size = matrices[0][0].shape[1], max(cells)
    module.proj_size = max(hidden) if module.proj_size else 0
    plain = len({*cells}) == len({*hidden}) == 1 and (not module.proj_size or hidden[0] < cells[0])
    if not plain and type(module) in UNEVEN:
        module.__class__ = UNEVEN[type(module)]
    module._init_flat_weights()


def _blocks(module: nn.RNNBase) -> int:
    return {"LSTM": 4, "GRU": 3}.get(module.mode, 1)


def _with_silent_cells(weights: Sequence[Tensor]) -> list[Tensor]:
    """More cells than outputs, as libraries expect of a projection: cells of zeros, which it does not read."""
    missing = weights[-1].shape[0] + 1 - weights[-1].shape[1]
    if missing <= 0:
        return list(weights)
    *rows, projection = weights
    padded = [
        F.pad(each.unflatten(0, (4, -1)), [0, 0] * (each.dim() - 1) + [0, missing]).flatten(0, 1) for each in rows
    ]
    return [*padded, F.pad(projection, (0, missing))]


@dataclass(frozen=True)
class _Sequence:
    """What a module was called with, time before batch, or packed: the data, and the way back."""

    data: Tensor
    batch_sizes: Tensor | None
    given: Tensor | PackedSequence
    batch_first: bool

    @staticmethod
    def of(given: Tensor | PackedSequence, batch_first: bool) -> _Sequence:
        """A tensor of two or three axes, or a packed sequence."""
        if isinstance(given, PackedSequence):
            return _Sequence(given.data, given.batch_sizes, given, batch_first)
        if given.dim() not in (2, 3):
            raise ValueError(f"a recurrent module takes inputs of 2 or 3 axes, not {given.dim()}")
        if given.dim() == 2:
            return _Sequence(given.unsqueeze(1), None, given, batch_first)
        return _Sequence(given.transpose(0, 1) if batch_first else given, None, given, batch_first)

    @property
    def batch(self) -> int:
        """How many sequences."""
        return self.data.shape[1] if self.batch_sizes is None else int(self.batch_sizes[0])

    def backwards(self, x: Tensor) -> Tensor:
        """Every sequence from its end to its beginning."""
        if self.batch_sizes is None:
            return x.flip(0)
        return x.index_select(0, _mirrored(self.batch_sizes).to(x.device))

    def returned(self, x: Tensor) -> Tensor | PackedSequence:
        """Outputs in the form in which the inputs came."""
        if isinstance(self.given, PackedSequence):
            return PackedSequence(x, self.given.batch_sizes, self.given.sorted_indices, self.given.unsorted_indices)
        if self.given.dim() == 2:
            return x.squeeze(1)
        return x.transpose(0, 1) if self.batch_first else x

    def sorted(self, state: Tensor) -> Tensor:
        """A state as it is given, in the order of the sequences in memory."""
        if isinstance(self.given, Tensor):
            return state.unsqueeze(0) if self.given.dim() == 2 else state
        return state if self.given.sorted_indices is None else state.index_select(0, self.given.sorted_indices)

    def unsorted(self, state: Tensor) -> Tensor:
        """A state as it is returned."""
        if isinstance(self.given, Tensor):
            return state.squeeze(0) if self.given.dim() == 2 else state
        return state if self.given.unsorted_indices is None else state.index_select(0, self.given.unsorted_indices)


def _mirrored(batch_sizes: Tensor) -> Tensor:
    """Where the mirror image of each entry of packed sequences stands.

    Example:
        >>> _mirrored(torch.tensor([2, 1, 1]))  # a sequence of three entries (0, 2, 3) and one of a single entry (1)
        tensor([3, 1, 2, 0])
    """
    starts = batch_sizes.cumsum(0) - batch_sizes
    steps = torch.arange(len(batch_sizes)).repeat_interleave(batch_sizes)
    rows = torch.arange(len(steps)) - starts[steps]
    lengths = (batch_sizes.unsqueeze(1) > torch.arange(int(batch_sizes[0]))).sum(0)
    return starts[lengths[rows] - 1 - steps] + rows
