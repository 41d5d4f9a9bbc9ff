"""sentencepiece's normalization in the normalizers of Hugging Face's tokenizers.

sentencepiece replaces the longest match of its rule at each place. ``normalizers.Precompiled`` reads the same rule, but
looks at user-perceived characters ("graphemes") of less than six bytes as a whole, replaces these by the shortest match
and drops the rest, and at single characters in longer ones. So ``e`` with two accents, half-width katakana with a voice
mark, and Hangul as macOS writes it come out wrong. Here Precompiled sees single characters alone, and composition (NFC)
joins afterwards what the rule joins, and nothing else: barriers part the rest, as NFC would also reorder marks.
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

# sentencepiece's own rules. In all of them, what is joined is what NFC would join.
_RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")

# Unassigned, and so in no text. They part graphemes, as control characters do.
_BARRIER, _ISOLATED = "\ufff0", "\ufff1"
_VOWELS, _FINALS = "\u1161-\u1175", "\u11a8-\u11c2"  # of Hangul, after an initial
_INITIALS = "\u1100-\u1112"

# What joins the character before it, in a grapheme or in NFC: marks, joiners, half-width voice marks, tags, Hangul.
_JOINS = rf"[\p{{M}}\n\u200c\u200d\uff9e\uff9f\x{{e0020}}-\x{{e007f}}{_VOWELS}{_FINALS}]"

# Before it, but not at the start, where nothing needs to be parted: what is inserted there makes Precompiled panic.
_JOINING = rf"(?!\A)(?={_JOINS})"


def build_normalizer(spec: Any, processor: SentencePieceProcessor) -> normalizers.Normalizer:
    """Build the normalizer of a model.

    Args:
        spec: ``NormalizerSpec`` of the model.
        processor: of the model.

    Raises:
        UserError: the rule is none of sentencepiece's.
    """
    steps = list(_rule(spec, processor))
    # The order of the two matters where a text becomes empty: only removal leaves it so.
    prefix = [normalizers.Prepend(SPACE)] if spec.add_dummy_prefix else []
    if spec.remove_extra_whitespaces:
        # \A and \z, as ^ and $ are the ends of lines.
        steps += [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" +"), SPACE), *prefix]
        steps.append(normalizers.Replace(Regex(rf"{SPACE}+\z"), ""))
    else:
        steps = [*prefix, *steps, normalizers.Replace(" ", SPACE)]
    return normalizers.Sequence(steps)


def _rule(spec: Any, processor: SentencePieceProcessor) -> Iterator[normalizers.Normalizer]:
    if not spec.precompiled_charsmap:
        return
    check("normalization_rule_name", spec.name, spec.name in _RULES, f"identity or one of {', '.join(_RULES)}")
    others, joined = _compositions(processor)
    yield normalizers.Replace(Regex(rf"(?!\A)(?=[{others}])|(?<=[{others}]){_JOINING}"), _BARRIER)
    yield normalizers.Replace(Regex(_JOINING), _ISOLATED)
    yield normalizers.Precompiled(spec.precompiled_charsmap)
    yield normalizers.Replace(_ISOLATED, "")
    yield normalizers.Replace(Regex(f"{_JOINING}(?!{joined})"), _BARRIER)
    yield normalizers.NFC()
    yield normalizers.Replace(_BARRIER, "")


def _compositions(processor: SentencePieceProcessor) -> tuple[str, str]:
    """The characters that the rule replaces by several or by none, and a regular expression for marks that it joins to
    what is before them."""
    others = []
    before: dict[str, set[str]] = defaultdict(set)
    for character in _changeable():
        if len(_normalized(character, processor)) != 1:
            others.append(character)
        parts = unicodedata.normalize("NFD", character)
        if len(parts) > 1 and _normalized(parts, processor) == character:
            before[parts[-1]].add(parts[:-1])
    joined = [f"(?<={'|'.join(map(re.escape, sorted(those)))}){mark}" for mark, those in sorted(before.items())]
    if _normalized("\u1100\u1161", processor) == "\uac00":
        joined += [f"(?<=[{_INITIALS}])[{_VOWELS}]", f"(?<=[{_INITIALS}][{_VOWELS}])[{_FINALS}]"]
    return "".join(others), "|".join(joined)


@cache
def _changeable() -> list[str]:
    """The few thousand characters of a million that Unicode composes of others, and control characters."""
    characters = map(chr, range(sys.maxunicode + 1))
    return [one for one in characters if unicodedata.decomposition(one) or unicodedata.category(one) == "Cc"]


def _normalized(text: str, processor: SentencePieceProcessor) -> str:
    """A text in the midst of a longer one, of characters that no mark joins."""
    return processor.Normalize(f"0{text}0").strip(SPACE)[1:-1]
