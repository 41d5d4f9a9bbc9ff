"""What `linformer prepare corpus` does: text into a folder, and what its vocabulary lacks of it."""

from pathlib import Path
from typing import Any

from ..checkpoints.reading import find_tokenizer, read_named_checkpoint, vocabulary_folder
from ..data.dictionaries import unknown_warning
from ..data.prepare.corpus import prepare_corpus
from ..training.commands import pretraining_command


def run(
    train: list[Path],
    valid: list[Path],
    out: Path,
    tokenizer: Path | None,
    **sizes: int | None,
) -> None:
    named = None if tokenizer is None else read_named_checkpoint(tokenizer)
    following = pretraining_command(out, named)
    if tokenizer is not None:
        tokenizer = find_tokenizer(tokenizer) if named is None else vocabulary_folder(named[0], named[1]["cfg"])
    del named  # it may be large
    given: dict[str, Any] = {"tokenizer": tokenizer, **sizes}
    unknown_shares = prepare_corpus(train, valid, out, **given)
    remedy = "without --tokenizer, in another --out, a new vocabulary is made, which lacks none, for a new model alone"
    for line in unknown_warning(unknown_shares, remedy):
        print(line)
    if following is not None:
        print("next:", following)
