"""Imports go one way. Every import in the source is read, also those inside functions and `if TYPE_CHECKING`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import headgate
from headgate import layers
from tests.conftest import SLOW, TESTS

SOURCE = Path(__file__).parents[1] / "src"
PUBLIC = frozenset(headgate.__all__)
# Users meet these in their small networks; what makes them is ours alone.
PUBLIC_LAYERS = frozenset(f"layers.{name}" for name in layers.__all__ if isinstance(getattr(layers, name), type))


@dataclass(frozen=True)
class Import:
    """`module` imported by `importer`, both dotted; `from a import b` counts as `a.b` where b may be a module."""

    importer: str
    module: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.module}"


def imports(root: Path) -> list[Import]:
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        importer = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        package = parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found += [Import(importer, module) for module in _modules(node, package)]
    return found


def _modules(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        module = ".".join((*base, *([node.module] if node.module else [])))
        yield from (f"{module}.{alias.name}" for alias in node.names)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def is_foreign(module: str) -> bool:
    allowed = {"headgate", "torch", "safetensors", "__future__", *sys.stdlib_module_names}
    return module.partition(".")[0] not in allowed


def is_not_public(module: str) -> bool:
    """Whether this import reaches past headgate's public names and layers. `import headgate` itself is fine."""
    name = module.removeprefix("headgate.")
    return within(module, "headgate") and module != "headgate" and name not in PUBLIC | PUBLIC_LAYERS


# Each rule: who, and what they must not import.
RULES: dict[str, tuple[tuple[str, ...], Callable[[str], bool]]] = {
    "the library imports torch, safetensors and the standard library only": (("headgate",), is_foreign),
    "kernels are imported on demand": (("headgate",), lambda module: within(module, "headgate.kernels")),
    "the library does not know the lab": (("headgate",), lambda module: within(module, "headgate_lab")),
    "the lab uses public names only": (("headgate_lab",), is_not_public),
    "a gate knows no graphs": (
        ("headgate.gate",),
        lambda module: within(module, "headgate.channels", "headgate.surgery"),
    ),
    "channels know no gates": (
        ("headgate.channels",),
        lambda module: within(
            module, "headgate.gate", "headgate.gated", "headgate.surgery", "headgate.offsets", "headgate.objective"
        ),
    ),
    "data and models are plain": (
        ("headgate_lab.data", "headgate_lab.models"),
        lambda module: within(module, "headgate", "headgate_lab.methods"),
    ),
    "reports read records only": (
        ("headgate_lab.report",),
        lambda module: within(module, "headgate_lab.recipes", "headgate_lab.models"),
    ),
    "what the paper prints is data": (
        ("headgate_lab.paper",),
        lambda module: within(module, "headgate_lab", "torch", "headgate") and not within(module, "headgate_lab.paper"),
    ),
}


# Only this one module, itself imported on demand.
EXEMPT = frozenset({Import("headgate.kernels", "triton"), Import("headgate.kernels", "triton.language")})


def violations(rule: str, root: Path) -> list[str]:
    importers, forbidden = RULES[rule]
    found = [one for one in imports(root) if within(one.importer, *importers) and one not in EXEMPT]
    return [str(one) for one in found if forbidden(one.module)]


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    assert violations(rule, SOURCE) == []


@pytest.mark.parametrize(
    ("rule", "file", "line"),
    [
        ("the library imports torch, safetensors and the standard library only", "headgate/gate.py", "import numpy"),
        ("the library imports torch, safetensors and the standard library only", "headgate/gate.py", "import triton"),
        ("kernels are imported on demand", "headgate/fused.py", "from headgate import kernels"),
        ("the library does not know the lab", "headgate/gate.py", "from headgate_lab import demo"),
        ("the lab uses public names only", "headgate_lab/demo.py", "from headgate.gate import Gate"),
        ("the lab uses public names only", "headgate_lab/demo.py", "import headgate.gate"),
        ("the lab uses public names only", "headgate_lab/demo.py", "from headgate import offsets"),
        ("the lab uses public names only", "headgate_lab/demo.py", "from headgate.layers import gather_"),
        ("a gate knows no graphs", "headgate/gate.py", "def f():\n    from . import channels"),
        ("channels know no gates", "headgate/channels/walk.py", "from ..gate import Gate"),
        ("channels know no gates", "headgate/channels/__init__.py", "from headgate import surgery"),
        ("data and models are plain", "headgate_lab/models/lenet.py", "import headgate as hg"),
        ("data and models are plain", "headgate_lab/data/mnist.py", "from headgate_lab.methods import dam"),
        ("reports read records only", "headgate_lab/report/page.py", "from headgate_lab import models"),
        ("what the paper prints is data", "headgate_lab/paper/appendix.py", "from headgate_lab import recipes"),
    ],
)
def test_each_rule_notices_a_breach(rule: str, file: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert len(violations(rule, tmp_path)) == 1


def test_the_lab_reaches_only_public_names_through_the_module() -> None:
    reached = set()
    for path in (SOURCE / "headgate_lab").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        aliases = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "headgate"
        }
        reached |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
        }
    assert reached
    assert reached <= PUBLIC


def test_the_public_names_exist() -> None:
    assert [name for name in headgate.__all__ if not hasattr(headgate, name)] == []
    assert len(PUBLIC) == len(headgate.__all__)


def test_importing_headgate_loads_no_other_package() -> None:
    program = (
        "import sys, torch, safetensors\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import headgate\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(after - before - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["headgate"]


@pytest.mark.parametrize("place", SLOW)
def test_what_is_called_slow_is_there(place: str) -> None:
    assert (TESTS / place).exists()
