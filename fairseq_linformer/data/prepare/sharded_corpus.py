"""Text files into a corpus in shards, one by one, by as many machines as take part."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...system.files import check_data_path, write_whole
from ...system.state import read_state
from ..shards import REPORT_FILE, SHARDS_FILE, FirstShard, ShardList, Shards, find_shards
from ..text import first_of
from ..unknown_pieces import Unknown
from .corpus import (
    DEFAULT_SAMPLE_CHARACTERS,
    DEFAULT_VOCAB_SIZE,
    STANDARD_INPUT,
    SplitReport,
    given_tokenizer,
    prepare_corpus,
    warn_of_both,
)
from .text_files import find_files


def prepare_shards(
    train: Sequence[Path],
    valid: Sequence[Path],
    out: Path,
    shards: int,
    shard: int | None = None,
    *,
    workers: int | None = None,
    **vocabulary: Any,
) -> Unknown:
    """Makes folders in `out` that each hold a part of the files of `train`; a complete one is not made again.

    Each file goes to one shard as a whole, so that whoever makes a shard reads its text alone. The first shard comes
    first: it trains the vocabulary, on its own text, and holds the split valid. The others may be made at one time, on
    any machine that sees the files and `out`.

    Args:
        train, valid, workers: as for ``prepare_corpus``; standard input cannot be divided.
        out: the folder of the shards; what is in it must be theirs.
        shards: their number, at least 2; `train` must be as many files or more.
        shard: the only one to make, from 1 to `shards`; None for all.
        vocabulary: the other options of ``prepare_corpus``, for the first shard.

    Returns:
        What the vocabulary lacks of the text of the shards that were made.

    Raises:
        OSError, UserError: as ``prepare_corpus``; and `out` holds shards of other files, another number of them, or
            a first one with another vocabulary or valid, or shards of different vocabularies.
    """
    check_data_path(out)
    held_out = find_files(name for name in valid if name != STANDARD_INPUT)
    parts = divide(find_files(train, held_out), shards)
    planned = _begun(out.resolve(), list(map(_described, parts)))
    first = FirstShard(
        valid=_described(held_out) + ["standard input"] * (STANDARD_INPUT in valid), vocabulary=_training(**vocabulary)
    )
    warn_of_both(chain(*parts[1:]), held_out)  # as making the first shard does of its own part
    if 1 not in planned.missing():
        _check_first(planned, first, vocabulary.get("tokenizer"))
    unknown = Unknown()
    for number in range(1, shards + 1) if shard is None else [shard]:
        print(f"shard {number}/{shards}:", flush=True)
        missing = planned.missing()
        if number > 1 and 1 in missing:
            raise UserError(f"{out}: shard 1/{shards} comes first: it makes the vocabulary")
        if number not in missing:
            _check_vocabulary(planned, number)
            print("complete")
            continue
        options = vocabulary if number == 1 else {"tokenizer": planned.path(1)}
        validated = valid if number == 1 else []
        made = prepare_corpus(parts[number - 1], validated, planned.path(number), workers=workers, **options)
        unknown.update(made)
        if number == 1:
            _write_list(ShardList(shards=planned.files, first=first), planned.folder)
    if not planned.missing():
        _print_total(planned)
    return unknown


def divide(files: Sequence[Path], shards: int) -> list[list[Path]]:
    """The files of each shard, of about the same size: the largest file first, to the shard that has least.

    Raises:
        UserError: there are fewer files than shards.
    """
    if len(files) < shards:
        raise UserError(f"--shards {shards}: the text is {len(files)} files, and a file is not divided: split it first")
    sizes = {file: file.stat().st_size for file in files}
    parts: list[list[Path]] = [[] for _ in range(shards)]
    filled = [0] * shards
    for file in sorted(sizes, key=lambda file: -sizes[file]):
        least = filled.index(min(filled))
        parts[least].append(file)
        filled[least] += sizes[file] + 1  # an empty file, too, counts
    return [sorted(part, key=list(sizes).index) for part in parts]


def _begun(out: Path, files: list[list[str]]) -> Shards:
    """The folder of the shards, with the list of their files."""
    planned, found = Shards(out, files), find_shards(out)
    if found is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} exists and holds no shards: nothing was changed; name another, or remove it")
        out.mkdir(parents=True, exist_ok=True)
        _write_list(ShardList(shards=files), out)
    elif found.number != planned.number:
        raise UserError(f"{out} is for {found.number} shards, not {planned.number}: name another folder, or remove it")
    elif found != planned:
        raise UserError(f"{out} holds shards of other text files, see {SHARDS_FILE}: name another folder, or remove it")
    return planned


def _write_list(shards: ShardList, out: Path) -> None:
    write_whole(out / SHARDS_FILE, json.dumps(shards, indent=1) + "\n")


def _described(files: Sequence[Path]) -> list[str]:
    return [f"{file.name}, {file.stat().st_size} bytes" for file in files]


def _training(
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    sample_characters: int | None = None,
    seed: int = 1,
) -> dict[str, int]:
    """The options of ``prepare_corpus`` that a vocabulary is trained with; none where one is given."""
    if tokenizer is not None:
        return {}
    sample = sample_characters or DEFAULT_SAMPLE_CHARACTERS
    return {"vocab-size": vocab_size or DEFAULT_VOCAB_SIZE, "sample-characters": sample, "seed": seed}


def _check_first(planned: Shards, asked: FirstShard, tokenizer: Path | None) -> None:
    """Refuses what the complete first shard was not made with; of an earlier version's, a `tokenizer` alone."""
    out, remedy = planned.folder, "repeat what it was made with, name another folder, or remove it"
    made = read_state(out / SHARDS_FILE, ShardList).get("first", asked)
    if tokenizer is not None:
        if not given_tokenizer(tokenizer).is_in(planned.path(1)):
            raise UserError(f"{out} has another vocabulary than {tokenizer}: {remedy}")
    elif made["vocabulary"] != asked["vocabulary"]:
        used, other = (
            " ".join(f"--{option} {value}" for option, value in first["vocabulary"].items()) for first in (made, asked)
        )
        raise UserError(f"{out} has a vocabulary made with {used or '--tokenizer'}, not {other}: {remedy}")
    if made["valid"] != asked["valid"]:
        used, other = (first_of(first["valid"]) or "nothing" for first in (made, asked))
        raise UserError(f"{out} validates on other text ({used}), not {other}: {remedy}")


def _check_vocabulary(planned: Shards, number: int) -> None:
    """Refuses a complete shard that was made before the first one was removed and made anew."""
    first, other = planned.path(1), planned.path(number)
    if not given_tokenizer(first).is_in(other):
        raise UserError(f"{other} has another vocabulary than {first}: remove it, and repeat the command")


def _print_total(planned: Shards) -> None:
    """What all shards hold together."""
    total = SplitReport()
    for shard in range(1, planned.number + 1):
        report = read_state(planned.path(shard) / REPORT_FILE, dict[str, dict[str, int]])["train"]
        total = SplitReport(**{name: count + report[name] for name, count in asdict(total).items()})
    print(f"all {planned.number} shards:\ntrain: {total}")
