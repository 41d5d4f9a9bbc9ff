"""What the pages must have: every recipe is in their table. `make docs` checks the links."""

import re

import pytest

from tests.helpers import ROOT

RECIPES = (ROOT / "docs/recipes.md").read_text()
YAMLS = [*(ROOT / "configs/pretrain").glob("*.yaml"), *(ROOT / "configs/finetune/recipe").glob("*.yaml")]


@pytest.mark.parametrize("name", sorted(path.stem for path in YAMLS if path.stem != "shared"))
def test_every_recipe_has_a_row_that_says_what_to_expect(name):
    (row,) = re.findall(rf"^\| `{name}` \|(.+)\|$", RECIPES, re.MULTILINE)
    assert all(cell.strip() for cell in row.split("|"))


def test_the_readme_starts_at_once_and_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert any(line.startswith("```") for line in lines[:10])
