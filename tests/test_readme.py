"""What the documents say is true: their programs run, their commands exist, their results come from records."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import headgate
from benchmarks.hugging_face import transformers
from headgate_lab.report.readme import section, with_section

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- coming: (?P<coming>[^>]*?) -->\s*)?^```python\n(?P<code>.*?)^```$"
    r"(?:\n\nIt prints:\n\n```\n(?P<prints>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    place: str
    code: str
    coming: frozenset[str] | None
    prints: str | None = None


def blocks(text: str, name: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        coming = match["coming"]
        missing = None if coming is None else frozenset(coming.split())
        found.append(Block(f"{name}:{line}", match["code"], missing, match["prints"]))
    return found


ALL = [block for document in DOCUMENTS for block in blocks(document.read_text(encoding="utf-8"), document.name)]
RUNNABLE = [block for block in ALL if block.coming is None]
COMING = [block for block in ALL if block.coming is not None]


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.place)
def test_the_documented_programs_run(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # programs may write files
    if "from transformers import" in block.code:
        if find_spec("transformers") is None:
            pytest.skip("transformers is not installed")
        transformers()
    exec(compile(block.code, block.place, "exec", dont_inherit=True), {"__name__": "__main__"})
    if block.prints is not None:
        assert capsys.readouterr().out == block.prints


@pytest.mark.parametrize("block", COMING, ids=lambda block: block.place)
def test_what_is_coming_is_exactly_what_is_missing(block: Block) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hg"
    }
    assert frozenset(name for name in used if not hasattr(headgate, name)) == block.coming


def test_a_printed_result_is_compared() -> None:
    assert [block.place.partition(":")[0] for block in RUNNABLE if block.prints] == ["guide.md"]


def test_the_readme_has_a_program_that_runs_today() -> None:
    assert any(block.place.startswith("README.md") for block in RUNNABLE)


def test_blocks_are_found_with_their_comments() -> None:
    text = "a\n```python\nx = 1\n```\n<!-- coming: one two -->\n```python\nhg.one(hg.two)\n```\n```sh\nls\n```\n"
    text += "```python\nprint(2)\n```\n\nIt prints:\n\n```\n2\n```\n"
    assert blocks(text, "t") == [
        Block("t:3", "x = 1\n", None),
        Block("t:7", "hg.one(hg.two)\n", frozenset({"one", "two"})),
        Block("t:13", "print(2)\n", None, "2\n"),
    ]


def test_the_results_come_from_the_records() -> None:
    readme = README.read_text(encoding="utf-8")
    assert readme == with_section(readme, section(ROOT / "results")), "run `make readme`"


def test_the_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in (README, ROOT / "CONTRIBUTING.md"):
        text = document.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
        assert named, document.name
        assert named <= targets, document.name


def test_continuous_integration_runs_the_readme_test_command() -> None:
    assert "make test" in README.read_text(encoding="utf-8")
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
