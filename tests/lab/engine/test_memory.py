"""What a step frees is there for the next one: counted in pages that the system had to hand out."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from headgate_lab.engine.memory import M_MMAP_THRESHOLD, keep_freed_memory

PAGES = """
import resource, sys, torch
from headgate_lab.engine.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
counts = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(2**24) for _ in range(3)]
    del held
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(counts[6:]))
"""


def pages(how: str) -> int:
    found = subprocess.run([sys.executable, "-c", PAGES, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back like this")
def test_memory_is_kept() -> None:
    assert pages("kept") < pages("given back") / 5


def test_where_the_limit_is_refused_nothing_else_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Older:
        def mallopt(self, option: int, value: int) -> int:
            asked.append(option)
            return int(option != M_MMAP_THRESHOLD)

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Older())
    assert not keep_freed_memory()
    assert asked == [M_MMAP_THRESHOLD]


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not keep_freed_memory()
