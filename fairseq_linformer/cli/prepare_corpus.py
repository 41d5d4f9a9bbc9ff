"""What `linformer prepare corpus` does: text into a folder, and what its vocabulary lacks of it."""

from pathlib import Path
from typing import Any

from ..checkpoints.reading import find_tokenizer, read_named_checkpoint, vocabulary_folder
from ..data.prepare.corpus import prepare_corpus
from ..data.prepare.sharded_corpus import prepare_shards
from ..training.commands import pretraining_command


def run(
    train: list[Path],
    valid: list[Path],
    out: Path,
    tokenizer: Path | None,
    shards: int | None,
    shard: int | None,
    **sizes: int | None,
) -> None:
    found, following = (None, pretraining_command(out)) if tokenizer is None else _of_tokenizer(tokenizer, out)
    given: dict[str, Any] = {"tokenizer": found, **sizes}
    if shards is None:
        unknown = prepare_corpus(train, valid, out, **given)
    else:
        unknown = prepare_shards(train, valid, out, shards, shard, **given)
    remedy = "without --tokenizer, in another --out, a new vocabulary is made, which lacks none, for a new model alone"
    for line in unknown.warning(remedy):
        print(line)
    print("next:", following)


def _of_tokenizer(tokenizer: Path, out: Path) -> tuple[Path, str]:
    """What to encode with, and what to type next; a checkpoint is read once, and let go."""
    named = read_named_checkpoint(tokenizer)
    found = find_tokenizer(tokenizer) if named is None else vocabulary_folder(named[0], named[1]["cfg"])
    return found, pretraining_command(out, named)
