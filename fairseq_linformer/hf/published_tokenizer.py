"""A tokenizer of transformers with fairseq's numbers: its five special tokens 0 to 3 and last, the others between."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..data.dictionaries import DICTIONARY_FILE
from ..data.tokenizer import TOKENIZER_FILE, JsonTokenizer
from ..errors import UserError
from .tokenizer import SAMPLE, with_lines

ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")  # <s>, <pad>, </s>, <unk>, <mask>


def write_published_tokenizer(tokenizer: PreTrainedTokenizerBase, source: Path, folder: Path) -> list[int]:
    """Writes tokenizer.json with fairseq's numbers and dict.txt into a folder.

    Args:
        tokenizer: with a backend of the library tokenizers.
        source: where it comes from, for messages.
        folder: where to write.

    Returns:
        Its own number of each of fairseq's. Numbers that it has no token for are left out.

    Raises:
        UserError: it lacks a special token, two are one, or other ids would come out.
    """
    special = [getattr(tokenizer, f"{name}_id") for name in ROLES]
    if None in special or len({*special}) < len(special):
        found = ", ".join(f"{name}={getattr(tokenizer, name)}" for name in ROLES)
        raise UserError(f"{source}: its tokenizer must have five different special tokens, and has {found}")
    own = Tokenizer.from_str(json.dumps(with_lines(json.loads(tokenizer.backend_tokenizer.to_str()))))
    own.no_padding()
    own.no_truncation()
    others = sorted({*own.get_vocab(with_added_tokens=True).values()} - {*special})
    order = [*special[:-1], *others, special[-1]]
    content = _renumbered(json.loads(own.to_str()), order)
    (folder / TOKENIZER_FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    renumbered = JsonTokenizer(folder / TOKENIZER_FILE)
    for line, ids in zip(SAMPLE, renumbered.encode(SAMPLE), strict=True):
        theirs = own.encode(line, add_special_tokens=False).ids
        if not np.array_equal(np.array(order)[ids], theirs):
            raise UserError(f"{source}: its tokenizer cannot be taken over: {line!r} would have other ids")
    renumbered.dictionary.save(str(folder / DICTIONARY_FILE))
    return order


def _renumbered(content: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """The content of a tokenizer.json, changed in place, where `order` has its number of each new one."""
    numbers = {old: new for new, old in enumerate(order)}
    model, added = content["model"], {token["content"]: token["id"] for token in content["added_tokens"]}
    if model["type"] == "Unigram":  # numbered by place; no added token is looked for in the text that remains
        lowest = min(score for _, score in model["vocab"])
        pieces = {number: [name, lowest] for name, number in added.items()} | dict(enumerate(model["vocab"]))
        model["vocab"] = [pieces[old] for old in order]
        model["unk_id"] = None if model["unk_id"] is None else numbers[model["unk_id"]]
    else:
        vocabulary = {**model["vocab"], **added}
        model["vocab"] = {name: numbers[old] for name, old in vocabulary.items()}
    for token in content["added_tokens"]:
        token["id"] = numbers[token["id"]]
    content["added_tokens"].sort(key=lambda token: token["id"])
    return content | {"post_processor": None}  # it names numbers; exports write their own
