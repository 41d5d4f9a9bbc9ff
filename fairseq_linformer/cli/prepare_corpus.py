"""Prepare text files for pretraining.

example:
  linformer prepare corpus --train books/ more.txt.xz --valid held_out.txt --out data/books --vocab-size 8000

Files are plain text in UTF-8, also as .gz or .xz. A folder means all .txt, .gz and .xz files below it that are not
hidden; - is standard input. Each line is a training item; a blank line, or the end of a file, ends a document. The
output folder is created only when it is complete: repeat a command that was interrupted.
"""

from pathlib import Path
from typing import Any

from .arguments import Parser, number


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--train", metavar="FILE", nargs="+", type=Path, required=True, help="text to train on")
    add("--valid", metavar="FILE", nargs="+", type=Path, required=True, help="text to validate on")
    parser.add_shared("--out")
    helptext = "vocabulary to use: a .model file of sentencepiece, with the dict.txt in its folder if any; a folder "
    helptext += "with GPT-2's encoder.json and vocab.bpe; a prepared folder; or a run (default: train a vocabulary)"
    parser.add_shared("--tokenizer", required=False, help=helptext)
    positive = number(int, minimum=1)
    add("--vocab-size", metavar="N", type=positive, help="pieces to train, 256 of them bytes (default: 8000)")
    sample = "maximum number of characters that the pieces are trained on (default: 10000000)"
    add("--sample-characters", metavar="N", type=positive, help=sample)
    add("--seed", metavar="N", type=number(int, minimum=0), default=1, help="seed of that sample, at least 0")
    add("--workers", metavar="N", type=positive, help="processes that encode (default: one per core)")


def run(train: list[Path], valid: list[Path], out: Path, tokenizer: Path | None, **options: Any) -> None:
    from ..checkpoint import find_tokenizer, read_named_checkpoint, vocabulary_folder
    from ..data.dictionaries import unknown_warning
    from ..data.prepare.corpus import prepare_corpus
    from ..training.launch import pretraining_command

    named = None if tokenizer is None else read_named_checkpoint(tokenizer)
    next_command = pretraining_command(out, named)
    if tokenizer is not None:
        tokenizer = find_tokenizer(tokenizer) if named is None else vocabulary_folder(named[0], named[1]["cfg"])
    del named  # it may be large
    unknown_shares = prepare_corpus(train, valid, out, tokenizer=tokenizer, **options)
    remedy = "for a new model, prepare without --tokenizer in another --out: the new vocabulary has all characters"
    for line in unknown_warning(unknown_shares, remedy):
        print(line)
    if next_command is not None:
        print("next:", next_command)
