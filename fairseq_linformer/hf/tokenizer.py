"""Conversion of tokenizers to tokenizer.json and tokenizer_config.json of transformers.

The ids are those of fairseq's dictionary: <s> 0, <pad> 1, </s> 2, <unk> 3, pieces, and <mask> last.

transformers' converters of sentencepiece models are not used, except their reader of the model file. They produce
other ids for characters with combining marks (``normalizer.py``) and for names of bytes in a text. Their offsets
include the space before a word. They differ between versions 4.57 and 5.
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
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import import_protobuf

from ..data.dictionaries import DICTIONARY_FILE
from ..data.prepare.examples import WHITESPACE, Example, encode_words
from ..data.subword_models import ENCODER_FILE, MERGES_FILE, TOKENIZER_FILE, GPT2Tokenizer, JsonTokenizer
from ..data.tokenizer import SENTENCEPIECE_FILE, WHITE_SPACE, Tokenizer
from ..errors import UserError, check
from .normalizer import SPACE, build_normalizer

CONFIG_FILE = "tokenizer_config.json"
FAIRSEQ_FOLDER = "fairseq"  # subfolder with dict.txt and the subword model, for `linformer import`
FAIRSEQ_FILES = "fairseq_files"  # entry of that file, which transformers preserves: names and base64

_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "padding_side": "right",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
}
_BOS, _PAD, _EOS, _UNK, _MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
SPECIAL = (_BOS, _PAD, _EOS, _UNK)  # ids 0 to 3
_UNIGRAM, _BPE = 1, 2  # of sentencepiece_model.proto: types of models, and of pieces
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_LINE_BREAKS = f"[{''.join(filter(WHITESPACE.match, WHITE_SPACE))}]+"
_HAIR_SPACE = "\u200a"  # removed from texts by all rules of sentencepiece

# Texts that distinguish tokenizers: white space, unknown characters, normalization, the empty text.
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
) -> str:
    """Write a tokenizer in the formats of transformers and fairseq, and compare the ids.

    Sequences are ``<s> A </s>``, and ``<s> A </s> </s> B </s>`` for pairs, as in fairseq's ``sentence_prediction``.
    Symbols of the dictionary that are no pieces, such as madeupword0000, keep their ids; their names get a leading
    space, so that they do not match text. docs/export.md, "The tokenizer", lists texts with other ids than in training.

    Args:
        tokenizer: its dictionary may lack <mask>.
        folder: existing output folder.
        max_length: maximum number of tokens, including special symbols.
        truncation_side: end at which long texts are truncated, "right" or "left".
        init_token: True if sequences begin with <s>.
        separator: True if another </s> precedes the second text.
        one_line: True if all white space becomes spaces, as in labelled texts.

    Returns:
        The name of <mask> in transformers.

    Raises:
        UserError: this format cannot reproduce the ids.
    """
    exported = build_tokenizer(tokenizer)
    if one_line:
        # Like WHITESPACE but without stripping, because the parts of a text around <mask> have ends, too.
        steps = [normalizers.Replace(Regex(_LINE_BREAKS), " ")]
        exported.normalizer = normalizers.Sequence([*steps, exported.normalizer] if exported.normalizer else steps)
        _check_equal(tokenizer, exported, SAMPLE, [WHITESPACE.sub(" ", line) for line in SAMPLE])
    last = exported.get_vocab_size() - 1
    bos, pad, eos, unk, mask = (str(exported.id_to_token(number)) for number in (*range(4), last))
    one_text = [bos, "$A", eos] if init_token else ["$A", eos]
    pair = [*one_text, *([eos] if separator else []), "$B", eos]
    special = [(bos, 0), (eos, 2)] if init_token else [(eos, 2)]
    template = processors.TemplateProcessing(single=one_text, pair=pair, special_tokens=special)
    # Offsets exclude the space before a word, which byte-level tokenizers add to its first piece. A lone mark that ends
    # in white space gets an empty span.
    with_space = any(name in repr(exported.pre_tokenizer) for name in ("ByteLevel(", _HAIR_SPACE))
    trimmed = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    exported.post_processor = trimmed if with_space else template
    # Tokenizer.save raises a plain Exception on a full disk.
    (folder / TOKENIZER_FILE).write_text(exported.to_str(pretty=True), encoding="utf-8")
    names = {"bos": bos, "cls": bos, "pad": pad, "eos": eos, "sep": eos, "unk": unk, "mask": mask}
    config = _CONFIG | {"model_max_length": max_length, "truncation_side": truncation_side}
    config |= {f"{name}_token": symbol for name, symbol in names.items()}
    (folder / FAIRSEQ_FOLDER).mkdir()
    tokenizer.dictionary.save(str(folder / FAIRSEQ_FOLDER / DICTIONARY_FILE))
    tokenizer.save(folder / FAIRSEQ_FOLDER)
    if not isinstance(tokenizer, JsonTokenizer):
        files = folder / FAIRSEQ_FOLDER
        encoded = {file.name: base64.b64encode(file.read_bytes()).decode() for file in sorted(files.iterdir())}
        config[FAIRSEQ_FILES] = encoded
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return mask


def build_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Build a tokenizer of Hugging Face with the ids of `tokenizer`, without adding <s> and </s>.

    Raises:
        UserError: ids of SAMPLE or of the text of a piece differ.
    """
    with TemporaryDirectory() as name:
        tokenizer.save(Path(name))
        if isinstance(tokenizer, JsonTokenizer):
            return tokenizers.Tokenizer.from_file(str(Path(name) / TOKENIZER_FILE))
        if isinstance(tokenizer, GPT2Tokenizer):
            exported, texts = _gpt2(Path(name), tokenizer.dictionary)
        else:
            exported, texts = _sentencepiece(Path(name) / SENTENCEPIECE_FILE, tokenizer)
    special = [AddedToken(symbol, normalized=False, special=True) for symbol in SPECIAL]
    exported.add_special_tokens([*special, AddedToken(_MASK, lstrip=True, normalized=False, special=True)])
    _check_equal(tokenizer, exported, [*SAMPLE, *texts])
    return exported


