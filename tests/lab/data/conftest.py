"""No test finds data of this machine, or leaves some, by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.data import places


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data: the checkout stands in an empty folder, which is returned, and the cache is empty."""
    monkeypatch.delenv("HEADGATE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "CHECKOUT", tmp_path / "beside" / "checkout")
    return tmp_path / "beside"
