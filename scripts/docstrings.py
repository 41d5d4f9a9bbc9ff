"""Text that every Python installation has: the docstrings of its modules, classes and functions.

This is English and code without a download, and also a labelled task: predict the package of a docstring. Text and task
are split by module with the same hash, so that a validation module is in the training split of neither.
"""

import ast
import gc
import os
import sys
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from fairseq_linformer.data.prepare.examples import Example

STANDARD_LIBRARY = "standard library"
# Tests, other roots inside this one, and vendored packages.
SKIPPED_FOLDERS = {"test", "tests", "site-packages", "dist-packages", "_vendor", "__pycache__"}
SHORTEST = 80  # characters; shorter docstrings are mostly like "Return the width."
WITH_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # nodes that can contain definitions


@dataclass(frozen=True)
class Docstring:
    """Cleaned docstring, the package that a user would install, and the module that holds it."""

    package: str
    module: str
    text: str


def installation_roots() -> list[Path]:
    """Return the folders of the standard library and of the installed packages of the running Python."""
    paths = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    return list(dict.fromkeys(path for path in paths if path.is_dir()))


def collect_docstrings(
    roots: Iterable[Path], *, packages: int = 8, package_bytes: int = 1_500_000
) -> Iterator[Docstring]:
    """Read the sources below `roots`, without importing them; return each distinct text once per package.

    Skipped are tests, vendored packages, files that cannot be read or parsed, texts of fewer than 80 characters, and
    texts with characters that cannot be printed: control characters would break lines, and lone surrogates cannot be
    encoded. Modules are sorted by a hash of their names, so that the part of a large package that is read is a fair
    sample, and the same in every run.

    Args:
        roots: as of ``installation_roots``.
        packages: maximum number of packages: those with the most text between triple quotes. Counting that takes a
            second, parsing an installation a minute.
        package_bytes: of text (UTF-8) after which the rest of a package is skipped, so that no package dominates, and
            most of the largest need not be parsed.
    """
    modules: dict[str, dict[str, Path]] = defaultdict(dict)
    for root in roots:
        for module, path in _modules(root):
            top = module.partition(".")[0]
            package = STANDARD_LIBRARY if top in sys.stdlib_module_names else top
            modules[package].setdefault(module, path)  # as in the import system, the first on the path wins
    sizes = {package: sum(map(_quoted_bytes, files.values())) for package, files in modules.items()}
    for package in sorted(sizes, key=lambda package: (-sizes[package], package))[:packages]:
        texts: set[str] = set()
        text_bytes = 0
        for module in sorted(modules[package], key=_hash):
            if text_bytes >= package_bytes:
                break
            for text in _docstrings_of(modules[package][module]):
                if text not in texts:
                    texts.add(text)
                    text_bytes += len(text.encode())
                    yield Docstring(package, module, text)


def split_by_module(docstrings: Iterable[Docstring], valid_percent: int = 15) -> dict[str, list[Docstring]]:
    """Return docstrings as "train" and "valid", without common modules or texts: the first of equal texts is kept.

    A hash of a module's name determines its split, which is therefore the same in every process and installation.
    """
    splits: dict[str, list[Docstring]] = {"train": [], "valid": []}
    texts: set[str] = set()
    for docstring in docstrings:
        if docstring.text not in texts:
            texts.add(docstring.text)
            splits["valid" if _hash(docstring.module) % 100 < valid_percent else "train"].append(docstring)
    return splits


def write_text(docstrings: Iterable[Docstring], path: Path) -> int:
    """Write one document per docstring: its lines that are not blank, then a blank line. Return the bytes written."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for docstring in docstrings:
            file.writelines(f"{line}\n" for line in docstring.text.splitlines() if line.strip())
            file.write("\n")
    return path.stat().st_size


def package_examples(
    docstrings: Iterable[Docstring],
    *,
    classes: int = 6,
    train_per_class: int = 1000,
    valid_per_class: int = 200,
    valid_percent: int = 15,
) -> dict[str, list[Example]]:
    """Return the task of predicting a docstring's package: "train" and "valid", split by `split_by_module`.

    Texts in several packages are left out. The classes are the packages with the most training docstrings.

    Args:
        docstrings: as of ``collect_docstrings``.
        classes: at most; each has at least a quarter of `train_per_class`.
        train_per_class: rows per class, at most; a hash of the text chooses them.
        valid_per_class: the same for validation.
        valid_percent: of the modules, for validation.
    """
    docstrings = list(docstrings)
    packages_with = Counter(text for _, text in {(item.package, item.text) for item in docstrings})
    splits = split_by_module((item for item in docstrings if packages_with[item.text] == 1), valid_percent)
    sizes = Counter(item.package for item in splits["train"])
    # Of equal sizes by name, as Counter.most_common keeps the order of arrival.
    largest = sorted(sizes, key=lambda package: (-sizes[package], package))[:classes]
    chosen = [package for package in largest if sizes[package] * 4 >= train_per_class]
    return {
        "train": _examples_of(splits["train"], chosen, train_per_class),
        "valid": _examples_of(splits["valid"], chosen, valid_per_class),
    }


def _examples_of(docstrings: Iterable[Docstring], packages: Iterable[str], per_class: int) -> list[Example]:
    texts: dict[str, list[str]] = {package: [] for package in packages}
    for docstring in docstrings:
        if docstring.package in texts:
            texts[docstring.package].append(docstring.text)
    return [
        Example(text, package) for package in sorted(texts) for text in sorted(texts[package], key=_hash)[:per_class]
    ]


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and the file of every module below `root`, which may be named like a skipped folder."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - SKIPPED_FOLDERS)
        for file in sorted(files):
            path = Path(folder, file)
            # Not path.is_file(), which raises in a folder that may be listed but not entered.
            if path.suffix == ".py" and os.path.isfile(path):
                parts = path.relative_to(root).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts), path


def _quoted_bytes(path: Path) -> int:
    try:
        return sum(map(len, path.read_bytes().split(b'"""')[1::2]))
    except OSError:
        return 0


def _docstrings_of(path: Path) -> Iterator[str]:
    """Return the docstrings of a source file, outer ones first; none if it cannot be read or parsed."""
    gc.disable()  # the collector would take most of the time, and a syntax tree has no cycles
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escape sequences in these files
            tree = ast.parse(path.read_bytes())
    # ValueError: null bytes, before Python 3.12. MemoryError and RecursionError: deep nesting.
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
        return
    finally:
        gc.enable()
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # in the order of ast.walk, without the expressions, which most nodes are
        nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, WITH_STATEMENTS)]
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = (ast.get_docstring(node) or "").strip()
            if len(text) >= SHORTEST and all(line.isprintable() for line in text.split("\n")):
                yield text


def _hash(name: str) -> int:
    """Return a hash that, unlike Python's own, is the same in every process."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
