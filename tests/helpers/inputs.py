"""Texts, tables, tokens and subword models to prepare and to train on."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_linformer.data.prepare.glue import SOURCES
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.data.tokenizer import Tokenizer

_RANDOM = np.random.default_rng(0)
_SYLLABLES = ["ba", "the", "lim", "Or", "et", "ú", "mu", "is"]
WORDS = ["".join(_RANDOM.choice(_SYLLABLES, size=size)) for size in [2, 3, 4] * 99]
TEXT = [" ".join(_RANDOM.choice(WORDS, size=9)) + ", twice." for _ in range(400)]  # to train subword models on


def train_without_bytes(lines: list[str], model: Path, vocab_size: int) -> None:
    """A subword model as earlier versions trained it: characters that it lacks are unknown."""
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=vocab_size, num_threads=1, minloglevel=2
        )


def sentences(number: int, seed: int) -> str:
    """English-like text with something to learn: every subject has its verbs, every tenth line ends a document."""
    chance = random.Random(seed)
    verbs = {"dog": ["barks", "runs"], "cat": ["sleeps", "purrs"], "bird": ["sings", "flies"], "fish": ["swims"]}
    lines = []
    for i in range(number):
        subject = chance.choice(sorted(verbs))
        lines.append(f"the {chance.choice(['old', 'young', 'small'])} {subject} {chance.choice(verbs[subject])} today")
        if i % 10 == 9:
            lines.append("")
    return "\n".join(lines) + "\n"


def difficult(count: int) -> list[str]:
    """Texts of characters of all kinds, runs of spaces, words, and names of tokens of several vocabularies."""
    draw = random.Random(0)
    ranges = [(1, 0x80), (0x80, 0x600), (0x300, 0x370), (0x900, 0xE00), (0x1100, 0x1200), (0x2000, 0x3100)]
    ranges += [(0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0x10000), (0x1F300, 0x1FB00), (0x20000, 0x20100)]
    parts = ["the", "dogs", "unbelievable", "##s", "Orlim", "don't", "...", "12 345", "<", "▁", "\t\t", "\r\n", "\n\n"]
    parts += ["[E1]", "[unused0]", "[unused1]", "|||EMAIL_ADDRESS|||", "<|padding|>"]

    def part() -> str:
        if draw.random() < 0.2:
            return " " * draw.choice([1, 2, 3, 4, 23, 24, 25, 60])
        return draw.choice(parts) if draw.random() < 0.5 else chr(draw.randrange(*draw.choice(ranges)))

    return ["", " ", "x" * 200, *("".join(part() for _ in range(draw.randrange(40))) for _ in range(count))]


def write_sst_2(source: Path) -> None:
    """A folder in GLUE's layout whose SST-2 ten updates can learn: the animal of the sentence is its label."""
    folder = source / "SST-2"
    folder.mkdir(parents=True)
    for split, number in (("train", 400), ("dev", 40), ("test", 20)):
        rows = [line for line in sentences(number, seed=number).splitlines() if line]
        labelled = [f"{line}\t{int('dog' in line or 'cat' in line)}" for line in rows]
        table = [f"{i}\t{line}" for i, line in enumerate(rows)] if split == "test" else labelled
        header = "index\tsentence" if split == "test" else "sentence\tlabel"
        (folder / f"{split}.tsv").write_text("\n".join([header, *table]) + "\n")


def write_imdb(archive: Path, folder: Path) -> None:
    """The archive, NAME.tar.gz, of a few reviews, made in a folder."""
    for place in ("train/neg", "train/pos", "test/neg", "test/pos"):
        (folder / "aclImdb" / place).mkdir(parents=True)
        for number, text in enumerate(sentences(60, seed=len(place)).split("\n\n")):
            (folder / "aclImdb" / place / f"{number}_7.txt").write_text(f"{text}<br /><br />{place}")
    shutil.make_archive(str(archive).removesuffix(".tar.gz"), "gztar", folder)


def write_official(source: Path, task: str, rows: int = 3) -> None:
    """The files of a task in the exact shape of the official ones, each field naming its column and row."""
    (source / task).mkdir(parents=True)
    for file in SOURCES[task].files.values():
        lines = ["\t".join(file.columns)] if file.header else []
        for row in range(rows):
            fields = {column: f"{column} {row}" for column in file.columns}
            if SOURCES[task].label in fields:
                labels = TASKS[task].classes or ("5.000", "0", "2.5")
                fields[SOURCES[task].label] = labels[row % len(labels)]
            lines.append("\t".join(fields.values()))
        mark = "\ufeff" if task == "MRPC" and file.name != "test.tsv" else ""
        (source / task / file.name).write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")


def gpt2_files(folder: Path) -> tuple[Path, Path]:
    """A BPE of all bytes and three merges, its numbers in no order."""
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    pieces = [*bytes_to_unicode().values(), *("".join(pair) for pair in merges)]
    numbers = np.random.default_rng(0).permutation(len(pieces)).tolist()
    (folder / "encoder.json").write_text(json.dumps(dict(zip(pieces, numbers, strict=True))))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    return folder / "encoder.json", folder / "vocab.bpe"


class Numbers(Tokenizer):
    """A text is numbers below 90; the token of n is n + 4."""

    def __init__(self) -> None:
        dictionary = Dictionary()
        for number in range(90):
            dictionary.add_symbol(str(number))
        super().__init__(dictionary, {})

    def encode(self, lines):
        return [np.array([int(word) + 4 for word in line.split()], dtype=np.int32) for line in lines]

    def _decode(self, rows):
        return [" ".join(str(token - 4) for token in row) for row in rows]