def drop_line_normalizer(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a tokenizer.json without the normalizer that ``one_line`` adds."""
    steps = (content["normalizer"] or {}).get("normalizers") or [{}]
    if steps[0].get("pattern") != {"Regex": _LINE_BREAKS}:
        return content
    remaining = {"type": "Sequence", "normalizers": steps[1:]} if len(steps) > 2 else next(iter(steps[1:]), None)
    return content | {"normalizer": remaining}


def word_starts(tokenizer: Tokenizer, folder: Path) -> np.ndarray | None:
    """Return True for each id that begins a word, or is special and not <unk>, bool (V,); None if unknown.

    In GPT-2's BPE the first word of a text is not marked.

    Args:
        tokenizer: tokenizer of the training.
        folder: folder with the exported tokenizer.json.
    """
    if isinstance(tokenizer, JsonTokenizer):
        return None  # in WordPiece no piece marks the space before it
    mark = "\u0120" if isinstance(tokenizer, GPT2Tokenizer) else SPACE
    ids = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)).get_vocab()
    starts = np.zeros(len(ids), dtype=bool)
    special = (_BOS, _PAD, _EOS, _MASK)
    starts[[number for name, number in ids.items() if name.startswith(mark) or name in special]] = True
    # Training encodes words separately. If a text has other pieces than its words, word starts are unknown.
    words = ("It", "was", "best,", "of-times", "漢", "字a", "U.N.", "12,345.67", "Don't", "\U0001f600x", "xxxxxx")
    ((row,),), (sizes,) = encode_words([Example(words, None)], tokenizer, prefix="", offset=0)
    (text,) = tokenizer.encode([" ".join(words)])
    in_text = starts[text]
    in_text[0] = True
    is_same = np.array_equal(row, text) and np.array_equal(in_text.nonzero()[0], np.cumsum(sizes) - sizes)
    spans_words = any(mark in name.lstrip(mark) for name in ids)
    return starts if is_same and not spans_words else None


def _symbol_names(dictionary: Dictionary, pieces: Iterable[str]) -> list[str]:
    """Return the names of all ids in order; symbols that are no pieces get a leading space, which matches no text."""
    piece_names = {*pieces, *SPECIAL, _MASK}
    names = [symbol if symbol in piece_names else f" {symbol}" for symbol in dictionary.symbols]
    return names if _MASK in names else [*names, _MASK]


def _check_present(pieces: Iterable[str], dictionary: Dictionary) -> None:
    """Reject a dictionary that lacks pieces: they are <unk> in training, but ids in tokenizer.json."""
    missing = [piece for piece in pieces if piece not in dictionary]
    check("dict.txt", f"a dictionary without {missing[:3]}", not missing, "one with all pieces of the subword model")


def _gpt2(folder: Path, dictionary: Dictionary) -> tuple[tokenizers.Tokenizer, list[str]]:
    """Convert GPT-2's BPE; also return the texts of its pieces."""
    encoder = get_encoder(str(folder / ENCODER_FILE), str(folder / MERGES_FILE))
    _check_present(map(str, encoder.encoder.values()), dictionary)
    pieces = {str(number): piece for number, piece in encoder.decoder.items()}
    names = [pieces.get(name, name) for name in _symbol_names(dictionary, pieces)]
    vocabulary = {name: number for number, name in enumerate(names)}
    exported = tokenizers.Tokenizer(models.BPE(vocabulary, sorted(encoder.bpe_ranks, key=encoder.bpe_ranks.get)))
    exported.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    exported.decoder = decoders.ByteLevel()
    return exported, [encoder.decode([number]) for number in encoder.decoder]


def _sentencepiece(path: Path, tokenizer: Tokenizer) -> tuple[tokenizers.Tokenizer, list[str]]:
    """Convert a sentencepiece model; also return the texts of its pieces and of other symbols of the dictionary."""
    model, processor = import_protobuf().ModelProto(), SentencePieceProcessor(model_file=str(path))
    model.ParseFromString(path.read_bytes())
    type_id, spec = model.trainer_spec.model_type, model.normalizer_spec
    check("model_type", type_id, type_id in (_UNIGRAM, _BPE), f"{_UNIGRAM} (unigram) or {_BPE} (BPE) of sentencepiece")
    pieces, symbols = _scores(model), tokenizer.dictionary.symbols[tokenizer.dictionary.nspecial :]
    _check_present(pieces, tokenizer.dictionary)
    convert = _unigram if type_id == _UNIGRAM else _sentencepiece_bpe
    exported = tokenizers.Tokenizer(convert(model, _symbol_names(tokenizer.dictionary, pieces)))
    exported.normalizer = build_normalizer(spec, processor)
    # fairseq drops white space that the model keeps, and looks up the parts of the text separately.
    kept_spaces = [space for space in WHITE_SPACE if space in "".join(processor.Encode(f"a{space}a", out_type=str))]
    behaviors = {"removed": "".join(kept_spaces), "isolated": _absent_from_pieces(model)}
    splits = [pre_tokenizers.Split(Regex(f"[{chars}]"), behavior) for behavior, chars in behaviors.items() if chars]
    if steps := _split_words(_word_mark(model)) + splits:
        exported.pre_tokenizer = pre_tokenizers.Sequence(steps)
    decoding = [decoders.Replace(Regex(f"{SPACE}{_HAIR_SPACE}?"), " "), decoders.ByteFallback(), decoders.Fuse()]
    if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
        decoding.append(decoders.Strip(" ", 1, 0))
    exported.decoder = decoders.Sequence(decoding)
    texts = [*_scores(model, _NORMAL, _USER_DEFINED), *({*symbols} - {*pieces, _MASK})]
    return exported, [text.replace(SPACE, " ") for text in texts]


def _scores(model: Any, *types: int) -> dict[str, float]:
    """Return the scores of pieces of the given types without <mask>; by default of all that encoding returns."""
    types = types or (_NORMAL, _USER_DEFINED, *([_BYTE] if model.trainer_spec.byte_fallback else []))
    return {piece.piece: piece.score for piece in model.pieces if piece.type in types and piece.piece != _MASK}


def _word_mark(model: Any) -> str:
    """Return the mark that begins each word in tokenizer.json; empty if pieces span words.

    The mark ends in white space, so that a lone mark has an empty span. Exceptions are BPE, where it would be two
    pieces, and models without normalization, whose texts can contain that character.
    """
    pieces, spec = _scores(model), model.normalizer_spec
    if not spec.add_dummy_prefix or SPACE not in pieces or any(SPACE in piece[1:] for piece in pieces):
        return ""
    unigram = model.trainer_spec.model_type == _UNIGRAM
    return SPACE + _HAIR_SPACE if spec.precompiled_charsmap and unigram else SPACE


def _split_words(mark: str) -> list[pre_tokenizers.PreTokenizer]:
    """Return steps that split a text into words and replace the space before a word by the mark."""
    if not mark:
        return []
    split = pre_tokenizers.Split(SPACE, "merged_with_next")
    bare = pre_tokenizers.Split(Regex(f"^{SPACE}(?=[^{SPACE}])"), "removed")
    marked = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False)
    if mark == SPACE:
        return [split, bare, marked]
    spaced = pre_tokenizers.Metaspace(_HAIR_SPACE, prepend_scheme="always", split=False)
    lone = pre_tokenizers.Split(Regex(f"(?<=^{_HAIR_SPACE}){SPACE}"), "removed")  # without a following word
    return [split, bare, spaced, lone, marked]


