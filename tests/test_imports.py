"""Imports go one way: from the command line down to attention and data, without a circle."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.helpers import ROOT

# Folders and modules of the package, lowest first: each imports only from those before it.
LAYERS = (
    *("errors", "files", "digests", "processes", "precision", "plotting", "console", "data", "attention"),
    *("sentence_modules", "checkpoint_files", "checkpoint", "model", "training", "finetune"),
    *("hf", "convert", "analysis", "cli", "plugin"),
    *("fairseq_linformer", "hydra_plugins", "scripts"),  # the package's own __init__.py, and the other folders
)


def read_modules() -> dict[str, Path]:
    """Return the files by the names under which they are imported; scripts/ is on the path."""
    modules = {}
    for path in (path for top in LAYERS[-3:] for path in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[parts[0] == "scripts" :]
        modules[".".join(parts[: -1 if parts[-1] == "__init__" else None])] = path
    return modules


def layer_of(path: Path) -> int:
    top, *below = path.relative_to(ROOT).with_suffix("").parts
    return LAYERS.index(below[0] if top == "fairseq_linformer" and below[0] != "__init__" else top)


def imported_names(module: str, path: Path) -> Iterator[str]:
    """Yield all imports of a file, those inside functions too; a.b for ``from a import b``, which may be a module."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def import_graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for target in imported_names(module, path):
            parts = target.split(".")
            prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
            graph[module] |= {*[prefix for prefix in prefixes if prefix in modules][:1]} - {module}
    return graph


def test_imports_go_down_and_there_is_no_circle():
    modules = read_modules()
    graph = import_graph(modules)
    assert len(graph["fairseq_linformer.plugin"]) > 5, "which the graph is read from"
    upward = [
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in targets
        if layer_of(modules[module]) < layer_of(modules[target])
    ]
    assert not upward
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_test_file_imports_another():
    """Shared helpers are in tests/helpers, shared fixtures in conftest.py."""
    imports = {
        path: re.findall(r"\btests(?:\.\w+)*\.test_\w+", path.read_text()) for path in ROOT.glob("tests/**/*.py")
    }
    assert not {path.name: names for path, names in imports.items() if names}
