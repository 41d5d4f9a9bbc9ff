"""No name is a pronoun: it says what its value is. Docstrings are checked by ruff (D2, D401)."""

import ast
from collections.abc import Iterator

from tests.helpers import ROOT

PRONOUNS = """
own others some said found shown seen turned told about beside here there wanted known given what they it those these
rest away
"""


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names of parameters and variables, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def test_no_name_is_a_pronoun():
    pronouns = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in ("fairseq_linformer", "hydra_plugins", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in bound_names(ast.parse(path.read_text(encoding="utf-8")))
        if name in PRONOUNS.split()
    ]
    assert not pronouns, "\n".join(pronouns)
