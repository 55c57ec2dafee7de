"""The penalty by hand: mean over gates of max(offset, -span)."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import headgate as hg
from headgate import Gate, HeadgateWarning


def model_with(*offsets: float, span: float = 5.0) -> nn.Sequential:
    """Gates at these offsets, their group handed out as an optimizer would have it."""
    model = nn.Sequential(*(Gate(4, offset=offset, span=span) for offset in offsets))
    hg.offset_group(model)
    return model


@pytest.mark.parametrize(
    ("offsets", "span", "value"),
    [
        ((1.0,), 5.0, 1.0),
        ((1.0, -2.0), 5.0, -0.5),
        ((1.0, -2.0, -3.0, -4.0), 5.0, -2.0),
        ((-6.0, 1.0), 5.0, -2.0),  # -6 counts as -5
        ((-6.0, 1.0), 2.0, -0.5),  # and as -2 where the span is 2
        ((-6.0, -6.0), 10.0, -6.0),
    ],
)
def test_values(offsets: tuple[float, ...], span: float, value: float):
    penalty = hg.penalty(model_with(*offsets, span=span))
    assert penalty.shape == () and penalty.item() == value


def test_every_offset_above_minus_span_is_pushed_alike():
    model = model_with(1.0, -4.9, -5.1, -100.0)
    hg.penalty(model).backward()
    assert [gate.offset.grad.item() for gate in model] == [0.25, 0.25, 0.0, 0.0]


def test_each_gate_has_its_own_span():
    model = nn.Sequential(Gate(4, offset=-3.0, span=2.0), Gate(4, offset=-3.0, span=5.0))
    hg.offset_group(model)
    penalty = hg.penalty(model)
    assert penalty.item() == -2.5
    penalty.backward()
    assert [gate.offset.grad.item() for gate in model] == [0.0, 0.5]


def test_a_shared_gate_is_pushed_once():
    gate = Gate(4, offset=-2.0)
    model = nn.Sequential(gate, gate, Gate(4, offset=1.0))
    hg.offset_group(model)
    assert hg.penalty(model).item() == -0.5


def test_a_wrapped_model_has_the_penalty_of_the_model():
    model = model_with(1.0, -2.0)
    assert hg.penalty(nn.DataParallel(model)).item() == -0.5


def test_mixed_precision_gates_have_one_penalty():
    model = model_with(1.0, -2.0)
    model[0].double()
    hg.offset_group(model)
    assert hg.penalty(model).item() == -0.5


def test_it_compiles_whole():
    torch._dynamo.reset()
    model = model_with(1.0, -2.0)
    assert torch.compile(hg.penalty, fullgraph=True, backend="aot_eager")(model).item() == -0.5


# --- offsets nobody moves --------------------------------------------------------------------------------------------


def test_offsets_in_no_group_are_reported_by_name():
    model = nn.ModuleDict({"mine": Gate(4), "forgotten": nn.Sequential(Gate(4))})
    hg.offset_group(model["mine"])
    with pytest.warns(
        HeadgateWarning, match=r"offsets of forgotten\.0: build the optimizer from headgate\.param_groups"
    ):
        hg.penalty(model)
    hg.param_groups(model, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hg.penalty(model)


def test_the_warning_points_at_the_callers_line():
    with pytest.warns(HeadgateWarning) as caught:
        hg.penalty(nn.Sequential(Gate(4)))
    assert caught[0].filename == __file__


def test_a_gate_that_is_the_whole_model_is_called_root():
    with pytest.warns(HeadgateWarning, match="offsets of root:"):
        hg.penalty(Gate(4))


def test_without_gradients_nobody_needs_an_optimizer():
    with torch.no_grad():
        assert hg.penalty(nn.Sequential(Gate(4))).item() == 1.0


def test_under_functional_call_the_offsets_are_somebody_elses():
    """A stack of models in one vmap: its offsets are tensors that no optimizer of ours could hold."""
    model = nn.Sequential(Gate(4), Gate(4))
    offsets = {"0.offset": torch.tensor([1.0, -2.0]), "1.offset": torch.tensor([0.0, -9.0])}

    def penalty(offsets: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(_Penalty(model), {f"model.{k}": v for k, v in offsets.items()}, ())

    assert torch.vmap(penalty)(offsets).tolist() == [0.5, -3.5]
    gradients = torch.vmap(torch.func.grad(penalty))(offsets)
    assert gradients["0.offset"].tolist() == [0.5, 0.5] and gradients["1.offset"].tolist() == [0.5, 0.0]


class _Penalty(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> torch.Tensor:
        return hg.penalty(self.model)
