"""The model card: its example, the origin of the model, and untrusted text."""

import re

import pytest
import torch
import yaml

pytest.importorskip("transformers", reason="transformers is not installed")

from fairseq_linformer.checkpoint import UNTRAINED
from fairseq_linformer.convert import convert
from fairseq_linformer.digests import digest_file, digest_folder
from fairseq_linformer.hf.exporting import export
from tests.helpers.exports import LABELS, write_fine_tuned, write_pretrained

HOSTILE = "a|b`c`\\|\n---\nlicense: mit\n| x | y |\n```\n<script>alert(1)</script> [here](http://x)\x1b[2J\u2028#"


def test_converted_model_names_its_sources(tmp_path, vocabulary):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="softmax")
    export(checkpoint, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "once", ["model.attention=linformer"])
    convert(tmp_path / "once", tmp_path / "twice", ["model.max_positions=30"])
    export(tmp_path / "twice", tmp_path / "out")
    first, second = digest_folder(tmp_path / "hf"), digest_file(tmp_path / "once" / UNTRAINED)
    sources = f"| converted from | hf (SHA-256 {first}), then once/checkpoint.pt (SHA-256 {second}) |"
    assert f"{sources}\n| updates | 0 |\n" in (tmp_path / "out/README.md").read_text()
    assert "| updates | 7 |" in (tmp_path / "hf/README.md").read_text()


@pytest.mark.parametrize(("kind", "pairs"), [(kind, kind == "single-label") for kind in LABELS])
def test_example_runs_on_long_texts(kind, pairs, tmp_path, vocabulary, monkeypatch):
    export(write_fine_tuned(tmp_path / "run", vocabulary, kind, pairs), tmp_path / "FOLDER")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "FOLDER/README.md").read_text(), re.DOTALL)
    assert ("text_pair" in code) == pairs
    monkeypatch.chdir(tmp_path)
    exec(code.replace("A text.", "the dog sees a house " * 20).replace("Words", "the dog " * 20))


def test_untrusted_text_is_escaped(vocabulary, tmp_path):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    state = torch.load(checkpoint, weights_only=True)
    state["cfg"]["task"]["data"], state["cfg"]["optimization"]["lr"] = f"/x/{HOSTILE}", [HOSTILE]
    torch.save(state, checkpoint)
    export(checkpoint, tmp_path / "out", vocabulary)
    _, header, body = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "fill-mask" and "\nlicense" not in body
    for line in (line for line in body.splitlines() if line.startswith("|")):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3 and not re.search(r"(?<!\\)[`<]|\]\(", line)
