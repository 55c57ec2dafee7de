"""What all tests share: one thread each, one seed, one small data set of real images."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings
from torch import Tensor

# pytest-xdist starts one process per core; more threads than that only fight over them.
torch.set_num_threads(1)

# The same examples on every run. No deadline: the first example pays for torch's start.
settings.register_profile("headgate", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("headgate")

# Where networks are trained, whole ones tried or pictures drawn: a quarter of the tests, most of the time.
SLOW = (
    "lab/data/test_real_data.py", "lab/engine", "lab/methods", "lab/recipes", "lab/report/test_figures.py",
    "lab/test_pruning.py", "surgery/test_attention.py", "surgery/test_budget.py", "surgery/test_fit_config.py",
    "surgery/test_hugging_face.py", "surgery/test_latency_budget.py", "surgery/test_places.py",
    "surgery/test_silent.py", "surgery/test_timm.py", "surgery/test_transfer.py", "surgery/test_zoo.py",
    "test_alive.py", "test_examples.py",
)  # fmt: skip
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those are left out by `make fast`."""
    for item in items:
        if any(item.path.is_relative_to(TESTS / place) for place in SLOW):
            item.add_marker(pytest.mark.slow)


class Digits(NamedTuple):
    """Scikit-learn's 8 × 8 digits in [0, 1], flattened to 64 columns: 1,297 to train on and 500 to test on."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def digits() -> Digits:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    shuffle = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(pixels, dtype=torch.float32)[shuffle] / 16
    y = torch.as_tensor(labels, dtype=torch.int64)[shuffle]
    return Digits(x[:-500], y[:-500], x[-500:], y[-500:])
