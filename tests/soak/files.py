"""The files that are mutated: texts, archives, tables, vocabularies, and what one command leaves for another."""

import functools
import gzip
import io
import itertools
import json
import lzma
import random
import tarfile
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_linformer.checkpoints.vocabulary import check_same_vocabulary, digest_vocabulary
from fairseq_linformer.data.dictionaries import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.data.prepare.glue import SOURCES, glue_folder, read_glue
from fairseq_linformer.data.prepare.imdb import imdb_folder, read_imdb
from fairseq_linformer.data.prepare.text_files import read_chunks
from fairseq_linformer.data.summary import SUMMARY_FILE, read_summary
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.data.tokenizer import SENTENCEPIECE_FILE, SentencePieceTokenizer
from fairseq_linformer.finetune.results import RESULTS_FILE, best_checkpoints, write_results
from fairseq_linformer.finetune.scored_runs import SCORES_FILE, write_scores
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.training.commands import FINE_TUNING
from fairseq_linformer.training.launch import RUN_FILE
from fairseq_linformer.training.provenance import Provenance
from tests.helpers.inputs import sentences, write_official

from .mutations import ODD_TEXT, flip, mutate, mutate_state
from .readers import ANYTHING, File, Files

TEXT = sentences(40, seed=1)
BOM = "\ufeff"
TAKEN = "another vocabulary is taken for that of the checkpoint"


def write_corpus() -> Path:
    """A small prepared corpus."""
    for split, text in (("train", sentences(300, seed=1)), ("valid", TEXT)):
        Path(f"{split}.txt").write_text(text)
    prepare_corpus([Path("train.txt")], [Path("valid.txt")], Path("data"), vocab_size=286, workers=1)
    return Path("data")


PACKINGS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "txt": (bytes, bytes),
    "gz": (gzip.compress, gzip.decompress),
    "xz": (lzma.compress, lzma.decompress),
}


def corpora() -> Files:
    """Text files, plain, .gz and .xz: the text or the packed bytes are mutated."""
    return Files(
        [
            File(f"text.{suffix}", pack(TEXT.encode()), _read_lines, functools.partial(_naive_lines, unpack), change)
            for suffix, (pack, unpack) in PACKINGS.items()
            for change in (mutate, functools.partial(_mutate_inside, pack))
        ]
    )


def _mutate_inside(pack: Callable[[bytes], bytes], _: bytes, chance: random.Random) -> bytes:
    return pack(mutate(TEXT.encode(), chance))


def _naive_lines(unpack: Callable[[bytes], bytes], content: bytes) -> list[str]:
    return [line.strip() for line in unpack(content).decode().removeprefix(BOM).split("\n") if line.strip()]


def _read_lines(path: Path) -> list[str]:
    return [line for chunk in read_chunks([path]) for line in chunk.lines if line]


def glue_tables() -> Files:
    """The tables of GLUE's tasks."""
    files = []
    for task, about in SOURCES.items():
        write_official(Path(), task)
        for split, file in about.files.items():
            read, right = (functools.partial(function, task, split) for function in (_read_glue, _naive_glue))
            path = Path(task, file.name)
            files.append(File(str(path), path.read_bytes(), read, right))
    return Files(files)


def _read_glue(task: str, split: str, _: Path) -> list[tuple[Any, ...]]:
    return [(row.text, row.label, row.second) for row in read_glue(Path(), task)[split].examples]


def _naive_glue(task: str, split: str, content: bytes) -> list[tuple[Any, ...]]:
    about = SOURCES[task]
    file = about.files[split]
    lines = content.decode().removeprefix(BOM).removesuffix("\n").split("\n")
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

    def __init__(self) -> None:
        Path("here").mkdir()
        chance = random.Random(1)
        write_official(Path("glue"), "SST-2", rows=200)
        glue = {str(file.relative_to("glue")): file.read_text() for file in sorted(Path("glue").glob("*/*"))}
        places = itertools.product(("train", "test"), ("neg", "pos"), range(5))
        texts = {f"aclImdb/{split}/{label}/{n}_7.txt": chance.choices(TEXT.split(), k=30) for split, label, n in places}
        imdb = {name: " ".join(words) for name, words in texts.items()}
        self.sources = []
        for read, files in ((_glue_in, glue), (_imdb_in, imdb)):
            Path("here/whole.zip").write_bytes(_zip(files, chance))
            self.sources.append((read, files, read(Path("here/whole.zip"))))

    def attempt(self, chance: random.Random) -> str | None:
        (read, files, right), kind = chance.choice(self.sources), chance.choice(self.KINDS)
        if odd := chance.random() < 0.4:
            name = chance.choice([*self.NAMES, chance.choice(ODD_TEXT), f"SST-2/{chance.choice(ODD_TEXT)}.tsv"])
            files = {**files, name: "odd"}
        content = _zip(files, chance) if kind == "zip" else _tar(files, kind.partition(".")[2], chance)
        if not odd or chance.random() < 0.3:
            content = chance.choice((flip, mutate))(content, chance)
        archive = Path(f"here/archive.{kind}")
        archive.write_bytes(content)
        found = read(archive)
        if escaped := [path.name for path in (*Path("here").iterdir(), *Path().iterdir()) if "out" in path.name]:
            return f"written outside: {escaped}"
        if kind == "tar" or found == right:  # a tar archive alone has no checksum of what it holds
            return None
        return f"{kind}: other rows than were packed, {[row for row in found if row not in right][:2]}"


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


