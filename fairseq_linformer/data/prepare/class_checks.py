"""What is to be said of classes and scores of one's own: which are rare, may be the same, or are hard to learn."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from ...errors import UserError
from ..task_record import check_label
from ..text import first_of
from .examples import names_of
from .label_kinds import MISSING, Item, number_of

RARE = 10  # rows of train: a class with fewer is named
MOST_COMPARED = 2000  # classes that are looked through for misspelt ones
LEAST_DEVIATION = 0.05  # of scores, as a share of the highest


def highest(items: Sequence[Item]) -> float:
    """What scores are divided by, so that the highest, or the lowest where that is further from 0, is 1 (or -1)."""
    return max(abs(float(str(item.example.label))) for item in items) or 1.0


def scores_notes(items: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    scores = [float(str(item.example.label)) for item in items["train"]]
    deviation, scale = statistics.pstdev(scores), highest(items["train"])
    yield f"scores from {min(scores):g} to {max(scores):g}, written divided by {scale:g}"
    if deviation < LEAST_DEVIATION * scale:
        yield (
            f"warning: the scores' standard deviation, {deviation:.3g}, is less than {LEAST_DEVIATION:.0%} of the "
            "highest: a model learns them badly; subtract their mean first, or take logarithms"
        )


def class_notes(items: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    """Which classes are rare, and of multi-label rows how many have none."""
    train: Counter[str] = Counter()
    for item in items["train"]:
        for name in names_of(item.example.label):
            if name not in train:
                check_label(name, f"{item.where}: ")
            train[name] += 1
    if len(train) < 2:
        raise UserError(f"train has {f'one class, {min(train)!r}' if train else 'no class'}: two are needed")
    for split, rows in items.items():
        for item in rows:
            if unknown := set(names_of(item.example.label)) - set(train):
                raise UserError(f"{item.where}: label {min(unknown)!r} of {split} is not in train: {_some(train)}")
        if without := sum(item.example.label == () for item in rows):
            yield f"{split}: {without:,} rows have no class"
    if rare := {name: number for name, number in train.items() if number < RARE}:
        yield f"warning: {len(rare):,} classes have fewer than {RARE} rows in train: {_some(rare)}"
    missing = [f"{name!r} ({train[name]:,} rows)" for name in train if name.lower() in MISSING]
    if missing and isinstance(items["train"][0].example.label, str):
        yield (
            f"warning: a class that may mean that none is known: {first_of(missing)}; leave the cells empty where it "
            "does, and these rows are left out"
        )
    if alike := list(_alike(train)):
        yield f"warning: classes that differ only in capitals, or are one number: {first_of(alike)}"
    if misspelt := [f"{one!r} ({other!r}: {train[other]:,} rows)" for one, other in _misspelt(train)]:
        yield f"warning: labels in one row of train that may be others, misspelt: {first_of(misspelt)}"


def _alike(counts: Mapping[str, int]) -> Iterator[str]:
    """Classes that are one but for capitals, or the same number: all of one meaning together."""
    spellings: dict[Hashable, list[str]] = defaultdict(list)
    for label in counts:
        number = number_of(label)
        spellings[label.casefold() if number is None else number].append(label)
    for same in spellings.values():
        if len(same) > 1:
            yield " and ".join(f"{label!r} ({counts[label]:,})" for label in sorted(same))


def _misspelt(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Labels that occur once, each with the commonest that differs by one character.

    Not numbers, nor B-X and I-X, nor those that `_alike` names. None of very many: all pairs are compared.
    """
    if len(counts) > MOST_COMPARED:
        return
    for label in (label for label, number in counts.items() if number == 1 and number_of(label) is None):
        alike = [other for other in counts if counts[other] > 1 and _differ_by_one(label, other)]
        alike = [other for other in alike if other.casefold() != label.casefold()]
        alike = [other for other in alike if not (label[1:] == other[1:] and label[1:2] == "-")]
        if alike:
            yield label, max(alike, key=counts.__getitem__)


def _differ_by_one(one: str, other: str) -> bool:
    """Whether one character changed, added or left out makes one text of the other."""
    shorter, longer = sorted((one, other), key=len)
    same = next((at for at, pair in enumerate(zip(shorter, longer, strict=False)) if pair[0] != pair[1]), len(shorter))
    return longer[same + 1 :] in (shorter[same:], shorter[same + 1 :]) and len(longer) - len(shorter) < 2


def _some(counts: Mapping[str, int]) -> str:
    """The first names of some classes, the rarest first, with how often each stands in train."""
    names = sorted(counts, key=lambda name: (counts[name], name))
    return first_of([f"{name} ({counts[name]:,})" for name in names])
