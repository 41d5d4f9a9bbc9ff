"""CITATION.cff parses, and names every paper that the mechanisms' code names."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")


def test_every_paper_that_the_mechanisms_name_is_cited():
    """Catches a new mechanism whose paper is not cited, and a file that citation tools cannot read."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "references"} <= citation.keys()
    papers = [citation["preferred-citation"], *citation["references"]]
    assert all(paper["authors"] and paper["title"] and paper["year"] for paper in papers)
    cited = [ARXIV.search(paper["url"]).group() for paper in papers]
    assert cited[0] == "2006.04768" and len(set(cited)) == len(cited)
    sources = (ROOT / "fairseq_linformer" / "attention").glob("*.py")
    assert {number for source in sources for number in ARXIV.findall(source.read_text(encoding="utf-8"))} <= set(cited)
