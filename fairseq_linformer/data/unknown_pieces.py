"""What a vocabulary lacks of the texts that are encoded with it, and the warning about it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .text import MOST_NAMED, first_of

# Above this fraction of unknown pieces, the vocabulary was not made for the text.
MOST_UNKNOWN = 0.001


@dataclass
class Unknown:
    """What the vocabulary lacks of the texts that a command encodes.

    Attributes:
        tokens, unknown: pieces by split, and those that are <unk>.
        characters: how often each stands in the texts that the vocabulary lacks.
    """

    tokens: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)

    def add(self, split: str, tokens: int, unknown: int) -> None:
        self.tokens[split] += tokens
        self.unknown[split] += unknown

    def update(self, other: "Unknown", task: str = "") -> None:
        """Adds another's, the splits under the name of their task."""
        for split, tokens in other.tokens.items():
            self.add(f"{task} {split}".strip(), tokens, other.unknown[split])
        self.characters += other.characters

    def warning(self, remedy: str) -> Iterator[str]:
        """One line where more than MOST_UNKNOWN of a split's pieces are unknown; nothing otherwise."""
        shares = {split: self.unknown[split] / tokens for split, tokens in self.tokens.items()}
        much = {split: share for split, share in shares.items() if share > MOST_UNKNOWN}
        if much:
            named = ", ".join(f"{split} {share:.3%}" for split, share in much.items())
            counts = [f"{character!r} {count:,}" for character, count in self.characters.most_common()]
            listed = first_of(counts, f" and {len(counts) - MOST_NAMED:,} others")
            yield (
                f"warning: unknown pieces: {named}, more than {MOST_UNKNOWN:.1%}: the vocabulary lacks characters of "
                f"this text, which the model cannot tell apart{f' ({listed})' if listed else ''}: {remedy}"
            )


GIVEN_REMEDY = (  # of a command that uses the tokenizer of a model
    "the texts need the vocabulary of their model, so take a checkpoint whose vocabulary has them, or pretrain one: a "
    "vocabulary that linformer prepare corpus makes now lacks none"
)
