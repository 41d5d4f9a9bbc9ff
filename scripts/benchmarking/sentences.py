"""The study ``sentences``: what a sentence encoder made long is worth on short and long texts, and what it costs.

Dimensions: N texts, d embedding, n the longest text that a model reads, in tokens.
"""

import itertools
import json
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm

from fairseq_linformer.checkpoints.reading import checkpoint_file, data_folder, read_checkpoint
from fairseq_linformer.checkpoints.sentence_modules import pooling_of
from fairseq_linformer.checkpoints.task_state import read_task_state
from fairseq_linformer.checkpoints.vocabulary import digest_vocabulary
from fairseq_linformer.data.prepare.glue import read_glue
from fairseq_linformer.data.prepare.imdb import imdb_folder, read_imdb
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import UserError, check
from fairseq_linformer.model.roberta import LinformerRobertaModel
from fairseq_linformer.system.digests import digest_file
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.training.encoder_distillation import pooled

from . import passages
from .book_tasks import BEGIN, END, MARKS
from .flags import VARIANT, Flag, count
from .measuring import Machine, in_turns, spread
from .passages import SEED, Passages, book_blocks, find_passages, module_blocks, ranks_of, reciprocals, word_ranks
from .store import PACKAGE, Store, code_digest, digest
from .tables import milliseconds, table

SENTENCES, REVIEWS, LEAST_REVIEW = 1000, 200, 400  # of SST-2; of IMDB, and their tokens at least
BATCH = 4096  # tokens
RESAMPLED = 1000
SHORT = (512, 1024)  # lengths whose cost is measured beside those of passages
THEIRS = "original in transformers"
CODE = (PACKAGE / "attention", PACKAGE / "model", Path(__file__), Path(passages.__file__))
Lines = list[dict[str, str]]  # of a table, cells by column


def named_model(word: str) -> tuple[str, Path]:
    """NAME=CHECKPOINT, as an argparse type."""
    name, _, place = word.partition("=")
    if not (place and VARIANT.fullmatch(name)):
        raise ArgumentTypeError(f"{word} is not allowed: it must be NAME=CHECKPOINT, without . / | in the name")
    return name, Path(place)


NOT = "not measured"
FLAGS = {
    "model": Flag("checkpoints; the first is the original", named_model, "NAME=CHECKPOINT", several=True),
    "glue": Flag("has STS-B and SST-2: short texts", Path, "DIR", shown=NOT),
    "imdb": Flag("archive or folder: reviews as long as the original reads", metavar="SOURCE", shown=NOT),
    "books": Flag("valid and test, a blank line after each book: passages", Path, "FILE", several=True, shown=NOT),
    "python": Flag("passages of Python's standard library", switch=True),
    "passages": Flag("of each kind and length, at most", count, default=400),
    "split": Flag("whose passages are reported", metavar=None, choices=("valid", "test"), default="test"),
    "cost": Flag("numbers of threads: time and memory with each", count, several=True, shown=NOT),
    "transformers": Flag("the original in transformers, whose cost is measured beside it", Path, "DIR", shown=NOT),
}


