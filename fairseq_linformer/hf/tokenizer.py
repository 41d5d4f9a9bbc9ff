"""Writes a tokenizer as Hugging Face's generic fast class reads it: tokenizer.json and tokenizer_config.json.

The ids are those of training: fairseq's dictionary numbers the pieces, <s> 0, <pad> 1, </s> 2, <unk> 3, <mask> last.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tokenizers
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from fairseq.tokenizer import tokenize_line
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from ..data.prepare.examples import WHITESPACE, Example, encode_words
from ..data.tokenizer import (
    ENCODER_FILE,
    MERGES_FILE,
    SENTENCEPIECE_FILE,
    TOKENIZER_FILE,
    WHITE_SPACE,
    GPT2Tokenizer,
    JsonTokenizer,
    Tokenizer,
)
from ..errors import UserError, check
from .normalizer import SPACE, normalizer_of
from .sentencepiece_proto import ModelType, PieceType, SentencePieceModel, read_sentencepiece

CONFIG_FILE = "tokenizer_config.json"
FAIRSEQ_FILES = "fairseq_files"  # in that file, which transformers saves with all its entries: names and base64

_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "padding_side": "right",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
}
_BOS, _PAD, _EOS, _UNK, _MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
SPECIAL = (_BOS, _PAD, _EOS, _UNK)  # their numbers are their places
_HAIR_SPACE = "\u200a"  # in no text that a rule of sentencepiece has normalized

# Text on which tokenizers differ: white space of all kinds, unknown characters, normalization, nothing.
SAMPLE = (
    "",
    " ",
    "   It was  the best of times ,\tit was the worst…  ",
    "Don't they'll WE'VE 'tis ''s 12,345.67 $9 x=y*z; a_b/c@d.e",
    "a\u00a0b\u2028c\u3000d\u0085e\u0085 \u0085f\u1680g\u2009h\ufeffi\u200bj\u200ck\u00adl",
    "\u0085",
    "\u2581",
    "a\u2581b \u2581 c\u2581\u2581d\u2581",
    "\x00a\x01b\x07c\x1bd\x1c\x1fe\x7ff\x80g\x9fh",
    "漢字 the 漢 the漢字the 漢\u0085字 Ж漢Ж \U0001f600\U0001f600 \U0010fffd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1eb\U0001f1f7 \U0001f44d\U0001f3fd",
    "\ufb01ne \uff21\uff22\uff43 ½ ² ™ ㍿ ﷺ Ⅷ ① \u017f \u00b4 \u00a8",
    "caf\u00e9 cafe\u0301 \u00c5 A\u030a \u212b a\u0302\u0301 a\u0323\u0302 a\u0302\u0323",
    "q\u0301\u0323 t\u0344 \ufb01\u0301 \u0301",
    "\uff76\uff9e \u304b\u3099 \u1112\u1161\u11ab \ud55c \u0634\u0651\u064e",
    "\u05e9\u05c1\u05b8 \u0915\u093c \u09c7\u09be",
    "....... ------ !!!?!? ((([[[ xxxxxxxxx aaaaaaaaaaaaa 000000000",
)


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    max_length: int,
    truncation_side: str = "right",
    init_token: bool = True,
    separator: bool = True,
    one_line: bool = False,
    files: Path | None = None,
) -> str:
    """Writes tokenizer.json and tokenizer_config.json, and checks that they give the ids of `tokenizer`.

    ``PreTrainedTokenizerFast.from_pretrained(folder)`` reads them, and so does ``AutoTokenizer``. Rows are
    ``<s> A </s>``, and ``<s> A </s> </s> B </s>`` for pairs, as in fairseq's ``sentence_prediction``. Symbols of the
    dictionary that stand for no text, such as madeupword0000, keep their numbers. A space comes before their names, so
    that no text is taken for one.

    docs/export.md, "The tokenizer", has the texts whose ids differ from those of training. Text around ``<mask>`` is
    encoded piece by piece, as in ``fill_mask`` of fairseq's hub interface. In a unigram model without pieces of bytes,
    full-width forms of the special symbols' names where ``<`` is no piece are symbols, too.

    Args:
        tokenizer: with its dictionary, which may lack <mask>.
        folder: where to write; it exists.
        max_length: the longest row that the model reads, special symbols included.
        truncation_side: which end of a long text is left out: "right" or "left".
        init_token: whether rows begin with <s>.
        separator: whether another </s> comes before the second text.
        one_line: whether tabs, line breaks and the like are spaces, as in labelled texts.
        files: a folder with the tokenizer in fairseq's form, to go along in tokenizer_config.json.

    Returns:
        What <mask> is called in them.

    Raises:
        UserError: an option is not allowed, or this format cannot give the same ids; the message says why.
    """
    check("truncation_side", truncation_side, truncation_side in ("right", "left"), "right or left")
    special = 2 + init_token + separator
    check("max_length", max_length, max_length > special, f"more than {special}, the special symbols of a pair")
    exported = build_tokenizer(tokenizer)
    if one_line:
        _read_as_one_line(exported)
        _check_equal(tokenizer, exported, SAMPLE, [WHITESPACE.sub(" ", line) for line in SAMPLE])
    last = exported.get_vocab_size() - 1
    bos, pad, eos, unk, mask = (str(exported.id_to_token(number)) for number in (*range(4), last))
    frame = _frame(bos if init_token else "", eos, separator)
    # The place of a word is without the space before it, which in pieces of bytes belongs to its first one. A mark that
    # is a piece alone and ends in white space gets an empty one.
    spaced = any(name in repr(exported.pre_tokenizer) for name in ("ByteLevel(", _HAIR_SPACE))
    trimmed = processors.Sequence([processors.ByteLevel(trim_offsets=True), frame])
    exported.post_processor = trimmed if spaced else frame
    # Its own save raises a plain Exception on a full disk.
    (folder / TOKENIZER_FILE).write_text(exported.to_str(pretty=True), encoding="utf-8")
    named = {"bos": bos, "cls": bos, "pad": pad, "eos": eos, "sep": eos, "unk": unk, "mask": mask}
    config = _CONFIG | {"model_max_length": max_length, "truncation_side": truncation_side}
    config |= {f"{name}_token": symbol for name, symbol in named.items()}
    if files is not None:
        held = {file.name: base64.b64encode(file.read_bytes()).decode() for file in sorted(files.iterdir())}
        config[FAIRSEQ_FILES] = held
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return mask


def build_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer of Hugging Face with the ids of `tokenizer`, checked on a sample, that adds no <s> and </s>.

    Raises:
        UserError: it cannot give the same ids; the message says why.
    """
    with TemporaryDirectory() as name:
        tokenizer.save(Path(name))
        if isinstance(tokenizer, JsonTokenizer):
            return tokenizers.Tokenizer.from_file(str(Path(name) / TOKENIZER_FILE))
        if isinstance(tokenizer, GPT2Tokenizer):
            exported, texts = _gpt2(Path(name), tokenizer.dictionary)
        else:
            exported, texts = _sentencepiece(Path(name) / SENTENCEPIECE_FILE, tokenizer)
    exported.add_special_tokens(
        [AddedToken(symbol, normalized=False, special=True) for symbol in SPECIAL]
        + [AddedToken(_MASK, lstrip=True, normalized=False, special=True)]
    )
    _check_equal(tokenizer, exported, [*SAMPLE, *texts])
    return exported


