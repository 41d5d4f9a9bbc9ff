"""What the pages must have: every recipe in the table. `make docs` checks the links."""

import re
import subprocess

import pytest

from tests.helpers import ROOT

RECIPES = (ROOT / "docs/recipes.md").read_text()
YAMLS = [*(ROOT / "configs/pretrain").glob("*.yaml"), *(ROOT / "configs/finetune/recipe").glob("*.yaml")]


@pytest.mark.parametrize("name", sorted(path.stem for path in YAMLS if path.stem != "shared"))
def test_every_recipe_has_a_row_that_says_what_to_expect(name):
    (row,) = re.findall(rf"^\| `{name}` \|(.+)\|$", RECIPES, re.MULTILINE)
    assert all(cell.strip() for cell in row.split("|"))


NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")
CLAIMS = (ROOT / "docs/attention.md").read_text().split("\n## What the papers say, and what held here\n")[1]


def section_of(page, anchor):
    """What stands below the heading with this anchor, as GitHub makes them, down to the next of its level or above."""
    text = page.read_text()
    for heading in re.finditer(r"^(#+) (.+)\n", text, re.MULTILINE):
        if re.sub(r"[^\w -]", "", heading[2]).lower().replace(" ", "-") == anchor:
            return re.split(rf"^#{{1,{len(heading[1])}}} ", text[heading.end() :], flags=re.MULTILINE)[0]
    pytest.fail(f"{page.name} has no heading #{anchor}")


@pytest.mark.parametrize("row", [line for line in CLAIMS.splitlines() if "](" in line])
def test_the_figures_of_a_claim_stand_where_its_row_links(row):
    """Catches a figure that was measured again on its page and not changed in the table of claims."""
    _, held, figure, page = row.strip("| ").split(" | ")
    assert held in ("yes", "no", "partly", "not measured")
    links = re.findall(r"\]\(([\w-]+\.md)?#([\w-]+)\)", figure + page)
    there = "".join(section_of(ROOT / "docs" / (file or "attention.md"), anchor) for file, anchor in links)
    said = re.sub(r"\]\([^)]+\)", "]", figure)
    assert set(NUMBER.findall(said)) <= set(NUMBER.findall(there))


@pytest.mark.parametrize("script", sorted((ROOT / "docs/commands").glob("*.sh")), ids=lambda path: path.name)
def test_the_commands_that_measured_are_bash(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_every_picture_is_on_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    shown = set(re.findall(r"\]\((\S+\.png)\)", pages))
    assert shown == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.png")}
