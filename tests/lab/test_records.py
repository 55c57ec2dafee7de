"""Records say which commit they were made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.records import write_record


def test_without_a_commit_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SystemExit, match="--commit"):
        write_record(tmp_path / "r.json", recipe="r", config={}, metrics={}, headline="h", duration_s=1.0)
    assert list(tmp_path.iterdir()) == []