def _read_as_one_line(exported: tokenizers.Tokenizer) -> None:
    """As ``WHITESPACE``. The ends of a text are not stripped: those around <mask> are ends here, too."""
    steps = [normalizers.Replace(Regex(_white_spaces_of_lines()), " ")]
    exported.normalizer = normalizers.Sequence([*steps, exported.normalizer] if exported.normalizer else steps)


def with_lines(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a tokenizer.json, without what ``_read_as_one_line`` added: so an import is what it came from."""
    steps = (content["normalizer"] or {}).get("normalizers") or [{}]
    if steps[0].get("pattern") != {"Regex": _white_spaces_of_lines()}:
        return content
    others = {"type": "Sequence", "normalizers": steps[1:]} if len(steps) > 2 else next(iter(steps[1:]), None)
    return content | {"normalizer": others}


def _white_spaces_of_lines() -> str:
    return f"[{''.join(filter(WHITESPACE.match, WHITE_SPACE))}]+"


def word_starts(tokenizer: Tokenizer, folder: Path) -> np.ndarray | None:
    """Whether each id begins a word, bool (V,), special symbols but <unk> included; None where ids do not show it.

    In GPT-2's BPE the first word of a text has no mark.

    Args:
        tokenizer: that of the training.
        folder: with the tokenizer.json made of it.
    """
    if isinstance(tokenizer, JsonTokenizer):
        return None  # WordPiece does not tell a comma after a word from one that stands alone
    mark = "\u0120" if isinstance(tokenizer, GPT2Tokenizer) else SPACE
    ids = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)).get_vocab()
    begins = np.zeros(len(ids), dtype=bool)
    special = (_BOS, _PAD, _EOS, _MASK)
    begins[[number for name, number in ids.items() if name.startswith(mark) or name in special]] = True
    # Where pieces are others in a text than in words alone, which training encodes, ids do not show it.
    words = ("It", "was", "best,", "of-times", "漢", "字a", "U.N.", "12,345.67", "Don't", "\U0001f600x", "xxxxxx")
    ((row,),), (sizes,) = encode_words([Example(words, None)], tokenizer, where="", before=0)
    (text,) = tokenizer.encode([" ".join(words)])
    found = begins[text]
    found[0] = True
    shown = np.array_equal(row, text) and np.array_equal(found.nonzero()[0], np.cumsum(sizes) - sizes)
    across = any(mark in name.lstrip(mark) for name in ids)
    return begins if shown and not across else None


def _frame(bos: str, eos: str, separator: bool) -> processors.TemplateProcessing:
    first, second = [bos, "$A", eos][not bos :], ["$B", eos]
    names = ((bos, 0), (eos, 2))[not bos :]
    pair = [*first, *([eos] if separator else []), *second]
    return processors.TemplateProcessing(single=first, pair=pair, special_tokens=names)


def _names(dictionary: Dictionary, pieces: Iterable[str]) -> list[str]:
    """The names of all ids, in order. No text is taken for a symbol that stands for none: its name has a space."""
    known = {*pieces, *SPECIAL, _MASK}
    names = [symbol if symbol in known else f" {symbol}" for symbol in dictionary.symbols]
    return names if _MASK in names else [*names, _MASK]


def _check_present(pieces: Iterable[str], dictionary: Dictionary) -> None:
    """Refuses pieces that are <unk> in training: a piece has a number of its own in tokenizer.json."""
    missing = [piece for piece in pieces if piece not in dictionary]
    if missing:
        raise UserError(
            f"the dictionary lacks {len(missing)} of the model's pieces, {_first(missing)}: training made each of them "
            f"{_UNK}, which tokenizer.json cannot express"
        )


def _first(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (" and others" if len(names) > 3 else "")


def _gpt2(folder: Path, dictionary: Dictionary) -> tuple[tokenizers.Tokenizer, list[str]]:
    """GPT-2's BPE, without an entry for what is not text, and the text of its pieces."""
    encoder = get_encoder(str(folder / ENCODER_FILE), str(folder / MERGES_FILE))
    _check_present(map(str, encoder.encoder.values()), dictionary)
    pieces = {str(number): piece for number, piece in encoder.decoder.items()}
    names = [pieces.get(name, name) for name in _names(dictionary, pieces)]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = sorted(encoder.bpe_ranks, key=encoder.bpe_ranks.get)
    lost = ["".join(pair) for pair in merges if not {*pair, "".join(pair)} <= vocabulary.keys()]
    if lost:
        raise UserError(f"{ENCODER_FILE} has no number for {len(lost)} pieces of {MERGES_FILE}, {_first(lost)}")
    exported = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    exported.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    exported.decoder = decoders.ByteLevel()
    return exported, [encoder.decode([number]) for number in encoder.decoder]


def _sentencepiece(path: Path, tokenizer: Tokenizer) -> tuple[tokenizers.Tokenizer, list[str]]:
    """A sentencepiece model, and the text of its pieces."""
    model, dictionary = read_sentencepiece(path.read_bytes()), tokenizer.dictionary
    processor = SentencePieceProcessor(model_file=str(path))
    _check_expressible(model, tokenizer)
    make = {ModelType.UNIGRAM: _unigram, ModelType.BPE: _sentencepiece_bpe}[ModelType(model.model_type)]
    exported = tokenizers.Tokenizer(make(model, _names(dictionary, model.scores())))
    exported.normalizer = normalizer_of(model, processor)
    # fairseq drops white space that the model leaves in the text, and looks up what is on both sides of it alone.
    left = [space for space in WHITE_SPACE if space in "".join(processor.Encode(f"a{space}a", out_type=str))]
    parts = {"removed": "".join(left), "isolated": _absent_from_pieces(model)}
    splits = [pre_tokenizers.Split(Regex(f"[{found}]"), how) for how, found in parts.items() if found]
    if parted := _into_words(_word_mark(model)) + splits:
        exported.pre_tokenizer = pre_tokenizers.Sequence(parted)
    steps = [decoders.Replace(Regex(f"{SPACE}{_HAIR_SPACE}?"), " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix or model.remove_extra_whitespaces:
        steps.append(decoders.Strip(" ", 1, 0))
    exported.decoder = decoders.Sequence(steps)
    return exported, [piece.replace(SPACE, " ") for piece in model.scores(PieceType.NORMAL, PieceType.USER_DEFINED)]


def _word_mark(model: SentencePieceModel) -> str:
    """The beginning of each word in tokenizer.json; nothing where a piece has two words, and no text is parted.

    It ends in white space, for a mark alone to have an empty place. Not in a BPE, where each of two characters would be
    a piece, nor where a text that is not normalized can hold that character.
    """
    pieces = model.scores()
    if not model.add_dummy_prefix or SPACE not in pieces or any(SPACE in piece[1:] for piece in pieces):
        return ""
    return SPACE + _HAIR_SPACE if model.charsmap and model.model_type == ModelType.UNIGRAM else SPACE


def _into_words(mark: str) -> list[pre_tokenizers.PreTokenizer]:
    """Parts a text into its words, whose places are without the space before them: the mark takes its stead."""
    if not mark:
        return []
    parted = pre_tokenizers.Split(SPACE, "merged_with_next")
    bare = pre_tokenizers.Split(Regex(f"^{SPACE}(?=[^{SPACE}])"), "removed")
    marked = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False)
    if mark == SPACE:
        return [parted, bare, marked]
    spaced = pre_tokenizers.Metaspace(_HAIR_SPACE, prepend_scheme="always", split=False)
    alone = pre_tokenizers.Split(Regex(f"(?<=^{_HAIR_SPACE}){SPACE}"), "removed")  # with no word after it
    return [parted, bare, spaced, alone, marked]


def _absent_from_pieces(model: SentencePieceModel) -> str:
    """The characters of the names <0x41>, <unk>, … that are in no piece, of a model with pieces of bytes.

    A text is parted there: each such character becomes its bytes, whatever is beside it. Otherwise a whole name, as an
    entry of the vocabulary, would be found in a text where a character of it is unknown, which costs more than all.
    """
    if not model.byte_fallback:
        return ""
    names = "".join((*SPECIAL, _MASK, *model.scores(PieceType.BYTE)))
    return "".join(sorted({*names} - {*"".join(model.scores(PieceType.NORMAL, PieceType.USER_DEFINED))}))


def _check_expressible(model: SentencePieceModel, tokenizer: Tokenizer) -> None:
    """Refuses what tokenizer.json has no means for."""
    dictionary, pieces = tokenizer.dictionary, model.scores()
    if model.model_type not in set(ModelType):
        raise UserError(f"a sentencepiece model of type {model.model_type} cannot be exported: only unigram and BPE")
    for option, value in (("treat_whitespace_as_suffix", False), ("escape_whitespaces", True)):
        if getattr(model, option) != value:
            raise UserError(f"a sentencepiece model with {option}={not value} cannot be exported")
    split = [piece for piece in pieces if tokenize_line(piece) != [piece]]
    if split:
        raise UserError(f"fairseq splits {len(split)} of the model's pieces at white space, {_first(split)}")
    _check_present(pieces, dictionary)
    pieces_and_mask = {*pieces, _MASK}
    others = [symbol for symbol in dictionary.symbols[dictionary.nspecial :] if symbol not in pieces_and_mask]
    found = [name for name, ids in zip(others, tokenizer.encode(others), strict=True) if dictionary.index(name) in ids]
    if found:
        raise UserError(f"the dictionary holds text that the model does not know, {_first(found)}")
    if model.model_type == ModelType.UNIGRAM:
        return
    open_pieces = _open_pieces(model)
    for kind, those in (
        ("user-defined symbols", list(model.scores(PieceType.USER_DEFINED))),
        ("unused pieces", model.unused()),
        ("pieces with characters that are no pieces", open_pieces),
    ):
        if those:
            raise UserError(f"a BPE of sentencepiece with {kind} cannot be exported: {_first(those)}")


def _open_pieces(model: SentencePieceModel) -> list[str]:
    """The pieces with a character that is no piece. What an unknown character costs matters to these alone."""
    normal = model.scores(PieceType.NORMAL)
    return [piece for piece in normal if not all(character in normal for character in piece)]


def _unigram(model: SentencePieceModel, names: list[str]) -> models.Unigram:
    """Every entry is looked for in the text, so those that must not be found there have a low score.

    An unknown character costs ten more than the lowest score. Where that matters, no score is lower than in the model.
    """
    normal = model.scores(PieceType.NORMAL)
    lowest, highest = min(normal.values()), max(normal.values())
    never = lowest if _open_pieces(model) else 1000 * min(lowest, -1.0)
    # As sentencepiece has it: long enough a symbol wins over all pieces that it is made of.
    own = {symbol: len(symbol.encode()) * highest - 0.1 for symbol in model.scores(PieceType.USER_DEFINED)}
    low = [symbol for symbol, score in own.items() if score < never]
    if low:
        raise UserError(f"user-defined symbols of this model cannot be exported: {_first(low)}")
    scores = {**normal, **own, **dict.fromkeys((*SPECIAL, _MASK), never)}
    mark = _word_mark(model) or SPACE
    pieces = [(name.replace(SPACE, mark), scores.get(name, never)) for name in names]
    return models.Unigram(pieces, len(SPECIAL) - 1, model.byte_fallback)


def _sentencepiece_bpe(model: SentencePieceModel, names: list[str]) -> models.BPE:
    """sentencepiece joins the two neighbours whose piece has the highest score; here each two have a rank."""
    normal = model.scores(PieceType.NORMAL)
    merges = []
    for piece in sorted(normal, key=lambda piece: -normal[piece]):
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        # In a run of one character, which is joined from the left, the longer half comes first.
        merges += sorted((pair for pair in halves if normal.keys() >= set(pair)), key=lambda pair: -len(pair[0]))
    return models.BPE(
        vocab={name: number for number, name in enumerate(names)},
        merges=merges,
        unk_token=_UNK,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _check_equal(
    tokenizer: Tokenizer, exported: tokenizers.Tokenizer, lines: Sequence[str], trained: Sequence[str] | None = None
) -> None:
    """Refuses other ids than those of `tokenizer`, which guards against what nobody thought of.

    `trained`: what training makes of the lines before they are encoded, if anything.
    """
    encoded = exported.encode_batch(list(lines), add_special_tokens=False)
    for line, ids, theirs in zip(lines, tokenizer.encode(lines if trained is None else trained), encoded, strict=True):
        if ids.tolist() != theirs.ids:
            raise UserError(
                f"this tokenizer cannot be exported: {line!r} would be {theirs.ids}, and is {ids.tolist()} in training"
            )
