"""Generation of the code of exported models: two files that depend only on torch and transformers.

One file contains the layers and all mechanisms. transformers runs it with ``trust_remote_code=True``.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
CONFIGURATION = PACKAGE / "hf" / "configuration_linformer_roberta.py"
MODELING = PACKAGE / "hf" / "modeling_linformer_roberta.py"
NOTICE = "# Generated from the package fairseq_linformer (MIT License): changes belong there.\n"


def write_code(folder: Path) -> None:
    """Write the code of the configuration and of the models into a folder."""
    configuration = NOTICE + CONFIGURATION.read_text(encoding="utf-8")
    (folder / CONFIGURATION.name).write_text(configuration, encoding="utf-8")
    (folder / MODELING.name).write_text(_modeling(), encoding="utf-8")


@cache
def _modeling() -> str:
    return NOTICE + _Bundle(MODELING).text()


class _Bundle:
    """A file and the files of the package that it imports, dependencies first."""

    def __init__(self, path: Path) -> None:
        self._sources: list[str] = []
        self._imports: set[str] = set()
        self._imports_from: dict[str, set[str]] = defaultdict(set)
        self._added_files: set[Path] = set()
        self._defined: dict[str, Path] = {}
        self._add(path)

    def text(self) -> str:
        imports = {f"from {module} import {', '.join(sorted(names))}" for module, names in self._imports_from.items()}
        blocks = [*sorted(self._imports | imports), *self._sources]
        return re.sub(r"\n{4,}", "\n\n\n", "\n".join(blocks)) + "\n"

    def _add(self, path: Path) -> None:
        self._added_files.add(path)
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            for name in _names(node):
                owner = self._defined.setdefault(name, path)
                assert owner == path, f"{owner.name} and {path.name} both define {name}: one file can have one of them"
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, path)
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    lines[number - 1] = ""
        text = "\n".join(lines).strip()
        self._sources.append(f"\n\n# {path.relative_to(PACKAGE)}\n{text}")

    def _import(self, node: ast.Import | ast.ImportFrom, path: Path) -> None:
        if isinstance(node, ast.Import):
            self._imports.add(ast.unparse(node))
            return
        if node.level == 0:
            self._imports_from[str(node.module)] |= {alias.name for alias in node.names}
            return
        file = path.parents[node.level - 1].joinpath(*str(node.module).split("."))
        # The only folder is attention, whose __init__ imports all mechanisms.
        for imported in sorted(file.glob("[!_]*.py")) if file.is_dir() else [file.with_suffix(".py")]:
            if imported == CONFIGURATION:
                self._imports.add(ast.unparse(node))
            elif imported not in self._added_files:
                self._add(imported)


def _names(node: ast.stmt) -> set[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}
