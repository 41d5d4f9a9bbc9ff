"""Times prepare_corpus.py against sentencepiece to text plus fairseq-preprocess (scripts/benchmark_corpus.py)."""

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sentencepiece

from fairseq_linformer.data.prepare.line_sample import LineSample
from fairseq_linformer.data.prepare.text_files import read_chunks
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, SENTENCEPIECE_FILE, SentencePieceTokenizer
from fairseq_linformer.system.processes import available_cores

VALID_LINES = 1000
SAMPLE_CHARACTERS = 2_000_000  # that the vocabulary is trained on
PREPARE = Path(__file__).resolve().parents[1] / "prepare_corpus.py"
SPLITS = ("train", "valid")


def compare_preparations(text: Path, megabytes: float | None, vocab_size: int, workers: int) -> list[str]:
    """Prepares the same text both ways with the same vocabulary, and prints times, speeds and their ratio.

    Args:
        text: a file, plain, .gz or .xz.
        megabytes: about how much of it to use; None for all.
        vocab_size: pieces.
        workers: processes of either side.

    Returns:
        The files of the datasets that differ between the two.

    Raises:
        OSError: the text cannot be read, or a program failed.
        UserError: the vocabulary is too large for the text.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark_corpus") as name:
        folder = Path(name)
        size = cut_text(text, megabytes, folder)
        train_vocabulary(folder, vocab_size)
        print(f"{size:.1f} MB of text, {vocab_size:,} pieces, {workers} workers")
        ours = seconds(lambda: prepare(folder, workers))
        to_text = seconds(lambda: encode_to_text(folder, workers))
        preprocess = seconds(lambda: fairseq_preprocess(folder, workers))
        theirs = to_text + preprocess
        print(f"prepare_corpus.py: {ours:.1f} s, {size / ours:.2f} MB/s")
        print(f"sentencepiece to text: {to_text:.1f} s, fairseq-preprocess: {preprocess:.1f} s")
        print(f"  together: {theirs:.1f} s, {size / theirs:.2f} MB/s")
        print(f"ratio: {theirs / ours:.1f} times as fast")
        return different_files(folder / "ours", folder / "theirs")


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
    """Trains the sentencepiece model and the dictionary that both sides start from."""
    sample = LineSample(SAMPLE_CHARACTERS, seed=1)
    for chunk in read_chunks([folder / "train.txt"]):
        sample.add(chunk.lines)
    train_sentencepiece(sample.lines(), folder / SENTENCEPIECE_FILE, vocab_size, threads=available_cores())
    SentencePieceTokenizer(folder / SENTENCEPIECE_FILE).dictionary.save(str(folder / DICTIONARY_FILE))


def prepare(folder: Path, workers: int) -> None:
    """Our way, start-up of the program included."""
    run(
        *(PREPARE, "--train", folder / "train.txt", "--valid", folder / "valid.txt", "--out", folder / "ours"),
        *("--spm", folder / SENTENCEPIECE_FILE, "--workers", workers),
    )


def encode_to_text(folder: Path, workers: int) -> None:
    """fairseq's way, first step: pieces as text."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE_FILE))
    for split in SPLITS:
        lines = (folder / f"{split}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        pieces = processor.Encode(lines, out_type=str, num_threads=workers)
        with (folder / f"{split}.pieces").open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(" ".join(line) + "\n" for line in pieces)


def fairseq_preprocess(folder: Path, workers: int) -> None:
    """fairseq's way, second step, start-up of the program included."""
    run(
        *("-m", "fairseq_cli.preprocess", "--only-source", "--srcdict", folder / DICTIONARY_FILE),
        *("--trainpref", folder / "train.pieces", "--validpref", folder / "valid.pieces"),
        *("--destdir", folder / "theirs", "--workers", workers),
    )


def run(*arguments: str | Path | int) -> None:
    """Runs a program of this Python.

    Raises:
        ChildProcessError: it failed.
    """
    command = [sys.executable, *map(str, arguments)]
    status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if status:
        raise ChildProcessError(f"{shlex.join(command)}: ended with status {status}, for the reason above")


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def different_files(ours: Path, theirs: Path) -> list[str]:
    """The files of the two datasets that are not the same, byte for byte."""
    files = [split + suffix for split in SPLITS for suffix in (".bin", ".idx")]
    return [file for file in files if (ours / file).read_bytes() != (theirs / file).read_bytes()]
