"""No name is a pronoun, no docstring begins with a question word. Ruff checks other rules of docstrings (D2, D401)."""

import ast
from collections.abc import Iterator

from tests.helpers import ROOT

PRONOUNS = """
own others some said found shown seen turned told about beside here there wanted known given what they it those these
rest away mine them itself where
"""
QUESTION_WORDS = ("What", "Which", "Whether", "How", "Of", "Where", "Those", "That")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield the path and the syntax tree of each Python file."""
    for folder in ("fairseq_linformer", "hydra_plugins", "scripts", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names of parameters, variables, attributes and functions, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno


def test_no_name_is_a_pronoun():
    pronouns = [
        f"{path}:{line}: {name}"
        for path, tree in trees()
        for name, line in bound_names(tree)
        if name.strip("_") in PRONOUNS.split()
    ]
    assert not pronouns, "\n".join(pronouns)


def test_no_docstring_begins_with_a_question_word():
    starts = [
        f"{path}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node) or "")
        if docstring.partition(" ")[0] in QUESTION_WORDS
    ]
    assert not starts, "\n".join(starts)