def _absent_from_pieces(model: Any) -> str:
    """Return the characters of <0x41>, <unk>, … that are in no piece, for a model with byte pieces.

    Texts are split at these characters, which become bytes. Otherwise such a name in a text would match its entry in
    the vocabulary.
    """
    if not model.trainer_spec.byte_fallback:
        return ""
    names = "".join((*SPECIAL, _MASK, *_scores(model, _BYTE)))
    return "".join(sorted({*names} - {*"".join(_scores(model, _NORMAL, _USER_DEFINED))}))


def _unigram(model: Any, names: list[str]) -> models.Unigram:
    """Convert a unigram model. All entries can match text, so symbols that are no pieces get a low score.

    The score of an unknown character is the lowest score minus ten. So if a piece has a character that is no piece, no
    score may be lower than those of the model.
    """
    normal = _scores(model, _NORMAL)
    lowest, highest = min(normal.values()), max(normal.values())
    is_closed = all(character in normal for piece in normal for character in piece)
    never = 1000 * min(lowest, -1.0) if is_closed else lowest
    # As in sentencepiece, a user-defined symbol has priority over the pieces of its characters.
    user_defined = {symbol: len(symbol.encode()) * highest - 0.1 for symbol in _scores(model, _USER_DEFINED)}
    scores = {**normal, **user_defined, **dict.fromkeys((*SPECIAL, _MASK), never)}
    mark = _word_mark(model) or SPACE
    pieces = [(name.replace(SPACE, mark), scores.get(name, never)) for name in names]
    return models.Unigram(pieces, len(SPECIAL) - 1, model.trainer_spec.byte_fallback)


