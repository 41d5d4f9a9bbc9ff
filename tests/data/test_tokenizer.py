"""Ids of tokenizers against those of fairseq: encoder, pieces as text, dictionary."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe import GPT2BPE, GPT2BPEConfig
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig

from fairseq_linformer.data.fairseq_encoders import SentencePieceEncoder
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.subword_models import GPT2Tokenizer, load_tokenizer
from fairseq_linformer.data.tokenizer import SentencePieceTokenizer
from fairseq_linformer.errors import UserError
from tests.helpers.inputs import TEXT, Numbers, gpt2_files, train_without_bytes

# Unknown characters alone, in runs and next to words; white space that sentencepiece keeps (U+0085, U+0000) or not;
# text that looks like special symbols; no text.
AWKWARD = [
    "the 漢字 bathe 漢 limis漢字",
    "the lim\x85et \x85 mu",
    "\x85",
    "a\u00a0b\u2028c\u3000d\x1ce\tf\x00g",
    "<s> </s> <pad> <unk> <mask> madeupword0000 ⁇",
    "",
    "   ",
    "\ufb01ne \uff21\uff22 \u00e9 e\u0301 \u200b \ufeff",
    "x" * 5000,
]


def assert_same_as_fairseq(tokenizer, encode, lines):
    encoded = tokenizer.encode(lines)
    for ids, line in zip(encoded, lines, strict=True):
        expected = tokenizer.dictionary.encode_line(encode(line), append_eos=False, add_if_not_exist=False)
        assert ids.tolist() == expected.tolist() and ids.dtype == np.int32


def spm_encode(model) -> Callable[[str], str]:
    return SentencepieceBPE(SentencepieceConfig(sentencepiece_model=str(model))).encode


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "spm.model"
    train_without_bytes(TEXT, path, vocab_size=90)
    return path


LAYOUTS: dict[str, dict[str, object]] = {
    "default": {},
    "fairseq's order": {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3},
    "no control symbols, unknown last": {"bos_id": -1, "eos_id": -1, "unk_id": 89},
    "bytes": {"byte_fallback": True, "vocab_size": 346},
    "BPE with bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 330},
    "other symbols": {"user_defined_symbols": ["<mask>", "the lim", "<ent>"], "control_symbols": ["<ctl>"]},
    "no normalisation": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sentencepiece_ids_are_those_of_fairseq(tmp_path, layout):
    path = tmp_path / "spm.model"
    options = {"model_prefix": str(tmp_path / "spm"), "minloglevel": 2, "vocab_size": 90, **LAYOUTS[layout]}
    lines = [*TEXT, "non\u00a0breaking\u00a0space"] * 3
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), **options)
    tokenizer = SentencePieceTokenizer(path)
    assert_same_as_fairseq(tokenizer, spm_encode(path), TEXT[:50] + AWKWARD)
    assert "<mask>" not in tokenizer.dictionary  # the tasks add it


def test_given_dictionary_decides_the_ids(tmp_path, model):
    """A dictionary in another order, with other symbols, without some pieces."""
    pieces = SentencePieceTokenizer(model).dictionary.symbols[4:]
    (tmp_path / "dict.txt").write_text("".join(f"{piece} 5\n" for piece in ["漢字", *pieces[::-1][:-9], "<extra>"]))
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    tokenizer = SentencePieceTokenizer(model, dictionary)
    assert_same_as_fairseq(tokenizer, spm_encode(model), TEXT[:50] + AWKWARD)
    assert tokenizer.encode(["the 漢字"])[0][-1] == dictionary.index("漢字") != dictionary.unk()


def test_default_dictionary_has_the_pieces_in_order_and_a_multiple_of_eight(model):
    dictionary = SentencePieceTokenizer(model).dictionary
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert dictionary.symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert dictionary.symbols[4:91] == [processor.IdToPiece(number) for number in range(3, 90)]
    assert (len(dictionary) + 1) % 8 == 0 and len(dictionary) - 91 < 8
    with pytest.raises(UserError, match=r"spm\.model"):
        SentencePieceTokenizer(model, Numbers().dictionary)  # of another model


@pytest.mark.parametrize("model_type", ["sentencepiece", "gpt2"])
def test_a_saved_tokenizer_encodes_and_decodes(tmp_path, model, model_type):
    tokenizer = SentencePieceTokenizer(model) if model_type == "sentencepiece" else GPT2Tokenizer(*gpt2_files(tmp_path))
    folder, dictionary = tmp_path / "prepared", tokenizer.dictionary
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match=r"dict\.txt.*sentencepiece"):
        load_tokenizer(folder)
    tokenizer.save(folder)
    with pytest.raises(FileNotFoundError, match=r"dict\.txt$"):
        load_tokenizer(folder)
    dictionary.save(str(folder / "dict.txt"))
    loaded = load_tokenizer(folder)
    assert loaded.dictionary.symbols == dictionary.symbols
    rows = tokenizer.encode(TEXT[:20])
    for same in (loaded, pickle.loads(pickle.dumps(tokenizer))):  # worker processes may receive it pickled
        assert [ids.tolist() for ids in same.encode(TEXT[:20])] == [ids.tolist() for ids in rows]
    framed = [np.array([dictionary.bos(), *row, dictionary.eos(), dictionary.pad()]) for row in rows]
    decoded = [
        (text.split(), line.split())
        for text, line, row in zip(loaded.decode(framed), TEXT, rows, strict=False)
        if dictionary.unk() not in row
    ]
    assert decoded and all(text == line for text, line in decoded)
    assert loaded.decode([np.array([dictionary.unk()])]) != [""]


def test_gpt2_ids_are_those_of_fairseq(tmp_path):
    encoder, merges = gpt2_files(tmp_path)
    theirs = GPT2BPE(GPT2BPEConfig(gpt2_encoder_json=str(encoder), gpt2_vocab_bpe=str(merges)))
    assert_same_as_fairseq(GPT2Tokenizer(encoder, merges), theirs.encode, TEXT[:20] + AWKWARD)
    dictionary = Dictionary()
    for number in range(0, 259, 1)[::-1]:
        if number != 7:
            dictionary.add_symbol(str(number))
    assert_same_as_fairseq(GPT2Tokenizer(encoder, merges, dictionary), theirs.encode, TEXT[:20] + AWKWARD)


def test_files_that_cannot_be_read_are_named(tmp_path, model):
    broken, absent = tmp_path / "broken", tmp_path / "absent"
    for content in ("{", "[]"):
        broken.write_text(content)
        for load in (SentencePieceTokenizer, lambda path: GPT2Tokenizer(path, path)):
            with pytest.raises(UserError, match="broken"):
                load(broken)
    for load in (load_tokenizer, SentencePieceTokenizer, lambda path: GPT2Tokenizer(path, path)):
        with pytest.raises((UserError, FileNotFoundError), match="absent"):
            load(absent)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model.read_bytes())
    for content in ("no count here\n", "a 1\na 2\n"):
        (tmp_path / "dict.txt").write_text(content)
        with pytest.raises(UserError, match=r"dict\.txt"):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize(("lines", "vocab_size"), [(TEXT, 50_000), (TEXT, 276), ([], 300)])
def test_vocabulary_that_the_text_does_not_support(tmp_path, lines, vocab_size):
    with pytest.raises(UserError, match=str(vocab_size)):
        train_sentencepiece(lines, tmp_path / "spm.model", vocab_size, threads=1)
    assert not list(tmp_path.iterdir())


def test_long_lines_are_trained_on(tmp_path):
    """sentencepiece leaves out lines of more than 4192 bytes by default."""
    train_sentencepiece([*TEXT, "wyvern " * 1000], tmp_path / "spm.model", 346, threads=1)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    assert processor.Encode("wyvern", out_type=str) == ["▁wyvern"]


def test_a_trained_vocabulary_has_every_character(tmp_path):
    """Rare characters, and those that are not in the text, are bytes; as pieces they would displace words."""
    rare = "".join(map(chr, range(0x4E00, 0x4E64)))
    train_sentencepiece([line + " the" * 50 for line in TEXT] + [rare], tmp_path / "spm.model", 346, threads=1)
    tokenizer = SentencePieceTokenizer(tmp_path / "spm.model")
    characters = [chr(code) for code in range(0, 0x110000, 7) if not 0xD800 <= code < 0xE000]
    lines = [f"the {''.join(characters[start : start + 50])} lim" for start in range(0, len(characters), 50)]
    assert not any((row == tokenizer.dictionary.unk()).any() for row in tokenizer.encode(lines))
    written = "the QJé%Ж漢字 \U0001f600\u2500 <0x41> <unk>"
    assert tokenizer.decode(tokenizer.encode([written])) == [written]
    (row,) = tokenizer.encode(["漢"])
    assert [tokenizer.dictionary[token] for token in row] == ["▁", "<0xE6>", "<0xBC>", "<0xA2>"]
    assert tokenizer.decode([row[:3]]) == ["\ufffd\ufffd"], "a part of a letter"


def test_fairseqs_encoder_reads_bytes(tmp_path, model):
    """It is used in the hub interface; for a vocabulary without bytes it returns what fairseq returns."""
    with_bytes = tmp_path / "spm.model"
    train_sentencepiece(TEXT, with_bytes, 346, threads=1)
    encoder = SentencePieceEncoder(SentencepieceConfig(sentencepiece_model=str(with_bytes)))
    for text in ("the lim 漢字 mu", "<0xE6>", "\U0001f600", ""):
        assert encoder.decode(encoder.encode(text)) == text
    decoded = {"<0xE6>": "\ufffd", "<0x41>": "A", "<mask>": "<mask>", "▁the": "the"}
    decoded["▁the <unk> <0xE6> <0xBC> <mask>"] = "the<unk>\ufffd\ufffd<mask>"
    assert {pieces: encoder.decode(pieces) for pieces in decoded} == decoded
    options = SentencepieceConfig(sentencepiece_model=str(model))
    ours, theirs = SentencePieceEncoder(options), SentencepieceBPE(options)
    for line in [*TEXT[:50], *AWKWARD, "<0xE6>", "▁the <0xE6> <unk>"]:
        pieces = theirs.encode(line)
        assert ours.encode(line) == pieces
        assert (ours.decode(pieces), ours.decode(line)) == (theirs.decode(pieces), theirs.decode(line))


def test_a_model_file_with_and_without_a_dictionary(tmp_path, model):
    path = tmp_path / "any.model"
    path.write_bytes(model.read_bytes())
    pieces = load_tokenizer(path).dictionary.symbols[4:]
    assert pieces == SentencePieceTokenizer(model).dictionary.symbols[4:]
    (tmp_path / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in reversed(pieces)))
    (tmp_path / "spm.bin").write_bytes(model.read_bytes())  # a file of any name
    for file in (path, tmp_path / "spm.bin"):
        assert load_tokenizer(file).dictionary.symbols[4:] == pieces[::-1]
