"""The batched classifier does as scikit-learn's."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.neural_network import MLPClassifier

from headgate_lab.data.digits import digits
from headgate_lab.engine import stacked_classifier
from headgate_lab.engine.stacked import Stack
from headgate_lab.engine.stacked_classifier import macro_f1, predictions


def test_macro_f1_is_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(6, (200,), generator=generator)
    predicted = torch.randint(5, (3, 200), generator=generator)  # class 5 is never predicted
    ours = macro_f1(predicted, labels, classes=6)
    theirs = [f1_score(labels.numpy(), row.numpy(), average="macro", zero_division=0) for row in predicted]
    assert ours.tolist() == pytest.approx(theirs, abs=1e-6)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_it_scores_as_scikit_learns_does() -> None:
    data = digits()
    generator = torch.Generator().manual_seed(0)
    train, test = data.train_images.flatten(1), data.test_images.flatten(1)
    maps = [torch.randn(64, channels, generator=generator) / 8 for channels in (4, 10)]
    pad = [torch.cat([one, torch.zeros(64, 10 - one.shape[1])], 1) for one in maps]
    codes, unseen = (torch.stack([images @ one for one in pad]) for images in (train, test))
    ours = macro_f1(predictions(codes, data.train_labels, unseen, classes=10), data.test_labels, classes=10)
    for number in range(2):
        machine = MLPClassifier((50, 50), max_iter=100, random_state=1).fit(codes[number].numpy(), data.train_labels)
        theirs = f1_score(data.test_labels, machine.predict(unseen[number].numpy()), average="macro")
        assert ours[number].item() == pytest.approx(theirs, abs=0.03)
    assert ours[1] > ours[0] + 0.1


def test_a_copy_that_no_longer_learns_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    resting: list[list[bool]] = []
    rest = Stack.rest_

    def watched(stack: Stack, which: torch.Tensor) -> None:
        resting.append(which.tolist())
        rest(stack, which)

    monkeypatch.setattr(Stack, "rest_", watched)
    monkeypatch.setattr(stacked_classifier, "EPOCHS", 30)
    labels = torch.arange(400) % 2
    useless, useful = torch.zeros(400, 3), torch.stack([labels.float()] * 3, dim=1)
    found = predictions(torch.stack([useless, useful]), labels, torch.stack([useless, useful]), classes=2)
    assert resting[0] == [False, False]
    assert resting[-1] == [True, False]
    assert torch.equal(found[1], labels)
