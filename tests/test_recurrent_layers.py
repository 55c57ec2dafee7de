"""Recurrent layers of several sizes: what torch's own computes with the units that are gone masked."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from headgate.layers import Uneven, UnevenGRU, UnevenLSTM, UnevenRNN, fit_recurrent_

BLOCKS = {"LSTM": 4, "GRU": 3, "RNN": 1}
KINDS = {"LSTM": UnevenLSTM, "GRU": UnevenGRU, "RNN": UnevenRNN}


def drawn(name: str, **options: Any) -> nn.RNNBase:
    torch.manual_seed(3)
    module: nn.RNNBase = getattr(nn, name)(4, 6, **options).double()
    return module


def cut(module: nn.RNNBase, kept: list[list[int]]) -> tuple[nn.RNNBase, Any]:
    """The module with all readers of other units masked, and a small one; `kept` by layer and direction."""
    masked, small = copy.deepcopy(module), copy.deepcopy(module)
    directions, blocks = 2 if module.bidirectional else 1, BLOCKS[type(module).__name__]
    with torch.no_grad():
        for number, units in enumerate(kept):
            mine = torch.zeros(6).index_fill_(0, torch.tensor(units), 1.0)
            names = module._all_weights[number]
            getattr(masked, names[1]).mul_(mine)
            rows = torch.cat([torch.tensor(units) + 6 * block for block in range(blocks)])
            for name in names:
                getattr(small, name).data = getattr(small, name).data[rows]
            getattr(small, names[1]).data = getattr(small, names[1]).data[:, units]
            if number % directions == 0 and number + directions < len(kept):
                below = [kept[number + each] for each in range(directions)]
                columns = torch.tensor([unit + 6 * place for place, each in enumerate(below) for unit in each])
                seen = torch.zeros(6 * directions).index_fill_(0, columns, 1.0)
                for above in module._all_weights[number + directions : number + 2 * directions]:
                    getattr(masked, above[0]).mul_(seen)
                    getattr(small, above[0]).data = getattr(small, above[0]).data[:, columns]
    fit_recurrent_(small)
    return masked, small


def left(outputs: Tensor, kept: list[list[int]], directions: int) -> Tensor:
    """Of the outputs of the full module what the small one returns."""
    last = kept[-directions:]
    return outputs[..., [unit + 6 * place for place, each in enumerate(last) for unit in each]]


KEPT = [[0, 2, 3], [5], [1, 2, 3, 4], [0, 5]]


@pytest.mark.parametrize("name", KINDS)
class TestUneven:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("batch_first", [True, False])
    def test_outputs_and_states(self, name: str, bias: bool, batch_first: bool) -> None:
        module = drawn(name, num_layers=2, bidirectional=True, bias=bias, batch_first=batch_first)
        masked, small = cut(module, KEPT)
        assert type(small) is KINDS[name]
        x = torch.randn(5, 3, 4, dtype=torch.float64)
        (expected, states), (got, mine) = masked(x), small(x)
        torch.testing.assert_close(got, left(expected, KEPT, 2), rtol=1e-12, atol=1e-12)
        for full, cuts in zip(states, mine, strict=True) if name == "LSTM" else [(states, mine)]:
            for number, units in enumerate(KEPT):
                torch.testing.assert_close(cuts[number], full[number][:, units], rtol=1e-12, atol=1e-12)

    def test_states_go_in_as_they_come_out(self, name: str) -> None:
        """Two halves of a sequence, one after the other, are the whole; forwards only."""
        _, small = cut(drawn(name, num_layers=2), KEPT[:2])
        x = torch.randn(6, 3, 4, dtype=torch.float64)
        first, states = small(x[:2])
        second, _ = small(x[2:], states)
        torch.testing.assert_close(torch.cat([first, second]), small(x)[0], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("in_order", [True, False])
    def test_packed(self, name: str, in_order: bool) -> None:
        masked, small = cut(drawn(name, num_layers=2, bidirectional=True), KEPT)
        lengths = (5, 3, 3, 1) if in_order else (3, 5, 1, 3)
        packed = pack_sequence([torch.randn(n, 4, dtype=torch.float64) for n in lengths], enforce_sorted=in_order)
        (expected, states), (got, mine) = masked(packed), small(packed)
        assert isinstance(got, PackedSequence)
        torch.testing.assert_close(got.data, left(expected.data, KEPT, 2), rtol=1e-12, atol=1e-12)
        last = (states[0], mine[0]) if name == "LSTM" else (states, mine)
        for number, units in enumerate(KEPT):
            torch.testing.assert_close(last[1][number], last[0][number][:, units], rtol=1e-12, atol=1e-12)
        again = small(packed, mine)[0].data
        begun = masked(packed, states)[0].data
        torch.testing.assert_close(again, left(begun, KEPT, 2), rtol=1e-12, atol=1e-12)

    def test_unbatched(self, name: str) -> None:
        masked, small = cut(drawn(name, num_layers=2, bidirectional=True, batch_first=True), KEPT)
        x = torch.randn(5, 4, dtype=torch.float64)
        (expected, states), (got, mine) = masked(x), small(x)
        torch.testing.assert_close(got, left(expected, KEPT, 2), rtol=1e-12, atol=1e-12)
        hidden, own = (states[0], mine[0]) if name == "LSTM" else (states, mine)
        assert [tuple(state.shape) for state in own] == [(3,), (1,), (4,), (2,)]
        torch.testing.assert_close(own[2], hidden[2][KEPT[2]], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(small(x, mine)[0], left(masked(x, states)[0], KEPT, 2), rtol=1e-12, atol=1e-12)

    def test_dropout_between_layers_in_training_only(self, name: str) -> None:
        """With a rate of 1 the upper layer is given zeros, and the outputs are not dropped."""
        module = drawn(name, num_layers=2, dropout=1.0)
        _, small = cut(module, KEPT[:2])
        x = torch.randn(5, 3, 4, dtype=torch.float64)
        other = torch.randn(5, 3, 4, dtype=torch.float64)
        assert torch.equal(small(x)[0], small(other)[0]) and bool((small(x)[0] != 0).any())
        assert not torch.equal(small.eval()(x)[0], small(other)[0])

    def test_a_full_state_is_refused(self, name: str) -> None:
        _, small = cut(drawn(name, num_layers=2), KEPT[:2])
        state = torch.zeros(2, 3, 6, dtype=torch.float64)
        with pytest.raises(ValueError, match="tuples of tensors, one for each of its 2 layers"):
            small(torch.randn(5, 3, 4, dtype=torch.float64), (state, state) if name == "LSTM" else state)

    def test_copied_moved_and_described(self, name: str) -> None:
        _, small = cut(drawn(name, num_layers=2, bidirectional=True), KEPT)
        x = torch.randn(5, 3, 4, dtype=torch.float64)
        small(x)[0].sum().backward()
        assert torch.equal(copy.deepcopy(small)(x)[0], small(x)[0])
        assert small.float()(x.float())[0].dtype == torch.float32
        assert "units=(3, 1, 4, 2)" in repr(small) and small.hidden_size == 4
        assert isinstance(small, Uneven) and isinstance(small, getattr(nn, name))


def test_inputs_of_the_wrong_kind_are_refused() -> None:
    _, small = cut(drawn("GRU", num_layers=2), KEPT[:2])
    with pytest.raises(ValueError, match="2 or 3 axes, not 4"):
        small(torch.zeros(1, 1, 1, 4, dtype=torch.float64))


@pytest.mark.parametrize(("cells", "outputs"), [(3, 3), (2, 4), (5, 1)])
def test_projections_of_any_size(cells: int, outputs: int) -> None:
    """By hand, step by step: h = W_hr (o tanh(c))."""
    torch.manual_seed(0)
    module = nn.LSTM(4, 6, proj_size=5, batch_first=True).double()
    module.weight_ih_l0.data = torch.randn(4 * cells, 4, dtype=torch.float64)
    module.weight_hh_l0.data = torch.randn(4 * cells, outputs, dtype=torch.float64)
    for bias in (module.bias_ih_l0, module.bias_hh_l0):
        bias.data = torch.randn(4 * cells, dtype=torch.float64)
    module.weight_hr_l0.data = torch.randn(outputs, cells, dtype=torch.float64)
    fit_recurrent_(module)
    assert isinstance(module, Uneven) == (outputs >= cells)
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    h, c = torch.zeros(2, outputs, dtype=torch.float64), torch.zeros(2, cells, dtype=torch.float64)
    expected = []
    for step in x.unbind(1):
        sums = step @ module.weight_ih_l0.T + module.bias_ih_l0 + h @ module.weight_hh_l0.T + module.bias_hh_l0
        i, f, g, o = sums.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()) @ module.weight_hr_l0.T
        expected.append(h)
    got, (hidden, last) = module(x)
    torch.testing.assert_close(got, torch.stack(expected, 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(hidden[0], h, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last[0], c, rtol=1e-12, atol=1e-12)
    assert hidden.shape == (1, 2, outputs) and last.shape == (1, 2, cells), "of one size they are one tensor, as ever"
    again, _ = module(x[:, 2:], module(x[:, :2])[1])
    torch.testing.assert_close(again, got[:, 2:], rtol=1e-12, atol=1e-12)
