"""What is shown of a text, and the page that shows it."""

import dataclasses
import html
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fairseq_linformer.analysis.looks import TEMPLATE, check_twins, look, write_page
from fairseq_linformer.analysis.maps import head_maps
from fairseq_linformer.analysis.measuring import attentions_of, inputs_of
from fairseq_linformer.analysis.reading import Analysed, first_line, read_blocks, read_line, token_texts
from fairseq_linformer.data.tokenizer import GPT2Tokenizer, load_tokenizer
from fairseq_linformer.errors import UserError
from tests.helpers.exports import write_vocabulary
from tests.helpers.inputs import Numbers, gpt2_files
from tests.helpers.models import small, tokens

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "&lt;&amp;", "\u2028", "שלום", "😀", '"', "\\", "{{DATA}}"]
HOSTILE += ["<img src=x onerror=alert(1)>", "' onmouseover='alert(1)", "\u2029", "{{TITLE}}{{NOTE}}", "]]>", "${x}`"]


def analysed(attention, name, **options):
    model = small(attention=attention, max_positions=64, **options).eval()
    encoder = model.encoder.sentence_encoder
    return Analysed(Path(name), None, encoder, model.args, Numbers(), 7, True, False, 64, "head", {"name": name})


def page_data(page):
    """What the page's script reads."""
    (inline,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(inline)


def test_the_maps_of_both_models():
    models, row = [analysed("linformer", "a"), analysed("softmax", "b")], tokens(1)[0]
    found = look(models, row, 5)
    assert found["tokens"][0] == str(int(row[0]) - 4) and len(found["tokens"]) == 5 and found["length"] == 64
    for model, shown in zip(models, found["models"], strict=True):
        x = inputs_of(model.encoder, row)[1]
        with torch.no_grad():
            own = list(head_maps(attentions_of(model.encoder)[1], x))[2]
        weights = torch.tensor(shown["maps"][1][2]) * found["unit"]
        torch.testing.assert_close(weights, own[:5, :5], atol=0.51e-5, rtol=0)
        beyond = torch.tensor(shown["beyond"][1][2]) * found["unit"]
        torch.testing.assert_close(beyond, own[:5, 5:].sum(1), atol=0.51e-5, rtol=0)


def test_a_twin_must_fit():
    first = analysed("linformer", "a")
    check_twins(first, analysed("softmax", "b"))
    with pytest.raises(UserError, match="--beside: encoder_attention_heads=2 is not allowed: it must be 3, as in"):
        check_twins(first, analysed("softmax", "b", encoder_attention_heads=2))
    other = analysed("softmax", "b")
    other.tokenizer.dictionary.add_symbol("more")
    with pytest.raises(UserError, match="--beside=b is not allowed: it must be a model with the dictionary of the fir"):
        check_twins(first, other)


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_survives_the_page(text, tmp_path):
    """In the script's data, and in title and notes, which stand outside of it."""
    models = [{"name": text, "predicted": text}]
    data = {"tokens": HOSTILE, "direction": "ltr", "length": 9, "unit": 1, "models": models}
    write_page(data, text, [text, "a < b"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page_data(page) == data
    assert page.count("</script>") == 2 and page.count("<script") == 2 and "<!--" not in page and "<img" not in page
    assert not re.search("[\u2028\u2029]", page.partition('id="data">')[2])
    assert f"<title>{html.escape(text)}</title>" in page and f"<p>{html.escape(text)}</p>\n<p>a &lt; b</p>" in page


def test_the_script_puts_text_into_the_page_as_text_alone():
    """Nothing that the data holds is read as HTML: the one innerHTML is a constant."""
    script = TEMPLATE.read_text(encoding="utf-8")
    assert re.findall(r"innerHTML = (\S)", script) == ['"'] and script.count("innerHTML") == 1
    assert not re.search(r"insertAdjacentHTML|outerHTML|document\.write|eval\(|setAttribute\([^\"]", script)


def test_the_page_needs_no_network(tmp_path):
    write_page(look([analysed("softmax", "a")], tokens(1)[0], 4), "t", ["n"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=|https?:|url\(|import ", page)


@pytest.mark.parametrize("text, direction", [("12 אב", "rtl"), ("ab אב", "ltr"), ("12", "ltr"), ("مرحبا", "rtl")])
def test_the_direction_is_that_of_the_first_letter(text, direction):
    model = analysed("softmax", "a")
    object.__setattr__(
        model, "tokenizer", SimpleNamespace(decode=lambda rows: [text for _ in rows], dictionary=Numbers().dictionary)
    )
    assert look([model], tokens(1)[0], 2)["direction"] == direction


def test_texts_of_tokens_join_to_the_text(tmp_path):
    tokenizer = load_tokenizer(write_vocabulary(tmp_path))
    line = "the old dog barks today"
    ids = tokenizer.encode([line])[0].tolist()
    dictionary = tokenizer.dictionary
    texts = token_texts(tokenizer, [dictionary.bos(), *ids, dictionary.eos(), *ids, dictionary.unk()])
    assert texts[0] == "<s>" and texts[len(ids) + 1] == "</s>" and texts[-1] == "<unk>"
    assert "".join(texts[1 : len(ids) + 1]) == "".join(texts[len(ids) + 2 : -1]) == line


def test_a_character_of_several_tokens_stands_at_the_last(tmp_path):
    tokenizer = GPT2Tokenizer(*gpt2_files(tmp_path))
    texts = token_texts(tokenizer, tokenizer.encode(["a😀שb"])[0].tolist())
    assert texts == ["a", "", "", "", "😀", "", "ש", "b"]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(f"{n} {n}" for n in range(40)) + "\n\n1 2 3\n")
    return tmp_path / "text.txt"


def test_blocks_are_those_of_pretraining(text):
    """Each line with its </s>, a blank line as </s>: 40 x 3 + 1 + 4 tokens; blocks of 10 from all over."""
    bos, eos = 0, 2
    stream = [token for n in range(40) for token in (n + 4, n + 4, eos)] + [eos, 5, 6, 7, eos]
    blocks = [[bos, *stream[start : start + 10]] for start in range(0, 120, 10)]
    assert read_blocks(text, Numbers(), 11, 100).tolist() == blocks  # the last one is short, and left out
    assert read_blocks(text, Numbers(), 11, 3).tolist() == [blocks[0], blocks[4], blocks[8]]
    assert read_blocks(text, Numbers(), 1000, 8).tolist() == [[bos, *stream]]


def test_a_line_is_read_as_in_fine_tuning(text):
    (text.parent / "line.txt").write_text("\n\n7 8 9\n1\n")
    line = first_line(text.parent / "line.txt")
    model = analysed("linformer", "a")
    for begins, longest, truncation, expected in (
        (True, 10, "head", [0, 11, 12, 13, 2]),
        (True, 4, "head", [0, 11, 12, 2]),
        (True, 4, "tail", [0, 12, 13, 2]),
        (False, 3, "head", [11, 12, 2]),
    ):
        own = dataclasses.replace(model, begins=begins, longest=longest, truncation=truncation)
        assert read_line(own, line).tolist() == expected
