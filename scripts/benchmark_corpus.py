"""Times prepare_corpus.py against sentencepiece to text plus fairseq-preprocess, on the same text and vocabulary.

example:
  python scripts/benchmark_corpus.py books.txt --megabytes 20 --workers 2

Both sides start from the same sentencepiece model and dict.txt and use the same number of workers; training the model
is not timed. Start-up of each program is. The datasets must be byte for byte the same, or this ends with status 1.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

import sentencepiece

from fairseq_linformer.data.prepare.reading import LineSample, read_chunks
from fairseq_linformer.data.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    SentencePieceTokenizer,
    train_sentencepiece,
)
from fairseq_linformer.errors import UserError, one_line_errors
from fairseq_linformer.system.processes import available_cores

VALID_LINES = 1000
PREPARE = Path(__file__).with_name("prepare_corpus.py")
SPLITS = ("train", "valid")


def main() -> None:
    arguments = parse_arguments()
    with one_line_errors(), tempfile.TemporaryDirectory(prefix="benchmark_corpus") as name:
        if arguments.workers < 1:
            raise UserError(f"workers {arguments.workers}: must be at least 1")
        folder = Path(name)
        megabytes = cut_text(arguments.text, arguments.megabytes, folder)
        train_vocabulary(folder, arguments.vocab_size)
        print(f"{megabytes:.1f} MB of text, {arguments.vocab_size:,} pieces, {arguments.workers} workers")
        ours = seconds(lambda: prepare(folder, arguments.workers))
        to_text = seconds(lambda: encode_to_text(folder, arguments.workers))
        preprocess = seconds(lambda: fairseq_preprocess(folder, arguments.workers))
        print(f"prepare_corpus.py: {ours:.1f} s, {megabytes / ours:.2f} MB/s")
        theirs = to_text + preprocess
        print(f"sentencepiece to text: {to_text:.1f} s, fairseq-preprocess: {preprocess:.1f} s")
        print(f"  together: {theirs:.1f} s, {megabytes / theirs:.2f} MB/s")
        print(f"ratio: {theirs / ours:.1f} times as fast")
        different = [file for file in dataset_files() if not same(folder / "ours" / file, folder / "theirs" / file)]
    if different:
        sys.exit(f"error: the datasets differ in {', '.join(different)}")
    print("datasets: byte for byte the same")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="text file: plain, .gz or .xz")
    parser.add_argument("--megabytes", metavar="N", type=float, help="use about so much of it (default: all)")
    parser.add_argument("--vocab-size", metavar="N", type=int, default=8000, help="pieces (default 8000)")
    parser.add_argument("--workers", metavar="N", type=int, default=available_cores(), help="default: one a core")
    return parser.parse_args()


def cut_text(text: Path, megabytes: float | None, folder: Path) -> float:
    """Writes train.txt and valid.txt (its first lines) as prepare_corpus.py reads text; returns their megabytes."""
    with (folder / "train.txt").open("w", encoding="utf-8", newline="\n") as train:
        for count, chunk in enumerate(read_chunks([text])):
            train.writelines(line + "\n" for line in chunk.lines)
            if count == 0:
                valid = "".join(line + "\n" for line in chunk.lines[:VALID_LINES])
                (folder / "valid.txt").write_text(valid, encoding="utf-8", newline="\n")
            if megabytes is not None and train.tell() >= megabytes * 1e6:
                break
    return sum((folder / f"{split}.txt").stat().st_size for split in SPLITS) / 1e6


def train_vocabulary(folder: Path, vocab_size: int) -> None:
    sample = LineSample(2_000_000, seed=1)
    for chunk in read_chunks([folder / "train.txt"]):
        sample.add(chunk.lines)
    train_sentencepiece(sample.lines(), folder / SENTENCEPIECE_FILE, vocab_size, threads=available_cores())
    SentencePieceTokenizer(folder / SENTENCEPIECE_FILE).dictionary.save(str(folder / DICTIONARY_FILE))


def prepare(folder: Path, workers: int) -> None:
    run(
        *(PREPARE, "--train", folder / "train.txt", "--valid", folder / "valid.txt", "--out", folder / "ours"),
        *("--spm", folder / SENTENCEPIECE_FILE, "--workers", workers),
    )


def encode_to_text(folder: Path, workers: int) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE_FILE))
    for split in SPLITS:
        lines = (folder / f"{split}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        pieces = processor.Encode(lines, out_type=str, num_threads=workers)
        with (folder / f"{split}.pieces").open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(" ".join(line) + "\n" for line in pieces)


def fairseq_preprocess(folder: Path, workers: int) -> None:
    run(
        *("-m", "fairseq_cli.preprocess", "--only-source", "--srcdict", folder / DICTIONARY_FILE),
        *("--trainpref", folder / "train.pieces", "--validpref", folder / "valid.pieces"),
        *("--destdir", folder / "theirs", "--workers", workers),
    )


def run(*arguments: str | Path | int) -> None:
    command = [sys.executable, *map(str, arguments)]
    status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if status:
        raise ChildProcessError(f"{shlex.join(command)}: ended with status {status}, for the reason above")


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def dataset_files() -> list[str]:
    return [split + suffix for split in SPLITS for suffix in (".bin", ".idx")]


def same(first: Path, second: Path) -> bool:
    return first.read_bytes() == second.read_bytes()


if __name__ == "__main__":
    main()