class SentenceEncoder:
    """A checkpoint with the pooling that it carries; without one it is the mean.

    Attributes:
        longest: n.
        made_of: what its embeddings depend on, the texts aside.

    Raises:
        OSError: it is not there.
        UserError: it cannot be read, or pools in a way that is not known.
    """

    def __init__(self, name: str, checkpoint: Path, device: str):
        file = checkpoint_file(checkpoint)
        state = read_checkpoint(file)
        modules = read_task_state(state.get("task_state"))["sentence_modules"]
        self.name, self.device, self.pooling = name, device, pooling_of(modules)
        hub = LinformerRobertaModel.from_pretrained(str(file.parent), file.name)
        self.model, self.longest = hub.model.eval().to(device), int(hub.model.args.max_positions)
        self.folder = data_folder(file, state["cfg"])
        self.vocabulary = digest_vocabulary(hub.task.source_dictionary, self.folder)
        self.made_of = {"model": digest_file(file), "code": code_digest(CODE), "torch": torch.__version__}

    @torch.no_grad()
    def embed(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """N rows of at most n - 2 pieces to (N, d), each of length 1. A batch has rows of one length: no padding."""
        by_length: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            by_length.setdefault(len(row) + MARKS, []).append(number)
        batches = [
            own[start : start + max(1, BATCH // length)]
            for length, own in sorted(by_length.items())
            for start in range(0, len(own), max(1, BATCH // length))
        ]
        found: dict[int, np.ndarray] = {}
        for batch in tqdm(batches, unit="batch", disable=None, desc=self.name, leave=False):
            tokens = torch.tensor(np.array([[BEGIN, *rows[number], END] for number in batch]), device=self.device)
            features = self.model(tokens, features_only=True)[0]
            vectors = pooled(features.double(), torch.ones_like(tokens, dtype=torch.bool), self.pooling)
            found.update(zip(batch, vectors.cpu().numpy(), strict=True))
        return np.stack([found[number] for number in range(len(rows))])


def neighbours(embeddings: np.ndarray) -> list[int]:
    """The nearest other text of each, by cosine."""
    cosines = embeddings @ embeddings.T
    np.fill_diagonal(cosines, -np.inf)
    numbers: list[int] = cosines.argmax(1).tolist()
    return numbers


def mean_of(values: Iterable[float], form: str = ".3f") -> str:
    """The mean, and its 95 % interval over resampled values."""
    own = np.array(list(values), dtype=float)
    drawn = own[np.random.default_rng(SEED).integers(len(own), size=(RESAMPLED, len(own)))].mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{own.mean():{form}} ({low:{form}} to {high:{form}})"


def percent_of(own: Iterable[int], others: Iterable[int]) -> str:
    """How many are the same."""
    return mean_of((100.0 * (one == other) for one, other in zip(own, others, strict=True)), ".1f")


class Measurement:
    """Encoders of one vocabulary, the first of which is the original, and a store of what each was found to do.

    Raises:
        OSError, UserError: as ``SentenceEncoder`` and ``Store``, or the vocabularies differ.
    """

    def __init__(self, options: Namespace, store: Store):
        self.options, self.store = options, store
        self.encoders = [SentenceEncoder(name, place, options.device) for name, place in options.model]
        self.original = self.encoders[0]
        for own in self.encoders:
            same = own.vocabulary == self.original.vocabulary
            check("model", own.name, same, f"of the same vocabulary as {self.original.name}")
        self.tokenizer = load_tokenizer(self.original.folder)

    def each(self, name: str, rows: Sequence[np.ndarray], compute: Callable[[SentenceEncoder], Any]) -> dict[str, Any]:
        """What is computed of each encoder, by its name, unless that was done."""
        texts = digest([row.tolist() for row in rows])
        return {
            own.name: self.store.once(f"{name}/{own.name}", {**own.made_of, "rows": texts}, partial(compute, own))
            for own in self.encoders
        }

    def short_texts(self) -> Lines:
        """STS-B's dev, Spearman's correlation x 100; sentences of SST-2's dev, then train: the same neighbours."""
        pairs = list(read_glue(self.options.glue, "STS-B")["valid"].examples)
        sst = read_glue(self.options.glue, "SST-2")
        rows = (str(own.text) for split in ("valid", "train") for own in sst[split].examples)
        sentences = list(itertools.islice(dict.fromkeys(rows), SENTENCES))
        texts = [*(str(own.text) for own in pairs), *(str(own.second) for own in pairs), *sentences]
        encoded = [row[: self.original.longest - MARKS] for row in self.tokenizer.encode(texts)]

        def compute(encoder: SentenceEncoder) -> dict[str, Any]:
            first, second, others = np.split(encoder.embed(encoded), [len(pairs), 2 * len(pairs)])
            return {"cosines": (first * second).sum(1).tolist(), "neighbours": neighbours(others)}

        found = self.each("short", encoded, compute)
        scores = [float(str(own.label)) for own in pairs]  # here: what is kept belongs to texts, not to their labels
        usual = found[self.original.name]["neighbours"]
        return [
            {
                "model": name,
                "STS-B": f"{100 * spearmanr(own['cosines'], scores)[0]:.2f}",
                "SST-2, % same": percent_of(own["neighbours"], usual),
            }
            for name, own in found.items()
        ]

    def reviews(self) -> Lines:
        """Reviews of IMDB's test: the cosine to the original's embedding, and the same neighbours."""
        longest = self.original.longest
        with imdb_folder(self.options.imdb) as folder:
            texts = [str(own.text) for own in read_imdb(folder)["valid"].examples]
        long = [row[: longest - MARKS] for row in self.tokenizer.encode(texts) if len(row) + MARKS >= LEAST_REVIEW]
        check("imdb", self.options.imdb, len(long) > 1, f"reviews, some of {LEAST_REVIEW} tokens")
        rows = [long[place] for place in np.linspace(0, len(long) - 1, min(REVIEWS, len(long))).astype(int)]
        kept = self.each("reviews", rows, lambda encoder: encoder.embed(rows).round(6).tolist())
        found = {name: np.array(own) for name, own in kept.items()}
        usual = found[self.original.name]
        return [
            {
                "model": name,
                f"{len(rows)} reviews: cosine": mean_of((own * usual).sum(1)),
                "% same neighbour": percent_of(neighbours(own), neighbours(usual)),
            }
            for name, own in found.items()
        ]

    def retrieval(self, kind: str, length: int) -> Lines:
        """Passages of that many tokens, by books or Python's modules."""
        splits = {split: self._passages(kind, split, length) for split in {"valid", self.options.split}}
        reported = splits[self.options.split]
        found: dict[str, list[int]] = {}

        def compute(encoder: SentenceEncoder) -> dict[str, list[int]]:
            half, whole = encoder.longest // 2, encoder.longest
            sizes = [length] if whole >= length else [half, whole]
            return {how: ranks for size in sizes for how, ranks in chunk_ranks(encoder, reported, size).items()}

        rows = [*reported.queries, *reported.passages]
        for name, own in self.each(f"{kind}{length}", rows, compute).items():
            found |= {f"{name}, {how}": ranks for how, ranks in own.items()}
        found |= word_ranks(splits["valid"], reported, self.tokenizer)
        return [
            {
                f"{len(reported.queries)} passages": name,
                "MRR@10": mean_of(reciprocals(ranks)),
                "first, %": mean_of((100.0 * (rank == 1) for rank in ranks), ".1f"),
            }
            for name, ranks in found.items()
        ]

    def _passages(self, kind: str, split: str, length: int) -> Passages:
        if kind == "python":
            return find_passages(module_blocks(split, self.tokenizer), length - MARKS, self.options.passages)
        file = self.options.books[split == "test"]
        return find_passages(book_blocks(file, self.tokenizer), length - MARKS, self.options.passages)

    def cost(self) -> Lines:
        """Time and memory for one text, all models in turns."""
        machine, lengths = Machine(self.options.device, "float32"), sorted({*SHORT, *self.options.lengths})
        models: dict[str, Callable[[Tensor], Any]]
        models = {own.name: partial(own.model, features_only=True) for own in self.encoders}
        longest = {own.name: own.longest for own in self.encoders}
        made_of: dict[str, Any] = {own.name: own.made_of for own in self.encoders}
        if self.options.transformers:
            models[THEIRS] = theirs = in_transformers(self.options.transformers, lengths[-1]).to(machine.device)
            made_of[THEIRS] = theirs.config.to_json_string()  # which has the version of transformers, too
        cases = [(name, n) for n in lengths for name in models if longest.get(name, n) >= n]
        draw = torch.Generator().manual_seed(SEED)
        rows = {n: torch.randint(4, len(self.tokenizer.dictionary), (1, n), generator=draw) for n in lengths}
        calls = {
            f"{name} {n} {threads}": partial(forward, models[name], rows[n].to(machine.device), threads, machine)
            for threads in self.options.cost
            for name, n in cases
        }

        def measure() -> dict[str, Any]:
            in_turns(calls, rounds=1)  # to warm up
            times = {name: spread(seconds) for name, seconds in in_turns(calls, self.options.rounds).items()}
            return {name: {**own, "MiB": machine.peak_memory(calls[name])} for name, own in times.items()}

        before = torch.get_num_threads()
        about = {**machine.describe(), "rounds": self.options.rounds, "calls": [*calls]}
        found = self.store.once("cost", {**about, **made_of}, measure)
        torch.set_num_threads(before)
        times = {f"ms, threads: {threads}": threads for threads in self.options.cost}
        return [
            {
                "n": f"{n:,}",
                "model": name,
                **{title: milliseconds(found[f"{name} {n} {threads}"]) for title, threads in times.items()},
                "MiB": f"{found[f'{name} {n} {self.options.cost[0]}']['MiB']:.0f}",
            }
            for name, n in cases
        ]


def chunk_ranks(encoder: SentenceEncoder, data: Passages, size: int) -> dict[str, list[int]]:
    """Ranks by what is made of a passage with `size` tokens at a time: its first ones, or chunks of equal lengths."""
    pieces = size - MARKS
    queries = encoder.embed([query[:pieces] for query in data.queries])
    chunks = -(-len(data.passages[0]) // pieces)
    parts = [np.array_split(own, chunks) if chunks > 1 else [] for own in data.passages]
    rows = [row for own, more in zip(data.passages, parts, strict=True) for row in (own[:pieces], *more)]
    found = encoder.embed(rows).reshape(len(queries), -1, queries.shape[1])
    ranks = {f"first {size:,}": ranks_of(queries @ found[:, 0].T)}
    if chunks > 1:
        means = found[:, 1:].mean(1)
        means /= np.linalg.norm(means, axis=-1, keepdims=True)
        ranks[f"mean of chunks of {size:,}"] = ranks_of(queries @ means.T)
        ranks[f"best of chunks of {size:,}"] = ranks_of(np.einsum("qd,ncd->qnc", queries, found[:, 1:]).max(2))
    return ranks


def in_transformers(folder: Path, longest: int) -> Any:
    """A model of transformers that reads `longest` tokens, with random weights."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(folder, max_position_embeddings=longest + 2)  # RoBERTa's start at 2
    return AutoModel.from_config(config).eval()


@torch.no_grad()
def forward(model: Callable[[Tensor], Any], tokens: Tensor, threads: int, machine: Machine) -> None:
    """One text, (1, n), with so many threads."""
    torch.set_num_threads(threads)
    model(tokens)
    machine.finish()


def measure_sentences(options: Namespace) -> str:
    """Measures what is asked for and was not measured yet, and writes results.json and results.md.

    Returns:
        The tables.

    Raises:
        OSError, UserError: a checkpoint or a text is not there or cannot be read, or the options ask for nothing.
    """
    names = [name for name, _ in options.model]
    check("model", " ".join(names), len(names) == len({*names}), "NAME=CHECKPOINT with each name once")
    check("books", options.books, options.books is None or len(options.books) == 2, "two files, of valid and test")
    kinds = [kind for kind in ("books", "python") if getattr(options, kind)]
    if not (options.glue or options.imdb or kinds or options.cost):
        raise UserError("name what is to be measured: --glue, --imdb, --books, --python or --cost")
    store = Store(options.out, {"study": "sentences"})
    own = Measurement(options, store)
    store.begin()
    tables = dict(measured(own, kinds))
    as_text = (table({name: itemgetter(name) for name in lines[0]}, lines) for lines in tables.values())
    text = "\n\n".join(itertools.chain.from_iterable(zip(tables, as_text, strict=True)))
    about = {"machine": Machine(options.device, "float32").describe(), "options": vars(options)}
    content = {**about, "models": {one.name: one.made_of for one in own.encoders}, "tables": tables}
    write_whole(options.out / "results.json", json.dumps(content, indent=1, default=str) + "\n")
    write_whole(options.out / "results.md", f"{text}\n")
    return f"{text}\n\nresults.json, results.md: {options.out}"


def measured(own: Measurement, kinds: Sequence[str]) -> Iterator[tuple[str, Lines]]:
    """The tables that are asked for, by title."""
    options = own.options
    if options.glue:
        yield "Short texts", own.short_texts()
    if options.imdb:
        yield f"IMDB, n = {own.original.longest:,}", own.reviews()
    for kind, length in itertools.product(kinds, options.lengths):
        yield f"{kind}, {options.split}, passages of {length:,} tokens", own.retrieval(kind, length)
    if options.cost:
        yield "Cost of a text", own.cost()
