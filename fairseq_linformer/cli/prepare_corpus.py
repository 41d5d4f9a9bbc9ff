"""What `linformer prepare corpus` does: text into a folder, and what its vocabulary lacks of it."""

from pathlib import Path
from typing import Any

from ..checkpoints.reading import data_folder, find_tokenizer, read_named_checkpoint
from ..data.prepare.corpus import prepare_corpus
from ..data.prepare.sharded_corpus import prepare_shards
from ..training.commands import pretraining_command


def run(
    train: list[Path],
    valid: list[Path],
    out: Path,
    tokenizer: Path | None,
    cover_letters: bool,
    shards: int | None,
    shard: int | None,
    **sizes: int | None,
) -> None:
    found, following = (None, pretraining_command(out)) if tokenizer is None else _of_tokenizer(tokenizer, out)
    given: dict[str, Any] = {"tokenizer": found, "cover_letters": cover_letters, **sizes}
    if shards is None:
        unknown = prepare_corpus(train, valid, out, **given)
    else:
        unknown = prepare_shards(train, valid, out, shards, shard, **given)
    for line in unknown.warning(_remedy(tokenizer, cover_letters)):
        print(line)
    print("next:", following)


def _of_tokenizer(tokenizer: Path, out: Path) -> tuple[Path, str]:
    """What to encode with, and what to type next; a checkpoint is read once, and let go."""
    named = read_named_checkpoint(tokenizer)
    found = find_tokenizer(tokenizer) if named is None else data_folder(named[0], named[1]["cfg"])
    return found, pretraining_command(out, named)


def _remedy(tokenizer: Path | None, cover_letters: bool) -> str:
    """What helps against unknown pieces; only the options that go with the others given."""
    if tokenizer:
        return "without --tokenizer, and with --cover-letters, a new vocabulary is made, for a new model alone"
    if cover_letters:
        return "a larger --vocab-size or --sample-characters covers more letters, of the text of --train alone"
    return "--cover-letters makes every letter a piece, another folder --out given"
