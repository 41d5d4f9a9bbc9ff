"""The commands of the pages: what may be typed, whether a test runs them or not."""

import re
import shlex

import pytest

from linformer_cli.command import find_verb, parser_of
from tests.helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_may_be_typed(page):
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = [*shlex.split(line.partition(" > ")[0], comments=True), ""][:-1] or [""]
            if program == "linformer":
                verb, rest = find_verb(words)
                assert parser_of(verb).parse_args(rest)
