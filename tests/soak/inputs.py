"""The kinds of files that are mutated, how each is read, and what a right reading of it is."""

import gzip
import io
import itertools
import json
import lzma
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_linformer.checkpoints.vocabulary import check_same_vocabulary, digest_vocabulary
from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.data.prepare.glue import SOURCES, glue_folder, read_glue
from fairseq_linformer.data.prepare.imdb import imdb_folder, read_imdb
from fairseq_linformer.data.prepare.labelled import Example
from fairseq_linformer.data.prepare.reading import read_chunks
from fairseq_linformer.data.prepare.rows import read_rows
from fairseq_linformer.data.tokenizer import (
    DICTIONARY_FILE,
    SENTENCEPIECE_FILE,
    SentencePieceTokenizer,
    load_dictionary,
)
from tests.helpers.inputs import sentences, write_official

from .mutations import ODD_TEXT, flip, mutate

TEXT = sentences(40, seed=1)


def write_corpus(folder: Path) -> Path:
    """A small prepared corpus."""
    for split, text in (("train", sentences(300, seed=1)), ("valid", TEXT)):
        (folder / f"{split}.txt").write_text(text)
    out = folder / "data"
    if not out.exists():  # a worker that died is followed by another in the same folder
        prepare_corpus([folder / "train.txt"], [folder / "valid.txt"], out, vocab_size=30, workers=1)
    return out


class Corpora:
    """Text files, plain, .gz and .xz."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def attempt(self, chance: random.Random) -> str | None:
        text = TEXT.encode()
        pack, unpack, suffix = chance.choice(
            [(gzip.compress, gzip.decompress, ".gz"), (lzma.compress, lzma.decompress, ".xz"), (bytes, bytes, ".txt")]
        )
        content = mutate(pack(text), chance) if chance.random() < 0.5 else pack(mutate(text, chance))
        path = self.folder / f"text{suffix}"
        path.write_bytes(content)
        found = [line for chunk in read_chunks([path]) for line in chunk.lines if line]
        lines = unpack(content).decode().removeprefix("\ufeff").split("\n")
        return None if found == [line.strip() for line in lines if line.strip()] else f"the lines {found[:5]}"


class GlueTables:
    """The tables of GLUE's tasks."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "glue"
        for task in SOURCES:
            if not (self.source / task).exists():
                write_official(self.source, task)

    def attempt(self, chance: random.Random) -> str | None:
        task = chance.choice([*SOURCES])
        split = chance.choice([*SOURCES[task].files])
        path = self.source / task / SOURCES[task].files[split].name
        whole = path.read_bytes()
        try:
            path.write_bytes(content := mutate(whole, chance))
            found = [(row.text, row.label, row.second) for row in read_glue(self.source, task)[split].examples]
        finally:
            path.write_bytes(whole)
        return None if found == _naive_rows(content, task, split) else f"{task} {split}: the rows {found}"


def _naive_rows(content: bytes, task: str, split: str) -> list[tuple[str | None, ...]]:
    about = SOURCES[task]
    file = about.files[split]
    lines = content.decode().removeprefix("\ufeff").removesuffix("\n").split("\n")
    rows = []
    for line in lines[int(file.header) :]:
        fields = dict(zip(file.columns, values := line.rstrip("\r").split("\t"), strict=False))
        if len(values) == len(file.columns):  # others are refused, or of a task that is known to have broken ones
            texts = [fields[column] for column in about.texts]
            rows.append((texts[0], fields.get(about.label), texts[1] if len(texts) > 1 else None))
    return rows


class Archives:
    """Archives of GLUE's tasks and of IMDB: damaged, and with members that would leave the folder."""

    NAMES = ("../out.tsv", "/tmp/soak-out.tsv", "C:\\out.tsv", "glue/../../out.tsv", "SST-2", "SST-2/", "", "a" * 300)
    KINDS = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "here"
        self.folder.mkdir(exist_ok=True)
        chance = random.Random(1)
        texts = iter(" ".join(chance.choices(TEXT.split(), k=30)) for _ in range(200))
        columns = {"train": ("sentence\tlabel", "{1}\t1"), "dev": ("sentence\tlabel", "{1}\t0")}
        columns |= {"test": ("index\tsentence", "{0}\t{1}")}
        self.glue = {
            f"SST-2/{split}.tsv": "\n".join([header, *(row.format(number, next(texts)) for number in range(30))]) + "\n"
            for split, (header, row) in columns.items()
        }
        places = itertools.product(("train", "test"), ("neg", "pos"), range(5))
        self.imdb = {f"aclImdb/{split}/{label}/{n}_7.txt": next(texts) for split, label, n in places}
        self.rows = {}
        for read, files in ((_glue_in, self.glue), (_imdb_in, self.imdb)):
            (self.folder / "whole.zip").write_bytes(_zip(files, chance))
            self.rows[read] = read(self.folder / "whole.zip")

    def attempt(self, chance: random.Random) -> str | None:
        read, files, kind = *chance.choice([(_glue_in, self.glue), (_imdb_in, self.imdb)]), chance.choice(self.KINDS)
        files = dict(files)
        if odd := chance.random() < 0.4:
            name = chance.choice([*self.NAMES, chance.choice(ODD_TEXT), f"SST-2/{chance.choice(ODD_TEXT)}.tsv"])
            files[name] = "odd"
        content = _zip(files, chance) if kind == "zip" else _tar(files, kind.partition(".")[2], chance)
        if not odd or chance.random() < 0.3:
            content = chance.choice((flip, mutate))(content, chance)
        archive = self.folder / f"archive.{kind}"
        archive.write_bytes(content)
        found = read(archive)
        around = (*self.folder.iterdir(), *self.folder.parent.iterdir())
        if escaped := [path.name for path in around if "out" in path.name]:
            return f"written outside: {escaped}"
        if kind == "tar" or found == self.rows[read]:  # a tar archive alone has no checksum of what it holds
            return None
        return f"{kind}: other rows than were packed, {[row for row in found if row not in self.rows[read]][:2]}"


