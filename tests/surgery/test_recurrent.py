"""Recurrent networks: hidden units of every layer and direction go, exactly; gated ones can be copied, saved, moved."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import headgate as hg
from headgate.layers import Uneven, UnevenGRU, UnevenLSTM
from tests.surgery.exactness import LIMIT, error, move_offsets_, outputs, parameters, randomise_
from tests.toys import Net, head

WORDS = torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(0))


class Reader(nn.Module):
    """Words to classes, by all outputs or by the last states of the last layer."""

    def __init__(self, kind: type[nn.RNNBase], by_states: bool = False, **options: Any) -> None:
        super().__init__()
        self.by_states, self.directions = by_states, 2 if options.get("bidirectional") else 1
        self.embed, self.rnn = nn.Embedding(11, 7), kind(7, 6, **options)
        self.head = head((options.get("proj_size") or 6) * self.directions)

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Any:
        x = self.embed(words)
        if lengths is None:
            outputs, states = self.rnn(x)
        else:
            packed, states = self.rnn(pack_padded_sequence(x, lengths, self.rnn.batch_first, enforce_sorted=False))
            outputs = pad_packed_sequence(packed, self.rnn.batch_first)[0]
        if not self.by_states:
            return self.head(outputs)
        hidden = states[0] if isinstance(states, tuple) else states
        return self.head(torch.cat([hidden[-1 - direction] for direction in range(self.directions)], -1))


def gated(model: nn.Module, seed: int = 1) -> nn.Module:
    model = randomise_(model).double()
    hg.insert_gates_(model, WORDS, floor=1, order=f"random:{seed}")
    move_offsets_(model, seed)
    return model


def cases() -> list[Any]:
    """Of every kind eight: any two of its options in all combinations, the first three all together."""
    found = []
    for kind, proj in ((nn.LSTM, 0), (nn.LSTM, 4), (nn.GRU, 0), (nn.RNN, 0)):
        for number, (deep, both, by_states) in enumerate(product((True, False), repeat=3)):
            flags = {
                "bidirectional": both,
                "by_states": by_states,
                "batch_first": deep ^ both,
                "bias": deep ^ by_states,
            }
            options = {"num_layers": 1 + deep, **flags, **({"proj_size": proj} if proj else {})}
            name = " ".join([kind.__name__, *(f"{key}={value}" for key, value in options.items())])
            found.append(pytest.param(kind, options, id=name, marks=[pytest.mark.slow] if number > 1 else []))
    return found


@pytest.mark.parametrize(("kind", "options"), cases())
def test_every_kind_is_exact(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    model = gated(Reader(kind, **options))
    for seed in (1, 2, 3):
        move_offsets_(model, seed)
        small = hg.compact(model)
        assert error(outputs(model, WORDS), outputs(small, WORDS)) < LIMIT
        assert parameters(small) < parameters(model)
        assert hg.kept(model, of="params") == parameters(small) / parameters(Reader(kind, **options))


def by_hand() -> Net:
    """Two hidden units of a plain recurrent layer; the second feeds the first."""
    rnn, out = nn.RNN(1, 2, nonlinearity="relu"), nn.Linear(2, 1)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor([[1.0], [2.0]]))
        rnn.weight_hh_l0.copy_(torch.tensor([[0.5, 3.0], [0.0, 1.0]]))
        rnn.bias_ih_l0.zero_()
        rnn.bias_hh_l0.copy_(torch.tensor([0.0, 1.0]))
        out.weight.copy_(torch.tensor([[1.0, 10.0]]))
        out.bias.zero_()
    return Net(lambda m, x: m.out(m.rnn(x)[0]), rnn=rnn, out=out)


class TestByHand:
    """x = 1, 1: h1 = (1, 3), h2 = (1 + 0.5 + 9, 2 + 3 + 1) = (10.5, 6)."""

    X = torch.ones(2, 1, 1)

    def test_all_open(self) -> None:
        assert by_hand()(self.X).flatten().tolist() == [31.0, 70.5]

    def test_a_closed_unit_is_read_by_nobody_not_even_by_its_layer(self) -> None:
        model = by_hand()
        gates = hg.insert_gates_(model, self.X, floor=1)
        with torch.no_grad():
            gates["rnn"].offset.fill_(-3.0)  # one of two is open: with the default order the last one
        assert gates["rnn"].keep().tolist() == [False, True]
        # The first unit is closed: the second sees 2 + 1 and then 2 + 1 + 3.
        assert model(self.X).flatten().tolist() == [30.0, 60.0]
        small = hg.compact(model)
        assert small(self.X).flatten().tolist() == [30.0, 60.0]
        assert small.rnn.weight_hh_l0.tolist() == [[1.0]] and small.rnn.weight_ih_l0.tolist() == [[2.0]]

    def test_the_recurrent_column_is_masked_too(self) -> None:
        """Without the second unit: 1, and then 1 + 0.5; a mask on the outputs alone would leave 1 and 10.5."""
        model = by_hand()
        gates = hg.insert_gates_(model, self.X, floor=1, order=torch.tensor([1, 0]))
        with torch.no_grad():
            gates["rnn"].offset.fill_(-3.0)
        assert model(self.X).flatten().tolist() == hg.compact(model)(self.X).flatten().tolist() == [1.0, 1.5]

    def test_shrink_keeps_the_other_one(self) -> None:
        model = by_hand()
        small = hg.shrink(model, hg.find_groups(model, self.X), {"rnn": torch.tensor([True, False])})
        assert small(self.X).flatten().tolist() == [1.0, 1.5]

    def test_rows_of_all_gates_go(self) -> None:
        model = Net(lambda m, x: m.out(m.rnn(x)[0]), rnn=nn.LSTM(1, 3), out=nn.Linear(3, 1))
        with torch.no_grad():
            for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
                tensor = getattr(model.rnn, name)
                tensor.copy_(torch.arange(12.0).view(tensor.shape))
            model.rnn.weight_hh_l0.copy_(torch.arange(36.0).view(12, 3))
        keep = {"rnn": torch.tensor([True, False, True])}
        small = hg.shrink(model, hg.find_groups(model, self.X), keep).rnn
        rows = [0, 2, 3, 5, 6, 8, 9, 11]
        assert small.weight_ih_l0.flatten().tolist() == small.bias_hh_l0.tolist() == rows
        assert small.weight_hh_l0.tolist() == [[3.0 * row, 3.0 * row + 2] for row in rows]
        assert type(small) is nn.LSTM and small.hidden_size == 2


class TestGatedModule:
    """torch keeps a list of a recurrent module's weights, which must never be stale, nor hold masked ones."""

    def make(self) -> nn.Module:
        return gated(Reader(nn.LSTM, num_layers=2, bidirectional=True))

    def test_copied_after_a_forward(self) -> None:
        model = self.make()
        model(WORDS).sum().backward()
        twin = copy.deepcopy(model)
        assert torch.equal(twin(WORDS), model(WORDS))
        with torch.no_grad():
            hg.gates(twin)["rnn"].offset.fill_(1.0)
            twin.rnn.bias_hh_l0.add_(1.0)
        assert not torch.equal(twin(WORDS), model(WORDS))
        assert error(outputs(model, WORDS), outputs(hg.compact(model), WORDS)) < LIMIT
        assert error(outputs(twin, WORDS), outputs(hg.compact(twin), WORDS)) < LIMIT

    def test_masks_reach_the_forward_and_gradients_the_offsets(self) -> None:
        model = self.make()
        before = model(WORDS)
        gate = hg.gates(model)["rnn"]
        with torch.no_grad():
            gate.offset.add_(0.1)
        assert not torch.equal(before, model(WORDS))
        model(WORDS).square().sum().backward()
        assert bool((model.headgate_offsets.grad != 0).all())

    def test_the_slope_of_an_offset_is_right(self) -> None:
        model = randomise_(Reader(nn.LSTM, num_layers=2, bidirectional=True)).double()
        hg.insert_gates_(model, WORDS, floor=1, scale="plain")
        move_offsets_(model.double(), 1)  # offsets too, for small steps
        loss = model(WORDS).sin().sum()
        (slope,) = torch.autograd.grad(loss, model.headgate_offsets)
        step = 1e-6
        for number in range(len(slope)):
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    model.headgate_offsets[number] += sign * step
                    ends.append(model(WORDS).sin().sum().item())
                    model.headgate_offsets[number] -= sign * step
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope[number].item(), rel=1e-4, abs=1e-7)

    def test_part_called_alone(self) -> None:
        model = self.make()
        x = torch.randn(4, 2, 7, dtype=torch.float64)
        plain = copy.deepcopy(model)
        hg.remove_gates_(plain)
        assert error([model.rnn(x)[0].detach()], [plain.rnn(x)[0].detach()]) < LIMIT

    def test_loaded_moved_and_exchanged(self) -> None:
        model, other = self.make(), randomise_(Reader(nn.LSTM, num_layers=2, bidirectional=True), 7).double()
        model(WORDS)
        model.load_state_dict(other.state_dict())
        with torch.no_grad():
            model.headgate_offsets.fill_(1.0)
        assert torch.equal(model(WORDS), other(WORDS))
        model.load_state_dict({name: tensor * 0.5 for name, tensor in other.state_dict().items()}, assign=True)
        with torch.no_grad():
            for tensor in other.parameters():
                tensor.mul_(0.5)
        assert torch.equal(model(WORDS), other(WORDS))
        assert error(outputs(other.float(), WORDS), outputs(model.float(), WORDS)) == 0.0
        assert error(outputs(other.double(), WORDS), outputs(model.double(), WORDS)) == 0.0

    def test_taken_off_it_is_as_it_was(self) -> None:
        model = Reader(nn.LSTM, num_layers=2, bidirectional=True)
        names, members = [name for name, _ in model.named_parameters()], list(model.parameters())
        hg.insert_gates_(model, WORDS)
        model(WORDS).sum().backward()
        hg.remove_gates_(model)
        assert [name for name, _ in model.named_parameters()] == names
        assert all(a is b for a, b in zip(model.parameters(), members, strict=True))
        assert type(model.rnn) is nn.LSTM
        assert all(
            weight is getattr(model.rnn, name)
            for weight, name in zip(model.rnn._flat_weights, model.rnn._flat_weights_names, strict=True)
        )

    def test_refused_it_is_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Reader(nn.GRU, num_layers=2)
        flat = list(model.rnn._flat_weights)
        monkeypatch.setattr("headgate.surgery.insert.put_masks_on_", failing_after_masks)
        with pytest.raises(RuntimeError, match="on purpose"):
            hg.insert_gates_(model, WORDS)
        assert type(model.rnn) is nn.GRU
        assert all(a is b for a, b in zip(model.rnn._flat_weights, flat, strict=True))
        model(WORDS).sum().backward()
        copy.deepcopy(model)

    def test_autocast(self) -> None:
        """Not an LSTM: whether torch has it in bfloat16 depends on the machine."""
        model = gated(Reader(nn.GRU, num_layers=2, batch_first=True)).float()
        with torch.autocast("cpu", torch.bfloat16):
            model(WORDS).float().sum().backward()
            close = model(WORDS).float()
        assert error([model(WORDS).detach()], [close.detach()]) < 0.1
        copy.deepcopy(model)

    def test_recomputed_and_averaged(self) -> None:
        model = self.make()
        gradients = []
        for again in (False, True):
            model.zero_grad()
            x = model.embed(WORDS)
            hidden = checkpoint(lambda x: model.rnn(x)[0], x, use_reentrant=False) if again else model.rnn(x)[0]
            hidden.sin().sum().backward()
            gradients.append([tensor.grad for tensor in model.rnn.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        assert torch.equal(average(WORDS), model(WORDS))

    def test_functional_call(self) -> None:
        model = self.make()
        replaced = {name: tensor * 0.5 for name, tensor in model.named_parameters() if "rnn" in name}
        halved = copy.deepcopy(model)
        with torch.no_grad():
            for name, tensor in halved.named_parameters():
                if "rnn" in name:
                    tensor.mul_(0.5)
        got = torch.func.functional_call(model, replaced, WORDS)
        assert error([got.detach()], outputs(halved, WORDS)) < LIMIT


def failing_after_masks(*args: Any) -> None:
    from headgate.surgery.placement import put_masks_on_

    put_masks_on_(*args)
    raise RuntimeError("on purpose")


class TestWhatIsLeft:
    def test_equal_sizes_are_torchs_own_class(self) -> None:
        model = Reader(nn.GRU, num_layers=2)
        plan = hg.find_groups(model, WORDS)
        half = torch.arange(6) % 2 == 0
        small = hg.shrink(model, plan, {"rnn": half, "rnn#2": ~half})
        assert type(small.rnn) is nn.GRU and small.rnn.hidden_size == 3
        uneven = hg.shrink(model, plan, {"rnn": half})
        assert type(uneven.rnn) is UnevenGRU and uneven.rnn.hidden_size == 6
        assert "units=(3, 6)" in repr(uneven)

    def test_as_many_outputs_as_cells(self) -> None:
        """torch takes a projection for none where sizes are equal: cells of zeros make the difference."""
        model = randomise_(Reader(nn.LSTM, proj_size=4)).double()
        hg.insert_gates_(model, WORDS, floor=1)
        with torch.no_grad():
            hg.gates(model)["rnn"].offset.fill_(-2.0)
        small = hg.compact(model)
        assert type(small.rnn) is UnevenLSTM
        assert small.rnn.weight_hr_l0.shape == (4, 4)
        assert error(outputs(model, WORDS), outputs(small, WORDS)) < LIMIT

    @pytest.mark.parametrize("name", ["LSTM", "GRU"])
    def test_packed_sequences(self, name: str) -> None:
        """Gates are inserted by an example that is not packed; torch.export cannot follow packing."""
        lengths = torch.tensor([2, 6, 4])
        for by_states in (False, True):
            options = {"num_layers": 2, "bidirectional": True, "batch_first": True, "by_states": by_states}
            model = gated(Reader(getattr(nn, name), **options))
            small = hg.compact(model)
            assert isinstance(small.rnn, Uneven) != by_states
            given = (WORDS, lengths)
            assert error(outputs(model, given), outputs(small, given)) < LIMIT

    def test_saved_loaded_and_trained_on(self, tmp_path: Path) -> None:
        def make() -> nn.Module:
            return Reader(nn.LSTM, num_layers=2, bidirectional=True, proj_size=4).double()

        small = hg.compact(gated(make()))
        hg.save(small, tmp_path / "small.safetensors")
        loaded = hg.load(tmp_path / "small.safetensors", make)
        assert repr(loaded) == repr(small)
        assert all(map(torch.equal, outputs(small, WORDS), outputs(loaded, WORDS)))
        loaded(WORDS).sum().backward()
        assert all(tensor.grad is not None for tensor in loaded.parameters())
        assert torch.equal(copy.deepcopy(loaded)(WORDS), loaded(WORDS))

    @pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
    def test_cut_twice(self, options: dict[str, Any], tmp_path: Path) -> None:
        def make() -> nn.Module:
            return Reader(nn.LSTM, **options).double()

        model = randomise_(make())
        half = torch.arange(6) % 2 == 0
        once = hg.shrink(model, hg.find_groups(model, WORDS), {"rnn": half, "embed": torch.arange(7) > 1})
        hg.insert_gates_(once, WORDS, floor=1)
        assert {name: gate.n for name, gate in hg.gates(once).items()}["rnn"] == 3
        move_offsets_(once, 3)
        twice = hg.compact(once)
        assert error(outputs(once, WORDS), outputs(twice, WORDS)) < LIMIT
        hg.save(twice, tmp_path / "twice.safetensors")
        loaded = hg.load(tmp_path / "twice.safetensors", make)
        assert all(map(torch.equal, outputs(twice, WORDS), outputs(loaded, WORDS)))

    def test_multiply_accumulates_are_foretold(self) -> None:
        model = gated(Reader(nn.GRU, num_layers=2, bidirectional=True))
        small, dense = hg.compact(model), Reader(nn.GRU, num_layers=2, bidirectional=True)
        assert hg.kept(model, of="macs") == hg.cost(small, WORDS).macs / hg.cost(dense, WORDS).macs
        assert not hg.cost(small, WORDS).uncounted


class TestTraining:
    def test_a_budget_is_met_and_training_goes_on(self) -> None:
        """Which word came two steps before: needs the hidden state."""
        torch.manual_seed(0)
        model = Net(
            lambda m, x: m.head(m.rnn(m.embed(x))[0][:, -1]),
            embed=nn.Embedding(4, 8), rnn=nn.LSTM(8, 16, 2, batch_first=True), head=nn.Linear(16, 4),
        )  # fmt: skip
        words = torch.randint(0, 4, (64, 5))
        hg.insert_gates_(model, words)
        optimizer = torch.optim.Adam(hg.param_groups(model, lr=2e-2))
        budget = hg.Budget(model, words, params=0.4, steps=120)
        for _ in range(120):
            loss = nn.functional.cross_entropy(model(words), words[:, 2]) + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            budget.step()
        assert budget.met
        small = hg.compact(model)
        assert parameters(small) <= 0.4 * parameters(model)
        assert error(outputs(model, words), outputs(small, words)) < 1e-4
        expected = outputs(model, words)
        hg.transfer_(optimizer, model, small)
        for _ in range(30):
            loss = nn.functional.cross_entropy(small(words), words[:, 2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        before = nn.functional.cross_entropy(expected[0], words[:, 2])
        assert loss < before and loss < 0.7


class TestOtherMethods:
    def test_a_gate_by_hand_on_hidden_units_is_refused_by_name(self) -> None:
        model = Net(
            lambda m, x: m.out(m.gate(m.rnn(x)[0])),
            rnn=nn.LSTM(3, 6), gate=hg.Gate(6, dim=2, offset=-2.0), out=nn.Linear(6, 2),
        )  # fmt: skip
        x = torch.randn(4, 2, 3)
        with pytest.raises(hg.GateError, match=r"rnn: lstm: reads its own units .* insert_gates_"):
            hg.compact(model, x)
        small = hg.compact(model, x, unremovable="scale")
        assert error(outputs(model, x), outputs(small, x)) < 1e-5

    def test_a_gate_by_hand_on_what_is_read(self) -> None:
        model = Net(
            lambda m, x: m.out(m.rnn(m.gate(m.fc(x)))[0]),
            fc=nn.Linear(3, 6), gate=hg.Gate(6, dim=2, offset=-2.0), rnn=nn.GRU(6, 4), out=nn.Linear(4, 2),
        )  # fmt: skip
        x = torch.randn(4, 2, 3)
        small = hg.compact(model, x)
        assert small.rnn.input_size == small.fc.out_features == hg.gates(model)["gate"].active < 6
        assert error(outputs(model, x), outputs(small, x)) < 1e-5

    def test_orders_from_data(self) -> None:
        """What the embedding is worth shows where the recurrent layer reads it."""
        model = randomise_(Reader(nn.LSTM, num_layers=2, batch_first=True)).double()
        with torch.no_grad():
            model.embed.weight.mul_(torch.tensor([3.0, 1.0, 7.0, 2.0, 5.0, 4.0, 6.0]) / model.embed.weight.std(0))
        order = hg.order_by(model, "variance", [torch.arange(11).repeat(3, 1)])
        assert order["embed"].tolist() == [2, 0, 6, 1, 4, 3, 5]
        assert set(order) == {"embed", "rnn", "rnn#2"}

    def test_taylor_is_the_slope_along_the_mask(self) -> None:
        model = randomise_(Reader(nn.GRU, batch_first=True)).double()
        words = WORDS[:1]
        order = hg.order_by(
            model, "taylor", [(words, torch.zeros(1, dtype=torch.long))], loss_fn=lambda out, _: out.sin().sum()
        )
        (slope,) = torch.autograd.grad(model(words).sin().sum(), model.rnn.weight_ih_l0)
        effect = (slope * model.rnn.weight_ih_l0).sum(0).abs()
        assert order["embed"].tolist() == effect.argsort().argsort().tolist()
