"""The L1 mask: rectified, free, penalised by its mean."""

from __future__ import annotations

import torch

from headgate_lab.methods.l1 import RectifiedMask


def test_it_starts_open_and_closes_exactly() -> None:
    gate = RectifiedMask(4)
    x = torch.randn(3, 4)
    assert torch.equal(gate(x), x)
    optimizer = torch.optim.SGD(gate.parameters(), lr=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        gate.penalty().backward()
        optimizer.step()
    assert gate.mask().tolist() == [0.0] * 4
    assert torch.equal(gate(x), torch.zeros(3, 4))


def test_a_closed_channel_stays_closed() -> None:
    gate = RectifiedMask(2)
    with torch.no_grad():
        gate.values[0] = -0.1
    (gate(torch.ones(1, 2)).sum() + gate.penalty()).backward()
    assert gate.values.grad is not None
    assert gate.values.grad.tolist() == [0.0, 1.5]
