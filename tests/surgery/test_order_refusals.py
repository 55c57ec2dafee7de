"""Batches and losses that orders cannot be had from: named by their number, with the cause, and nothing is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headgate as hg

MEASURED = ("variance", "taylor", "mutual_information")


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3))


def rows(count: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 8, generator=generator), torch.arange(count) % 3


def refused(criterion: Any, batches: list[Any], loss_fn: Any = cross_entropy) -> hg.ArgumentError:
    """The error; the model is what it was, gradients, modes, hooks and random numbers included."""
    model = chain().train()
    model[1].eval()
    cross_entropy(model(rows()[0]), rows()[1]).backward()
    before, state = copy.deepcopy(model), torch.get_rng_state()
    gradients = [parameter.grad for parameter in model.parameters()]
    kept = [gradient.clone() for gradient in gradients if gradient is not None]
    with pytest.raises(hg.ArgumentError) as caught:
        hg.order_by(model, criterion, batches, loss_fn=loss_fn)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert all(parameter.grad is one for parameter, one in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(parameter.grad, one) for parameter, one in zip(model.parameters(), kept, strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return caught.value


# ---- batches that the model does not run on ----


@pytest.mark.parametrize("criterion", MEASURED)
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("wrong", ["dtype", "width"])
def test_a_batch_that_the_model_does_not_run_on_is_named(criterion: Any, number: int, wrong: str) -> None:
    x, y = rows()
    bad = x.double() if wrong == "dtype" else x[:, :5]
    error = refused(criterion, [*[(x, y)] * (number - 1), (bad, y), (x, y)])
    shown = "float64 (64, 8)" if wrong == "dtype" else "float32 (64, 5)"
    assert str(error).startswith(
        f"order_by: batch {number}: Sequential does not run on the example ({shown} on cpu): module '0': RuntimeError: "
    )
    assert "of the model's dtype" in str(error) and "While executing" not in str(error)
    assert isinstance(error.__cause__, RuntimeError)


def test_other_faults_of_a_batch_name_it_too() -> None:
    x, y = rows()
    assert "batch 2 cannot be brought to cpu, where the model is (Not" in str(refused("variance", [x, x.to("meta")]))
    assert "batch 2 holds no examples" in str(refused("variance", [x, x[:0]]))
    assert "batch 2: a batch of 3 things" in str(refused("variance", [x, (x, y, y)]))
    assert "batch 2: taylor needs targets" in str(refused("taylor", [(x, y), x]))


def test_a_graph_that_fails_where_the_model_runs_is_told_as_such() -> None:
    class Twofold(nn.Sequential):
        """Looks at values, but of batches of another size only."""

        def forward(self, input: Tensor) -> Tensor:
            y = super().forward(input)
            return -y if len(input) != 64 and float(y.sum()) > 0 else y

    model, (x, _) = Twofold(*chain()), rows()
    with pytest.raises(
        hg.TraceError, match=r"whole graph of Twofold, which fails on batch 3; magnitude and norm_scale"
    ):
        hg.order_by(model, "variance", [x, x, x[:5]])


# ---- losses ----


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_enabled_where_they_are_needed(mode: Any) -> None:
    model, (x, y) = chain(), rows()
    expected = hg.order_by(model, "taylor", [(x, y)], loss_fn=cross_entropy)

    def loader() -> Any:
        yield x + 0, y + 0  # made in the caller's mode, which stays what it is while a loader works
        assert not torch.is_grad_enabled()
        yield x, y

    with mode():
        batch = x + 0, y + 0
        inside = hg.order_by(model, "taylor", loader(), loss_fn=cross_entropy)
        assert not torch.is_grad_enabled() and torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
    outside = hg.order_by(model, "taylor", [batch], loss_fn=cross_entropy)
    for name, order in expected.items():
        assert torch.equal(inside[name], order) and torch.equal(outside[name], order)
        assert not inside[name].is_inference()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_made_in_inference_mode_has_no_gradients() -> None:
    with torch.inference_mode():
        model, batch = chain(), rows()
        assert set(hg.order_by(model, "variance", [batch])) == {"0", "2"}
        with pytest.raises(hg.ArgumentError, match=r"taylor needs gradients, and '0\.weight' .* torch\.inference_mode"):
            hg.order_by(model, "taylor", [batch], loss_fn=cross_entropy)


def test_a_loss_that_fails_is_told_with_its_batch_and_cause() -> None:
    x, y = rows()
    error = refused("taylor", [(x, y), (x, None)])
    assert str(error).startswith(
        "order_by: batch 2: loss_fn failed (TypeError: cross_entropy_loss(): argument 'target'"
    )
    assert str(error).endswith("a tensor of shape (64, 3), and with the batch's targets, None")
    assert isinstance(error.__cause__, TypeError)
    assert "targets, a tensor of shape (3,)" in str(refused("taylor", [(x, y[:3])]))
    error = refused("taylor", [(x, y)], loss_fn=lambda out, target: 1 / 0)
    assert "loss_fn failed (ZeroDivisionError: division by zero)" in str(error)


@pytest.mark.parametrize(
    ("loss_fn", "shown"),
    [
        (lambda out, y: 1.0, "not a float"),
        (lambda out, y: cross_entropy(out, y, reduction="none"), r"not a tensor of shape (64,)"),
        (lambda out, y: cross_entropy(out.detach(), y), "not a tensor of shape () without a gradient"),
    ],
)
def test_what_is_no_loss_is_shown(loss_fn: Any, shown: str) -> None:
    error = refused("taylor", [rows()], loss_fn)
    assert "batch 1: loss_fn must return one number" in str(error) and str(error).endswith(shown)


def test_labels_in_a_list_are_not_recited() -> None:
    x, y = rows()
    for criterion in ("taylor", "mutual_information"):
        error = refused(criterion, [(x, y.tolist())])
        assert "a list of length 64" in str(error) and "0, 1, 2" not in str(error)


# ---- nothing to tell ----


def test_nothing_that_tells_units_apart_is_refused() -> None:
    x, _ = rows()
    alike = torch.zeros(64, dtype=torch.long)
    assert "equally important; is there more than one example" in str(refused("variance", [x[:1]]))
    assert "of more than one target" in str(refused("mutual_information", [(x, alike)]))
    assert "does the loss depend" in str(refused("taylor", [(x, alike)], lambda out, _: out.sum() * 0))
    fresh = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    with pytest.raises(hg.ArgumentError, match=r"norm_scale: Sequential has nothing .* is the network trained"):
        hg.order_by(fresh, "norm_scale", [x])
    with pytest.raises(hg.ArgumentError, match=r"norm_scale needs norms with a scale\); magnitude does"):
        hg.order_by(chain(), "norm_scale", [x])


def test_a_site_whose_units_are_all_alike_is_ordered_by_magnitude_and_told() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dead, self.alive = chain()[:3], chain()[:3]

        def forward(self, x: Tensor) -> Tensor:
            return self.dead(x) + self.alive(x)

    model, (x, _) = Two(), rows()
    with torch.no_grad():
        model.dead[0].bias.fill_(-100)  # none of these twelve units is ever active
    weights = model.dead[0].weight.square().sum(1) + model.dead[2].weight.square().sum(0)
    with pytest.warns(hg.HeadgateWarning, match=r"equally important at 'dead\.0': ordered by magnitude there") as told:
        found = hg.order_by(model, "variance", [x])
    assert [one.filename for one in told] == [__file__]
    assert torch.equal(found["dead.0"], weights.argsort().argsort())
    assert torch.equal(found["alive.0"], model.alive[:2](x).var(0).argsort().argsort())


def test_information_from_few_examples_is_told_as_chance() -> None:
    x, y = rows()
    with pytest.warns(hg.HeadgateWarning, match="of 19 examples is mostly chance: give a few hundred") as told:
        hg.order_by(chain(), "mutual_information", [(x[:10], y[:10]), (x[10:19], y[10:19])])
    assert [one.filename for one in told] == [__file__]
    hg.order_by(chain(), "mutual_information", [(x[:20], y[:20])])
