"""`headgate plan` prints the plan of a user's model, or one line that says why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate_lab.cli import main

NETS = """
import torch
from torch import nn

print("said while importing")

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x, tokens):
        return self.last(torch.relu(self.first(x) + self.words(tokens)))

class Untraceable(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x[:, :2]

class Counting(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.branch, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = super().forward(x)
        x = x + self.branch(x)
        return self.last(x / x.shape[1])

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second, self.last = (nn.Linear(8, n) for n in (8, 6, 8, 2))
        self.second = nn.Linear(6, 8)

    def forward(self, x):
        x = self.stem(x)
        return self.last((x + self.second(self.first(x).relu())).relu())

class Inner:
    Net = Net

ready = Net()
number = 3

def broken():
    raise ValueError("no weights\\nsecond line")

def nothing():
    return None
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    (tmp_path / "fails_to_import.py").write_text("import not_installed_anywhere")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("nets_of_mine", "fails_to_import", "exits"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("factory", ["Net", "ready", "Inner.Net"])
def test_it_prints_the_plan_and_nothing_else(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"nets_of_mine:{factory}", "--input", "2,8"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == (
        "Net: 16 removable channels; groups: 1 (0 of them residual streams), residual branches: 0, "
        "their entries (readers=True): 0"
    )
    assert lines[2].split() == ["group", "units", "written", "by", "read", "by"]
    assert "output: the model returns it" in printed.out
    assert printed.err == "said while importing\n"


def test_several_inputs_with_types_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input", "2,8", "--input", "2", "--dtype", "float32", "--dtype", "int64", "--json"]
    assert main(["plan", "nets_of_mine:Two", *arguments]) == 0
    plan = json.loads(capsys.readouterr().out)
    (group,) = plan["groups"]
    assert group["units"] == 6
    assert ["last.weight", 1] in group["read_by"]
    assert ["words.weight", 1] in group["written_by"]
    assert {"module", "operation", "reason"} == set(plan["stays"][0]["because"][0])
    assert plan["stays"][0]["what"] == "channels"


def test_only_what_a_trial_has_shown_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nets_of_mine:Counting", "--input", "2,8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["groups"] == []
    tried = [why for refusal in plan["stays"] for why in refusal["because"] if why["operation"] == "trial"]
    assert tried and all("differ" in why["reason"] for why in tried)


def test_branches_and_their_entries_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nets_of_mine:Residual", "--input", "2,8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["branches"] == [{"name": "second:write", "units": 8, "written_into": ["stem"]}]
    reader = {"name": "first:read", "units": 8, "reads_from": "stem", "through": [["first.weight", 1]]}
    assert plan["readers"] == [reader]
    assert main(["plan", "nets_of_mine:Residual", "--input", "2,8"]) == 0
    assert "their entries (readers=True): 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "shape", "words"),
    [
        ("not_there:Net", "2,8", "no module not_there in this folder or the environment"),
        ("fails_to_import:Net", "2,8", "importing fails_to_import failed: ModuleNotFoundError: No module named"),
        ("exits:Net", "2,8", "importing exits failed: SystemExit: 3"),
        ("nets_of_mine:Nett", "2,8", "nets_of_mine has no Nett"),
        ("nets_of_mine:number", "2,8", "neither a model nor a function"),
        ("nets_of_mine:broken", "2,8", "broken() failed: ValueError: no weights\n"),
        ("nets_of_mine:nothing", "2,8", "must return a torch.nn.Module, but returned NoneType"),
        ("nets_of_mine:Net", "2,9", "Net does not run on 2,9: RuntimeError: mat1 and mat2 shapes"),
        ("nets_of_mine:Net", "99999999,99999999", "there is no room for an input of shape 99999999, 99999999"),
        ("nets_of_mine:Untraceable", "2,8", "Untraceable() failed: TypeError"),
    ],
)
def test_what_fails_is_told_in_one_line(spec: str, shape: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", spec, "--input", shape]) == 1
    printed = capsys.readouterr()
    complaint = printed.err.removeprefix("said while importing\n")
    assert printed.out == ""
    assert words in complaint
    assert complaint.startswith("headgate: ")
    assert complaint.count("\n") == 1


def test_a_model_that_cannot_be_traced_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets_of_mine.py").write_text(NETS + "\n\ndef untraceable():\n    return Untraceable(8, 4)\n")
    assert main(["plan", "nets_of_mine:untraceable", "--input", "2,8"]) == 1
    complaint = capsys.readouterr().err.removeprefix("said while importing\n")
    assert complaint.startswith("headgate: Untraceable cannot be analysed: TraceError: ")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["nets_of_mine", "--input", "1"], "MODULE:FACTORY"),
        (["nets_of_mine:", "--input", "1"], "MODULE:FACTORY"),
        (["nets_of_mine:Net"], "--input"),
        (["nets_of_mine:Net", "--input", "1,x"], "--input 1,x"),
        (["nets_of_mine:Net", "--input", "1,0"], "--input 1,0"),
        (["nets_of_mine:Net", "--input", "1", "--dtype", "float8"], "--dtype float8"),
        (["nets_of_mine:Net", "--input", "1", "--dtype", "int64", "--dtype", "bool"], "2 --dtype for 1 --input"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    assert ended.value.code == 2
    complaint = capsys.readouterr().err
    assert culprit in complaint
    assert complaint.count("\n") == 1
