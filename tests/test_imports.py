"""The floors of the house: every import goes down, and no files import each other in a circle."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers import ROOT

# From the ground up. A room is a folder or a loose module of the package; it imports only from rooms before it.
FLOORS = (
    *("errors", "files", "processes", "plotting", "console", "data", "attention"),
    *("sentence_modules", "checkpoint_files", "checkpoint", "model", "training", "finetune"),
    *("hf", "conversion", "analysis", "cli", "plugin"),
    *("fairseq_linformer", "hydra_plugins", "scripts"),  # the package's own __init__.py, and the rest
)


TESTS = ROOT / "tests"


def read_modules(root: Path) -> dict[str, Path]:
    """The files of the house by the names under which they are imported; scripts/ is on the path."""
    files = {path.relative_to(root): path for top in FLOORS[-3:] for path in (root / top).rglob("*.py")}
    modules = {}
    for place, path in files.items():
        parts = place.with_suffix("").parts[place.parts[0] == "scripts" :]
        modules[".".join(parts[: -1 if parts[-1] == "__init__" else None])] = path
    return modules


def room_of(root: Path, path: Path) -> str:
    top, *below = path.relative_to(root).with_suffix("").parts
    return below[0] if top == "fairseq_linformer" and below[0] != "__init__" else top


def imported(name: str, path: Path) -> Iterator[str]:
    """Whatever a file imports, inside of functions too; of ``from a import b`` it is a.b, which may be a module."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def arrows(modules: dict[str, Path]) -> dict[str, set[str]]:
    """The modules of the house that each module imports."""
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for words in imported(name, path):
            target = words
            while target and target not in modules:
                target = target.rpartition(".")[0]
            found[name] |= {target} - {"", name}
    return found


def complaints(root: Path) -> list[str]:
    modules = read_modules(root)
    rooms = {name: room_of(root, path) for name, path in modules.items()}
    said = [f"{room} has no place in FLOORS" for room in sorted({*rooms.values()} - {*FLOORS})]
    graph = arrows(modules)
    for name, targets in graph.items():
        for target in sorted(targets):
            here, there = rooms[name], rooms[target]
            if here != there and {here, there} <= {*FLOORS} and FLOORS.index(here) < FLOORS.index(there):
                said.append(f"{name} imports {target}, which stands above it")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        said.append(f"a circle: {' -> '.join(reversed(error.args[1]))}")
    return said


def test_every_import_goes_down_and_there_is_no_circle():
    assert not complaints(ROOT)


def test_no_test_file_takes_anything_from_another():
    """What several of them need is in tests/helpers, or a fixture of conftest.py."""
    files = {path: re.findall(r"\btests(?:\.\w+)*\.test_\w+", path.read_text()) for path in TESTS.rglob("*.py")}
    assert not {path.name: found for path, found in files.items() if found}


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("errors.py", "def late():\n    from .cli import program", "errors imports fairseq_linformer.cli, which"),
        ("data/a.py", "from ..model import M", "data.a imports fairseq_linformer.model, which stands above it"),
        ("data/a.py", "from . import b", "a circle: fairseq_linformer.data.a -> fairseq_linformer.data.b -> fair"),
        ("model.py", "import hydra_plugins.plugin", "model imports hydra_plugins.plugin, which stands above it"),
        ("attic.py", "", "attic has no place in FLOORS"),
    ],
)
def test_what_goes_up_or_round_is_named(tmp_path, file, line, said):
    written = {"errors.py": "", "model.py": "", "data/a.py": "", "data/b.py": "from .a import x", "cli/__init__.py": ""}
    for name, text in {**written, "../hydra_plugins/plugin.py": "import fairseq_linformer.cli", file: line}.items():
        path = tmp_path / "fairseq_linformer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (complaint,) = complaints(tmp_path)
    assert said in complaint
