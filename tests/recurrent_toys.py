"""Recurrent networks as users write them, with the answers worked out by hand: one unit per hidden index.

Every layer and direction has units of its own unless its states are looked at; then unit j of all of them is one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.toys import IMAGE, Net, Toy, conv, head, tokens

X = tokens()
OTHERS = (tokens(batch=3, length=7),)
STATE = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(2))


def read(m: Any, x: Tensor) -> Any:
    """A head on every output."""
    return m.head(m.rnn(x)[0])


def last_state(m: Any, x: Tensor) -> Any:
    """A head on the last layer's last state."""
    return m.head(m.rnn(x)[1][-1])


def toy(name: str, run: Any, groups: dict[str, int], others: tuple[Any, ...] = OTHERS, **parts: Any) -> Toy:
    return Toy(name, lambda: Net(run, **parts), X, groups, others=others)


class Encoder(nn.Module):
    """Words, an embedding that only the recurrent layer reads, and what the last step says."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(11, 6), nn.LSTM(6, 5, batch_first=True), head(5)

    def forward(self, words: Tensor) -> Any:
        return self.head(self.rnn(self.embed(words))[0][:, -1])


class Stepping(nn.Module):
    """Two cells, one on top of the other, in a loop of the user's own; the second begins with zeros of its making."""

    def __init__(self, upper: nn.Module) -> None:
        super().__init__()
        self.hidden_size = 4
        self.lower, self.upper, self.head = nn.LSTMCell(6, 5), upper, head(4)

    def forward(self, x: Tensor) -> Any:
        below, above = None, x.new_zeros(x.shape[0], self.hidden_size)
        for step in x.unbind(1):
            below = self.lower(step, below)
            above = self.upper(below[0], above)
        return self.head(above)


class Translator(nn.Module):
    """An encoder whose states, all layers in one tensor, are those that a decoder begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(6, 5, 2, batch_first=True)
        self.decoder = nn.LSTM(6, 5, 2, batch_first=True)
        self.head = head(5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.decoder(x, self.encoder(x)[1])[0])


class LearnedStart(nn.Module):
    """A state to begin with that is learned, of every layer its own."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.rnn, self.head = nn.Parameter(torch.randn(2, 1, 5)), nn.GRU(6, 5, 2, batch_first=True), head(5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.rnn(x, self.start.expand(-1, len(x), -1).contiguous())[0])


class OwnForward(nn.GRU):
    """A class of the user's own, whose forward must go on being called: layers keep one size."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)[0].relu()


class OwnProjection(nn.LSTM):
    """The same with a projection: torch tells it by there being more cells, so that these stay."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)[0].relu()


class OwnZeros(nn.Module):
    """Zeros to begin with, in the size that the module remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.num_layers, self.hidden = 2, 5
        self.rnn, self.head = nn.LSTM(6, 5, 2, batch_first=True), head(5)

    def forward(self, x: Tensor) -> Any:
        start = torch.zeros(self.num_layers, x.shape[0], self.hidden, dtype=x.dtype, device=x.device)
        return self.head(self.rnn(x, (start, start.clone()))[0])


class Packing(nn.Module):
    """Padding is packed away; torch.export cannot follow that, and is spared it."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), head(10)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        if torch.compiler.is_exporting():
            return self.head(self.rnn(x)[0])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


class ByHand(nn.Module):
    """An LSTM of linear maps, a loop, and four gates in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 5
        self.input, self.state, self.head = nn.Linear(6, 20), nn.Linear(5, 20, bias=False), head(5)

    def forward(self, x: Tensor) -> Any:
        h = c = x.new_zeros(x.shape[0], self.hidden)
        for step in x.unbind(1):
            i, f, g, o = (self.input(step) + self.state(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h)


class ViewedDirections(nn.Module):
    """Both directions apart by a view, in a size that the module remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 5
        self.rnn, self.head = nn.GRU(6, 5, batch_first=True, bidirectional=True), head(5)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.rnn(x)[0].view(*x.shape[:2], 2, self.hidden).amax(2))


