"""Text files into a folder to pretrain on.

example:
  linformer prepare corpus --train books/ more.txt.xz --valid held_out.txt --out data/books --vocab-size 8000

Files are plain text in UTF-8, or such text as .gz or .xz; a folder stands for all .txt, .gz and .xz files below it that
are not hidden, and - for standard input. Each line is a training item; a blank line, or the end of a file, ends a
document. The folder appears under its name when it is complete: repeat a command that was interrupted.
"""

from pathlib import Path

from .arguments import SAMPLE_CHARACTERS, VOCAB_SIZE, Parser, number


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--train", metavar="FILE", nargs="+", type=Path, required=True, help="text to train on")
    add("--valid", metavar="FILE", nargs="+", type=Path, required=True, help="text to validate on")
    parser.share("--out")
    use = "use this vocabulary: a .model file of sentencepiece, with the dict.txt beside it if any; a folder with "
    use += "GPT-2's encoder.json and vocab.bpe; or that of a prepared folder or a run (default: train one)"
    parser.share("--tokenizer", required=False, help=use)
    add(
        "--vocab-size",
        metavar="N",
        type=number(int, least=1),
        help=f"pieces to train, 256 of them bytes (default: {VOCAB_SIZE})",
    )
    sample = f"train the pieces on at most this many characters (default: {SAMPLE_CHARACTERS})"
    add("--sample-characters", metavar="N", type=number(int, least=1), help=sample)
    add("--seed", metavar="N", type=number(int, least=0), default=1, help="seed of that sample, at least 0")
    add("--workers", metavar="N", type=number(int, least=1), help="processes that encode (default: one per core)")
