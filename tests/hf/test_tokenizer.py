"""Exported tokenizers give the ids of training, and offsets of words."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary

from fairseq_linformer.data.prepare.examples import Example, encode_columns
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.subword_models import GPT2Tokenizer
from fairseq_linformer.data.tokenizer import SentencePieceTokenizer, Tokenizer
from fairseq_linformer.data.truncation import kept_tokens
from fairseq_linformer.errors import UserError

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from fairseq_linformer.hf.tokenizer import build_tokenizer, word_starts, write_tokenizer  # noqa: E402
from tests.helpers.inputs import TEXT, gpt2_files, train_without_bytes  # noqa: E402


def difficult(number: int) -> list[str]:
    """Return random texts of letters, marks in any order, spaces, Hangul, kana, words and control characters."""
    chance = random.Random(0)
    characters = [chr(code) for code in (*range(0x250), *range(0x1E00, 0x2070), *range(0x3040, 0x3100))]
    characters += [chr(code) for code in (*range(0x300, 0x346), *range(0x5B0, 0x5C0), *range(0x64B, 0x656))] * 2
    characters += [*"  \t\u2581\u0085\u200d\u3000\ufb01漢字\uff76\uff9e\u3099\u1100\u1161\u11a8\uac00\ufe0f😀"] * 9
    characters += ["\x01", "\x7f", "\x8f"] * 9
    characters += ["the", "lim", "mu"] * 200
    lines = ["".join(chance.choices(characters, k=chance.randint(1, 40))) for _ in range(number)]
    return [line.replace("\n", "").replace("\r", "") for line in lines]


def differing(tokenizer: Tokenizer, lines: list[str]) -> list[str]:
    exported = build_tokenizer(tokenizer).encode_batch(lines, add_special_tokens=False)
    pairs = zip(lines, tokenizer.encode(lines), exported, strict=True)
    return [line for line, ids, theirs in pairs if ids.tolist() != theirs.ids]


def trained(folder: Path, lines: list[str] = TEXT, **options: object) -> SentencePieceTokenizer:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "spm"), minloglevel=2, **{"vocab_size": 90, **options}
    )
    return SentencePieceTokenizer(folder / "spm.model")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    path = tmp_path_factory.mktemp("model") / "spm.model"
    train_sentencepiece(TEXT, path, vocab_size=346, threads=1)
    return SentencePieceTokenizer(path)


LAYOUTS: dict[str, dict[str, object]] = {
    "fairseq's order": {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3},
    "no control symbols, unknown last": {"bos_id": -1, "eos_id": -1, "unk_id": 89},
    "bytes": {"byte_fallback": True, "vocab_size": 330},
    "BPE": {"model_type": "bpe"},
    "BPE with bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 330},
    "own symbols": {"user_defined_symbols": ["<mask>", "[X]", "<ent>"], "control_symbols": ["<ctl>"]},
    "no normalization": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "spaces kept": {"remove_extra_whitespaces": False},
    "no space before": {"add_dummy_prefix": False},
    "lower case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "NFKC alone": {"normalization_rule_name": "nfkc"},
    "pieces across words": {"split_by_whitespace": False},
    "unknown letters": {"character_coverage": 0.98, "vocab_size": 60},
    "unknown letters are bytes": {"character_coverage": 0.98, "vocab_size": 320, "byte_fallback": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ids_are_those_of_training(tmp_path: Path, layout: str) -> None:
    tokenizer = trained(tmp_path, **LAYOUTS[layout])
    assert differing(tokenizer, TEXT[:100] + difficult(300) + ["madeupword0000", "[X] <ent>the"]) == []


@pytest.mark.parametrize("lines", [TEXT, [*TEXT, "<0123456789ABCDEFx>" * 9]])
def test_bytes_are_those_of_training_and_become_text_again(tmp_path: Path, lines: list[str]) -> None:
    """Names of bytes and symbols in a text are encoded as text, whether or not their characters are pieces."""
    train_sentencepiece(lines, tmp_path / "spm.model", 330, threads=1)
    tokenizer = SentencePieceTokenizer(tmp_path / "spm.model")
    names = [f"the <0x{byte:02X}> lim<0x{byte:02X}<0x{byte:02X}>>" for byte in range(256)]
    names += [f"\uff1c{name}\uff1e, {name} lim" for name in ("s", "/s", "pad", "unk", "mask", "0x41")]
    named = [name.replace("<", "\uff1c") if name.endswith("lim") else name for name in names]
    assert differing(tokenizer, named + difficult(300)) == []
    exported = build_tokenizer(tokenizer)
    texts = ["the lim 漢字 mu", "\U0001f600\U0001f600", "Ж漢 <0x41> é", *TEXT[:20]]
    rows = [row.tolist() for row in tokenizer.encode(texts)]
    assert any("<0x" in exported.id_to_token(token) for token in rows[0])
    assert [exported.decode(row) for row in rows] == texts == tokenizer.decode(list(map(np.array, rows)))
    assert exported.decode(rows[1][-1:]) == "\ufffd"


def test_gpt2_ids_are_those_of_training(tmp_path: Path) -> None:
    lines = ["a" + chr(code) + " b" for code in range(0x3100) if chr(code) not in "\n\r"]
    assert differing(GPT2Tokenizer(*gpt2_files(tmp_path)), TEXT[:100] + difficult(300) + lines) == []


def test_all_symbols_keep_their_ids(tokenizer: SentencePieceTokenizer) -> None:
    exported = build_tokenizer(tokenizer)
    names = [exported.id_to_token(number) for number in range(exported.get_vocab_size())]
    assert [name.lstrip(" ").replace("\u200a", "") for name in names] == [*tokenizer.dictionary.symbols, "<mask>"]


@pytest.mark.parametrize("kind", ["sentencepiece", "gpt2"])
def test_transformers_read_the_folder(tmp_path: Path, tokenizer: SentencePieceTokenizer, kind: str) -> None:
    source = tokenizer if kind == "sentencepiece" else GPT2Tokenizer(*gpt2_files(tmp_path))
    write_tokenizer(source, tmp_path, max_length=20)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = (ids.tolist() for ids in source.encode(TEXT[:2]))
    encoded = loaded([TEXT[0], TEXT[0][:5]], padding=True)
    short = source.encode([TEXT[0][:5]])[0].tolist()
    padding = len(first) - len(short)
    mask = [[1] * (len(first) + 2), [1] * (len(short) + 2) + [0] * padding]
    assert encoded == {"input_ids": [[0, *first, 2], [0, *short, 2] + [1] * padding], "attention_mask": mask}
    assert loaded(TEXT[0], TEXT[1])["input_ids"] == [0, *first, 2, 2, *second, 2]
    assert loaded(TEXT[0], truncation=True)["input_ids"] == [0, *first[:18], 2]
    assert loaded.decode(encoded["input_ids"][0], skip_special_tokens=True) == TEXT[0]
    # fairseq's fill_mask encodes both sides of <mask> separately, the text before it without its last spaces.
    before, after = (ids.tolist() for ids in source.encode(["the lim", " mu."]))
    mask = len(source.dictionary)
    assert loaded("the lim <mask> mu.")["input_ids"] == [0, *before, mask, *after, 2]
    assert loaded.mask_token_id == mask


@pytest.mark.parametrize("kind", ["fairseq's order", "BPE with bytes", "spaces kept", "gpt2"])
def test_offsets_of_words_exclude_the_space_before(tmp_path: Path, kind: str) -> None:
    """Whole-word masking and entities depend on them."""
    source = GPT2Tokenizer(*gpt2_files(tmp_path)) if kind == "gpt2" else trained(tmp_path, **LAYOUTS[kind])
    write_tokenizer(source, tmp_path, max_length=99)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = " ".join(TEXT[:2])
    encoded = loaded(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    numbers, offsets = encoded.word_ids()[1:-1], encoded["offset_mapping"][1:-1]
    words: dict[int, list[tuple[int, int]]] = {}
    for number, offset in zip(numbers, offsets, strict=True):
        words.setdefault(number, []).append(offset)
    expected = re.findall(r"\w+|[^\w\s]+", text) if kind == "gpt2" else text.split()
    assert [text[pieces[0][0] : pieces[-1][1]] for pieces in words.values()] == expected
    if kind in ("BPE with bytes", "gpt2"):
        return  # a lone mark has the offset of the word's first character, and so have all bytes of a character
    masked = transformers.DataCollatorForLanguageModeling(loaded, whole_word_mask=True, seed=1)([encoded])["labels"]
    states = {*zip(numbers, (masked[0, 1:-1] != -100).tolist(), strict=True)}
    assert len(states) == len(words) and 0 < (masked != -100).sum() < len(numbers) / 2


def test_line_breaks_of_labelled_texts_are_spaces(tmp_path: Path) -> None:
    """As in preparation, except at the ends of a text, where GPT-2's BPE keeps them."""
    source = GPT2Tokenizer(*gpt2_files(tmp_path))
    lines = [f"the lim{space}the\u3000mu{space}{space}is the" for space in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029"]
    lines += ["the lim\r\n\r\nmu", "the lim. \n the mu"]
    columns = encode_columns([Example(line, None) for line in lines], source, pairs=False, prefix="row")
    write_tokenizer(source, tmp_path, max_length=99, one_line=True)
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)(lines, add_special_tokens=False)
    assert encoded["input_ids"] == [ids.tolist() for ids in columns[0]]