def _zip(files: dict[str, str], chance: random.Random) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as zipped:
        for name, text in files.items():
            zipped.writestr(zipfile.ZipInfo(name), text)
    return stream.getvalue()


def _tar(files: dict[str, str], compression: str, chance: random.Random) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=f"w:{compression}") as tarred:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            if text == "odd":
                member.type = chance.choice((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE))
                member.linkname = chance.choice(("/etc/passwd", "../..", "SST-2/train.tsv"))
            member.size = len(text) if member.isreg() else 0
            tarred.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


def _glue_in(archive: Path) -> list[tuple[str, str]]:
    with glue_folder(str(archive), ["SST-2"]) as folder:
        return [(split, row.text) for split, read in read_glue(folder, "SST-2").items() for row in read.examples]


def _imdb_in(archive: Path) -> list[tuple[str, str]]:
    with imdb_folder(str(archive)) as folder:
        return [(split, row.text) for split, read in read_imdb(folder).items() for row in read.examples]


class Rows:
    """What predict.py reads: .txt, .tsv, .jsonl."""

    FILES = (
        ("txt", TEXT.encode()),
        ("tsv", b"id\ttext\tother\n" + b"".join(b"%d\tthe dog %d\tbarks\n" % (i, i) for i in range(20))),
        ("jsonl", b"".join(b'{"text": "the dog %d", "other": "barks", "n": %d}\n' % (i, i) for i in range(20))),
    )

    def __init__(self, folder: Path) -> None:
        pass

    def attempt(self, chance: random.Random) -> str | None:
        kind, whole = chance.choice(self.FILES)
        content = mutate(whole, chance)
        second = chance.choice((None, "other")) if kind != "txt" else None
        found = list(read_rows(io.BytesIO(content), kind, "file", second=second))
        expected = [Example(*row) for row in _naive_texts(content.decode(), kind, second)]
        return None if found == expected else f"{kind}: the rows {found[:3]}"


def _naive_texts(text: str, kind: str, second: str | None) -> list[tuple[str, None, str | None]]:
    return [(row["text"], None, row[second] if second else None) for row in naive_rows(text, kind)]


def naive_rows(text: str, kind: str) -> list[dict[str, Any]]:
    """The rows of txt, tsv or jsonl, by column."""
    lines = [line.rstrip("\r") for line in text.removeprefix("\ufeff").removesuffix("\n").split("\n")] if text else []
    if kind == "txt":
        return [{"text": line} for line in lines]
    if kind == "jsonl":
        return [json.loads(line) for line in lines]
    header, *fields = (line.split("\t") for line in lines) if lines else [[]]
    return [dict(zip(header, values, strict=True)) for values in fields]


class Dictionaries:
    """dict.txt of tokens and of labels."""

    def __init__(self, folder: Path) -> None:
        self.data = write_corpus(folder)
        self.whole = (self.data / DICTIONARY_FILE).read_bytes()
        self.symbols = load_dictionary(self.data / DICTIONARY_FILE).symbols
        self.there = digest_vocabulary(load_dictionary(self.data / DICTIONARY_FILE), self.data)

    def attempt(self, chance: random.Random) -> str | None:
        labels = chance.random() < 0.3
        content = mutate(b"0 250\n1 150\nentailment 20\n" if labels else self.whole, chance)
        path = self.data / "other.txt"
        path.write_bytes(content)
        found = load_dictionary(path)
        lines = [line.rstrip() for line in io.TextIOWrapper(io.BytesIO(content), "utf-8") if "#fairseq" not in line]
        expected = [line.rsplit(" ", 1)[0] for line in lines]
        if "#fairseq" not in content.decode() and found.symbols[Dictionary().nspecial :] != expected:
            return f"the symbols {found.symbols}"
        if not labels and found.symbols != self.symbols:
            return _not_refused(found, self.data, self.there)
        return None


def _not_refused(dictionary: Dictionary, data: Path, there: dict[str, str]) -> str | None:
    """What is lost where another vocabulary is taken for that of a checkpoint."""
    try:
        check_same_vocabulary(digest_vocabulary(dictionary, data), there, "data", "checkpoint")
    except ValueError:
        return None
    return "another vocabulary is taken for that of the checkpoint"


class SentencePieceModels:
    """sentencepiece.bpe.model: protocol buffers without a checksum, so that only a checkpoint knows it for another."""

    def __init__(self, folder: Path) -> None:
        data = write_corpus(folder)
        self.whole = (data / SENTENCEPIECE_FILE).read_bytes()
        self.dictionary = load_dictionary(data / DICTIONARY_FILE)
        self.there = digest_vocabulary(self.dictionary, data)
        self.folder = folder / "other"
        self.folder.mkdir(exist_ok=True)

    def attempt(self, chance: random.Random) -> str | None:
        content = mutate(self.whole, chance)
        (self.folder / SENTENCEPIECE_FILE).write_bytes(content)
        given = self.dictionary if chance.random() < 0.5 else None
        tokenizer = SentencePieceTokenizer(self.folder / SENTENCEPIECE_FILE, given)
        for ids in tokenizer.encode([*TEXT.splitlines()[:5], chance.choice(ODD_TEXT)]):
            if not all(0 <= token < len(tokenizer.dictionary) for token in ids.tolist()):
                return f"ids that are not in the dictionary: {ids.tolist()}"
        return None if content == self.whole else _not_refused(self.dictionary, self.folder, self.there)
