"""Where each position looks: the first tokens of a text with their maps, as numbers and as a page to open."""

import html
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import check
from .maps import head_maps
from .measuring import attentions_of, inputs_of
from .reading import Analysed, token_texts

UNIT = 1e-5  # of the weights in JSON: whole numbers are half as long as decimals
TEMPLATE = Path(__file__).with_name("looks.html")


@torch.no_grad()
def look(models: Sequence[Analysed], row: Tensor, shown: int) -> dict[str, Any]:
    """The maps of one row of text.

    Args:
        models: one, or two with the same vocabulary, layers and heads.
        row: token ids (n,), which the models read whole.
        shown: how many of them have their maps in the result, as positions that look and that are looked at.

    Returns:
        ``tokens``, their texts; ``direction``, ltr or rtl; ``length``, n; ``unit``; and ``models``, each with its name,
        its attention, ``maps`` [layer][head][position][position] and ``beyond`` [layer][head][position], what goes to
        tokens after the shown ones, in units.
    """
    tokens = row[:shown].tolist()
    return {
        "tokens": token_texts(models[0].tokenizer, tokens),
        "direction": _direction(models[0].tokenizer.decode([row.numpy()])[0]),
        "length": len(row),
        "unit": UNIT,
        "models": [
            {"name": one.about["name"], "attention": one.options.attention, **_maps(one, row, len(tokens))}
            for one in models
        ],
    }


def check_twins(first: Analysed, second: Analysed) -> None:
    """Refuses a second model that cannot stand beside the first.

    Raises:
        UserError: its vocabulary, or its number of layers or heads, is another.
    """
    same = first.tokenizer.dictionary == second.tokenizer.dictionary
    check("--beside", second.about["name"], same, "a model with the dictionary of the first")
    for name in ("encoder_layers", "encoder_attention_heads"):
        own, other = getattr(first.options, name), getattr(second.options, name)
        check(f"--beside: {name}", other, own == other, f"{own}, as in the first model")


def _maps(model: Analysed, row: Tensor, shown: int) -> dict[str, Any]:
    maps, beyond = [], []
    for attention, x in zip(attentions_of(model.encoder), inputs_of(model.encoder, row), strict=True):
        heads = [(own[:shown, :shown], own[:shown, shown:].sum(1)) for own in head_maps(attention, x)]
        maps.append([_in_units(own) for own, _ in heads])
        beyond.append([_in_units(rest) for _, rest in heads])
    return {"maps": maps, "beyond": beyond}


def _in_units(weights: Tensor) -> Any:
    return (weights / UNIT).round().long().tolist()


def _direction(text: str) -> str:
    """That of the first letter that has one, as the browser's dir=auto has it, which looks at no buttons."""
    first = next((kind for kind in map(unicodedata.bidirectional, text) if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"


def write_page(data: dict[str, Any], title: str, notes: Sequence[str], path: Path) -> None:
    """The page: one file that needs no network.

    Args:
        data: as ``look`` gives it.
        title, notes: plain text, of which each note is a paragraph.
        path: of the page.
    """
    # In a script's text, HTML knows no entities: what could end it is written as JSON's escapes.
    inline = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        inline = inline.replace(character, f"\\u{ord(character):04x}")
    paragraphs = "\n".join(f"<p>{html.escape(note)}</p>" for note in notes)
    parts = {"TITLE": html.escape(title), "NOTES": paragraphs, "DATA": inline}
    template = TEMPLATE.read_text(encoding="utf-8")  # all at once: text may hold any marker
    path.write_text(re.sub(r"\{\{([A-Z]+)\}\}", lambda marker: parts[marker[1]], template), encoding="utf-8")