def _sentencepiece_bpe(model: Any, names: list[str]) -> models.BPE:
    """Convert a BPE: sentencepiece merges the pair with the highest score, tokenizer.json that of the first rank."""
    normal = _scores(model, _NORMAL)
    merges = []
    for piece in sorted(normal, key=lambda piece: -normal[piece]):
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        # Repeated characters are merged from the left, so the longer half comes first.
        merges += sorted((pair for pair in halves if normal.keys() >= set(pair)), key=lambda pair: -len(pair[0]))
    vocabulary = {name: number for number, name in enumerate(names)}
    fallback = model.trainer_spec.byte_fallback
    return models.BPE(vocabulary, merges, unk_token=_UNK, fuse_unk=True, byte_fallback=fallback)


def _check_equal(
    tokenizer: Tokenizer, exported: tokenizers.Tokenizer, lines: Sequence[str], trained: Sequence[str] | None = None
) -> None:
    """Reject ids that differ from those of `tokenizer`; `trained` has the lines as in training, if different."""
    encoded = exported.encode_batch(list(lines), add_special_tokens=False)
    for line, ids, row in zip(lines, tokenizer.encode(lines if trained is None else trained), encoded, strict=True):
        if ids.tolist() != row.ids:
            raise UserError(f"tokenizer.json cannot express this tokenizer: {line!r} is {ids.tolist()}, not {row.ids}")