def dictionaries() -> Files:
    """dict.txt of tokens, which a checkpoint knows for another, and of labels."""
    data = write_corpus()
    whole = load_dictionary(data / DICTIONARY_FILE)
    there = digest_vocabulary(whole, data)

    def read(path: Path) -> list[str]:
        found = load_dictionary(path)
        if path == data / "other.txt" and found.symbols != whole.symbols:
            check_same_vocabulary(digest_vocabulary(found, data), there, "data", "checkpoint")
            return [TAKEN]
        return found.symbols[Dictionary().nspecial :]

    def right(content: bytes) -> Any:
        lines = [line.rstrip() for line in io.TextIOWrapper(io.BytesIO(content), "utf-8")]
        return ANYTHING if b"#fairseq" in content else [line.rsplit(" ", 1)[0] for line in lines]

    tokens = File("data/other.txt", (data / DICTIONARY_FILE).read_bytes(), read, right)
    return Files([tokens, tokens, File("labels.txt", b"0 250\n1 150\nentailment 20\n", read, right)])


def sentencepiece_models() -> Files:
    """sentencepiece.bpe.model: protocol buffers without a checksum, so that only a checkpoint knows it for another."""
    data = write_corpus()
    whole, dictionary = (data / SENTENCEPIECE_FILE).read_bytes(), load_dictionary(data / DICTIONARY_FILE)
    there = digest_vocabulary(dictionary, data)
    Path("other").mkdir()

    def read(given: Dictionary | None, path: Path) -> list[int | str]:
        """Ids that are not in the dictionary."""
        tokenizer = SentencePieceTokenizer(path, given)
        rows = tokenizer.encode([*TEXT.splitlines()[:5], *ODD_TEXT])
        unknown = [token for row in rows for token in row.tolist() if not 0 <= token < len(tokenizer.dictionary)]
        if unknown or path.read_bytes() == whole:
            return unknown
        check_same_vocabulary(digest_vocabulary(dictionary, path.parent), there, "data", "checkpoint")
        return [TAKEN]

    path = f"other/{SENTENCEPIECE_FILE}"
    return Files([File(path, whole, functools.partial(read, given), lambda _: []) for given in (dictionary, None)])


def state_files() -> Files:
    """Summaries of prepared folders, runs, scores and results."""
    return Files([_summary(), _results(), *_run_folder()])


def _state(path: str, content: Any, read: Callable[[Path], Any], right: Callable[[Any], Any]) -> File:
    """A file of JSON, of which it is said what is right of its parsed content, None where Python does not parse it."""

    def of_bytes(mutated: bytes) -> Any:
        try:
            said = json.loads(mutated)
        except (ValueError, RecursionError):
            said = None
        return right(said)

    return File(path, json.dumps(content).encode(), read, of_bytes, mutate_state)


def _summary() -> File:
    counts = {"examples": 40, "tokens": 300, "long": 1, "unknown": 0}
    content = {"task": TASKS["RTE"].as_json(), "splits": {"train": counts, "valid": counts}, "long_length": 512}

    def read(path: Path) -> Any:
        found = read_summary(path.parent)
        splits = {split: [of.examples, of.tokens, of.long] for split, of in found.splits.items()}
        return [*found.task.classes], float(found.task.scale), splits

    def right(said: Any) -> Any:
        splits = {split: [of[name] for name in ("examples", "tokens", "long")] for split, of in said["splits"].items()}
        return said["task"]["classes"], float(said["task"]["scale"]), splits

    return _state(SUMMARY_FILE, content, read, right)


def _results() -> File:
    runs = [
        {"task": task, "seed": seed, "folder": f"{task}/seed{seed}", "score": 80.5 + seed, "error": ""}
        for task, seed in itertools.product(("MRPC", "RTE"), (1, 2))
    ]

    def right(said: Any) -> dict[str, str]:
        best: dict[str, tuple[float, str]] = {}
        for run in said["runs"]:
            value = run["score"]
            if value is not None and (run["task"] not in best or value > best[run["task"]][0]):
                best[run["task"]] = value, str(Path(run["folder"], "checkpoint_best.pt"))
        return {task: path for task, (_, path) in best.items()}

    def read(path: Path) -> dict[str, str]:
        return {task: str(found) for task, found in best_checkpoints(path.parent).items()}

    return _state(RESULTS_FILE, {"runs": runs}, read, right)


def _run_folder() -> list[File]:
    """What a run's folder says of it; results.json must say the same, or nothing."""
    run, checkpoint = Path("runs/RTE/seed1"), "0" * 64
    run.mkdir(parents=True)
    options = {"optimization.lr": [0.01], "dataset.batch_size": 16, "common.seed": 1, "optimization.max_update": 6}
    made = Provenance(FINE_TUNING, options | {"checkpoint.best_checkpoint_metric": "score"}, "1" * 64, checkpoint)
    write_whole(run / RUN_FILE, json.dumps({**made.as_json(), "complete": True}))
    write_whole(run / SUMMARY_FILE, _summary().whole.decode())
    write_whole(run / "predictions-valid.tsv", "label\tprediction\n0\t0\n")
    write_scores(run, made, {"valid": {"accuracy": 80.5}})
    model = resolve_config(Namespace(encoder_layers=1), 16)

    def read(path: Path) -> bool:
        """Whether results.json has no scores that the folder does not have."""
        write_results(Path("runs"), Path("a.pt"), checkpoint, model, [], [])
        scores = [one["scores"] for one in json.loads(Path("runs", RESULTS_FILE).read_text())["runs"]]
        return all(own == json.loads((run / SCORES_FILE).read_text())["scores"] for own in scores if own)

    contents = {name: json.loads((run / name).read_bytes()) for name in (RUN_FILE, SCORES_FILE)}
    return [_state(str(run / name), content, read, lambda said: True) for name, content in contents.items()]
