"""sentencepiece's normalization in the normalizers of Hugging Face's tokenizers.

sentencepiece replaces the longest match of its rule at each position. ``normalizers.Precompiled`` reads the same rule,
but replaces a user-perceived character ("grapheme") of less than six bytes by its shortest match as a whole, and a
longer one character by character. So it normalizes ``e`` with two accents, half-width katakana with a voice mark, and
Hangul in the form of macOS incorrectly. Here Precompiled is applied to single characters. NFC then composes the pairs
that the rule composes; barriers separate other pairs, because NFC also reorders marks.
"""

import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import Regex, normalizers

from ..errors import check

SPACE = "\u2581"  # sentencepiece's mark of a space

# sentencepiece's built-in rules. Their compositions are all those of NFC too.
_RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")

# Unassigned characters, which no text contains. They separate graphemes like control characters.
_BARRIER, _ISOLATED = "\ufff0", "\ufff1"
_VOWELS, _FINALS = "\u1161-\u1175", "\u11a8-\u11c2"  # of Hangul, which follow an initial
_INITIALS = "\u1100-\u1112"

# Characters that extend a grapheme or compose in NFC: marks, joiners, half-width voice marks, tags, Hangul.
_JOINS = rf"[\p{{M}}\n\u200c\u200d\uff9e\uff9f\x{{e0020}}-\x{{e007f}}{_VOWELS}{_FINALS}]"

# The position before it, except the start of the text, where an insertion would make Precompiled panic.
_JOINING = rf"(?!\A)(?={_JOINS})"


def build_normalizer(spec: Any, processor: SentencePieceProcessor) -> normalizers.Normalizer:
    """Build the normalizer of a model.

    Args:
        spec: ``NormalizerSpec`` of the model.
        processor: of the model.

    Raises:
        UserError: the rule is not built into sentencepiece.
    """
    steps = list(_rule(spec, processor))
    # The order of steps matters for texts that become empty: only with removal they stay empty.
    prefix = [normalizers.Prepend(SPACE)] if spec.add_dummy_prefix else []
    if spec.remove_extra_whitespaces:
        # \A and \z, because ^ and $ are the ends of lines.
        steps += [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" +"), SPACE), *prefix]
        steps.append(normalizers.Replace(Regex(rf"{SPACE}+\z"), ""))
    else:
        steps = [*prefix, *steps, normalizers.Replace(" ", SPACE)]
    return normalizers.Sequence(steps)


def _rule(spec: Any, processor: SentencePieceProcessor) -> Iterator[normalizers.Normalizer]:
    if not spec.precompiled_charsmap:
        return
    check("normalization_rule_name", spec.name, spec.name in _RULES, f"identity or one of {', '.join(_RULES)}")
    non_single, marks = _compositions(processor)
    yield normalizers.Replace(Regex(rf"(?!\A)(?=[{non_single}])|(?<=[{non_single}]){_JOINING}"), _BARRIER)
    yield normalizers.Replace(Regex(_JOINING), _ISOLATED)
    yield normalizers.Precompiled(spec.precompiled_charsmap)
    yield normalizers.Replace(_ISOLATED, "")
    yield normalizers.Replace(Regex(f"{_JOINING}(?!{marks})"), _BARRIER)
    yield normalizers.NFC()
    yield normalizers.Replace(_BARRIER, "")


def _compositions(processor: SentencePieceProcessor) -> tuple[str, str]:
    """Return the characters that the rule replaces by several or none, and a pattern of the marks that it composes."""
    non_single = []
    bases: dict[str, set[str]] = defaultdict(set)
    for character in _changeable():
        if len(_normalized(character, processor)) != 1:
            non_single.append(character)
        parts = unicodedata.normalize("NFD", character)
        if len(parts) > 1 and _normalized(parts, processor) == character:
            bases[parts[-1]].add(parts[:-1])
    marks = [f"(?<={'|'.join(map(re.escape, sorted(group)))}){mark}" for mark, group in sorted(bases.items())]
    if _normalized("\u1100\u1161", processor) == "\uac00":
        marks += [f"(?<=[{_INITIALS}])[{_VOWELS}]", f"(?<=[{_INITIALS}][{_VOWELS}])[{_FINALS}]"]
    return "".join(non_single), "|".join(marks)


@cache
def _changeable() -> list[str]:
    """Return the few thousand characters that Unicode decomposes, and control characters."""
    characters = map(chr, range(sys.maxunicode + 1))
    return [char for char in characters if unicodedata.decomposition(char) or unicodedata.category(char) == "Cc"]


def _normalized(text: str, processor: SentencePieceProcessor) -> str:
    """Normalize a text inside a longer one, between characters that do not compose."""
    return processor.Normalize(f"0{text}0").strip(SPACE)[1:-1]