class Columns(nn.Module):
    """A convolution, and a recurrent layer that reads the columns of its maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = conv(3, 4), nn.BatchNorm2d(4)
        self.rnn, self.head = nn.GRU(4 * 8, 5, batch_first=True), head(5)

    def forward(self, x: Tensor) -> Any:
        maps = self.norm(self.conv(x)).relu()
        return self.head(self.rnn(maps.permute(0, 3, 1, 2).flatten(2))[0])


def summed_directions(m: Any, x: Tensor) -> Any:
    forward, backward = m.rnn(x)[0].chunk(2, -1)
    return m.head(forward + backward)


RECURRENT = [
    toy("lstm", read, {"rnn": 5}, rnn=nn.LSTM(6, 5, batch_first=True), head=head(5)),
    toy("gru", read, {"rnn": 5}, rnn=nn.GRU(6, 5, batch_first=True), head=head(5)),
    toy("rnn of relus, time first", read, {"rnn": 5}, rnn=nn.RNN(6, 5, nonlinearity="relu", bias=False), head=head(5)),
    toy("gru, two layers", read, {"rnn": 5, "rnn#2": 5}, rnn=nn.GRU(6, 5, 2, batch_first=True), head=head(5)),
    toy(
        "lstm, two layers, two directions",
        read,
        {"rnn": 5, "rnn#2": 5, "rnn#3": 5, "rnn#4": 5},
        rnn=nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, dropout=0.5),
        head=head(10),
    ),
    toy(
        "lstm, projected",
        read,
        {"rnn": 5, "rnn#2": 3},
        rnn=nn.LSTM(6, 5, batch_first=True, proj_size=3),
        head=head(3),
    ),
    toy(
        "lstm, projected, two layers, two directions",
        read,
        {f"rnn#{n}" if n > 1 else "rnn": 5 if n % 2 else 3 for n in range(1, 9)},
        rnn=nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, proj_size=3),
        head=head(6),
    ),
    toy("gru, last state", last_state, {"rnn": 5}, rnn=nn.GRU(6, 5, 2, batch_first=True), head=head(5)),
    toy(
        "lstm, last states of both directions",
        lambda m, x: m.head(torch.cat([m.rnn(x)[1][0][-2], m.rnn(x)[1][0][-1]], -1)),
        {"rnn": 5},
        rnn=nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True),
        head=head(10),
    ),
    toy(
        "lstm, last cells, projected",
        lambda m, x: m.head(m.rnn(x)[1][1].squeeze(0)),
        {"rnn": 5, "rnn#2": 3},
        rnn=nn.LSTM(6, 5, batch_first=True, proj_size=3),
        head=head(5),
    ),
    toy(
        "directions summed up",
        summed_directions,
        {"rnn": 5},
        rnn=nn.GRU(6, 5, batch_first=True, bidirectional=True),
        head=head(5),
    ),
    Toy("embedding and lstm", Encoder, torch.arange(10).view(2, 5), {"embed": 6, "rnn": 5}),
    toy(
        "linear, lstm, batch norm",
        lambda m, x: m.head(m.norm(m.rnn(m.fc(x))[0].transpose(1, 2)).mean(-1)),
        {"fc": 8, "rnn": 5},
        fc=nn.Linear(6, 8),
        rnn=nn.LSTM(8, 5, batch_first=True),
        norm=nn.BatchNorm1d(5),
        head=head(5),
    ),
    toy(
        "residual gru",
        lambda m, x: m.head((y := m.fc(x)) + m.rnn(y)[0]),
        {"fc": 8},
        fc=nn.Linear(6, 8),
        rnn=nn.GRU(8, 8, batch_first=True),
        head=head(8),
    ),
    toy(
        "one module called twice",
        lambda m, x: m.head(m.rnn(x)[0] + m.rnn(x.flip(1))[0]),
        {"rnn": 5},
        rnn=nn.LSTM(6, 5, batch_first=True),
        head=head(5),
    ),
    Toy("unbatched gru", lambda: Net(read, rnn=nn.GRU(6, 5, 2), head=head(5)), X[0], {"rnn": 5, "rnn#2": 5}),
    Toy("cells", lambda: Stepping(nn.GRUCell(5, 4)), X, {"lower": 5, "upper": 4}),
    Toy("cells without biases", lambda: Stepping(nn.RNNCell(5, 4, bias=False)), X, {"lower": 5, "upper": 4}),
    Toy("translator", Translator, X, {"encoder": 5}, others=OTHERS),
    Toy("learned first state", LearnedStart, X, {"rnn": 5}, others=OTHERS),
    Toy("packing", Packing, (X, torch.tensor([3, 5])), {"rnn": 5, "rnn#2": 5, "rnn#3": 5, "rnn#4": 5}),
    Toy("recurrence by hand", ByHand, X, {"input": 5}, others=OTHERS),
    Toy("directions by a view", ViewedDirections, X, {"rnn": 5}, others=OTHERS),
    Toy("columns of maps", Columns, IMAGE, {"conv": 4, "rnn": 5}),
    Toy("first state of zeros", OwnZeros, X, {"rnn": 5}, others=OTHERS),
    toy(
        "recurrent class of one's own", lambda m, x: m.head(m.rnn(x)), {"rnn": 5}, rnn=OwnForward(6, 5, 2), head=head(5)
    ),
    Toy(
        "projection in a class of one's own",
        lambda: Net(lambda m, x: m.head(m.rnn(x)), rnn=OwnProjection(6, 5, proj_size=3), head=head(3)),
        X,
        {"rnn": 3},
        stays=("rnn: lstm: torch needs more cells than outputs",),
        others=OTHERS,
    ),
    toy(
        "projected last state in one piece",
        lambda m, x: m.head(m.rnn(x)[1][0].squeeze(0)),
        {"rnn": 5, "rnn#2": 3},
        rnn=nn.LSTM(6, 5, batch_first=True, proj_size=3),
        head=head(3),
    ),
    Toy(
        "one recurrent unit",
        lambda: Net(read, rnn=nn.LSTM(6, 1, 2, batch_first=True), head=head(1)),
        X,
        {},
        stays=("rnn: lstm: it is the only unit of its layer",),
        prunable=False,
    ),
    Toy(
        "recurrent weight norm",
        lambda: Net(
            lambda m, x: m.head(m.rnn(m.fc(x))[0]),
            fc=nn.Linear(6, 8),
            rnn=parametrizations.weight_norm(nn.GRU(8, 5, batch_first=True), "weight_hh_l0"),
            head=head(5),
        ),
        X,
        {"fc": 8},
        stays=("rnn: gru: its row lies beside one that must stay", "_weight_norm: headgate has no rule"),
        others=OTHERS,
    ),
    Toy(
        "states given by the caller",
        lambda: Net(lambda m, x, h: m.head(m.rnn(x, h)[0]), rnn=nn.GRU(6, 5, batch_first=True), head=head(5)),
        (X, STATE),
        {},
        stays=("rnn: gru: is given a state from outside", "let it begin with its own zeros"),
        prunable=False,
    ),
    Toy(
        "states returned",
        lambda: Net(lambda m, x: m.rnn(x), rnn=nn.GRU(6, 5, 2, batch_first=True)),
        X,
        {},
        stays=("rnn: output: the model returns it",),
        prunable=False,
    ),
    Toy(
        "cell with the caller's state",
        lambda: Net(lambda m, x, h: m.head(m.rnn(x, h)), rnn=nn.GRUCell(6, 5), head=head(5)),
        (X[0], STATE[0, :1].expand(5, 5)),
        {},
        stays=("rnn: gru_cell: is given a state from outside",),
        prunable=False,
    ),
]
