"""The study ``corpus-speed``: our preparation of a corpus against sentencepiece to text plus fairseq-preprocess."""

import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import sentencepiece

from fairseq_linformer.data.prepare.line_sample import LineSample
from fairseq_linformer.data.prepare.text_files import read_chunks
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, SENTENCEPIECE_FILE, SentencePieceTokenizer
from fairseq_linformer.errors import UserError
from fairseq_linformer.system.processes import available_cores
from linformer_cli.arguments import number

from .flags import Flag, count
from .measuring import timed

VALID_LINES = 1000
SAMPLE_CHARACTERS = 2_000_000  # that the vocabulary is trained on
PREPARE = Path(__file__).resolve().parents[1] / "prepare_corpus.py"
SPLITS = ("train", "valid")
FLAGS = {
    "corpus": Flag("a text: plain, .gz or .xz", Path, "FILE"),
    "megabytes": Flag("about how much of it is used", number(float, above=0), shown="all"),
    "vocab-size": Flag("pieces", count, default=8000),
    "workers": Flag("processes of either side", count, shown="one per core"),
}


def compare_preparations(options: Namespace) -> str:
    """Prepares the same text both ways with the same vocabulary: times, speeds and their ratio.

    Raises:
        OSError: the text cannot be read, or a program failed.
        UserError: the vocabulary is too large for the text, or the datasets differ.
    """
    with tempfile.TemporaryDirectory(prefix="corpus-speed") as name:
        folder, workers = Path(name), options.workers or available_cores()
        size = cut_text(options.corpus, options.megabytes, folder)
        train_vocabulary(folder, options.vocab_size)
        ours = timed(lambda: prepare(folder, workers))
        to_text = timed(lambda: encode_to_text(folder, workers))
        preprocess = timed(lambda: fairseq_preprocess(folder, workers))
        different = different_files(folder / "ours", folder / "theirs")
    theirs = to_text + preprocess
    said = [
        f"{size:.1f} MB of text, {options.vocab_size:,} pieces, {workers} workers",
        f"linformer prepare corpus: {ours:.1f} s, {size / ours:.2f} MB/s",
        f"sentencepiece to text: {to_text:.1f} s, fairseq-preprocess: {preprocess:.1f} s",
        f"  together: {theirs:.1f} s, {size / theirs:.2f} MB/s",
        f"ratio: {theirs / ours:.1f} times as fast",
    ]
    if different:
        raise UserError("; ".join([*said, f"the datasets differ in {', '.join(different)}"]))
    return "\n".join([*said, "datasets: byte for byte the same"])


def cut_text(text: Path, megabytes: float | None, folder: Path) -> float:
    """Writes train.txt and valid.txt (its first lines) as we read text; returns their megabytes."""
    with (folder / "train.txt").open("w", encoding="utf-8", newline="\n") as train:
        for place, chunk in enumerate(read_chunks([text])):
            train.writelines(line + "\n" for line in chunk.lines)
            if place == 0:
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
    """Runs a program of this Python."""
    command = [sys.executable, *map(str, arguments)]
    status = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if status:
        raise ChildProcessError(f"{shlex.join(command)}: ended with status {status}, for the reason above")


def different_files(ours: Path, theirs: Path) -> list[str]:
    """The files of the two datasets that are not the same, byte for byte."""
    files = [split + suffix for split in SPLITS for suffix in (".bin", ".idx")]
    return [file for file in files if (ours / file).read_bytes() != (theirs / file).read_bytes()]
