"""Tokenizers of this package as encoders of fairseq's tasks and hub interface: text to pieces, and back."""

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
from fairseq.data.encoders import register_bpe
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.dataclass import FairseqDataclass

from .subword_models import JsonTokenizer


@dataclass
class TokenizersConfig(FairseqDataclass):
    """Options of ``bpe: tokenizers``."""

    tokenizers_file: str = field(default="???", metadata={"help": "a tokenizer.json that linformer import wrote"})


@register_bpe("tokenizers", dataclass=TokenizersConfig)
class TokenizersEncoder:
    """``JsonTokenizer`` as an encoder: text to ids, written as text, and back."""

    def __init__(self, cfg: TokenizersConfig) -> None:
        self._tokenizer = JsonTokenizer(Path(cfg.tokenizers_file))
        # The mark of pieces within a word: ## in WordPiece, otherwise nothing.
        self._continuing: str = getattr(self._tokenizer.model.model, "continuing_subword_prefix", None) or ""

    def encode(self, x: str) -> str:
        return " ".join(map(str, self._tokenizer.encode([x])[0]))

    def decode(self, x: str) -> str:
        return self._tokenizer.decode([np.array([self._tokenizer.dictionary.index(name) for name in x.split()])])[0]

    def text_of(self, x: str) -> str:
        """Return the text of a dictionary's symbol: with a space before it if it begins a word."""
        text = self.decode(x).strip()
        begins = self._begins_word(self._tokenizer.dictionary.index(x))
        return f" {text}" if begins else text.removeprefix(self._continuing)

    def is_beginning_of_word(self, x: str) -> bool:
        """Return True if a symbol of the dictionary begins a word, or is a special one."""
        return not x.isdigit() or self._begins_word(int(x))

    def _begins_word(self, token: int) -> bool:
        """Return True if a piece begins a word: in WordPiece one without ##, otherwise one that begins with a space."""
        piece = self._tokenizer.model.id_to_token(token)
        return not piece.startswith(self._continuing) if self._continuing else piece.startswith(("\u2581", "\u0120"))


class SentencePieceEncoder(SentencepieceBPE):
    """fairseq's ``bpe: sentencepiece``, which decodes the piece of a byte as its name, <0xE6>; here it becomes text.

    Bytes that are not UTF-8, such as a single byte of a letter, become U+FFFD.
    """

    def decode(self, x: str) -> str:
        runs = groupby(x.split(" "), key=lambda piece: self.sp.IsByte(self.sp.PieceToId(piece)))
        return super().decode(
            "".join((self.sp.DecodePieces if is_byte else "".join)(list(run)) for is_byte, run in runs)
        )