def test_rows_without_first_symbol_and_separator(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    write_tokenizer(tokenizer, tmp_path, max_length=9, truncation_side="left", init_token=False, separator=False)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = (ids.tolist() for ids in tokenizer.encode(["the lim", "mu"]))
    assert loaded("the lim", "mu")["input_ids"] == [*first, 2, *second, 2]
    assert loaded(TEXT[0], truncation=True)["input_ids"] == [*tokenizer.encode(TEXT[:1])[0][-8:].tolist(), 2]


def test_pairs_are_truncated_as_in_training(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """The second text keeps one more of an odd number of tokens, unless the first is longer; in training the first."""
    write_tokenizer(tokenizer, tmp_path, max_length=512)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for first, second in ((TEXT[0], "the"), ("the", TEXT[0]), (TEXT[0], TEXT[1]), (TEXT[0], "")):
        a, b = (ids.tolist() for ids in tokenizer.encode([first, second]))
        for length in range(5, 30):
            row = torch.tensor([0, *a, 2, 2, *b, 2])
            expected = row[kept_tokens(row, length, "head", 0, 2)].tolist()
            room = length - 4
            if room % 2 and len(a) > room // 2 and len(b) > room // 2 and len(a) <= len(b):
                expected = [0, *a[: room // 2], 2, 2, *b[: room // 2 + 1], 2]
            # As a batch: transformers takes a single row with an empty second text for one without.
            encoded = loaded([first], [second], truncation=True, max_length=length)
            assert encoded["input_ids"] == [expected]


def test_models_that_tokenizer_json_cannot_express_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "without_bytes.model"
    train_without_bytes(TEXT, path, vocab_size=90)
    symbols = SentencePieceTokenizer(path).dictionary.symbols
    for pieces, name in ((symbols[14:], "dict.txt"), ([*symbols[4:], "漢字"], "漢字")):
        dictionary = Dictionary()
        for piece in pieces:
            dictionary.add_symbol(piece)
        with pytest.raises(UserError, match=name):
            build_tokenizer(SentencePieceTokenizer(path, dictionary))
    for options in (
        {"treat_whitespace_as_suffix": True},
        {"model_type": "char"},
        {"user_defined_symbols": ["the lim"]},
    ):
        with pytest.raises(UserError):
            build_tokenizer(trained(tmp_path, **{"vocab_size": 60, **options}))


@pytest.mark.parametrize(
    ("layout", "has_marks"),
    [
        *((layout, True) for layout in ("fairseq's order", "bytes", "BPE", "own symbols", "unknown letters")),
        *((layout, False) for layout in ("no normalization", "no space before")),
        ("gpt2", True),
    ],
)
def test_word_starts(tmp_path: Path, layout: str, has_marks: bool) -> None:
    """They are unknown if a text and its separate words, which training encodes, have different pieces."""
    tokenizer = GPT2Tokenizer(*gpt2_files(tmp_path)) if layout == "gpt2" else trained(tmp_path, **LAYOUTS[layout])
    write_tokenizer(tokenizer, tmp_path, max_length=9)
    begins = word_starts(tokenizer, tmp_path)
    assert (begins is not None) == has_marks
    if begins is not None:
        assert begins[:3].all() and not begins[3] and begins[-1]
        for line in TEXT[:100]:  # GPT-2's BPE does not mark the first word
            assert begins[tokenizer.encode([line])[0]].sum() == len(line.split()) - (layout == "gpt2")
