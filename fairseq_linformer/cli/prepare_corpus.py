"""Text files into a folder that fairseq's masked_lm task trains on.

example:
  python scripts/prepare_corpus.py --train books/ more.txt.xz --valid held_out.txt --out data/books --vocab-size 8000

Files are plain text in UTF-8, or such text as .gz or .xz; a folder stands for all .txt, .gz and .xz files below it,
and - for standard input. Each line is a training item; a blank line, or the end of a file, ends a document. The folder
appears under its name when it is complete: repeat a command that was interrupted.

Much text is prepared in shards, folders that a training takes by turns, one per epoch: --shards 16 divides the files
of --train among them. The first holds the vocabulary, which it makes of its own text, and valid. Repeat the command to
go on after the last complete one, or make some on each machine, the first one first: --shards 16 --shard 3
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.prepare.corpus import DEFAULT_SAMPLE_CHARACTERS, DEFAULT_VOCAB_SIZE, prepare_corpus
from ..data.prepare.sharded_corpus import prepare_shards
from ..errors import UserError
from ..training.commands import command_line, override
from .arguments import make_parser, number
from .program import program


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--train", metavar="FILE", nargs="+", type=Path, required=True, help="text to train on")
    add("--valid", metavar="FILE", nargs="+", type=Path, required=True, help="text to validate on")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make; must not exist, or be empty")
    spm = "use this sentencepiece model, with the dict.txt beside it if any, or that of a prepared folder or a run"
    add("--spm", metavar="MODEL|DIR", type=Path, help=spm)
    add("--gpt2-bpe", metavar="DIR", type=Path, help="use encoder.json and vocab.bpe there, and dict.txt if any")
    add("--vocab-size", metavar="N", type=int, help=f"pieces to train otherwise (default {DEFAULT_VOCAB_SIZE})")
    letters = "make every letter and ASCII character a piece, however rare, up to a tenth of the vocabulary"
    add("--cover-letters", action="store_true", help=letters)
    add(
        "--sample-characters",
        metavar="N",
        type=int,
        help=f"train the pieces on at most this many characters (default {DEFAULT_SAMPLE_CHARACTERS:,})",
    )
    add("--seed", metavar="N", type=int, default=1, help="seed of that sample, at least 0 (default 1)")
    add("--workers", metavar="N", type=int, help="processes that encode (default: one per core)")
    add("--shards", metavar="N", type=number(int, least=2), help="make this many folders in DIR, each of some files")
    add("--shard", metavar="N", type=number(int, least=1), help="make this one of them alone")
    arguments = parser.parse_args(words)
    if arguments.shard is not None and arguments.shard > (arguments.shards or 0):
        parser.error(f"argument --shard: {arguments.shard} is not allowed: it must be at most --shards")
    return arguments


def _remedy(spm: Path | None, gpt2_bpe: Path | None, cover_letters: bool) -> str:
    """What helps against unknown pieces; only the options that go with the others given."""
    if spm or gpt2_bpe:
        option = "--spm" if spm else "--gpt2-bpe"
        return f"without {option}, and with --cover-letters, a new vocabulary is made, for a new model alone"
    if cover_letters:
        return "a larger --vocab-size or --sample-characters covers more letters, of the text of --train alone"
    return "--cover-letters makes every letter a piece, another folder --out given"


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    options = vars(arguments)
    shards, shard = options.pop("shards"), options.pop("shard")
    spm, gpt2_bpe = options.pop("spm"), options.pop("gpt2_bpe")
    with program():
        if spm and gpt2_bpe:
            raise UserError(f"--spm {spm} and --gpt2-bpe {gpt2_bpe}: give one tokenizer, not two")
        options["tokenizer"] = (spm and find_tokenizer(spm)) or gpt2_bpe
        unknown = prepare_corpus(**options) if shards is None else prepare_shards(**options, shards=shards, shard=shard)
        for line in unknown.warning(_remedy(spm, gpt2_bpe, options["cover_letters"])):
            print(line)
        print("next:", command_line("pretrain/tiny_512", override("task.data", options["out"])))
